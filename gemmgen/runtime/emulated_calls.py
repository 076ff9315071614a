"""Calls of several emulated GPUs: what is placed for each, and what they leave."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..emulator import (
    Awaited,
    Copied,
    GlobalMemory,
    Raised,
    Schedule,
    Started,
    Stats,
    launch_ranks,
)
from ..verification.guarded import Buffer, Guarded
from ..verification.inputs import Operands
from ..verification.trial import Pitches
from .bind import Bound, bind
from .emulated import WATCHDOG_BYTES, EmulatedKernel, params
from .inbox import Move, Raise
from .launch import grid
from .outbox import Await


@dataclass(frozen=True, kw_only=True)
class Calls:
    """Launches of one kernel by `ranks` GPUs of `sms` SMs each, over the same memory; outputs are poisoned with `fill` before."""

    program: EmulatedKernel
    memory: GlobalMemory
    strides: Pitches
    fill: int
    ranks: int
    sms: int

    def place(self, data: Buffer, rank: int) -> int:
        """The address of a copy that is this rank's alone."""
        return self.memory.allocate(data, device=rank)

    def bound(self, operands: Operands, output: Guarded, rank: int) -> tuple[int, Bound]:
        """Where this rank's output is, and all that it reads and writes."""
        out = self.memory.allocate(output.poison(self.fill), alignment=1024, device=rank)
        at = out + output.offset, out + output.beside_offset
        return out, bind(operands, self.strides, at[0], lambda x: self.place(x, rank), at[1])

    def started(
        self, bound: Bound, shape: tuple[int, int, int], rank: int, sums: int = 0, **copies: Any
    ) -> Started:
        """A launch over it. shape: of one rank; copies: as of a `Started`."""
        kernel = self.program.kernel
        report = self.place(np.zeros(WATCHDOG_BYTES, np.uint8), rank)
        return Started(
            entry=self.program.entry,
            grid=grid(
                kernel, shape, max(self.sms, kernel.cluster.size), kernel.peers.parts(self.ranks)
            ),
            block=kernel.threads,
            shared_bytes=kernel.smem_bytes or 0,
            params=params(kernel, bound, report, sums=sums),
            **copies,
        )

    def run(
        self,
        launch: Callable[[Operands, Guarded, int, int], tuple[int, Started]],
        calls: Sequence[Sequence[Operands]],
        outputs: Sequence[Sequence[Guarded]],
        schedule: Schedule | None,
    ) -> tuple[list[list[Buffer]], list[list[Stats]]]:
        """By call and rank, the bytes of `outputs`; by rank, the statistics of its launches. launch: where its output is, and the launch, of a rank and a call."""
        found = [
            [
                launch(operands[rank], outs[rank], rank, call)
                for call, (operands, outs) in enumerate(zip(calls, outputs, strict=True))
            ]
            for rank in range(self.ranks)
        ]
        launches = [[x for _, x in mine] for mine in found]
        stats = launch_ranks(launches, memory=self.memory, schedule=schedule)
        read = [
            [self.memory.read(found[rank][call][0], out.size) for rank, out in enumerate(outs)]
            for call, outs in enumerate(outputs)
        ]
        return read, stats


def copying(x: Await | Move | Raise, epoch: int) -> Awaited | Copied | Raised:
    """What the emulator's copy engines do for `x`, in the launch of an epoch."""
    if isinstance(x, Await):
        return Awaited(flag=x.flag, value=epoch)
    if isinstance(x, Raise):
        return Raised(flag=x.flag, value=epoch)
    return Copied(**vars(x))
