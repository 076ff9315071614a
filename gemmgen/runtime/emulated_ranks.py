"""Several emulated GPUs that add their sums up, each with access to the others' mailboxes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from ..emulator import GlobalMemory, Schedule, Started, Stats, launch_ranks
from ..verification.engines import NumpyEngine
from ..verification.guarded import Buffer, Guarded
from ..verification.inputs import Operands
from ..verification.trial import Pitches
from .bind import NAN_BYTE, Bound, bind
from .emulated import SMS, WATCHDOG_BYTES, EmulatedKernel, params
from .launch import check_launch, grid
from .peers import FLAG, WORD, Mailbox, mailbox


@dataclass(frozen=True, kw_only=True)
class EmulatedRanks:
    """`ranks` GPUs of one host, of `sms` SMs each. first: the epoch of the first call. stats: of all launches, by rank. over: by rank, what its
    memory says of the last: its epoch, and CTAs that are still counted."""

    ranks: int
    sms: int = SMS
    schedule: Schedule | None = None
    first: int = 1
    engine: NumpyEngine = field(default_factory=NumpyEngine)
    stats: list[list[Stats]] = field(default_factory=list)
    over: list[tuple[int, int]] = field(default_factory=list)

    def execute(
        self,
        program: EmulatedKernel,
        calls: Sequence[Sequence[Operands]],
        strides: Pitches,
        outputs: Sequence[Sequence[Guarded]],
        fill: int,
    ) -> list[list[Buffer]]:
        """See `gemmgen.verification.ranked.Machines`."""
        memory = GlobalMemory()
        m, n, k = calls[0][0].shape
        shape = (m // self.ranks, n, k)
        check_launch(program.kernel, shape, self.ranks)
        box = mailbox(program.kernel, shape, self.ranks)
        boxes = [memory.allocate(_empty(box, self.first - 1)) for _ in range(self.ranks)]
        found: list[list[tuple[int, Started]]] = [
            [
                self._launch(
                    program, memory, box, boxes, strides, (operands, out), (call, rank), fill
                )
                for call, (operands, out) in enumerate(zip(mine, outs, strict=True))
            ]
            for rank, (mine, outs) in enumerate(
                zip(zip(*calls, strict=True), zip(*outputs, strict=True), strict=True)
            )
        ]
        launches = [[x for _, x in mine] for mine in found]
        stats = launch_ranks(launches, memory=memory, schedule=self.schedule)
        self.stats.extend(stats)
        self.over[:] = [_over(memory.read(x, box.bytes)[box.over :]) for x in boxes]
        return [
            [memory.read(found[rank][call][0], out.size) for rank, out in enumerate(outs)]
            for call, outs in enumerate(outputs)
        ]

    def _launch(
        self,
        program: EmulatedKernel,
        memory: GlobalMemory,
        box: Mailbox,
        boxes: Sequence[int],
        strides: Pitches,
        of: tuple[Operands, Guarded],
        at: tuple[int, int],
        fill: int,
    ) -> tuple[int, Started]:
        """One, of a call and a rank, and where its output is."""
        kernel, (operands, output), (_, rank) = program.kernel, of, at

        def place(data: Buffer) -> int:
            return memory.allocate(data, device=rank)

        out = memory.allocate(output.poison(fill), alignment=1024, device=rank)
        bound = bind(operands, strides, out + output.offset, place, out + output.beside_offset)
        m, n, k = operands.shape
        shape = (m // self.ranks, n, k)
        table = place(np.array(boxes, np.uint64).view(np.uint8))
        return out, Started(
            entry=program.entry,
            grid=grid(kernel, shape, max(self.sms, kernel.cluster.size), self.ranks),
            block=kernel.threads,
            shared_bytes=kernel.smem_bytes or 0,
            params=params(
                kernel,
                _of_rank(bound, box.values(rank, table), shape[0]),
                place(np.zeros(WATCHDOG_BYTES, np.uint8)),
                sums=table,
            ),
        )


def _of_rank(bound: Bound, values: dict[str, int], rows: int) -> Bound:
    """A is of all ranks' rows, D of its own."""
    d = replace(bound.matrices["d"], outer=rows)
    return Bound(
        matrices={**bound.matrices, "d": d},
        values={**bound.values, **values, "shape_m": rows},
    )


def _empty(box: Mailbox, epoch: int) -> Buffer:
    """Flags of no launch, sums that are NaN for who takes one that is not there, and the epoch of a launch that is over."""
    data = np.full(box.bytes, NAN_BYTE, np.uint8)
    data[: box.flag_bytes] = 0
    data[box.over :] = 0
    data[box.over :][:FLAG] = np.array([epoch], np.uint64).view(np.uint8)
    return data


def _over(own: Buffer) -> tuple[int, int]:
    """What is behind the buffers of a rank's memory."""
    return int(own[:FLAG].view(np.uint64)[0]), int(own[FLAG:][:WORD].view(np.uint32)[0])
