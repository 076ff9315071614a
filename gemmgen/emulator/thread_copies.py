"""Copies of a thread from global to shared memory (PTX ISA, cp.async without bulk): its own writes, once it has waited for them.

From its issue until then a copy may write at any time: whatever else touches these words races with it. The async proxy sees it after a
fence of the thread, as it does a store.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .access import check_alignment, load, words_of
from .errors import IllegalAccess, ProtocolError, UnsupportedInstruction
from .fiber import WARP, Wait
from .group import Group
from .lanes import active_lanes, address_slot, agent_of, bit, constant, lane_mask, per_warp, who
from .program import Handler, Op, Scope
from .spaces import OFFSET_MASK, RANK_SHIFT
from .syntax import Instruction

SIZES = {"ca": (4, 8, 16), "cg": (16,)}  # bytes, by what is cached
EVERY = 0  # as many groups may be left


@dataclass(eq=False)
class Copy:
    """Of one warp's instruction: the words of each lane."""

    words: dict[int, Any]
    text: str
    landed: bool = False


@dataclass(kw_only=True, eq=False)
class ThreadCopies:
    """Of one thread: those not committed yet, and committed groups that it has not waited for."""

    current: list[Copy] = field(default_factory=list)
    groups: list[list[Copy]] = field(default_factory=list)

    def due(self, pending: int) -> list[Copy]:
        """What is waited for where `pending` groups may be left."""
        return [c for group in self.groups[: max(len(self.groups) - pending, 0)] for c in group]

    def waited(self, pending: int) -> None:
        del self.groups[: max(len(self.groups) - pending, 0)]

    def check_exit(self, thread: int, cta: int) -> None:
        if left := [*self.current, *(c for group in self.groups for c in group)]:
            raise ProtocolError(
                f"thread {thread} of CTA {cta} exits with {len(left)} copies that it has not waited for: {left[0].text}"
            )


def copies_of(g: Group, lane: int) -> ThreadCopies:
    return g.cta.copies.setdefault(int(g.first + lane), ThreadCopies())


def copy(i: Instruction, s: Scope) -> Op:
    """Of 4, 8 or 16 bytes, as many as its operand says; of fewer, if another does, and zeros."""
    to, source = address_slot(i.operands[0], s), address_slot(i.operands[1], s)
    size, less = constant(i.operands[2], i), [s.src(x, "u32") for x in i.operands[3:]]
    if len(less) > 1 or size not in SIZES[i.parts[2]] or "shared::cluster" in i.parts:
        raise UnsupportedInstruction(f"{i}: of {size} bytes, {len(i.operands)} operands")

    def op(g: Group) -> None:
        at, wanted = to(g), source(g)
        for agent, lanes in per_warp(g):
            sizes = g.R[less[0]][lanes] if less else np.full(lanes.size, size)
            _start(g, agent, lanes, at[lanes], _read(g, wanted[lanes], sizes, size, lanes))

    return op


def _read(g: Group, addresses: Any, sizes: Any, size: int, lanes: Any) -> Any:
    """uint8 [lanes, size]; nothing is read of what is zero. Raises IllegalAccess for more than all."""
    if (sizes > size).any():
        raise IllegalAccess(f"{who(g)}: {int(sizes.max())} of {size} bytes")
    data = np.zeros((lanes.size, size), np.uint8)
    for n in map(int, np.unique(sizes[sizes > 0])):
        reading = np.flatnonzero(sizes == n)
        at, mine = addresses[reading], lanes[reading]
        if n == size:
            data[reading] = load(g, "global", at, size, mine)
            continue
        check_alignment(g, at, size, mine)
        each = (at[:, None] + np.arange(n)).reshape(-1)
        data[reading, :n] = load(g, "global", each, 1, mine.repeat(n)).reshape(-1, n)
    return data


def _start(g: Group, agent: int, lanes: Any, at: Any, data: Any) -> None:
    text, size, shared = who(g), data.shape[1], g.cta.shared
    if (at >> RANK_SHIFT != g.cta.rank).any():
        raise IllegalAccess(f"{text}: into another CTA")
    at = at & OFFSET_MASK
    if (at % size).any():
        raise IllegalAccess(
            f"{text}: {int(at[at % size != 0][0]):#x} is not aligned to {size} bytes"
        )
    shared.check(int(at.min()), int(at.max()) + size, text)
    tracker, warp = g.cta.cluster.tracker, g.first_warp + int(lanes[0]) // WARP
    under_way = tracker.agent(
        (g.cta.rank, "copies", warp), f"copies of warp {warp} of CTA {g.cta.index}"
    )
    words = words_of(at, size)
    shared.claim(words, under_way, 1, tracker.seen(agent, lane_mask(lanes)), text, proxy=False)
    index = at[:, None] + np.arange(size)
    shared.known[index] = False
    made = Copy(dict(zip(lanes.tolist(), words.reshape(lanes.size, -1), strict=True)), text)
    for x in lanes:
        copies_of(g, x).current.append(made)

    def complete() -> None:
        shared.put(index, data)
        made.landed = True

    g.cta.cluster.start(complete, text)
    g.cta.launch.stats.copied(g.instruction, "copy", data.size)


def commit(i: Instruction, s: Scope) -> Op:
    def op(g: Group) -> None:
        for x in active_lanes(g):
            mine = copies_of(g, x)
            mine.groups.append(mine.current)
            mine.current = []

    return op


def wait_all(i: Instruction, s: Scope) -> Op:
    """As a commit and a wait until no group is left."""
    commits, waits = commit(i, s), _waiting(EVERY)

    def op(g: Group) -> int | None:
        if any(copies_of(g, x).current for x in active_lanes(g)):
            commits(g)
        return waits(g)

    return op


def wait(i: Instruction, s: Scope) -> Op:
    return _waiting(constant(i.operands[0], i))


def _waiting(pending: int) -> Callable[[Group], int | None]:
    def op(g: Group) -> int | None:
        lanes = active_lanes(g)
        due = [(x, copies_of(g, x).due(pending)) for x in lanes]
        if not all(c.landed for _, copies in due for c in copies):
            return g.park(
                Wait(
                    ready=lambda: all(c.landed for _, copies in due for c in copies),
                    what=lambda: "its copies to shared memory",
                    merge=True,
                )
            )
        for x, copies in due:
            _own(g, int(x), copies)
            copies_of(g, x).waited(pending)
        return None

    return op


def _own(g: Group, lane: int, copies: list[Copy]) -> None:
    """They are the lane's writes from here on."""
    tracker, agent, mask = g.cta.cluster.tracker, agent_of(g, lane), bit(lane)
    for c in copies:
        time = tracker.touch(agent, mask)
        g.cta.shared.shadow.becomes(c.words[lane], agent, time, c.text)
        tracker.wrote(agent, mask, remote=False)


FORMS: dict[str, Handler] = {
    **dict.fromkeys(SIZES, copy),
    "commit_group": commit,
    "wait_group": wait,
    "wait_all": wait_all,
}
