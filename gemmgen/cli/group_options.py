"""Arguments that say of which sizes a grouped kernel's groups are."""

from __future__ import annotations

import argparse

from ..errors import ArgumentError
from ..ir.counts import MOST_SIDE
from ..ir.groupings import GROUPINGS, OF_SIZES, Grouping, Layout, segments, split_side
from ..problem import Problem
from ..see.instance import mean_shape
from ..untrusted import whole
from .options import Shape
from .simulated import alone


def add_rows(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--rows",
        metavar="R,R,...",
        help="of each group of a grouped kernel (-m: of A, or of each group where A has groups); some if not given",
    )
    parser.add_argument(
        "--depths",
        metavar="K,K,...",
        help="of each group of a kernel whose groups split K (-k: of all together); some if not given",
    )


def layout(args: argparse.Namespace, p: Problem, shape: Shape) -> Layout | None:
    """What `--rows` or `--depths` says of the groups, or None. Raises ArgumentError."""
    g, side = GROUPINGS[p.grouping], split_side(p.grouping, shape)
    by_rows = p.grouping != "none" and not g.depths
    found: Layout | None = None
    for name, what, holds in (("rows", "rows", by_rows), ("depths", "K", bool(g.depths))):
        sizes = getattr(args, name)
        if sizes is None:
            continue
        numbers = [whole(s) for s in sizes.split(",")]
        listed = [n for n in numbers if n is not None]
        if not holds or len(listed) < len(numbers) or sum(listed) > MOST_SIDE:
            allowed = f"must be the {what} of each group of such a grouped kernel, as in 256,0,128"
            raise ArgumentError(f"--{name}", sizes, allowed)
        aligned = p.alignment if g.aligned else 1
        if not _fit(g, side, listed, aligned):
            allowed = "must all be" if g.rows and not g.ragged else "must fit into"
            of = f"K={side}" if g.depths else f"M={side}"
            where = f", groups at multiples of {aligned}" if g.aligned else ""
            raise ArgumentError(f"--{name}", sizes, f"{allowed} {of}{where}")
        found = OF_SIZES[p.grouping](side, listed, aligned)
    return found


def chosen_for(
    args: argparse.Namespace, p: Problem, shape: Shape
) -> tuple[Layout | None, Shape, int]:
    """`layout`, and what a config is chosen for: the mean of the groups, and how many there are; one has all where nothing is said."""
    found = layout(args, p, shape)
    of = found or alone(p, shape)
    return found, mean_shape(p, shape, of), of.groups


def at_work(args: argparse.Namespace, p: Problem, shape: Shape) -> tuple[Layout | None, Shape, int]:
    """`chosen_for`, where a group has rows. Raises ArgumentError if none has."""
    found = chosen_for(args, p, shape)
    of = found[0] or alone(p, shape)
    if not any(x.end > x.first for x in segments(p.grouping, shape[0], of, p.alignment)):
        raise ArgumentError("--rows", args.rows, "must not all be 0: what is shown has a tile")
    return found


def _fit(g: Grouping, side: int, sizes: list[int], aligned: int) -> bool:
    """Whether groups of `sizes` are there in whole."""
    if g.rows:
        return all(size == side or (g.ragged and size < side) for size in sizes)
    end = 0
    for size in sizes:
        end = -(-end // aligned) * aligned + size
    return end <= side
