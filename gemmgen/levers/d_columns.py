"""D staged by so many columns at a time, double-buffered (docs/adr/0022-d-columns.md)."""

from __future__ import annotations

from .lever import Lever, integer, optional

D_COLUMNS = Lever(
    name="d_columns",
    values=optional(integer(8, 256, 8)),
    default=None,
    added=True,
    tag="d{}",
    word="D by {} columns",
    reads="each warpgroup stages so many columns of D at a time, double-buffered",
    sums=False,
)
