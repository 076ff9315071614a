"""Several emulated GPUs that send each other their rows of A while they multiply them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from ..emulator import GlobalMemory, Schedule, Started, Stats
from ..verification.engines import NumpyEngine
from ..verification.guarded import Buffer, Guarded
from ..verification.inputs import Operands
from ..verification.trial import Pitches
from .bind import NAN_BYTE, Bound, bind
from .emulated import SMS, EmulatedKernel
from .emulated_calls import Calls, copying
from .inbox import Gathering, Inbox, flag_bytes, gathering, needed
from .launch import check_launch


@dataclass(frozen=True, kw_only=True)
class EmulatedGather:
    """`ranks` GPUs of one host, of `sms` SMs each, that send rows in `chunks`. first: the epoch of the first call. stats: of all launches, by rank."""

    ranks: int
    sms: int = SMS
    chunks: int = 2
    schedule: Schedule | None = None
    first: int = 1
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
        kernel = program.kernel
        m, n, k = calls[0][0].shape
        check_launch(kernel, (m // self.ranks, n, k), self.ranks)
        launches = Calls(
            program=program,
            memory=GlobalMemory(),
            strides=strides,
            fill=fill,
            ranks=self.ranks,
            sms=self.sms,
        )
        box, bases = self._boxes(launches, calls[0][0])

        def launch(
            operands: Operands, output: Guarded, rank: int, call: int
        ) -> tuple[int, Started]:
            return self._launch(launches, box, bases, operands, output, rank, self.first + call)

        found, stats = launches.run(launch, calls, outputs, self.schedule)
        self.stats.extend(stats)
        return found

    def _boxes(self, launches: Calls, operands: Operands) -> tuple[Inbox, list[int]]:
        """Of the least size, flags down, and NaN for who takes a row that is not there. By rank, where it is."""
        size = needed(self._gathers(launches, operands, 0))
        box = Inbox(ranks=self.ranks, size=size)
        data = np.full(box.bytes, NAN_BYTE, np.uint8)
        data[: flag_bytes(self.ranks)] = 0
        return box, [launches.memory.allocate(data, alignment=1024) for _ in range(self.ranks)]

    def _gathers(self, launches: Calls, operands: Operands, rank: int) -> Gathering:
        own = _own(operands, rank, self.ranks)
        matrices = bind(own, launches.strides, 0, lambda x: launches.place(x, rank)).matrices
        kernel, rows = launches.program.kernel, own.shape[0]
        return gathering(kernel, matrices, rows, self.ranks, self.chunks)

    def _launch(
        self,
        launches: Calls,
        box: Inbox,
        bases: Sequence[int],
        operands: Operands,
        output: Guarded,
        rank: int,
        epoch: int,
    ) -> tuple[int, Started]:
        out, bound = launches.bound(operands, output, rank)
        g, buffer = self._gathers(launches, operands, rank), bases[rank] + box.buffer(epoch)
        grouped = _grouped(bound, operands.arguments, g, buffer)
        values = {**grouped.values, **g.values(bases[rank], rank), "epoch": epoch}
        return out, launches.started(
            replace(grouped, values=values),
            (g.rows, *operands.shape[1:]),
            rank,
            first=[copying(x, epoch) for x in g.own_moves(buffer, rank)],
            beside=[copying(x, epoch) for x in g.pushes(bases, box, rank, epoch)],
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
