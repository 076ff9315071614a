"""Strips as SVG: a row of small cells each, the cells' numbers above, below what the colours stand for."""

from __future__ import annotations

from .drawing import BASE, GAP, LETTER, LINE, box, label, ticks
from .page import Strips

CELL = 6  # pixels across


def size(s: Strips) -> tuple[float, float]:
    legend = max((len(words) for _, _, words in s.legend), default=0) * LETTER + 12 + GAP
    wide = _left(s) + max(s.across * CELL + len(str(s.across)) * LETTER, legend)
    return wide, LINE * (len(s.rows) + 1.5 + len(s.legend))


def _left(s: Strips) -> float:
    return max((len(name) for name, _ in s.rows), default=0) * LETTER + GAP


def draw(s: Strips) -> list[str]:
    left, drawn = _left(s), []
    for tick in ticks(0, s.across - 1):
        drawn.append(label(left + (tick + 0.5) * CELL, LINE - BASE, str(tick), "middle"))
    for row, (name, runs) in enumerate(s.rows, 1):
        drawn.append(label(left - GAP / 2, (row + 1) * LINE - BASE, name, "end"))
        at = 0
        for run in runs:
            for cell in range(at, at + run.cells):
                place = left + cell * CELL, row * LINE + 2
                drawn.append(box(*place, CELL - 1, LINE - 4, kind(run.full), run.tip))
            at += run.cells
    for row, (_, full, words) in enumerate(s.legend):
        y = (len(s.rows) + 1.5 + row) * LINE
        drawn.append(box(left, y + 4, 12, 12, kind(full)))
        drawn.append(label(left + 12 + GAP, y + LINE - BASE, words))
    return drawn


def kind(full: bool) -> str:
    """The class of a cell."""
    return "full" if full else "plain"
