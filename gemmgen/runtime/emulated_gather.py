"""Several emulated GPUs that send each other their rows of A while they multiply them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from ..emulator import Copied, GlobalMemory, Raised, Schedule, Started, Stats, launch_ranks
from ..verification.engines import NumpyEngine
from ..verification.guarded import Buffer, Guarded
from ..verification.inputs import Operands
from ..verification.trial import Pitches
from .bind import NAN_BYTE, Bound, bind
from .emulated import SMS, WATCHDOG_BYTES, EmulatedKernel, params
from .inbox import Gathering, Inbox, Move, Raise, flag_bytes, gathering, needed
from .launch import check_launch, grid


@dataclass(frozen=True, kw_only=True)
class EmulatedGather:
    """`ranks` GPUs of one host, of `sms` SMs each, that send rows in `chunks`. first: the epoch of the first call. in_place: own rows lie
    where they are read. stats: of all launches, by rank."""

    ranks: int
    sms: int = SMS
    chunks: int = 2
    schedule: Schedule | None = None
    first: int = 1
    in_place: bool = False
    engine: NumpyEngine = field(default_factory=NumpyEngine)
    stats: list[list[Stats]] = field(default_factory=list)

    def execute(
        self,
        program: EmulatedKernel,
        calls: Sequence[Sequence[Operands]],
        strides: Pitches,
        outputs: Sequence[Sequence[Guarded]],
        fill: int,
    ) -> list[list[Buffer]]:
        """See `gemmgen.verification.gathered.Gathering`."""
        memory, kernel = GlobalMemory(), program.kernel
        m, n, k = calls[0][0].shape
        check_launch(kernel, (m // self.ranks, n, k), self.ranks)
        run = _Run(node=self, program=program, memory=memory, strides=strides, fill=fill)
        box, bases = run.boxes(calls[0][0])
        found = [
            [
                run.launch(box, bases, operands, out, call, rank)
                for call, (operands, out) in enumerate(zip(mine, outs, strict=True))
            ]
            for rank, (mine, outs) in enumerate(
                zip(zip(*calls, strict=True), zip(*outputs, strict=True), strict=True)
            )
        ]
        launches = [[x for _, x in mine] for mine in found]
        self.stats.extend(launch_ranks(launches, memory=memory, schedule=self.schedule))
        return [
            [memory.read(found[rank][call][0], out.size) for rank, out in enumerate(outs)]
            for call, outs in enumerate(outputs)
        ]


@dataclass(frozen=True, kw_only=True)
class _Run:
    """Some calls, one after the other."""

    node: EmulatedGather
    program: EmulatedKernel
    memory: GlobalMemory
    strides: Pitches
    fill: int

    def boxes(self, operands: Operands) -> tuple[Inbox, list[int]]:
        """Of the least size, flags down, and NaN for who takes a row that is not there. By rank, where it is."""
        size, ranks = needed(self._gathers(_own(operands, 0, self.node.ranks), 0)), self.node.ranks
        box = Inbox(ranks=ranks, size=size)
        data = np.full(box.bytes, NAN_BYTE, np.uint8)
        data[: flag_bytes(ranks)] = 0
        return box, [self.memory.allocate(data, alignment=1024) for _ in range(ranks)]

    def _gathers(self, own: Operands, rank: int) -> Gathering:
        bound = bind(own, self.strides, 0, lambda data: self.memory.allocate(data, device=rank))
        rows, node = own.shape[0], self.node
        return gathering(self.program.kernel, bound.matrices, rows, node.ranks, node.chunks)

    def launch(
        self,
        box: Inbox,
        bases: Sequence[int],
        operands: Operands,
        output: Guarded,
        call: int,
        rank: int,
    ) -> tuple[int, Started]:
        """One, and where its output is."""
        kernel, node, epoch = self.program.kernel, self.node, self.node.first + call
        out = self.memory.allocate(output.poison(self.fill), alignment=1024, device=rank)
        bound = bind(
            operands,
            self.strides,
            out + output.offset,
            lambda data: self.memory.allocate(data, device=rank),
            out + output.beside_offset,
        )
        g = self._gathers(_own(operands, rank, node.ranks), rank)
        buffer = bases[rank] + box.buffer(epoch)
        shape = (g.rows, *operands.shape[1:])
        grouped = _grouped(bound, operands.arguments, g, buffer)
        values = {**grouped.values, **g.values(bases[rank], rank), "epoch": epoch}
        grouped = replace(grouped, values=values)
        report = self.memory.allocate(np.zeros(WATCHDOG_BYTES, np.uint8), device=rank)
        return out, Started(
            entry=self.program.entry,
            grid=grid(kernel, shape, max(node.sms, kernel.cluster.size), node.ranks),
            block=kernel.threads,
            shared_bytes=kernel.smem_bytes or 0,
            params=params(kernel, grouped, report),
            first=[_job(x, epoch) for x in g.own_moves(buffer, rank)],
            beside=[_job(x, epoch) for x in g.pushes(bases, box, rank, epoch)],
        )


def _own(operands: Operands, rank: int, ranks: int) -> Operands:
    """This rank's rows of A."""
    rows = operands.shape[0] // ranks
    mine = slice(rank * rows, rank * rows + rows)
    scales = None if operands.scale_a is None else operands.scale_a[mine]
    return replace(operands, a=operands.a[mine], scale_a=scales)


def _grouped(bound: Bound, names: Iterable[str], g: Gathering, buffer: int) -> Bound:
    """A in this buffer; D, its scales and the epilogue's arguments of these names as groups of a rank's rows each."""
    d = g.grouped(bound.matrices["d"])
    return Bound(
        matrices={**bound.matrices, **g.matrices(buffer), "d": d},
        values={**bound.values, **g.strides(names, bound.values)},
    )


def _job(x: Move | Raise, epoch: int) -> Copied | Raised:
    if isinstance(x, Raise):
        return Raised(flag=x.flag, value=epoch)
    return Copied(**vars(x))
