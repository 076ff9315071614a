"""What every family shares of A and B: their buffers, tensor maps and loads."""

from __future__ import annotations

from typing import TypeVar

from ..config import Config
from ..ir.dtypes import DType
from ..ir.nodes import Axis, Coord, Major, Smem, TmaLoad, TmaMap
from ..problem import Problem

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


def load(tensor: str, inner: Coord, outer: Coord, *, grouped: bool) -> TmaLoad:
    return TmaLoad(
        tensor_map=f"map_{tensor}",
        smem=f"smem_{tensor}",
        barrier="full",
        coords=(inner, outer, *(Coord(base="tile.group"),) * grouped),
    )


def operand_map(
    tensor: str, side: Axis, major: Major, *, grouped: bool, indices: str = ""
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
    )


def operand_load(tensor: str, major: Major, k: Coord, *, grouped: bool) -> TmaLoad:
    row = Coord(base=f"tile.{tensor}_row")  # type: ignore[arg-type]
    return load(tensor, *contiguous_first(major, k, row), grouped=grouped)


def contiguous_first(major: Major, k: T, mn: T) -> tuple[T, T]:
    """What belongs to an operand's sides, as tensor maps want it: (inner, outer)."""
    return (k, mn) if major == "k" else (mn, k)
