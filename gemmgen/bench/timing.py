"""Device time of interleaved calls with a cold L2, from the profiler's kernel records."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

from ..errors import GemmgenError
from ..runtime.torch_tensors import torch

FLUSH_BYTES = 256 << 20  # more than twice an H200's L2
FLUSH_KERNEL = "bitwise_not"  # the one kernel a flush runs; no GEMM has it
WARMUP = 3


@dataclass(frozen=True, kw_only=True)
class Samples:
    """One provider's device times in seconds, in the order they ran, and the kernels it launched."""

    seconds: tuple[float, ...]
    kernels: tuple[str, ...]

    @property
    def median(self) -> float:
        return median(self.seconds)

    @property
    def spread(self) -> float:
        """Interquartile range over the median."""
        ordered = sorted(self.seconds)
        quarter = len(ordered) // 4
        return (ordered[-1 - quarter] - ordered[quarter]) / self.median


def interleave(calls: Mapping[str, Callable[[], Any]], repeats: int) -> dict[str, Samples]:
    """Run every call in turn, `repeats` rounds, each after a flush of the L2.

    The time of a call is the sum of its kernels' durations. Raises GemmgenError if the profiler saw
    another number of calls than were made.
    """
    flush = torch().empty(FLUSH_BYTES // 4, dtype=torch().int32, device="cuda")
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
    return {name: _samples(name, order, segments) for name in calls}


def _segments(profile: Any) -> list[list[Any]]:
    """The kernels between one flush and the next."""
    cuda = torch().autograd.DeviceType.CUDA
    events = [e for e in profile.events() if e.device_type == cuda]
    segments: list[list[Any]] = []
    for e in sorted(events, key=lambda e: e.time_range.start):
        if FLUSH_KERNEL in e.name:
            segments.append([])
        elif segments:
            segments[-1].append(e)
    return segments


def _samples(name: str, order: list[str], segments: list[list[Any]]) -> Samples:
    mine = [s for n, s in zip(order, segments, strict=True) if n == name]
    seconds = tuple(sum(e.time_range.elapsed_us() for e in s) * 1e-6 for s in mine)
    if not all(seconds):
        raise GemmgenError(f"{name}: a call left no kernel in the profile")
    return Samples(seconds=seconds, kernels=tuple(dict.fromkeys(e.name for s in mine for e in s)))
