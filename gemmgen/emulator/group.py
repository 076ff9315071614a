"""Threads that execute together: a warpgroup's lanes as arrays, split into fibers where they diverge.

A fiber is a program counter and the lanes that stand there. The fiber with the smallest counter that
can run goes first, and fibers that meet are merged: lanes reconverge wherever the program lets them.
Each lane sees what it would see alone (PTX ISA, independent thread scheduling); executing the four
warps of a warpgroup in step is one of the interleavings the hardware may choose.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .fiber import AGAIN, LANES, MOVED, NOWHERE, WARP, Fiber, Mask, Wait
from .syntax import Instruction
from .together import collect

if TYPE_CHECKING:
    from .machine import Cta
    from .program import Program


class Group:
    """Up to 128 consecutive threads of a CTA. `R` holds an array of lanes per operand slot."""

    def __init__(self, cta: Cta, first: int, threads: int, program: Program) -> None:
        self.cta = cta
        self.first = first
        self.lanes = -(-threads // WARP) * WARP
        self.warps = self.lanes // WARP
        self.program = program
        self.live: Mask = np.arange(self.lanes) < threads
        self.R: list[Any] = program.bind(self)
        self.fibers = [Fiber(0, self.live.copy())]
        self.fiber = self.fibers[0]
        self.active: Mask = self.fiber.mask
        self.where: Any = True  # for NumPy: True is cheaper than a mask of all lanes
        self.counts = [0] * len(program.ops)
        self.tracker = cta.cluster.tracker
        self.clocks = self.tracker.clocks(self.first_warp, self.warps, cta)
        self.agent = self.tracker.warp(cta.rank, self.first_warp)  # of the first warp
        self.born = self.live.copy()
        self._tell_live()
        self.lane_warp = np.arange(self.lanes) // WARP
        self.registers = 0  # per thread, by setmaxnreg
        self.wgmma: Any = None  # wgmma.Pipeline, on first use
        self.gave_up: dict[
            int, Mask
        ] = {}  # try_wait -> lanes for which it did, and that did not wait since
        self.early = self.live & cta.launch.overlaps  # lanes before their griddepcontrol.wait

    @property
    def first_warp(self) -> int:
        """Within the CTA."""
        return self.first // WARP

    @property
    def done(self) -> bool:
        return not self.fibers

    @property
    def instruction(self) -> Instruction:
        """What the current fiber executes."""
        return self.program.body[self.fiber.pc]

    def can_run(self) -> bool:
        if len(self.fibers) > 1:
            self._merge(None)
        return any(f.can_run() for f in self.fibers)

    def run(self, budget: int, warps: int | None = None) -> int:
        """Execute up to `budget` instructions; the number executed. `warps`: only these (a mask)."""
        left = budget
        ops, counts = self.program.ops, self.counts
        only = None if warps is None else np.repeat(warps >> np.arange(self.warps) & 1 > 0, WARP)
        if only is not None:
            self._split(only)
        while left > 0 and self._select(only):
            fiber, limit = self.fiber, self._limit()
            pc = fiber.pc
            while left > 0:
                left -= 1
                counts[pc] += fiber.warps
                target = ops[pc](self)
                if target is None:
                    pc += 1
                elif target >= 0:
                    pc = target
                else:
                    if target == AGAIN:
                        counts[pc] -= fiber.warps
                    break
                fiber.pc = pc
                if pc >= limit:
                    break
        return budget - left

    def _split(self, only: Mask) -> None:
        """Take the lanes of `only` out of the fibers they share with others."""
        for f in list(self.fibers):
            inside, outside = f.mask & only, f.mask & ~only
            if f.can_run() and inside.any() and outside.any():
                self.fibers.append(Fiber(f.pc, outside))
                f.set_mask(inside)

    def _select(self, only: Mask | None) -> bool:
        """Make the runnable fiber with the least counter current."""
        if len(self.fibers) > 1:
            self._merge(only)
        runnable = [f for f in self.fibers if _within(f, only) and f.can_run()]
        if not runnable:
            return False
        self._use(min(runnable, key=lambda f: f.pc))
        return True

    def _use(self, fiber: Fiber) -> None:
        self.fiber, self.active = fiber, fiber.mask
        self.where = True if fiber.count == self.lanes else fiber.mask

    def _limit(self) -> int:
        """Where the current fiber may meet another one."""
        others = (f.pc for f in self.fibers if f is not self.fiber)
        ahead = [pc for pc in others if pc > self.fiber.pc]
        return min(ahead, default=NOWHERE)

    def _merge(self, only: Mask | None) -> None:
        """Fibers that met become one; those outside `only` stay as they are."""
        at: dict[int, Fiber] = {}
        kept = []
        for f in self.fibers:
            if (f.wait is not None and not f.wait.merge) or not _within(f, only):
                kept.append(f)
            elif (other := at.get(f.pc)) is not None:
                other.set_mask(other.mask | f.mask)
                other.wait = None
            else:
                at[f.pc] = f
                kept.append(f)
        self.fibers = kept

    # What operations do to fibers.

    def branch(self, taken: Mask, target: int) -> int | None:
        """The lanes in `taken` go to `target`, the others on."""
        count = int(np.count_nonzero(taken))
        if count == self.fiber.count:
            return target
        if count == 0:
            return None
        self.fiber.set_mask(self.active & ~taken)
        self.fiber.pc += 1
        self.fibers.append(Fiber(target, taken))
        return MOVED

    def keep(self, lanes: Mask, pc: int, wait: Wait | None = None) -> None:
        """Only `lanes` go on with the current instruction; the others stand at `pc`."""
        rest = self.active & ~lanes
        if not rest.any():
            return
        other = Fiber(pc, rest)
        other.wait = wait
        self.fibers.append(other)
        self.fiber.set_mask(lanes.copy())
        self._use(self.fiber)

    def park(self, wait: Wait) -> int:
        self.fiber.wait = wait
        return AGAIN

    def gives_up(self) -> bool:
        """The current try_wait returns before its phase is over, if the schedule says so: once, so that who tries
        again does wait."""
        tried = self.gave_up.get(self.fiber.pc)
        if tried is not None and (tried & self.active).any():
            return False
        if not self.cta.launch.schedule.gives_up():
            return False
        self.gave_up[self.fiber.pc] = self.active if tried is None else tried | self.active
        return True

    def waited(self, lanes: Mask) -> None:
        """The phase that the current try_wait asks for is over."""
        tried = self.gave_up.pop(self.fiber.pc, None)
        if tried is not None and (tried & ~lanes).any():
            self.gave_up[self.fiber.pc] = tried & ~lanes

    def unheeded(self) -> list[str]:
        """Each try_wait that gave up, and whose threads went on, for a report."""
        found = []
        for pc, lanes in self.gave_up.items():
            gone = [f for f in self.fibers if f.pc not in (pc, pc + 1) and (f.mask & lanes).any()]
            if gone:
                threads = f"CTA {self.cta.index}, warpgroup {self.first // LANES}"
                found.append(
                    f"before that, {self.program.body[pc]} [{threads}] had returned false, and its "
                    "threads went on without the phase"
                )
        return found

    def sleep(self, wait: Wait) -> int:
        """Done with this instruction; go on after it when `wait` is over."""
        self.fiber.pc += 1
        self.fiber.wait = wait
        return MOVED

    def leave(self, lanes: Mask) -> int:
        """`lanes` exit."""
        text = str(self.instruction)
        self.cta.launch.moved()
        self.live = np.logical_and(self.live, ~lanes)
        self._tell_live()
        for warp in np.flatnonzero(~self.live.reshape(-1, WARP).any(1)):
            self.cta.cluster.barrier.leave(self.agent + int(warp))
        rest = self.active & ~lanes
        if rest.any():
            self.fiber.set_mask(rest)
            self.fiber.pc += 1
        else:
            self.fibers.remove(self.fiber)
        self.cta.threads_left(text)
        if self.done:
            self.cta.group_done(self)
        return MOVED

    def _tell_live(self) -> None:
        rows = np.packbits(self.live.reshape(-1, WARP), axis=1, bitorder="little")
        for warp, lanes in enumerate(rows.view("<u4").reshape(-1).tolist()):
            self.tracker.live(self.agent + warp, lanes)

    def collect(
        self, need: Mask | None = None, *, aligned: bool = False, whole_group: bool = False
    ) -> int | None:
        """For instructions that all lanes of a warp execute together: AGAIN until they are here.

        `need`: the lanes that must come, by default the warp's live ones. Warps that are complete
        go on without the others unless the instruction takes the whole warpgroup. `aligned`: none may
        be missing, and what each did before is done (PTX ISA, .sync and .aligned).
        """
        return collect(self, need, aligned, whole_group)

    def waits(self) -> list[str]:
        """What each fiber waits for, for a report."""
        return [self._describe(f) for f in self.fibers]

    def _describe(self, f: Fiber) -> str:
        warps = np.unique(np.flatnonzero(f.mask) // WARP + self.first_warp)
        lanes = np.flatnonzero(f.mask)
        threads = f"thread {lanes[0] + self.first}" if f.count == 1 else f"{f.count} threads"
        who = f"CTA {self.cta.index}, warp {_ranges(warps)} ({threads})"
        why = f.wait.what() if f.wait else "nothing: it spins"
        return f"{who}: {self.program.body[f.pc]}: waits for {why}"


def _within(f: Fiber, only: Mask | None) -> bool:
    return only is None or not (f.mask & ~only).any()


def _ranges(values: Any) -> str:
    low, high = int(values[0]), int(values[-1])
    return str(low) if low == high else f"{low}-{high}"
