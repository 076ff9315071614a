"""What the harness asks of the machine that launches: a Hopper GPU; tests put a CPU in its place."""

from __future__ import annotations

import gc
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch

from gemmgen import ops


class Gpu:
    """CUDA device 0."""

    device = "cuda"

    def function(self, name: str) -> Callable[..., Any]:
        """A public function, by its name."""
        found: Callable[..., Any] = getattr(ops, name)
        return found

    def wait(self) -> None:
        torch.cuda.synchronize()

    def streams(self, count: int) -> list[Any]:
        return [torch.cuda.Stream() for _ in range(count)]

    def on(self, stream: Any) -> AbstractContextManager[Any]:
        return torch.cuda.stream(stream)

    def captured(self, work: Callable[[], None]) -> Callable[[], None]:
        """`work` in a CUDA graph: what replays it."""
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            work()
        return graph.replay

    def held(self) -> int:
        """Bytes of device memory that this process's tensors hold."""
        gc.collect()
        torch.cuda.synchronize()
        return int(torch.cuda.memory_allocated())

    def taken(self) -> int:
        """Bytes of device memory that are not free, the driver's and other processes' included."""
        gc.collect()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        free, total = torch.cuda.mem_get_info()
        return int(total - free)
