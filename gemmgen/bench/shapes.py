"""Named sets of (M, N, K), and for grouped launches of (groups, M, N, K), M of one group in the mean, or K where
groups split it."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import accumulate, pairwise

from ..errors import ArgumentError
from ..ir.counts import MOST_SIDE
from ..ir.groupings import GROUPINGS
from ..problem import Problem
from ..untrusted import whole
from . import models, shape_files

MOST_GROUPS = 1 << 16  # of which the sizes are listed
Shape = tuple[int, ...]  # (M, N, K) or (G, M, N, K)
ROW_MULTIPLE = 256  # rows of each group that has its own: room for the largest tile
DEPTH_STEP = 128  # K of a group that splits it, where that is scaled

DEEPSEEK = (
    (576, 7168),
    (2112, 7168),
    (4096, 7168),
    (7168, 2048),
    (7168, 16384),
    (24576, 1536),
    (32768, 512),
)

SETS: dict[str, tuple[Shape, ...]] = {
    "large": (*((4096, n, k) for n, k in DEEPSEEK), (4096, 4096, 4096), (8192, 8192, 8192)),
    "decode": tuple((m, n, k) for m in (1, 16, 64, 128) for n, k in DEEPSEEK),
    "wgrad": (
        (2112, 4096, 7168),
        (576, 4096, 7168),
        (24576, 4096, 1536),
        (32768, 4096, 512),
        (7168, 4096, 16384),
        (4096, 4096, 7168),
        (7168, 4096, 2048),
    ),
    "square": tuple((s, s, s) for s in (1024, 2048, 4096, 8192)),
    **models.SINGLE,
}
EXPERTS = ((6144, 7168), (7168, 3072), (4096, 4096), (4096, 2048))
GROUPED: dict[str, tuple[Shape, ...]] = {
    "contiguous": tuple((g, m, n, k) for g, m in ((4, 8192), (8, 4096)) for n, k in EXPERTS),
    "masked": (
        *((32, 192, n, k) for n, k in EXPERTS),
        *((6, 1024, n, k) for n, k in EXPERTS),
        *((32, 20, n, k) for n, k in EXPERTS),
        *((6, 20, n, k) for n, k in EXPERTS[:3]),
    ),
    "bmm": tuple(
        (g, m, 1024, k)
        for g, k in ((8, 4096), (16, 7168))
        for m in (1, 8, 32, 128, 4096, 8192, 32768)
    ),
    **models.GROUPED,
}
EXPERT_GRADIENTS = (  # groups, M, N, K of all groups
    (4, 4096, 7168, 33536),
    (4, 7168, 2048, 35328),
    (8, 4096, 7168, 32000),
    (8, 7168, 2048, 32768),
    (16, 4096, 7168, 34304),
    (16, 7168, 2048, 33152),
)
K_GROUPED: dict[str, tuple[Shape, ...]] = {
    "k-grouped": tuple((g, m, n, k // g) for g, m, n, k in EXPERT_GRADIENTS)
}


def sets_for(p: Problem) -> dict[str, tuple[Shape, ...]]:
    """The named sets whose shapes `p` takes."""
    if GROUPINGS[p.grouping].depths:
        return K_GROUPED
    return SETS if p.grouping == "none" else GROUPED


def parse(text: str | None, p: Problem) -> tuple[Shape, ...]:
    """A set's name (None: the first of `sets_for`), shapes as `MxNxK,MxNxK`, with groups `GxMxNxK,...`, or `@file`
    with one to a line. Raises ArgumentError."""
    known, form = sets_for(p), "MxNxK" if p.grouping == "none" else "GxMxNxK"
    text = next(iter(known)) if text is None else text
    if text in known:
        return known[text]
    if text.startswith("@"):
        found = shape_files.read(text[1:], form.replace("x", "").lower())
    else:
        found = _listed(text, form, known)
    if len(form.split("x")) > 3 and any(shape[0] > MOST_GROUPS for shape in found):
        raise ArgumentError("--shapes", text, f"must have at most {MOST_GROUPS} groups")
    if GROUPINGS[p.grouping].depths and any(shape[-1] < DEPTH_STEP for shape in found):
        raise ArgumentError("--shapes", text, f"K of a group must be at least {DEPTH_STEP}")
    return found


def _listed(text: str, form: str, known: Iterable[str]) -> tuple[Shape, ...]:
    shapes: list[Shape] = []
    for item in text.split(","):
        sides = item.split("x")
        numbers = [n for n in map(whole, sides) if n and n <= MOST_SIDE]
        if len(sides) != len(form.split("x")) or len(numbers) < len(sides):
            raise ArgumentError(
                "--shapes", text, f"must be one of {', '.join(known)}, {form},... or @file"
            )
        shapes.append(tuple(numbers))
    return tuple(shapes)


def alike(p: Problem) -> bool:
    """Whether all groups have the same rows: those of a batch, and of a sum."""
    g = GROUPINGS[p.grouping]
    return g.rows and not g.ragged


def rows_of(p: Problem, groups: int, mean: int) -> tuple[int, ...]:
    """The rows of each group: `mean` where they are alike, else about it."""
    return (mean,) * groups if alike(p) else tuple(sizes(groups, mean))


def rows_held(p: Problem, rows: tuple[int, ...]) -> int:
    """M of A, where each group's rows begin at a multiple of the alignment; or of each group of A: room for the largest
    group's tile, unless they are alike."""
    if alike(p):
        return max(rows)
    shared = not GROUPINGS[p.grouping].rows
    step = p.alignment if shared else ROW_MULTIPLE
    padded = [-(-r // step) * step for r in rows]
    return sum(padded) if shared else max(padded)


def depths_of(groups: int, mean: int) -> tuple[int, ...]:
    """K of each group: about as `sizes`, but multiples of DEPTH_STEP, as their sum then is."""
    ends = (round(end / DEPTH_STEP) * DEPTH_STEP for end in accumulate(sizes(groups, mean)))
    return tuple(end - first for first, end in pairwise((0, *ends)))


def mean_depth(groups: int, mean: int) -> int:
    """K of one group of `depths_of`, as gemmgen.ops asks for a config: it has the sum."""
    return -(-sum(depths_of(groups, mean)) // groups)


def sizes(groups: int, mean: int) -> list[int]:
    """The rows (or K) of each group: spread evenly from 0.7 to 1.3 of the mean, in no order."""
    steps = [0.7 + 0.6 * i / (groups - 1) for i in range(groups)] if groups > 1 else [1.0]
    return [max(1, round(mean * steps[i * 5 % groups if groups % 5 else i])) for i in range(groups)]
