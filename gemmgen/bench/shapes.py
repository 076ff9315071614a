"""Named sets of (M, N, K)."""

from __future__ import annotations

from ..errors import ArgumentError

Shape = tuple[int, int, int]

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


def parse(text: str) -> tuple[Shape, ...]:
    """A set's name, or shapes as `MxNxK,MxNxK`. Raises ArgumentError."""
    if text in SETS:
        return SETS[text]
    shapes = []
    for item in text.split(","):
        sides = item.split("x")
        if len(sides) != 3 or not all(s.isdigit() and int(s) for s in sides):
            raise ArgumentError("--shapes", text, f"must be one of {', '.join(SETS)}, or MxNxK,...")
        m, n, k = map(int, sides)
        shapes.append((m, n, k))
    return tuple(shapes)
