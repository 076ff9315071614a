"""Device time of interleaved calls, from the profiler's kernel records."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import index
from statistics import median
from typing import Any

from ..errors import ArgumentError, GemmgenError, RuntimeUnavailable
from ..runtime.torch_tensors import torch
from .clocks import Clocks
from .identity import heaviest
from .noise import iqr, spread

FLUSH_BYTES = 256 << 20  # more than twice an H200's L2
MARK_BYTES = 4  # flushes nothing, and still tells one call from the next
FLUSH_KERNEL = "bitwise_not"  # the one kernel a flush runs; no GEMM has it
FLUSHED = {"flush": FLUSH_BYTES, "warm": MARK_BYTES}  # before each call
WARMUP = 3
MOST = 1 << 16  # calls of `do_bench`: the profiler keeps records of all


@dataclass(frozen=True, kw_only=True)
class Timed:
    """A kernel, or a copy or a fill of the driver's, how long it ran, and when it began, from the call's first one on."""

    kernel: str
    seconds: float
    start: float = 0.0


Run = tuple[Timed, ...]  # what one call launched, in order


@dataclass(frozen=True, kw_only=True)
class Samples:
    """One provider's times of a call in seconds, in the order they ran, and the kernels it launched; main:
    the one it spends most of its time in. clocks: of the device meanwhile, if known."""

    seconds: tuple[float, ...]
    kernels: tuple[str, ...]
    main: str = ""
    clocks: Clocks | None = None

    @property
    def median(self) -> float:
        return median(self.seconds)

    @property
    def iqr(self) -> float:
        """Interquartile range in seconds."""
        return iqr(self.seconds)

    @property
    def spread(self) -> float:
        """Interquartile range over the median."""
        return spread(self.seconds)


def do_bench(fn: Callable[[], Any], *, repeats: int = 15, l2: str = "flush") -> Samples:
    """The device time of `fn()` on torch's current stream, as `gemmgen bench` measures it: `seconds` of each of
    `repeats` calls, their `median` and `iqr` (interquartile range) in seconds, `spread` (the one over the other) and
    the names of the `kernels` that it launched.

    fn: works on torch CUDA tensors of the current device, and launches at least one kernel. A call's time is the sum of its kernels' durations in the
    profiler's records: neither launches nor the host count. It is called three times beforehand. l2: "flush": before
    every call 256 MiB are overwritten, so that nothing it reads is in the L2; "warm": what the call before has left there stays.

    Raises ArgumentError naming the argument; RuntimeUnavailable without torch or a GPU; GemmgenError if a call left
    no kernel in the profile.
    """
    if not callable(fn):
        raise ArgumentError("fn", fn, "must be a function without arguments")
    if isinstance(repeats, bool) or not hasattr(repeats, "__index__") or not 1 <= repeats <= MOST:
        raise ArgumentError("repeats", repeats, f"must be an integer from 1 to {MOST}")
    if not isinstance(l2, str) or l2 not in FLUSHED:
        raise ArgumentError("l2", l2, f"must be one of {', '.join(FLUSHED)}")
    if not torch().cuda.is_available():
        raise RuntimeUnavailable("torch finds no CUDA device: do_bench times what runs on one")
    return interleave({"fn": fn}, index(repeats), FLUSHED[l2])["fn"]


def interleave(
    calls: Mapping[str, Callable[[], Any]], repeats: int, flush_bytes: int = FLUSH_BYTES
) -> dict[str, Samples]:
    """Run every call in turn, `repeats` rounds, each after `flush_bytes` of the L2 are overwritten.

    The time of a call is the sum of its kernels' durations; which calls these are is told by the order, so that
    calls may share a kernel's name, as tuning's candidates may. Raises GemmgenError if the profiler saw
    another number of calls than were made.
    """
    found = recorded(calls, repeats, flush_bytes)
    return {name: samples(name, runs) for name, runs in found.items()}


def recorded(
    calls: Mapping[str, Callable[[], Any]], repeats: int, flush_bytes: int = FLUSH_BYTES
) -> dict[str, list[Run]]:
    """What `interleave` times: of every call, what each time it ran launched. Raises as that."""
    flush = torch().empty(flush_bytes // 4, dtype=torch().int32, device="cuda")
    for call in [*calls.values()] * WARMUP:
        call()
    torch().cuda.synchronize()
    order = [*calls] * repeats
    activities = [torch().profiler.ProfilerActivity.CUDA]
    with torch().profiler.profile(activities=activities, acc_events=True) as profile:
        for name in order:
            flush.bitwise_not_()
            calls[name]()
        torch().cuda.synchronize()
    segments = _segments(profile)
    if len(segments) != len(order):
        raise GemmgenError(f"the profiler recorded {len(segments)} of {len(order)} calls")
    return {name: [s for n, s in zip(order, segments, strict=True) if n == name] for name in calls}


def samples(name: str, runs: Sequence[Run]) -> Samples:
    """Of the call of that name. Raises GemmgenError if one launched nothing."""
    seconds = tuple(sum(x.seconds for x in run) for run in runs)
    if not all(seconds):
        raise GemmgenError(f"{name}: a call left no kernel in the profile")
    total: dict[str, float] = {}
    for x in (x for run in runs for x in run):
        total[x.kernel] = total.get(x.kernel, 0.0) + x.seconds
    return Samples(seconds=seconds, kernels=tuple(total), main=heaviest(total))


def launches(name: str, runs: Sequence[Run]) -> Run:
    """What each run of the call of that name launched, in order, with medians of their seconds and starts. Raises GemmgenError if
    they launched different kernels."""
    order = [x.kernel for x in runs[0]]
    if any([x.kernel for x in run] != order for run in runs):
        raise GemmgenError(f"{name}: not every call launched the same kernels")
    return tuple(
        Timed(
            kernel=kernel,
            seconds=median(run[i].seconds for run in runs),
            start=median(run[i].start for run in runs),
        )
        for i, kernel in enumerate(order)
    )


def _segments(profile: Any) -> list[Run]:
    """The kernels between one flush and the next."""
    cuda = torch().autograd.DeviceType.CUDA
    events = [e for e in profile.events() if e.device_type == cuda]
    segments: list[list[Timed]] = []
    first = 0.0
    for e in sorted(events, key=lambda e: e.time_range.start):
        if FLUSH_KERNEL in e.name:
            segments.append([])
        elif segments:
            begun, took = e.time_range.start * 1e-6, e.time_range.elapsed_us() * 1e-6
            first = first if segments[-1] else begun
            segments[-1].append(Timed(kernel=e.name, seconds=took, start=begun - first))
    return [tuple(s) for s in segments]
