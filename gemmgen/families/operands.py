"""What every family shares of A and B: their buffers, tensor maps and loads."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeVar

from ..config import Config
from ..ir.dtypes import F32, S8, DType
from ..ir.indices import ROWS
from ..ir.nodes import (
    Axis,
    Coord,
    LoadBlocks,
    Major,
    Param,
    Pointed,
    Smem,
    Stmt,
    TmaLoad,
    TmaMap,
)
from ..ir.packed import ROWS as BLOCK_ROWS
from ..ir.packed import Form
from ..ir.pages import PAGES
from ..problem import Problem
from .output import group_stride

OF_TILE = Coord(base="tile.group")
LINE = 32  # FP32 scales in 128 bytes
T = TypeVar("T")


def whole(scales: int) -> int:
    """As many as fill whole lines of 128 bytes: where TMA may put the next stage's."""
    return -(-scales // LINE) * LINE


def majors(p: Problem) -> tuple[Major, Major]:
    """The contiguous side of A and of B."""
    a, b = ("mn" if x else "k" for x in p.mn_major)
    return a, b  # type: ignore[return-value]


def operand(name: str, dtype: DType, side: int, major: Major, c: Config) -> Smem:
    """`side` of M or N times a K block; the columns are the contiguous side."""
    k = c.block_k_bytes // dtype.bytes
    rows, cols = (side, k) if major == "k" else (k, side)
    return Smem(
        name=name,
        dtype=dtype,
        rows=rows,
        cols=cols,
        stages=c.stages,
        use="operand",
        swizzle=c.swizzle_ab,
    )


def load(
    tensor: str, inner: Coord, outer: Coord, *, grouped: bool, group: Coord = OF_TILE
) -> TmaLoad:
    return TmaLoad(
        tensor_map=f"map_{tensor}",
        smem=f"smem_{tensor}",
        barrier="full",
        coords=(inner, outer, *(group,) * grouped),
    )


def operand_map(
    tensor: str, side: Axis, major: Major, *, grouped: bool, indices: str = "", pages: str = ""
) -> TmaMap:
    inner, outer = contiguous_first(major, "k", side)
    return TmaMap(
        name=f"map_{tensor}",
        tensor=tensor,
        inner=inner,
        outer=outer,
        smem=f"smem_{tensor}",
        grouped=grouped,
        indices=indices,
        pages=pages,
    )


def operand_load(
    tensor: str, major: Major, k: Coord, *, grouped: bool, summed: bool = False
) -> TmaLoad:
    """summed: `k` is a place in the K of all groups."""
    row = Coord(base=f"tile.{tensor}_row")  # type: ignore[arg-type]
    group = replace(k, of="group") if summed else OF_TILE
    k = replace(k, of="depth") if summed else k
    return load(tensor, *contiguous_first(major, k, row), grouped=grouped, group=group)


def contiguous_first(major: Major, k: T, mn: T) -> tuple[T, T]:
    """What belongs to an operand's sides, as tensor maps want it: (inner, outer)."""
    return (k, mn) if major == "k" else (mn, k)


@dataclass(frozen=True, kw_only=True)
class Operand:
    """How one of a kernel's operands comes: by a tensor map, or from where threads point to, into a buffer of the ring, stage by stage."""

    smem: Smem
    load: Stmt
    maps: tuple[TmaMap, ...] = ()
    params: tuple[Param, ...] = ()
    pointed: tuple[Pointed, ...] = ()


def boxes_of_a(p: Problem, c: Config, k: Coord) -> Operand:
    major, grouped = majors(p)[0], p.grouped.rows
    return Operand(
        smem=operand("smem_a", p.a, c.block_m, major, c),
        load=operand_load("a", major, k, grouped=grouped, summed=p.grouped.summed),
        maps=(operand_map("a", "m", major, grouped=grouped, indices=ROWS * p.indexed),),
    )


def boxes_of_b(p: Problem, c: Config, k: Coord) -> Operand:
    major, grouped = majors(p)[1], p.grouped.columns
    return Operand(
        smem=operand("smem_b", p.b, c.block_n, major, c),
        load=operand_load("b", major, k, grouped=grouped, summed=p.grouped.summed),
        maps=(operand_map("b", "n", major, grouped=grouped, pages=PAGES * bool(p.paged)),),
    )


def scales_of(name: str, axis: Axis, rows: int, c: Config, *, grouped: bool) -> Operand:
    """FP32 scales of operand `name`, of `rows` of the tile, which lie along `axis`: one per row and K block."""
    tensor = f"scale_{name}"
    smem = Smem(
        name=f"smem_{tensor}",
        dtype=F32,
        rows=1,
        cols=whole(rows),
        stages=c.stages,
        use="scales",
    )
    at = Coord(base=f"tile.{name}_row")  # type: ignore[arg-type]
    return Operand(
        smem=smem,
        load=load(tensor, at, Coord(base="k"), grouped=grouped),
        maps=(
            TmaMap(
                name=f"map_{tensor}",
                tensor=tensor,
                inner=axis,
                outer="k",
                smem=smem.name,
                grouped=grouped,
            ),
        ),
    )


def blocks_of_b(p: Problem, c: Config, form: Form) -> Operand:
    """Packed weights: a block for each 64 rows of the tile."""
    grouped = p.grouped.columns
    b = Param(name="b", ctype="const uint8_t*")
    return Operand(
        smem=Smem(
            name="smem_b",
            dtype=S8,
            rows=c.block_n // BLOCK_ROWS,
            cols=form.block_bytes,
            stages=c.stages,
            use="blocks",
        ),
        load=LoadBlocks(tensor="b", smem="smem_b", barrier="full", k=Coord(base="k")),
        params=(b, *group_stride("b", grouped=grouped)),
        pointed=(Pointed(tensor="b", dtype=S8, outer="n", grouped=grouped, clipped=True),),
    )
