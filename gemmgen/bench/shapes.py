"""Named sets of (M, N, K), and for grouped launches of (groups, M, N, K), M of one group."""

from __future__ import annotations

from ..errors import ArgumentError
from ..problem import Problem

Shape = tuple[int, ...]  # (M, N, K) or (G, M, N, K)

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
}


def sets_for(p: Problem) -> dict[str, tuple[Shape, ...]]:
    """The named sets whose shapes `p` takes."""
    return SETS if p.grouping == "none" else GROUPED


def parse(text: str, p: Problem) -> tuple[Shape, ...]:
    """A set's name, or shapes as `MxNxK,MxNxK`, with groups `GxMxNxK,...`. Raises ArgumentError."""
    known, form = sets_for(p), "MxNxK" if p.grouping == "none" else "GxMxNxK"
    if text in known:
        return known[text]
    shapes: list[Shape] = []
    for item in text.split(","):
        sides = item.split("x")
        if len(sides) != len(form.split("x")) or not all(s.isdigit() and int(s) for s in sides):
            raise ArgumentError(
                "--shapes", text, f"must be one of {', '.join(known)}, or {form},..."
            )
        shapes.append(tuple(map(int, sides)))
    return tuple(shapes)


def sizes(groups: int, mean: int) -> list[int]:
    """The rows of each group: spread evenly from 0.7 to 1.3 of the mean, in no order."""
    steps = [0.7 + 0.6 * i / (groups - 1) for i in range(groups)] if groups > 1 else [1.0]
    return [max(1, round(mean * steps[i * 5 % groups if groups % 5 else i])) for i in range(groups)]
