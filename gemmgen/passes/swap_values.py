"""With swap_ab, what an epilogue holds in registers before D is staged: pairs of columns, and the maxima of 128 of them."""

from __future__ import annotations

from dataclasses import replace

from ..ir.blocks import TileBody
from ..ir.dtypes import F32
from ..ir.nodes import (
    Evaluate,
    Kernel,
    Normalise,
    Registers,
    Role,
    RowAmax,
    ShareAmax,
    Smem,
    StageTile,
    Stmt,
    StoreScales,
    Sync,
    TakeAmax,
    Zero,
)
from ..ir.rewrite import map_role, map_stmts, statements
from ..target import Target

MAXIMA, VALUES = "smem_amax", "values"
PAIR = 4  # a thread holds two of every eight columns: one in so many


def swapped_values(kernel: Kernel, target: Target) -> Kernel:
    """A kernel whose accumulators' rows are columns of D. Sets Evaluate.of, and its dst's count; where D has scales, evaluates all waves
    before it scales them: each has an array, and warps share their maxima. Sums of rows are as their family has them."""
    found = [s for s in statements(kernel) if isinstance(s, Evaluate) and s.of != "sums"]
    if not found:
        return kernel
    held = next(r.count for role in kernel.roles for r in role.locals if r.name == found[0].src)
    values = Registers(name=VALUES, dtype=F32, count=held // kernel.block.fold, transient=True)
    kernel = map_stmts(kernel, lambda s: _paired(s, kernel.block.fold))
    if not any(isinstance(s, RowAmax) for s in statements(kernel)):
        return _with(kernel, (values,))
    arrays = tuple(replace(values, name=f"{VALUES}{s.wave}") for s in found)
    amax = Registers(name="amax", dtype=F32, count=kernel.block.m // PAIR)
    warps, rows = target.warpgroup // target.warp, kernel.block.m
    smem = Smem(name=MAXIMA, dtype=F32, rows=warps, cols=rows, stages=1, use="maxima", swizzle=0)
    kernel = replace(map_stmts(kernel, _together), smem=(*kernel.smem, smem))
    return _with(kernel, (*arrays, amax))


def _paired(s: Stmt, fold: int) -> Stmt:
    return replace(s, of="pairs") if isinstance(s, Evaluate) and fold > 1 else s


def _with(kernel: Kernel, arrays: tuple[Registers, ...]) -> Kernel:
    """In the place of what the family holds."""

    def instead(role: Role) -> Role:
        kept = (r for r in role.locals if r.name not in (VALUES, "amax"))
        return replace(role, locals=(*kept, *arrays))

    return map_role(kernel, "consumer", instead)


def _together(s: Stmt) -> Stmt:
    if not isinstance(s, TileBody) or not any(isinstance(x, Evaluate) for x in s.epilogue):
        return s  # the producer's
    of = (Evaluate, RowAmax, StoreScales, Normalise, StageTile, Zero)
    first = next(i for i, x in enumerate(s.epilogue) if isinstance(x, Evaluate))
    last = max(i for i, x in enumerate(s.epilogue) if isinstance(x, of))
    staged = s.epilogue[first : last + 1]
    (sync, *_) = (x for x in s.epilogue if isinstance(x, Sync))
    return replace(
        s, epilogue=(*s.epilogue[:first], *_scaled(staged, sync), *s.epilogue[last + 1 :])
    )


def _scaled(staged: tuple[Stmt, ...], sync: Sync) -> tuple[Stmt, ...]:
    waves = [s for s in staged if isinstance(s, Evaluate)]
    evaluated = tuple(
        x for s in waves for x in (replace(s, dst=f"{VALUES}{s.wave}"), Zero(dst=s.src))
    )
    raised = tuple(
        RowAmax(dst="amax", src=f"{VALUES}{s.wave}", wave=s.wave, of="columns") for s in waves
    )
    shared = (ShareAmax(src="amax", smem=MAXIMA), sync, TakeAmax(dst="amax", smem=MAXIMA))
    stored = next(replace(s, of="columns") for s in staged if isinstance(s, StoreScales))
    tiles = {s.wave: s for s in staged if isinstance(s, StageTile)}
    normalised = tuple(
        x
        for s in waves
        for x in (
            Normalise(dst=f"{VALUES}{s.wave}", amax="amax", of="columns"),
            replace(tiles[s.wave], src=f"{VALUES}{s.wave}"),
        )
    )
    return (*evaluated, Zero(dst="amax"), *raised, *shared, stored, *normalised)
