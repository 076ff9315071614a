"""D staged by so many columns at a time, double-buffered (docs/adr/0022-d-columns.md).

Where D's tile takes the ring's place, it leaves that some.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import gcd

from ..ir.expr import fold
from ..ir.groupings import GROUPINGS
from .lever import AS_IT_IS, C, Changes, L, Lever, integer, optional

# Bytes of D beside which 256 rows have three stages of FP8, below what hides latency.
LARGE_D = 1 << 16
WIDE = 128  # bytes of a piece's row: one slab of the widest swizzle, so that two waves have an even number
NARROWEST = WIDE // 2  # slabs of 32 bytes cost up to 23 % (docs/findings.md)
NARROW = 64  # bytes: D's swizzle where a piece of the widest's slabs leaves no room


def widest(of: L, c: C) -> int | None:
    """Columns of pieces of the widest slab that divides D's; None if D is not one that may be cut (rule `column-stores`)."""
    p = of.problem
    if fold(p.epilogue) > 1 or p.quantised:
        return None
    d_bytes: int = p.d.bytes
    return gcd(c.block_n * d_bytes, WIDE) // d_bytes


def _offers(of: L, c: C) -> tuple[Changes, ...]:
    """In pieces, if it is a tile of two waves of FP8 with column scales, which gains from its rows and has no room for D: that
    was timed in FP32, without groups that end inside tiles. Nothing if only narrow boxes would make room."""
    d_bytes, columns = of.problem.d.bytes, widest(of, c)
    timed = of.recipe.scales_columns and d_bytes == 4
    timed &= not GROUPINGS[of.problem.grouping].ragged
    if not timed or columns is None or c.swap_ab:
        return AS_IT_IS
    if c.waves < 2 or c.block_m * c.block_n * d_bytes < LARGE_D:
        return AS_IT_IS
    return ({"d_columns": columns},) if columns * d_bytes >= NARROWEST else ()


def _deepens(c: C) -> Iterator[Changes]:
    """The widest pieces first, at which warps meet the fewest times."""
    columns = [x for x in range(c.block_n, 0, -8) if c.block_n % x == 0]
    for swizzle in (c.swizzle_d, NARROW):
        yield from ({"d_columns": x, "swizzle_d": swizzle} for x in columns)


def _price(price: Changes, of: L, c: C) -> Changes:
    return {"pieces": c.waves * c.block_n / c.d_columns, "row": c.d_columns}


D_COLUMNS = Lever(
    name="d_columns",
    values=optional(integer(8, 256, 8)),
    default=None,
    added=True,
    tag="d{}",
    word="D by {} columns",
    reads="each warpgroup stages so many columns of D at a time, double-buffered",
    sums=False,
    deepens=_deepens,
    offers=_offers,
    price=_price,
)
