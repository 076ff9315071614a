"""`deep_gemm.testing.bench`: how long a call takes on the GPU."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gemmgen.errors import ArgumentError
from gemmgen.runtime.torch_tensors import torch

__all__ = ["bench", "bench_kineto", "empty_suppress", "suppress_stdout_stderr"]

FLUSH_BYTES = 256 << 20  # more than twice an H200's L2
BUSY = 8192  # the sides of a product that takes longer than a launch


def bench(
    fn: Callable[[], Any], num_warmups: int = 5, num_tests: int = 10, high_precision: bool = False
) -> float:
    """Seconds per call of `fn`, in the mean of `num_tests` in a row between two CUDA events, after
    `num_warmups`. high_precision: behind a large product, so that the host is ahead of the GPU."""
    for _ in range(num_warmups):
        fn()
    _flush()
    if high_precision:
        x = torch().ones((BUSY, BUSY), dtype=torch().float32, device="cuda")
        x @ x
    return _between(lambda: [fn() for _ in range(num_tests)]) / num_tests


def bench_kineto(
    fn: Callable[[], Any],
    kernel_names: str | tuple[str, ...],
    num_tests: int = 30,
    suppress_kineto_output: bool = False,
    trace_path: str | None = None,
    flush_l2: bool = True,
    with_multiple_kernels: bool = False,
    barrier: Callable[[], Any] | None = None,
) -> float | tuple[float, ...]:
    """Seconds per call of `fn`, in the mean of `num_tests`, each between two CUDA events; flush_l2: each after
    the L2 is overwritten. barrier: called before each.

    kernel_names say how many times there are, not whose: kernels here have other names. Of several times the
    first is that of the whole call, the others are 0, so that their sum is what it is in DeepGEMM.
    suppress_kineto_output, with_multiple_kernels: of no effect. trace_path: None, no profiler runs.
    """
    if trace_path is not None:
        allowed = "must be None: times are those of CUDA events, there is no trace"
        raise ArgumentError("trace_path", trace_path, allowed)
    if not isinstance(kernel_names, str | tuple):
        raise ArgumentError("kernel_names", kernel_names, "must be a string or a tuple of strings")
    fn()
    total = 0.0
    for _ in range(num_tests):
        if flush_l2:
            _flush()
        if barrier is not None:
            barrier()
        total += _between(fn)
    mean = total / num_tests
    if isinstance(kernel_names, str):
        return mean
    return tuple(mean if i == 0 else 0.0 for i in range(len(kernel_names)))


def _flush() -> None:
    """Overwrite the L2; the GPU is busy while the host launches what is timed."""
    torch().empty(FLUSH_BYTES // 4, dtype=torch().int32, device="cuda").zero_()


def _between(call: Callable[[], Any]) -> float:
    """Seconds between an event before the call and one after it."""
    first, last = (torch().cuda.Event(enable_timing=True) for _ in range(2))
    first.record()
    call()
    last.record()
    last.synchronize()
    return float(first.elapsed_time(last)) * 1e-3


@contextmanager
def empty_suppress() -> Iterator[None]:
    """Nothing is suppressed."""
    yield


@contextmanager
def suppress_stdout_stderr() -> Iterator[None]:
    """What the process writes to its standard output and errors goes nowhere."""
    streams, held = (sys.stdout, sys.stderr), []
    with Path(os.devnull).open("w") as nowhere:
        for stream in streams:
            stream.flush()
            held.append(os.dup(stream.fileno()))
            os.dup2(nowhere.fileno(), stream.fileno())
        try:
            yield
        finally:
            for stream, kept in zip(streams, held, strict=True):
                stream.flush()
                os.dup2(kept, stream.fileno())
                os.close(kept)
