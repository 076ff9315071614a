"""What the functions of several GPUs share: memory that all of them can access, and what is checked."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from ..config import Config
from ..errors import ArgumentError
from ..ir.collectives import MOST_RANKS
from ..ir.dtypes import F32
from ..problem import Problem, Shape
from ..recipes import recipe
from ..runtime import driver
from ..runtime.launch import LoadedKernel, Plan
from ..runtime.peers import LINE
from ..runtime.torch_tensors import torch
from ..target import Target
from . import building, by_row
from .front import Fresh


class SymmetricMemory(Protocol):
    """Memory of the same size on every rank, that all of them can access: what
    `torch.distributed._symmetric_memory.rendezvous` returns is such."""

    @property
    def rank(self) -> int: ...
    @property
    def world_size(self) -> int: ...
    @property
    def buffer_ptrs(self) -> Sequence[int]:
        """By rank, its address as this rank sees it."""

    @property
    def buffer_size(self) -> int:
        """Bytes of each."""

    def get_buffer(self, rank: int, sizes: Sequence[int], dtype: Any) -> Any:
        """A rank's, from its beginning, as a tensor."""


@dataclass(frozen=True, kw_only=True)
class InProcess:
    """The same of one process: a contiguous CUDA tensor of bytes of each rank's device, a GPU of its own, for launches wait for each other; that GPUs access
    each other's memory is enabled, but not of memory that torch maps piece by piece (`expandable_segments`). Plan all ranks' launches before the first of them is launched: what loads or allocates may wait for a kernel that waits
    for another rank."""

    rank: int
    tensors: tuple[Any, ...]

    @property
    def world_size(self) -> int:
        return len(self.tensors)

    @property
    def buffer_ptrs(self) -> Sequence[int]:
        return [t.data_ptr() for t in self.tensors]

    @property
    def buffer_size(self) -> int:
        return min(int(t.numel() * t.element_size()) for t in self.tensors)

    def get_buffer(self, rank: int, sizes: Sequence[int], dtype: Any) -> Any:
        (size,) = sizes
        return self.tensors[rank].view(-1).view(dtype)[:size]

    def let_access(self, device: Any) -> None:
        """Let this rank's device access all of it. Raises RuntimeUnavailable if it cannot, ArgumentError for tensors that lie elsewhere
        or in pieces, and for two on one GPU."""
        on: dict[Any, int] = {}
        for rank, t in enumerate(self.tensors):
            if not t.is_contiguous():
                raise ArgumentError(
                    f"memory strides of rank {rank}", tuple(t.stride()), "must be contiguous"
                )
            if t.device.type != "cuda" or (rank == self.rank and t.device != device):
                allowed = f"must be {device}" if rank == self.rank else "must be a CUDA device"
                raise ArgumentError(f"memory device of rank {rank}", str(t.device), allowed)
            if on.setdefault(t.device, rank) != rank:
                allowed = f"must be a GPU of its own, which rank {on[t.device]} is on"
                raise ArgumentError(f"memory device of rank {rank}", str(t.device), allowed)
        for other in sorted({int(t.device.index) for t in self.tensors} - {device.index}):
            driver.let_access(device.index, other)


class End:
    """This rank's end of memory that all ranks share."""

    def __init__(self, memory: SymmetricMemory, device: Any, least: int) -> None:
        """least: of ranks, as many as there must be."""
        self.rank, self.ranks = int(memory.rank), int(memory.world_size)
        if not least <= self.ranks <= MOST_RANKS:
            raise ArgumentError("memory ranks", self.ranks, f"must be {least} to {MOST_RANKS}")
        if not 0 <= self.rank < self.ranks or len(memory.buffer_ptrs) != self.ranks:
            raise ArgumentError(
                "memory rank", self.rank, f"must be one of {self.ranks}, with an address of each"
            )
        self.device = torch().device(device)
        if self.device.type != "cuda" or self.device.index is None:
            raise ArgumentError("device", str(device), "must be a CUDA device, with its number")
        if isinstance(memory, InProcess):
            memory.let_access(self.device)
        self.memory = memory  # kept alive
        self.addresses = tuple(int(x) for x in memory.buffer_ptrs)
        for address in self.addresses:
            if address % LINE:
                allowed = f"must begin at a multiple of {LINE} bytes"
                raise ArgumentError("memory address", hex(address), allowed)
        self.lock = threading.Lock()


