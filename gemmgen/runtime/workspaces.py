"""Workspaces by which CTAs hand sums over: zero before a launch, and but for the sums zero again after it.

Launches that follow each other on a stream share one. A CUDA graph may be replayed beside what is launched elsewhere, so
each capture has its own, whose zeroing is part of the graph.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any

from ..ir.launchable import Launchable
from . import driver
from .launch import partials_bytes
from .torch_tensors import stream_reader, torch

OUTSIDE = 0  # of any capture


def zeroed(kernel: Launchable, ctas: int, device: Any) -> Any:
    """A new one for launches of up to `ctas` CTAs, uint8 on torch's `device`, zeroed on its current stream."""
    size = partials_bytes(kernel, ctas)
    return torch().zeros(size, dtype=torch().uint8, device=device)


@dataclass(frozen=True, kw_only=True)
class Workspaces:
    """One for each stream, layout and number of CTAs; of captures on a stream the last one's. Thread-safe: who uses one
    stream from two threads orders its launches."""

    _kept: dict[tuple[Any, ...], tuple[int, Any]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def of(self, kernel: Launchable, ctas: int, device: Any) -> Any:
        """That of `device`'s current stream, as `zeroed` returns it."""
        stream = stream_reader()(device.index)
        capture = _capture(stream)
        key = device.index, stream, capture != OUTSIDE, kernel.workspace, ctas
        with self._lock:
            of, found = self._kept.get(key, (OUTSIDE, None))
            if found is None or of != capture:
                found = zeroed(kernel, ctas, device)
                self._kept[key] = capture, found
        return found


WORKSPACES = Workspaces()


def _capture(stream: int) -> int:
    """The number of the capture that `stream` is in."""
    if not torch().cuda.is_current_stream_capturing():
        return OUTSIDE
    _, number, *_ = driver.call("cuStreamGetCaptureInfo", driver.driver().CUstream(stream))
    return int(number)
