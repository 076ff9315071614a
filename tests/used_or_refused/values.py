"""What calls in Python are drawn from: values right and wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st

from gemmgen.config import Config

JUNK = st.sampled_from(
    [None, True, False, 0, -1, 3, 1.5, float("nan"), 10**30, "", "zz", "²", b"x", (), [], {}, [1], (1, 2, 3), object, np.int64(64), np.float32(2)]
)  # fmt: skip


@dataclass(frozen=True)
class Call:
    """function: its name. given: its arguments. bound: whether `bind` makes a launch of it first."""

    function: str
    given: dict[str, Any]
    bound: bool = False


def mostly(right: st.SearchStrategy[Any], odd: int = 6) -> st.SearchStrategy[Any]:
    return st.integers(0, odd).flatmap(lambda n: right if n else JUNK)


def some(fields: dict[str, st.SearchStrategy[Any]], **always: st.SearchStrategy[Any]) -> Any:
    return st.fixed_dictionaries(always, optional=fields)


@dataclass(frozen=True, kw_only=True)
class Function:
    """call: whose signature says what can be given. drawn: what is given, a part of `names`. ignored: makes the call and
    names what was given and is not to be seen of it."""

    call: Callable[..., Any]
    names: tuple[str, ...]
    drawn: st.SearchStrategy[dict[str, Any]]
    ignored: Callable[[dict[str, Any]], list[str]]


def function(
    call: Callable[..., Any],
    ignored: Callable[[dict[str, Any]], list[str]],
    maybe: dict[str, st.SearchStrategy[Any]],
    **always: st.SearchStrategy[Any],
) -> Function:
    drawn = some(maybe, **always)
    return Function(call=call, names=(*always, *maybe), drawn=drawn, ignored=ignored)


CONFIG = st.sampled_from(
    [
        Config(),
        Config(stages=2),
        Config(block_m=64, consumers=1),
        Config(stages=16),
        Config(block_n=256, stages=3),
    ]
)
