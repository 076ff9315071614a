"""Several emulated GPUs that add their sums up, each with access to the others' mailboxes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from ..emulator import GlobalMemory, Schedule, Started, Stats
from ..verification.engines import NumpyEngine
from ..verification.guarded import Buffer, Guarded
from ..verification.inputs import Operands
from ..verification.trial import Pitches
from .bind import NAN_BYTE, Bound
from .emulated import SMS, EmulatedKernel
from .emulated_calls import Calls, copying
from .launch import check_launch
from .outbox import parcels
from .peers import FLAG, WORD, Mailbox, mailbox


@dataclass(frozen=True, kw_only=True)
class EmulatedRanks:
    """`ranks` GPUs of one host, of `sms` SMs each. first: the epoch of the first call. stats: of all launches, by rank. over: by rank, what its
    memory says of the last: its epoch, and CTAs that are still counted. chunks: in how many a copy engine sends, of a kernel for which it does."""

    ranks: int
    sms: int = SMS
    chunks: int = 2
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
        memory, kernel = GlobalMemory(), program.kernel
        m, n, k = calls[0][0].shape
        parts = kernel.peers.parts(self.ranks)
        shape = (m // parts, n, k)
        check_launch(kernel, shape, parts)
        box = mailbox(kernel, shape, self.ranks)
        boxes = [memory.allocate(_empty(box, self.first - 1)) for _ in range(self.ranks)]
        launches = Calls(
            program=program,
            memory=memory,
            strides=strides,
            fill=fill,
            ranks=self.ranks,
            sms=self.sms,
        )

        sent = parcels(kernel, shape, self.ranks, self.chunks) if kernel.peers.parcels else None
        outboxes = [launches.place(_empty(box, 0), r) for r in range(self.ranks)] if sent else boxes

        def launch(
            operands: Operands, output: Guarded, rank: int, call: int
        ) -> tuple[int, Started]:
            out, bound = launches.bound(operands, output, rank)
            seen = [
                boxes[r] if sent is None or r == rank else outboxes[rank] for r in range(self.ranks)
            ]
            table = launches.place(np.array(seen, np.uint64).view(np.uint8), rank)
            values, copies = box.values(rank, table), {}
            if sent:
                epoch = self.first + call
                pushes = sent.pushes(box, boxes, outboxes[rank], rank, epoch)
                copies = {"beside": [copying(x, epoch) for x in pushes], "behind": True}
                values |= sent.values()
            told = _of_rank(bound, values, shape[0])
            return out, launches.started(told, shape, rank, sums=table, **copies)

        found, stats = launches.run(launch, calls, outputs, self.schedule)
        self.stats.extend(stats)
        self.over[:] = [_over(memory.read(x, box.bytes)[box.over :]) for x in boxes]
        return found


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
