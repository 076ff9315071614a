"""Random small faults, put into unrolled programs and into lowered kernels.

Each mutator takes a Random and returns the faulty thing and a line that says what was done, or None
where it found nothing of its kind to change.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from random import Random
from typing import Any

from gemmgen.check import ops
from gemmgen.check.ops import Bar, Op, Program
from gemmgen.ir import nodes as ir
from gemmgen.ir.blocks import BLOCKS
from gemmgen.ir.rewrite import walk
from gemmgen.ir.stmts import multicasts

# ---- programs -----------------------------------------------------------------------------------


def mutate_program(program: Program, random: Random) -> tuple[Program, str] | None:
    """One fault in one agent's operations."""
    agent = random.randrange(len(program.ops))
    mine = program.ops[agent]
    at = random.randrange(len(mine))
    if random.random() < 0.5:
        new, what = random.choice((_delete, _duplicate, _swap, _move))(mine, at, random)
    else:
        changed = _changed(program, mine[at], random)
        if changed is None:
            return None
        new, what = (*mine[:at], changed, *mine[at + 1 :]), f"-> {_short(changed)}"
    if new == mine:
        return None
    every = (*program.ops[:agent], new, *program.ops[agent + 1 :])
    text = f"{program.agents[agent]}, operation {at}, {_short(mine[at])}: {what}"
    return replace(program, ops=every), text


def _delete(mine: tuple[Op, ...], at: int, _: Random) -> tuple[tuple[Op, ...], str]:
    return (*mine[:at], *mine[at + 1 :]), "deleted"


def _duplicate(mine: tuple[Op, ...], at: int, _: Random) -> tuple[tuple[Op, ...], str]:
    return (*mine[:at], mine[at], *mine[at:]), "duplicated"


def _swap(mine: tuple[Op, ...], at: int, _: Random) -> tuple[tuple[Op, ...], str]:
    new = list(mine)
    new[at : at + 2] = new[at : at + 2][::-1]
    return tuple(new), "swapped with the next"


def _move(mine: tuple[Op, ...], at: int, random: Random) -> tuple[tuple[Op, ...], str]:
    new = list(mine)
    op = new.pop(at)
    to = max(0, min(len(new), at + random.randint(-5, 5)))
    new.insert(to, op)
    return tuple(new), f"moved to {to}"


def _changed(program: Program, op: Op, random: Random) -> Op | None:
    """`op` with one of its values wrong."""
    match op:
        case ops.Wait():
            if random.random() < 0.5:
                return replace(op, phase=op.phase + random.choice((-2, -1, 1, 2)))
            return replace(op, bar=_other_bar(program, op.bar, random))
        case ops.Arrive():
            return _changed_arrive(program, op, random)
        case ops.Load():
            return _changed_load(program, op, random)
        case ops.Init():
            return replace(op, count=op.count + random.choice((-1, 1, 2)))
        case ops.Sync():
            kind, cta, number = op.name
            return random.choice(
                (
                    replace(op, name=(kind, cta, number + 1)),
                    replace(op, total=(op.total or 128) + random.choice((-32, 32))),
                )
            )
        case ops.Read() | ops.Write() | ops.Multiply() | ops.Store():
            return replace(op, cells=_other_cells(program, op.cells, random))
        case ops.Retire() | ops.StoreWait():
            return replace(op, pending=max(0, op.pending + random.choice((-1, 1, 2))))
    return None


def _changed_arrive(program: Program, op: ops.Arrive, random: Random) -> Op:
    bars = list(op.bars)
    i = random.randrange(len(bars))
    match random.randrange(5):
        case 0:
            bars[i] = _other_bar(program, bars[i], random)
        case 1 if len(bars) > 1:
            bars.pop(i)
        case 2:
            bars.append(bars[i])
        case 3:
            return replace(op, count=max(1, op.count + random.choice((-1, 1))))
        case _:
            step = random.choice((-16, 16, -4096, op.expect))
            return replace(op, expect=max(0, op.expect + step))
    return replace(op, bars=tuple(bars))


def _changed_load(program: Program, op: ops.Load, random: Random) -> Op:
    copies = list(op.copies)
    i = random.randrange(len(copies))
    match random.randrange(5):
        case 0:
            copies[i] = replace(copies[i], bar=_other_bar(program, copies[i].bar, random))
        case 1 if len(copies) > 1:
            copies.pop(i)
        case 2:
            copies.append(copies[i])
        case 3:
            copies[i] = replace(copies[i], cells=_other_cells(program, copies[i].cells, random))
        case _:
            copies[i] = replace(copies[i], size=copies[i].size + random.choice((-16, 16)))
    return replace(op, copies=tuple(copies))


