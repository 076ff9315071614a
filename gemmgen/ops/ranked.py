"""GEMMs of several GPUs that add their sums up in one launch (docs/adr/0049-reduce-scatter.md)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, ClassVar

from ..config import Config
from ..errors import ArgumentError
from ..ir.collectives import COLLECTIVES, PARCELS, REDUCE_SCATTER, check_chunks
from ..ir.dtypes import DType
from ..ir.expr import fold
from ..problem import Problem, Shape
from ..runtime.launch import LoadedKernel, Plan
from ..runtime.outbox import parcels
from ..runtime.peers import Mailbox as Layout
from ..runtime.peers import mailbox
from ..runtime.peers import mailbox_bytes as mailbox_bytes
from ..runtime.sender import Job, ParcelSender, job, writes_flags
from ..runtime.tensor_map import Matrix
from ..runtime.torch_tensors import current_stream, torch
from .calls import matrix, operand_shape
from .collective import (
    End,
    SymmetricMemory,
    capturing,
    check_device,
    kernel_of,
    of_collective,
    scales_in_place,
    without_outbox,
)
from .collective import InProcess as InProcess
from .compute import Scales, read_by_epilogue, scales_of
from .epilogue import epilogue_values
from .front import tensor_of
from .outputs import output_of, stores
from .results import planned

LAYOUTS = "must be 'mn', or config have lane_scales"


class Mailbox(End):
    """This rank's end of all ranks' mailboxes, by which its launches are numbered, too.

    memory: all of it zero on every rank before the first launch of any, and used by nothing else. `mailbox_bytes(m, n, ranks)` says how
    much launches need. device: the CUDA device of this rank. All ranks must launch the same kernels over the same shapes in the same
    order, each on one stream. A launch that a CUDA graph has captured is one at each replay: replays and other launches may alternate, where each rank's follow
    each other in the same order. The mailbox must live as long as the graph. Who first plans a launch of a config with `outbox` allocates as much memory again on this device; a graph has no such launch, nor has what
    follows it: what was chosen is launched without. One Mailbox per memory, for it counts launches, too.
    """

    def __init__(self, memory: SymmetricMemory, device: Any) -> None:
        super().__init__(memory, device, least=2)
        self.layout = Layout.of(int(memory.buffer_size), self.ranks)
        self.table = self._table(self.addresses)
        self.epoch: int | None = 0  # of the last launch; None: graphs have some of them

    def _table(self, addresses: Sequence[int]) -> Any:
        return torch().tensor(addresses, dtype=torch().int64, device=self.device)

    @cached_property
    def outbox(self) -> Outbox:
        """Made for the first launch of a config with `outbox`, as large as the mailbox."""
        held = torch().zeros(self.layout.bytes, dtype=torch().uint8, device=self.device)
        others = [held.data_ptr()] * self.ranks
        others[self.rank] = self.addresses[self.rank]
        table, sender = self._table(others), ParcelSender(self.device.index, held)
        torch().cuda.current_stream(self.device).synchronize()  # launches may be on any stream
        return Outbox(memory=held, table=table, sender=sender)

    @property
    def sends(self) -> bool:
        """Whether launches of a config with `outbox` may use it now."""
        counted = self.epoch is not None and not capturing()
        return counted and writes_flags(self.device.index)

    def numbered(self) -> int:
        """The number of the next launch. Raises ArgumentError where only the device knows it."""
        if self.epoch is None:
            allowed = "must be false with a mailbox that a CUDA graph uses"
            raise ArgumentError("config.outbox", True, allowed)
        return self.epoch + 1

    def launched(self) -> None:
        """One more launch was given to the driver, or to a CUDA graph, which numbers them without telling."""
        self.epoch = None if self.epoch is None or capturing() else self.epoch + 1


@dataclass(frozen=True, kw_only=True)
class Outbox:
    """Where sums for other ranks wait, the table of addresses by which a kernel finds it, and what sends them."""

    memory: Any
    table: Any
    sender: ParcelSender


@dataclass(kw_only=True)
class _Way:
    """How a launch goes: by which kernel and plan, and by the buffer what copies its sums, nothing where the kernel sends them."""

    kernel: LoadedKernel
    plan: Plan
    pushes: tuple[tuple[Job, ...], ...]


class ReduceScatter:
    """`out[M, N] = epilogue(sum over ranks of A @ B)`, the rows rank * M on of it, in one launch of each rank, which `launch` starts
    as often as one likes, over what the tensors then hold.

    problem: without a grouping, and no FP8 output. a [ranks * M, K], b [N, K]: of this rank's own K, as the problem's layout
    stores them. scale_a, scale_b, scale_layout: as of `gemmgen.ops.multiply`, but nothing is copied: layout "row" takes a config
    with `lane_scales`. out: [M, N], allocated if None. arguments: what the epilogue reads, of this rank's M rows. config: the
    same on all ranks; None lets the cost model choose, in a CUDA graph without an outbox. M: a multiple of 4 where A has
    scales, of 16 bytes where A is stored [K, M]. The sums of all ranks are added in FP32 (INT32), this rank's first, then
    those of the ranks behind it. wire: `gemmgen.BF16` or F16, or its name: what other ranks' sums are rounded to before they
    travel, half as many bytes; None: the problem's. chunks: where config has `outbox`, in how many a rank sends its sums to another, 1 to 32, the same on all
    ranks; None: 2. Raises as `gemmgen.ops.multiply`.
    """

    _collective: ClassVar[str] = REDUCE_SCATTER

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
        wire: DType | str | None = None,
        chunks: int | None = None,
        **arguments: Any,
    ) -> None:
        p, self.shape = _checked(self._collective, problem, memory, a, b, wire)
        m, n, k = self.shape
        scales = Scales(a=scale_a, b=scale_b, layout=scale_layout)
        arguments |= read_by_epilogue(p, scales)
        tensors, values = scales_of(p, a, b, scales)
        out = tensor_of(output_of(p, (m, n // fold(p.epilogue)), out, a, b))
        extra = epilogue_values(p, self.shape, 1, arguments, a.device)
        values = {
            "shape_m": m,
            "shape_n": n,
            "shape_k": k,
            **values,
            **stores({"out": out}),
            **extra,
        }
        self.out, self.mailbox = out, memory
        self._held: tuple[Any, ...] = a, b, tensors, scale_b, arguments
        held = {"a": a, "b": b, "d": out}
        kernels = self._kernels(p, config, a.device.index)
        self.kernel, self._ways = kernels[0], []
        for kernel in kernels:
            _check_room(memory.layout, mailbox(kernel.kernel, self.shape, memory.ranks))
            own = scales_in_place(tensors, kernel, scale_layout, LAYOUTS)
            self._held += (own,)
            matrices = {name: matrix(t) for name, t in {**held, **own}.items()}
            self._ways.append(self._way(kernel, matrices, values, chunks))
        self._last = self._ways[0]

    def _kernels(self, p: Problem, config: Config | None, device: int) -> list[LoadedKernel]:
        """The kernel, and where one with an outbox was chosen, not given, that without, for CUDA graphs. It alone where none can be used now."""
        box = self.mailbox
        kernel = kernel_of(p, config, self.shape, box.ranks, device)
        if config is not None or not kernel.kernel.peers.parcels:
            return [kernel]
        without = without_outbox(p, self.shape, box.ranks, device)
        return [kernel, without] if box.sends else [without]

    def _way(
        self,
        kernel: LoadedKernel,
        matrices: dict[str, Matrix],
        values: dict[str, Any],
        chunks: int | None,
    ) -> _Way:
        box, table = self.mailbox, self.mailbox.table
        sent: dict[str, int] = {}
        pushes: tuple[tuple[Job, ...], ...] = ()
        if kernel.kernel.peers.parcels:
            if chunks is not None:
                check_chunks(chunks)
            self._check_outbox()
            with box.lock:
                out = box.outbox
            found = parcels(kernel.kernel, self.shape, box.ranks, chunks or PARCELS)
            at = box.addresses, out.memory.data_ptr(), box.rank
            sent, table = found.values(), out.table
            pushes = tuple(
                tuple(map(job, found.pushes(box.layout, *at, epoch)))
                for epoch in range(box.layout.buffers)
            )
        elif chunks is not None and kernel is self.kernel:
            raise ArgumentError("chunks", chunks, "must be None: config has no outbox")
        told = {
            "groups": kernel.kernel.peers.parts(box.ranks),
            **values,
            **box.layout.values(box.rank, table.data_ptr()),
            **sent,
        }
        plan = planned(kernel, self.shape, matrices, told, current_stream(box.device))
        return _Way(kernel=kernel, plan=plan, pushes=pushes)

    def _check_outbox(self) -> int:
        """The number of the next launch, whose copies raise flags of that number. Raises ArgumentError where no outbox can be used."""
        if capturing():
            allowed = (
                "must be false in a CUDA graph: a replay would raise the flags of an old launch"
            )
            raise ArgumentError("config.outbox", True, allowed)
        return self.mailbox.numbered()

    def launch(self, out: Any = None) -> Any:
        """Start it on torch's current stream, as this rank's next: it waits on the GPU for the other ranks. Returns `out`; one that is given lies as the one planned for,
        and is written instead from now on, but not held. While a CUDA graph is captured on that stream, it becomes part of it, which needs this object as long as it lives; launch
        once before, for that loads the kernel. Raises LaunchError."""
        stream, captured = current_stream(self.mailbox.device), capturing()
        with self.mailbox.lock:
            counted = not captured and self.mailbox.epoch is not None
            way = self._ways[0 if counted else -1]
            plan, to = way.plan, {} if out is None else {"d": out.data_ptr()}
            if to or plan.stream != stream:
                plan = way.kernel.moved(plan, to, stream)
            self._start(way, plan, stream)
            if not captured:
                way.plan, self._last = plan, way
        return self.out if out is None else out

    def _start(self, way: _Way, plan: Plan, stream: int) -> None:
        """A kernel that runs is counted, whatever fails behind it."""
        box = self.mailbox

        def start() -> None:
            way.kernel.launch(plan)
            box.launched()

        if not way.pushes:
            start()
            return
        epoch = self._check_outbox()
        box.outbox.sender.behind(stream, start, way.pushes[epoch % len(way.pushes)], epoch)

    def let_go(self) -> None:
        """Hold no tensor from now on: who launches gives `out`, and has the others where they were."""
        self.out, self._held = None, ()

    @property
    def wait(self) -> Callable[[], None]:
        """To be called: blocks until what was launched here is over, but for what a CUDA graph replays. Holds no tensor. Raises LaunchError, and where the kernel is watched DeadlockError, which names the rank whose sums never
        came."""
        return partial(self._last.kernel.wait, self._last.plan)


def reduce_scatter(*args: Any, **kwargs: Any) -> Any:
    """Plan a `ReduceScatter` of these arguments and launch it once. Returns `out`. Raises as both."""
    return ReduceScatter(*args, **kwargs).launch()


def _checked(
    collective: str, problem: Problem, memory: Mailbox, a: Any, b: Any, wire: DType | str | None
) -> tuple[Problem, Shape]:
    """With its collective, and (M, N, K), M of D."""
    p = of_collective(problem, memory, Mailbox, collective)
    if p.quantised:
        raise ArgumentError("problem.d", p.d.name, "must not be e4m3 here")
    if wire is not None:
        p = replace(p, wire=wire)  # type: ignore[arg-type]
    rows, n, k = operand_shape(p, a, b)
    check_device(a, memory)
    parts = 1 if COLLECTIVES[collective].whole else memory.ranks
    if rows % parts or not rows:
        allowed = f"must be a positive multiple of {memory.ranks}, the ranks"
        raise ArgumentError("a rows", rows, allowed if parts > 1 else "must be positive")
    return p, (rows // parts, n, k)


def _check_room(has: Layout, needs: Layout) -> None:
    if not has.holds(needs):
        allowed = f"must have room for {needs.flags} flags and {needs.words} words: see mailbox_bytes and all_reduce_bytes"
        raise ArgumentError("memory", (has.flags, has.words), allowed)
