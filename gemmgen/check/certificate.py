"""The order relation recurs: what was proved of the instances holds for more K blocks and tiles.

The operations have period one in the K block and, but for the ring's position, in the tile; stages
are alike. What an agent knows of the others is compared, relative to where each of them starts the
K block (or the tile), one period of stage and parity (2 * stages K blocks) and one tile apart. If
nothing differs, the next period starts as this one did, and so do all that follow.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass

from ..ir.blocks import is_if
from ..ir.rewrite import statements
from .clocks import Clocks
from .finding import Finding
from .ops import Op, Program
from .properties import CARRY_OVER

Loop = tuple[int, int | None]  # tile, K block (None: the whole tile)


@dataclass(frozen=True, kw_only=True)
class Certificate:
    """`k_period` K blocks on, and one tile on, every agent knows the same; compared at `waits`."""

    k_period: int
    waits: int


def k_recurs(
    clocks: Clocks, stages: int, rounds: int = 4, ending: bool = False
) -> tuple[int, list[Finding]]:
    """In an instance of rounds * stages + 1 K blocks: the last period against the one before; where warpgroups divide K blocks, of each
    those that it multiplies. ending: but for the last round,
    of which others learn in another way."""
    starts = _starts(clocks.run.program)
    for mine, ops, agent in zip(
        starts, clocks.run.program.ops, clocks.run.program.agents, strict=True
    ):
        if agent.slices > 1:
            _pass_blocks(mine, ops, rounds * stages + 1)
    period, end = 2 * stages, (rounds - ending) * stages
    pairs: list[tuple[Loop, Loop]] = [((0, k - period), (0, k)) for k in range(end - stages, end)]
    return _compare(clocks, starts, pairs)


def tiles_recur(clocks: Clocks, turns: int = 1, ending: bool = False) -> tuple[int, list[Finding]]:
    """Each warpgroup's last tile against the one before: the last, where `turns` take them in turns the last ones. ending: the
    last but one."""
    program = clocks.run.program
    starts = _starts(program)
    for mine, ops in zip(starts, program.ops, strict=True):
        _pass_over(mine, ops, program.instance.tiles)
    end = program.instance.tiles - ending * turns
    pairs: list[tuple[Loop, Loop]] = [
        ((tile - turns, None), (tile, None)) for tile in range(end - turns, end)
    ]
    return _compare(clocks, starts, pairs)


def _pass_over(starts: dict[Loop, int], ops: tuple[Op, ...], tiles: int) -> None:
    """Tiles that are another's turn begin and end for an agent where its last one before is over."""
    for tile in range(tiles):
        before = [i for i, op in enumerate(ops) if 0 <= op.tile < tile]
        if before:
            starts.setdefault((tile, None), before[-1] + 1)


def _pass_blocks(starts: dict[Loop, int], ops: tuple[Op, ...], blocks: int) -> None:
    """K blocks that another warpgroup multiplies begin and end for an agent where its last one before is over."""
    last: dict[int, int] = {op.k: at for at, op in enumerate(ops) if op.tile == 0 and op.k >= 0}
    for k in range(blocks):
        before = [at for of, at in last.items() if of < k]
        if before:
            starts.setdefault((0, k), max(before) + 1)


def _compare(
    clocks: Clocks, starts: list[dict[Loop, int]], pairs: list[tuple[Loop, Loop]]
) -> tuple[int, list[Finding]]:
    waits, found, alone = 0, [], _alone(clocks.run.program)
    for agent, mine in enumerate(starts):
        for one, other in pairs:
            if one in mine and other in mine:
                a = list(_relative(clocks, starts, alone, agent, one))
                b = list(_relative(clocks, starts, alone, agent, other))
                waits += len(a)
                if a != b:
                    found.append(_finding(clocks, agent, one, other))
    return waits, found


def _relative(
    clocks: Clocks, starts: list[dict[Loop, int]], alone: list[list[int]], agent: int, loop: Loop
) -> Iterator[list[int]]:
    """What `agent` knows after each wait in `loop`, counted from where the others start it.

    CTAs that divide a tile's K tell each other nothing while they sum, so there that does not count on. Nor does, of one that sums it in
    shares, what it does by itself between two of them.
    """
    program = clocks.run.program
    first, end = _range(program, starts, agent, loop)
    at, home = clocks.at[agent], program.agents[agent].cta
    apart = loop[1] is not None and program.kernel.cluster.k > 1
    counted = [
        s if not apart or a.cta == home else {loop: 0}
        for s, a in zip(starts, program.agents, strict=True)
    ]
    for i in range(bisect_left(at, first), bisect_left(at, end)):
        known = clocks.known[agent][i + 1]
        yield [
            _since(alone[j], s[loop], known[j])
            for j, s in enumerate(counted)
            if loop in s and j != agent
        ]


def _alone(program: Program) -> list[list[int]]:
    """What each agent does where a share of K ends and another begins: it touches its registers, of which no other learns."""
    bodies = [s.body for s in statements(program.kernel) if is_if(s, "new_share")]
    between = {s for body in bodies for s in body}
    return [
        [at for at, op in enumerate(mine) if op.k >= 0 and op.stmt in between] if between else []
        for mine in program.ops
    ]


def _since(alone: list[int], start: int, known: int) -> int:
    """Operations from `start` on to what is known, but for those."""
    return known - start - (bisect_left(alone, known) - bisect_left(alone, start))


def _range(
    program: Program, starts: list[dict[Loop, int]], agent: int, loop: Loop
) -> tuple[int, int]:
    tile, k = loop
    after = (tile + 1, None) if k is None else (tile, k + 1)
    first, ops = starts[agent][loop], program.ops[agent]
    end = first
    while end < len(ops) and ops[end].tile == tile and (k is None or ops[end].k == k):
        end += 1
    return first, starts[agent].get(after, end) if k is None else end


def _starts(program: Program) -> list[dict[Loop, int]]:
    """Where each agent starts each tile and each K block."""
    out: list[dict[Loop, int]] = []
    for mine in program.ops:
        found: dict[Loop, int] = {}
        for at, op in enumerate(mine):
            if op.tile >= 0:
                found.setdefault((op.tile, None), at)
                if op.k >= 0:
                    found.setdefault((op.tile, op.k), at)
        out.append(found)
    return out


def _finding(clocks: Clocks, agent: int, one: Loop, other: Loop) -> Finding:
    what = "tiles" if one[1] is None else "K blocks"
    a, b = (one[0], other[0]) if one[1] is None else (one[1], other[1])
    text = (
        f"{clocks.run.program.agents[agent]} knows other things of the others in {what} {a} and "
        f"{b}: the instances proved do not show that longer ones are right"
    )
    return Finding(property=CARRY_OVER, message=text)
