"""How tensor-map coordinates are spelled, and the K that a tile sums."""

from __future__ import annotations

from ..ir.nodes import Coord, Kernel
from ..ir.pages import HELD

# Of a place in the K that a tile sums: itself, the place in its group, and the group.
PLACES = {"": "{}", "depth": "({}) % depth", "group": "({}) / depth"}

DEPTH = (
    "// K of a group, in whole K blocks: a tile sums one group's after the other's.",
    "const int depth = (shape_k + BLOCK_K - 1) / BLOCK_K * BLOCK_K;",
)


def coordinate(c: Coord) -> str:
    if c.base == "page":
        return f"{HELD}[{c.offset}]"
    text = c.base if c.scale == 1 else f"{c.base} * {c.scale}"
    text = f"{c.start} + {text}" if c.start else text
    text = PLACES[c.of].format(text)
    text += f" + {c.offset}" if c.offset else ""
    return text + (f" + cta_rank * {c.rank_step}" if c.rank_step else "")


def depth(kernel: Kernel) -> tuple[str, ...]:
    """What is said before the scheduler is made: nothing where a tile sums one group's K."""
    return DEPTH * kernel.groups.summed


def all_k(kernel: Kernel) -> str:
    """The K that a tile sums."""
    return "depth * groups" if kernel.groups.summed else "shape_k"