_watched = False


def watch_ranks(on: bool) -> None:
    """Whether kernels of several GPUs that are chosen from now on are watched: one that waits two seconds for another rank reports whose sums or rows it
    waits for, and stops itself (`Config(watchdog=True)`). Then `wait` of a launch, or `gemmgen.torch_ops.wait`, raises DeadlockError, which names the rank; nothing
    else can be done on that GPU in this process. Off at first: a rank that is seconds late would count as one that failed. Raises ArgumentError."""
    global _watched
    if not isinstance(on, bool):
        raise ArgumentError("on", on, "must be true or false")
    _watched = on


def is_watched() -> bool:
    """What `watch_ranks` was last given."""
    return _watched


def of_collective(problem: Problem, memory: End, end: type[End], collective: str) -> Problem:
    """`problem` as one of a collective, whose launches use an `end` as `memory`. Raises ArgumentError."""
    if not isinstance(problem, Problem):
        raise ArgumentError("problem", problem, "must be a gemmgen.Problem")
    if not isinstance(memory, end):
        raise ArgumentError("memory", memory, f"must be a {end.__module__}.{end.__name__}")
    # Its launches follow each other, so they have no use for the promise of weights.
    return replace(problem, collective=collective, weights_ready=False)


def check_device(a: Any, memory: End) -> None:
    """Raise ArgumentError unless `a` is on the device of this rank."""
    if a.device != memory.device:
        allowed = f"must be {memory.device}, that of the memory that ranks share"
        raise ArgumentError("a device", str(a.device), allowed)


def kernel_of(
    p: Problem, config: Config | None, shape: Shape, ranks: int, device: int
) -> LoadedKernel:
    """shape: of one rank. Every rank has to make the same choice: it knows no rank."""
    if config is None and _watched:
        config = replace(building.chosen(p, shape, ranks, device, 1), watchdog=True)
    if config is None:
        return building.loaded_choice(p, shape, ranks, device, 1)
    if not isinstance(config, Config):
        raise ArgumentError("config", config, "must be a gemmgen.Config or None")
    return building.given(p, config, device)


def without_outbox(p: Problem, shape: Shape, ranks: int, device: int) -> LoadedKernel:
    """As `kernel_of`, of what is chosen, where no copy engine can send sums."""
    config = building.chosen(p, shape, ranks, device, 1)
    return kernel_of(p, replace(config, outbox=False, watchdog=_watched), shape, ranks, device)


def scales_in_place(
    scales: dict[str, Any], kernel: LoadedKernel, layout: str | None, allowed: str
) -> dict[str, Any]:
    """Those that `kernel` reads by tensor map, where they lie. Raises ArgumentError if that is row by row. allowed: what layouts are."""
    read = by_row.as_maps_read(scales, kernel)
    if any(isinstance(x, Fresh) for x in read.values()):
        raise ArgumentError("scale_layout", layout, f"{allowed}: it takes no copies of scales")
    return read


def numbered(kernel: LoadedKernel, plan: Plan, epoch: int) -> Plan:
    """`plan`, as the launch of that number, of a kernel that is told."""
    names = [p.name for p in kernel.kernel.params]
    plan.scalars[names.index("epoch")].value = epoch
    return plan


def capturing() -> bool:
    """Whether what is launched on torch's current stream becomes part of a CUDA graph."""
    return bool(torch().cuda.is_current_stream_capturing())


def rows_begin(p: Problem) -> int:
    """What each rank's rows must be a multiple of, where they are a part of A: so it is of every kernel (`runtime.peers.row_step`)."""
    scaled, turned = recipe(p.family).scaled, p.mn_major[0]
    sizes = (F32.bytes,) * scaled + (p.a.bytes,) * turned
    return max((Target.tma_alignment // size for size in sizes), default=1)
