"""`deep_gemm.testing.utils`: which GPU this is, and decorators of tests."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any, ParamSpec

from gemmgen.runtime.torch_tensors import torch

P = ParamSpec("P")

__all__ = ["get_arch_major", "ignore_env", "test_filter"]


def get_arch_major() -> int:
    """The first number of the compute capability of torch's current device: 9 on Hopper."""
    return int(torch().cuda.get_device_capability()[0])


def test_filter(condition: Callable[[], Any]) -> Callable[[Callable[P, Any]], Callable[P, None]]:
    """Of a test: it runs where `condition()` is true, else says that it does not."""

    def decorated(test: Callable[P, Any]) -> Callable[P, None]:
        @functools.wraps(test)
        def run(*args: P.args, **kwargs: P.kwargs) -> None:
            if condition():
                test(*args, **kwargs)
            else:
                print(f"{test.__name__}: left out, its condition does not hold")

        return run

    return decorated


test_filter.__test__ = False  # type: ignore[attr-defined]  # not a test that pytest collects


def ignore_env(
    name: str, condition: Callable[[], Any]
) -> Callable[[Callable[P, Any]], Callable[P, None]]:
    """Of a function: where `condition()` is true it runs without the environment variable `name`."""

    def decorated(function: Callable[P, Any]) -> Callable[P, None]:
        @functools.wraps(function)
        def run(*args: P.args, **kwargs: P.kwargs) -> None:
            held = os.environ.pop(name, None) if condition() else None
            try:
                function(*args, **kwargs)
            finally:
                if held is not None:
                    os.environ[name] = held

        return run

    return decorated
