"""GEMMs of several GPUs that add their sums up in one launch (docs/adr/0049-reduce-scatter.md)."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from ..config import Config
from ..errors import ArgumentError
from ..ir.collectives import MOST_RANKS
from ..ir.expr import fold
from ..problem import Problem, Shape
from ..runtime.launch import LoadedKernel, Plan
from ..runtime.peers import Mailbox as Layout
from ..runtime.peers import mailbox
from ..runtime.peers import mailbox_bytes as mailbox_bytes
from ..runtime.torch_tensors import current_stream, torch
from . import building, by_row
from .calls import matrix, operand_shape, output_of
from .compute import Scales, read_by_epilogue, scales_of
from .epilogue import epilogue_values
from .front import Fresh

COLLECTIVE = "reduce_scatter"


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


@dataclass(frozen=True, kw_only=True)
class InProcess:
    """The same of one process: a CUDA tensor of each device, which can access each other's memory
    (torch enables that with the first copy between them, CUDA by cuCtxEnablePeerAccess)."""

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


class Mailbox:
    """This rank's end of all ranks' mailboxes, and the number of its next launch.

    memory: all of it zero on every rank before the first launch of any, and used by nothing else. `mailbox_bytes(m, n, ranks)` says how
    much launches need. device: the CUDA device of this rank. All ranks must launch the same kernels over the same shapes in the same
    order, each on one stream. Not in a CUDA graph: a replayed launch would have an old number.
    """

    def __init__(self, memory: SymmetricMemory, device: Any) -> None:
        self.rank, self.ranks = int(memory.rank), int(memory.world_size)
        if not 2 <= self.ranks <= MOST_RANKS:
            raise ArgumentError("memory ranks", self.ranks, f"must be 2 to {MOST_RANKS}")
        if not 0 <= self.rank < self.ranks or len(memory.buffer_ptrs) != self.ranks:
            raise ArgumentError(
                "memory rank", self.rank, f"must be one of {self.ranks}, with an address of each"
            )
        self.layout = Layout.of(int(memory.buffer_size), self.ranks)
        self.memory = memory  # kept alive
        self.device = torch().device(device)
        addresses = [int(x) for x in memory.buffer_ptrs]
        self.table = torch().tensor(addresses, dtype=torch().int64, device=self.device)
        self.epoch = 0  # of the last launch
        self.lock = threading.Lock()


class ReduceScatter:
    """`out[M, N] = epilogue(sum over ranks of A @ B)`, the rows rank * M on of it, in one launch of each rank, which `launch` starts
    as often as one likes, over what the tensors then hold.

    problem: without a grouping, and no FP8 output. a [ranks * M, K], b [N, K]: of this rank's own K, as the problem's layout
    stores them. scale_a, scale_b, scale_layout: as of `gemmgen.ops.multiply`, but nothing is copied: layout "row" takes a config
    with `lane_scales`. out: [M, N], allocated if None. arguments: what the epilogue reads, of this rank's M rows. config: the
    same on all ranks; None lets the cost model choose, as for the plain GEMM of one rank. M: a multiple of 4 where A has
    scales, of 16 bytes where A is stored [K, M]. The sums of all ranks are added in FP32 (INT32), this rank's first, then
    those of the ranks behind it. Raises as `gemmgen.ops.multiply`.
    """

    def __init__(
        self,
        problem: Problem,
        memory: Mailbox,
        a: Any,
        b: Any,
        out: Any = None,
        *,
        scale_a: Any = None,
        scale_b: Any = None,
        scale_layout: str | None = None,
        config: Config | None = None,
        **arguments: Any,
    ) -> None:
        p, self.shape = _checked(problem, memory, a, b)
        m, n, k = self.shape
        scales = Scales(a=scale_a, b=scale_b, layout=scale_layout)
        arguments |= read_by_epilogue(p, scales)
        tensors, values = scales_of(p, a, b, scales)
        out = output_of(p, (m, n // fold(p.epilogue)), out, a, b)
        out = out.tensor if isinstance(out, Fresh) else out
        extra = epilogue_values(p, self.shape, 1, arguments, a.device)
        self.kernel = _kernel(p, config, (memory.ranks * m, n, k), a.device.index)
        _check_room(memory.layout, mailbox(self.kernel.kernel, self.shape, memory.ranks))
        tensors = by_row.as_maps_read(tensors, self.kernel)
        if any(isinstance(x, Fresh) for x in tensors.values()):
            allowed = (
                "must be 'mn', or config have lane_scales: this kernel takes no copies of scales"
            )
            raise ArgumentError("scale_layout", scale_layout, allowed)
        self.out, self.mailbox, self._held = out, memory, (a, b, tensors, scale_b, arguments)
        held = {"a": a, "b": b, "d": out, **tensors}
        self._matrices = {name: matrix(t) for name, t in held.items()}
        self._values = {
            "shape_m": m,
            "shape_n": n,
            "shape_k": k,
            "groups": memory.ranks,
            **values,
            "d": out.data_ptr(),
            "d_stride": out.stride(-2),
            **extra,
            **memory.layout.values(memory.rank, 0, memory.table.data_ptr()),
        }
        self._plan: Plan | None = None

    def launch(self) -> Any:
        """Start it on torch's current stream, as this rank's next: it waits on the GPU for the other ranks. Returns `out`. Raises LaunchError, and ArgumentError while a CUDA
        graph is captured."""
        if torch().cuda.is_current_stream_capturing():
            raise ArgumentError(
                "mailbox", "a CUDA graph", "must not be captured: a replay would repeat an epoch"
            )
        box, stream = self.mailbox, current_stream(self.out.device)
        with box.lock:
            if self._plan is None or self._plan.stream != stream:
                self._plan = self.kernel.plan(self.shape, self._matrices, self._values, stream)
            names = [p.name for p in self.kernel.kernel.params]
            self._plan.scalars[names.index("epoch")].value = box.epoch + 1
            self.kernel.launch(self._plan)
            box.epoch += 1
        return self.out


def reduce_scatter(*args: Any, **kwargs: Any) -> Any:
    """Plan a `ReduceScatter` of these arguments and launch it once. Returns `out`. Raises as both."""
    return ReduceScatter(*args, **kwargs).launch()


def _checked(problem: Problem, memory: Mailbox, a: Any, b: Any) -> tuple[Problem, Shape]:
    """With its collective, and (M, N, K), M of D."""
    if not isinstance(problem, Problem):
        raise ArgumentError("problem", problem, "must be a gemmgen.Problem")
    if not isinstance(memory, Mailbox):
        raise ArgumentError("memory", memory, "must be a gemmgen.ops.ranked.Mailbox")
    if problem.quantised:
        raise ArgumentError("problem.d", problem.d.name, "must not be e4m3 here")
    p = replace(problem, collective=COLLECTIVE)
    rows, n, k = operand_shape(p, a, b)
    if a.device != memory.device:
        raise ArgumentError("a device", str(a.device), f"must be {memory.device}, the mailbox's")
    if rows % memory.ranks or not rows:
        allowed = f"must be a positive multiple of {memory.ranks}, the ranks"
        raise ArgumentError("a rows", rows, allowed)
    return p, (rows // memory.ranks, n, k)


def _kernel(p: Problem, config: Config | None, shape: Shape, device: int) -> LoadedKernel:
    """Every rank has to make the same choice: it is that of one GPU's part of the GEMM."""
    if config is None:
        return building.loaded_choice(p, shape, 1, device, 1)
    if not isinstance(config, Config):
        raise ArgumentError("config", config, "must be a gemmgen.Config or None")
    return building.given(p, config, device)


def _check_room(has: Layout, needs: Layout) -> None:
    if not has.holds(needs):
        allowed = (
            f"must have room for {needs.flags} flags and {needs.words} words: see mailbox_bytes"
        )
        raise ArgumentError("memory", (has.flags, has.words), allowed)