def _other_bar(program: Program, bar: Bar, random: Random) -> Bar:
    every = {op.bar for mine in program.ops for op in mine if isinstance(op, ops.Init)}
    return random.choice(sorted(every - {bar}) or [bar])


def _other_cells(program: Program, cells: tuple[int, ...], random: Random) -> tuple[int, ...]:
    every = {
        tuple(op.cells)
        for mine in program.ops
        for op in mine
        if isinstance(op, ops.Read | ops.Write | ops.Multiply | ops.Store)
    }
    return random.choice(sorted(every - {cells}) or [cells])


def _short(op: Op) -> str:
    shown = [
        f"{f.name}={getattr(op, f.name)}" for f in fields(op) if f.name not in ("stmt", "copies")
    ]
    if isinstance(op, ops.Load):
        shown += [f"{c.bar} {c.cells} {c.size}" for c in op.copies]
    return f"{type(op).__name__}({', '.join(shown)})"


# ---- kernels ------------------------------------------------------------------------------------

Body = tuple[ir.Stmt, ...]


def mutate_kernel(kernel: ir.Kernel, random: Random) -> tuple[ir.Kernel, str] | None:
    """One fault in one statement, or in the place of one buffer or barrier."""
    if random.random() < 0.05:
        return _misplaced(kernel, random)
    bodies = [kernel.prologue, *(r.body for r in kernel.roles)]
    which = random.choices(range(len(bodies)), [len(list(walk(b))) for b in bodies])[0]
    total = len(list(walk(bodies[which])))
    edit = random.choice(
        (_gone, _twice, _later, _unwrapped, _alone, _wrong, _wrong, _wrong, _wrong)
    )
    said: list[str] = []
    new = _edited(bodies[which], random.randrange(total), edit, random, said)
    if new == bodies[which] or not said:
        return None
    if which == 0:
        return replace(kernel, prologue=new), said[0]
    roles = list(kernel.roles)
    roles[which - 1] = replace(roles[which - 1], body=new)
    return replace(kernel, roles=tuple(roles)), said[0]


Edit = Callable[[Body, int, Random], tuple[Body, str]]


def _edited(body: Body, target: int, edit: Edit, random: Random, said: list[str]) -> Body:
    """`body` with `edit` applied to its target-th statement in walking order."""
    for i, stmt in enumerate(body):
        if target == 0:
            new, what = edit(body, i, random)
            said.append(f"{type(stmt).__name__} {what}")
            return new
        size = len(list(walk((stmt,))))
        if target < size:
            inner = _edited(stmt.body, target - 1, edit, random, said)  # type: ignore[attr-defined]
            return (*body[:i], replace(stmt, body=inner), *body[i + 1 :])
        target -= size
    raise AssertionError("no such statement")


def _gone(body: Body, i: int, _: Random) -> tuple[Body, str]:
    return (*body[:i], *body[i + 1 :]), "deleted"


def _twice(body: Body, i: int, _: Random) -> tuple[Body, str]:
    return (*body[:i], body[i], *body[i:]), "duplicated"


def _later(body: Body, i: int, _: Random) -> tuple[Body, str]:
    return (*body[:i], *body[i : i + 2][::-1], *body[i + 2 :]), "swapped with the next"


def _unwrapped(body: Body, i: int, _: Random) -> tuple[Body, str]:
    inner = body[i].body if isinstance(body[i], BLOCKS) else (body[i],)  # type: ignore[attr-defined]
    return (*body[:i], *inner, *body[i + 1 :]), "taken out of its block"


def _alone(body: Body, i: int, _: Random) -> tuple[Body, str]:
    return (*body[:i], ir.If(when="leader", body=(body[i],)), *body[i + 1 :]), "left to the leader"


def _wrong(body: Body, i: int, random: Random) -> tuple[Body, str]:
    new = _changed_stmt(body[i], random)
    changed = [f.name for f in fields(new) if getattr(new, f.name) != getattr(body[i], f.name)]
    what = ", ".join(f"{n} {getattr(body[i], n)} -> {getattr(new, n)}" for n in changed)
    return (*body[:i], new, *body[i + 1 :]), what


