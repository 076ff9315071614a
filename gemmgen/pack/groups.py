"""What groups add to a pack: arguments that say of them, and by what a launch finds its kernel."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ..errors import ArgumentError
from ..ir.counts import INT_LIMIT, MOST_SIDE
from ..ir.groupings import GROUPINGS
from ..problem import INT8_K, Problem, check_shape, depth_step
from ..recipes import recipe
from .members import Member, in_range, number, pointer

Sides = tuple[int, ...]  # (M, N, K) or (groups, M, N, K), M or K of one group in the mean
GROUP_MAPS = "group_maps"  # the kernel parameter that points to a launch's workspace
MAP_ALIGNMENT = 128  # bytes, of a tensor map in it


@dataclass(frozen=True, kw_only=True)
class Choice:
    """What a launch finds its kernel by: sides that must be ones the pack was made for, and a size up to which a
    kernel serves, as `gemmgen.ops` counts it for the cost model. size: in C. says: what errors call it. groups:
    in C, how many. grids: in C, of how many tiles are counted one by one. whole_k: in C, what a tile sums of K, of several groups in whole K blocks. tiles: in C, as many as a walk may count. nothing: in C, whether there is nothing to launch; none: the same in words."""

    exactly: tuple[str, ...]
    size: str
    says: str
    groups: str
    grids: str
    whole_k: str
    tiles: str
    nothing: str
    none: str

    @property
    def shown(self) -> str:
        """A printf format of `exactly`."""
        return ", ".join(f"{x}=%lld" for x in self.exactly)

    @property
    def given(self) -> str:
        """In C, the values of `exactly`."""
        return ", ".join(f"args->{x}" for x in self.exactly)

    @property
    def places(self) -> str:
        """The same out of the array `at`."""
        return ", ".join(f"at[{i}]" for i in range(len(self.exactly)))


EXPECTED = "args->expected_rows && args->expected_rows < args->m ? args->expected_rows : args->m"
SIZES = {  # by grouping: size and what it is called; everything else goes by M
    "masked": (EXPECTED, "rows per group"),
    "rows": ("(args->m + args->groups - 1) / args->groups", "rows per group"),
    "ends": ("(args->m + args->groups - 1) / args->groups", "rows per group"),
    "k_columns": ("(args->k + args->groups - 1) / args->groups", "k per group"),
    "k_flat": ("(args->k + args->groups - 1) / args->groups", "k per group"),
}

WHOLE_K = "times(args->groups, (args->k + kernel->block_k - 1) / kernel->block_k * kernel->block_k)"
ALL_GROUPS = "times(args->groups, times(tiles_m, tiles_n))"
TILES = {  # by grouping: as `gemmgen.ir.counts.most_tiles` counts; everything else has those of all groups
    "none": "times(tiles_m, tiles_n)",
    "summed": "times(tiles_m, tiles_n)",
    "rows": "times(tiles_m + (m + {step} - 1) / {step}, tiles_n)",
    "ends": "times(tiles_m + args->groups, tiles_n)",
}


def grouped(p: Problem) -> bool:
    return p.grouping != "none"


def sides(p: Problem) -> tuple[str, ...]:
    """The C arguments that are sides, as `Sides` has them."""
    return (*("groups",) * grouped(p), "m", "n", "k")


def choice(p: Problem) -> Choice:
    size, says = SIZES.get(p.grouping, ("args->m", "m"))
    return Choice(
        exactly=tuple(x for x in sides(p) if x != _varying(p)),
        size=size,
        says=says,
        groups="args->groups" if grouped(p) else "1",
        grids="args->groups" if grouped(p) and not GROUPINGS[p.grouping].summed else "1",
        whole_k=WHOLE_K if GROUPINGS[p.grouping].summed else "args->k",
        tiles=TILES.get(p.grouping, ALL_GROUPS).format(step=p.alignment),
        nothing="!args->m" + " || !args->groups" * grouped(p),
        none="m = 0" + " or groups = 0" * (grouped(p) and p.grouping != "rows"),
    )


def place(p: Problem, shape: Sides) -> tuple[Sides, int]:
    """`shape` as its Choice sees it: the sides that must be the same, and the size. Raises ArgumentError."""
    if not isinstance(shape, tuple) or len(shape) != len(sides(p)):
        raise ArgumentError("shape", shape, f"must be ({', '.join(sides(p))})")
    check_shape(shape[-3:])
    if not hasattr(shape[0], "__index__") or not 1 <= shape[0] < INT_LIMIT:
        raise ArgumentError("groups", shape[0], f"must be an integer from 1 to {INT_LIMIT - 1}")
    by_name = dict(zip(sides(p), shape, strict=True))
    if by_name["k"] > most_k(p, by_name.get("groups", 1)):
        allowed = f"must be at most {most_k(p, by_name.get('groups', 1))}: INT32 may overflow"
        raise ArgumentError("k", by_name["k"], allowed)
    return tuple(by_name[x] for x in choice(p).exactly), by_name[_varying(p)]


def most_k(p: Problem, groups: int) -> int:
    """What K may be at most, so that sums are exact: of a group where `groups` are summed."""
    if not p.a.integer or recipe(p.family).promotes:
        return MOST_SIDE
    return INT8_K // groups if GROUPINGS[p.grouping].summed else INT8_K


def _varying(p: Problem) -> str:
    return "k" if GROUPINGS[p.grouping].depths else "m"


def count(p: Problem) -> tuple[Member, ...]:
    """The number of groups, if there are any. Where rows say that they are in none, nobody but a kernel sets
    them to 0: then there must be one."""
    check = in_range("groups", int(p.grouping == "rows"))
    return (number("groups", "how many", "groups", check),) * grouped(p)


def expected(p: Problem) -> tuple[Member, ...]:
    says = "rows that groups are expected to have, by which a kernel is chosen; 0: m"
    check = in_range("expected_rows", 0)
    return (number("expected_rows", says, "0", check),) * (p.grouping == "masked")


def tables(p: Problem) -> Iterator[Member]:
    """What the device says of groups and the host does not know."""
    at, step = p.alignment, depth_step(p)
    ends = f"the row after each group's last; groups begin at multiples of {at}"
    rows = f"the group of each row, -1 for none, the same in each {at} rows"
    depths = "k of each group" + f", a multiple of {step}" * (step > 1)
    yield _table("group_rows", "groups", "rows of each group, 0 to m", "(3 - i % 4) * m / 3")
    yield _table("group_ends", "groups", ends, "(i + 1) * m / groups")
    yield _table("row_groups", "m", rows, f"(i / {at} + 1) % (groups + 1) - 1")
    yield _table("group_depths", "groups", depths, "(3 - i % 3) * k / (3 * groups) / 128 * 128")


def _table(name: str, entries: str, says: str, entry: str) -> Member:
    return pointer(name, f"int32 [{entries}], {says}", f"{entries} * 4", entry=entry)


def k_step(p: Problem) -> int:
    """What K of all groups together is a multiple of."""
    whole = p.grouping == "k_flat" or recipe(p.family).scaled
    return depth_step(p) if whole and _varying(p) == "k" else 1


def workspace() -> Member:
    """Where a launch keeps the tensor maps that it derives on the device."""
    says = "workspace: of one launch at a time, 128-byte aligned"
    return pointer(GROUP_MAPS, says, f"args.{GROUP_MAPS}_bytes", MAP_ALIGNMENT)
