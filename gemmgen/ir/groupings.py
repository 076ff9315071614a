"""Groupings: which GEMMs one launch computes, and where each of them lies in the tensors.

A grouping is orthogonal to the family: the K loop is the same, only the scheduler and the
coordinates differ (docs/adr/0007-groupings.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from ..errors import ArgumentError
from .expr import Expr, InGroup
from .nodes import Param

COUNT = Param(name="groups", ctype="int")
ALIGNMENTS, DENSE = (128, 64), (8, 4, 1)


def _every_row(value: Expr) -> Expr:
    return value


@dataclass(frozen=True, kw_only=True)
class Grouping:
    """scheduler: the device struct that walks it. params: what that reads besides the shape.

    rows: A, its scales and D have a leading group dimension (D not if summed). columns: B and its scales have one.
    ragged: a group may end inside a tile, whose other rows belong to somebody else. aligned: groups
    begin at multiples of Problem.alignment. dense: which may be DENSE, so that few rows or none lie between two. again: a group may have several
    places; where tiles' rows do not divide the alignment, what ends inside a tile is a run of it. value: what becomes of an
    epilogue.
    depths: groups follow each other along K: as columns of one matrix, or each as a matrix of its own
    behind the one before (flat; of a K-major operand, for of an MN-major one both are the same).
    summed: D is one, the sum of all groups' products: a tile's K blocks are every group's, one group's after the other's.
    """

    says: str
    scheduler: str
    params: tuple[Param, ...] = ()
    rows: bool = False
    columns: bool = False
    ragged: bool = False
    aligned: bool = False
    dense: bool = False
    again: bool = False
    value: Callable[[Expr], Expr] = _every_row
    depths: Literal["", "columns", "flat"] = ""
    summed: bool = False

    @property
    def table(self) -> str:
        """The parameter that says on the device what the host does not know of the groups; "" if the host does."""
        return next((x.name for x in self.params if x is not COUNT), "")

    @property
    def alignments(self) -> tuple[int, ...]:
        """What Problem.alignment may be, by the walk alone; any where it is of no use."""
        return (*ALIGNMENTS, *DENSE) if self.dense or not self.aligned else ALIGNMENTS

    @property
    def outputs(self) -> bool:
        """Whether D, and what an epilogue reads per row or element, have a group dimension."""
        return (self.rows and not self.summed) or bool(self.depths)

    @property
    def vectors(self) -> bool:
        """Whether what an epilogue reads per column has one."""
        return (self.columns and not self.summed) or bool(self.depths)

    @property
    def walked(self) -> tuple[Param, ...]:
        """Of `params`, those that the struct is made from: how many groups are summed is in the K that it is told."""
        return () if self.summed else self.params


def _in_group(value: Expr) -> Expr:
    return InGroup(value, "row_groups")


DEPTHS = (COUNT, Param(name="group_depths", ctype="const int*"))
GROUPINGS = {
    "none": Grouping(says="one GEMM", scheduler="panels"),
    "batched": Grouping(
        says="as many GEMMs of one shape as there are groups",
        scheduler="batched",
        params=(COUNT,),
        rows=True,
        columns=True,
    ),
    "masked": Grouping(
        says="A [G, Mmax, K], of each group as many rows as the device says",
        scheduler="masked",
        params=(COUNT, Param(name="group_rows", ctype="const int*")),
        rows=True,
        columns=True,
        ragged=True,
    ),
    "rows": Grouping(
        says="A [M, K], the device says of each row which group it is in; no row (-1) gives 0",
        scheduler="rows",
        params=(Param(name="row_groups", ctype="const int*"),),
        columns=True,
        aligned=True,
        again=True,
        value=_in_group,
    ),
    "ends": Grouping(
        says="A [M, K], the device says at which row each group ends",
        scheduler="ends",
        params=(COUNT, Param(name="group_ends", ctype="const int*")),
        columns=True,
        ragged=True,
        aligned=True,
        dense=True,
    ),
    "k_columns": Grouping(
        says="D [G, M, N], the device says how many of A's and B's K each group sums",
        scheduler="depths",
        params=DEPTHS,
        depths="columns",
    ),
    "k_flat": Grouping(
        says="D [G, M, N], each group has matrices of its own, one after another, and the device says their K",
        scheduler="depths",
        params=DEPTHS,
        depths="flat",
    ),
    "summed": Grouping(
        says="D [M, N], the sum of as many GEMMs of one shape as there are groups",
        scheduler="panels",
        params=(COUNT,),
        rows=True,
        columns=True,
        summed=True,
    ),
}


@dataclass(frozen=True, kw_only=True)
class Layout:
    """What one launch says of its groups: how many, and what the grouping's device array holds.

    masked: int32 [G], rows per group. ends: int32 [G], the row after each group's last. rows: int32
    [M], the group of each row, -1 for none. k_columns, k_flat: int32 [G], K per group.
    """

    groups: int = 1
    table: tuple[int, ...] = ()


ALONE = Layout()


@dataclass(frozen=True, kw_only=True)
class Segment:
    """The rows first..end-1 of A and D (of the group's own, where it has its own), times group's B."""

    group: int
    first: int
    end: int


def segments(grouping: str, rows: int, layout: Layout, alignment: int) -> Iterator[Segment]:
    """What a launch computes, in order. `rows`: of A, in each group if it has its own."""
    yield from SEGMENTS[grouping](rows, layout, alignment)


def _whole(rows: int, layout: Layout, alignment: int) -> Iterator[Segment]:
    for group in range(layout.groups):
        yield Segment(group=group, first=0, end=rows)


def _masked(rows: int, layout: Layout, alignment: int) -> Iterator[Segment]:
    for group, count in enumerate(layout.table):
        yield Segment(group=group, first=0, end=min(max(count, 0), rows))


def _ends(rows: int, layout: Layout, alignment: int) -> Iterator[Segment]:
    end = 0
    for group, stop in enumerate(layout.table):
        first = -(-end // alignment) * alignment
        end = max(first, min(stop, rows))
        yield Segment(group=group, first=first, end=end)


def _rows(rows: int, layout: Layout, alignment: int) -> Iterator[Segment]:
    first = 0
    for row in range(1, rows + 1):
        if row == rows or layout.table[row] != layout.table[first]:
            if layout.table[first] >= 0:
                yield Segment(group=layout.table[first], first=first, end=row)
            first = row


def _one(rows: int, layout: Layout, alignment: int) -> Iterator[Segment]:
    yield Segment(group=0, first=0, end=rows)


SEGMENTS = {
    "none": _whole,
    "batched": _whole,
    "masked": _masked,
    "ends": _ends,
    "rows": _rows,
    "k_columns": _whole,
    "k_flat": _whole,
    "summed": _one,
}


@dataclass(frozen=True, kw_only=True)
class Depth:
    """The K first..end-1 that a group sums."""

    first: int
    end: int


def depths(grouping: str, k: int, layout: Layout) -> list[Depth]:
    """Of each group, K being A's and B's; of all together where they are summed."""
    if GROUPINGS[grouping].depths:
        return in_turn(k, layout)
    return [Depth(first=0, end=k)] * (1 if GROUPINGS[grouping].summed else layout.groups)


def in_turn(k: int, layout: Layout) -> list[Depth]:
    """One group's K after the other's, as far as there is any."""
    found, first = [], 0
    for count in layout.table:
        end = min(first + max(count, 0), k)
        found.append(Depth(first=first, end=end))
        first = end
    return found


def summed_k(summed: bool, k: int, groups: int, step: int) -> int:
    """The K that a tile sums, of which each group has `k`: all groups' where they are summed, each one's in whole steps, such as K blocks."""
    return -(-k // step) * step * groups if summed else k


def split_side(grouping: str, shape: tuple[int, int, int]) -> int:
    """The side of (M, N, K) that a layout's sizes are of."""
    return shape[2] if GROUPINGS[grouping].depths else shape[0]


def check_layout(grouping: str, rows: int, layout: Layout, alignment: int) -> None:
    """Raise ArgumentError unless the table has the right length and every group starts where it may."""
    by_group = dict.fromkeys(("masked", "ends", "k_columns", "k_flat"), layout.groups)
    wanted = {**by_group, "rows": rows}.get(grouping, 0)
    if len(layout.table) != wanted:
        raise ArgumentError("table", len(layout.table), f"must have {wanted} entries")
    for s in segments(grouping, rows, layout, alignment):
        if not 0 <= s.group < layout.groups:
            raise ArgumentError("table", s.group, f"groups are 0 to {layout.groups - 1}, or -1")
        if GROUPINGS[grouping].aligned and s.first % alignment:
            raise ArgumentError("table", s.first, f"groups begin at multiples of {alignment}")


def _sized(rows: int, sizes: Sequence[int], alignment: int) -> Layout:
    return Layout(groups=len(sizes), table=tuple(sizes))


def _ending(rows: int, sizes: Sequence[int], alignment: int) -> Layout:
    ends, end = [], 0
    for size in sizes:
        end = min(-(-end // alignment) * alignment + size, rows)
        ends.append(end)
    return Layout(groups=len(sizes), table=tuple(ends))


def _by_row(rows: int, sizes: Sequence[int], alignment: int) -> Layout:
    table = [-1] * rows
    first = 0
    for group, size in enumerate(sizes):
        table[first : first + size] = [group] * len(table[first : first + size])
        first += -(-size // alignment) * alignment
    return Layout(groups=len(sizes), table=tuple(table))


# By grouping: the layout of A's `rows` (of each group, if it has its own) in which the groups have
# `sizes` rows, as far as there are rows for them. Where groups follow each other along K, of K.
OF_SIZES: dict[str, Callable[[int, Sequence[int], int], Layout]] = {
    "none": lambda rows, sizes, alignment: ALONE,
    "batched": lambda rows, sizes, alignment: Layout(groups=len(sizes)),
    "masked": _sized,
    "ends": _ending,
    "rows": _by_row,
    "k_columns": _sized,
    "k_flat": _sized,
    "summed": lambda rows, sizes, alignment: Layout(groups=len(sizes)),
}