def _changed_stmt(s: Any, random: Random) -> ir.Stmt:
    """`s` with one of its values wrong."""
    pick = random.choice
    match s:
        case ir.Wait(per="stage"):
            return pick((replace(s, flip=1 - s.flip), replace(s, barrier=_swapped(s.barrier))))
        case ir.Arrive(to="own" | "cluster"):
            other = "cluster" if s.to == "own" else "own"
            return pick(
                (
                    replace(s, lag=1 - s.lag),
                    replace(s, barrier=_swapped(s.barrier)),
                    replace(s, to=other),
                )
            )
        case ir.InitBarrier():
            return replace(s, arrivals=s.arrivals + pick((-1, 1, s.arrivals, -s.arrivals)))
        case ir.ExpectTx():
            return replace(s, tx_bytes=s.tx_bytes + pick((-16, 16, s.tx_bytes, -s.tx_bytes // 2)))
        case ir.WgmmaWait():
            return replace(s, pending=1 - s.pending)
        case ir.StoreWait():
            return replace(s, pending=s.pending + 1)
        case ir.TmaLoad():
            return _changed_tma(s, random)
        case ir.Sync(of="warpgroup"):
            return pick(
                (
                    replace(s, first_id=s.first_id + pick((-1, 1, 15))),
                    replace(s, warpgroups=s.warpgroups - 1),
                )
            )
        case ir.SetRegisters():
            count = s.count + pick((-4, 8, -8, 64))
            return pick((replace(s, count=count), replace(s, direction=pick(("inc", "dec")))))
        case ir.TmaStore():
            inner, outer = s.coords
            return pick(
                (
                    replace(s, offset=s.offset + 1024),
                    replace(s, wave=1 - s.wave),
                    replace(s, coords=(replace(inner, offset=inner.offset + 64), outer)),
                )
            )
        case ir.Mma():
            return _changed_mma(s, random)
        case (
            ir.StageTile()
            | ir.LoadRowScales()
            | ir.StoreTail()
            | ir.StoreRows()
            | ir.BulkRowStore()
        ):
            return replace(s, wave=1 - s.wave)
    return s


def _changed_tma(s: Any, random: Random) -> ir.Stmt:
    """`s` with its barrier, place, coordinates or destinations wrong."""
    inner, outer = s.coords
    choices = [
        replace(s, barrier=_swapped(s.barrier)),
        replace(s, offset=s.offset + random.choice((128, 4096))),
        replace(s, coords=(outer, inner)),
        replace(s, coords=(replace(inner, scale=inner.scale + 1), outer)),
        replace(s, coords=(replace(inner, offset=inner.offset + 16), outer)),
    ]
    if multicasts(s):
        choices += [
            replace(s, mask=random.choice((1, 2))),
            replace(s, rank_bytes=0),
            replace(s, coords=tuple(replace(c, rank_step=0) for c in s.coords)),
            replace(s, to="own", mask=0, slice=0, rank_bytes=0),
        ]
    return random.choice(choices)


def _changed_mma(s: ir.Mma, random: Random) -> ir.Stmt:
    assert s.steps and s.wave_bytes is not None and s.warpgroup_bytes is not None
    return random.choice(
        (
            replace(s, a=s.b, b=s.a),
            replace(s, wave_bytes=s.wave_bytes + 8192),
            replace(s, warpgroup_bytes=0),
            replace(s, steps=s.steps[:-1]),
            replace(s, steps=(*s.steps[:-1], s.steps[0])),
            replace(s, fresh="tile" if s.fresh == "block" else "block"),
        )
    )


def _swapped(barrier: str) -> str:
    return {"full": "empty", "empty": "full"}[barrier]


def _misplaced(kernel: ir.Kernel, random: Random) -> tuple[ir.Kernel, str] | None:
    """A buffer or a barrier some bytes lower: it overlaps what lies before it."""
    shift = random.choice((8, 128, 1024))
    if random.random() < 0.5:
        smem = list(kernel.smem)
        i = random.randrange(len(smem))
        if smem[i].offset < shift:  # type: ignore[operator]
            return None
        smem[i] = replace(smem[i], offset=smem[i].offset - shift)  # type: ignore[operator]
        return replace(kernel, smem=tuple(smem)), f"{smem[i].name} {shift} bytes lower"
    barriers = list(kernel.barriers)
    i = random.randrange(len(barriers))
    barriers[i] = replace(barriers[i], offset=barriers[i].offset - shift)  # type: ignore[operator]
    return replace(kernel, barriers=tuple(barriers)), f"{barriers[i].name} {shift} bytes lower"
