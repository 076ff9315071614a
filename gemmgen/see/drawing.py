"""What every picture is drawn with: sizes, numbers, words, and where the numbers of an axis stand."""

from __future__ import annotations

from html import escape

# Pixels: the width of a letter of the font, the height of a cell, a space, the width of an axis.
LETTER, LINE, GAP, SPAN = 7.4, 20, 8, 940
BASE = 6  # from the bottom of a cell to the line that its words stand on
TICKS = 10  # most numbers on an axis
HUES = 8  # as many as there are classes hue0, hue1, ...


def ticks(start: int, end: int) -> range:
    """About ten round numbers between the two."""
    steps = (m * 10**e for e in range(12) for m in (1, 2, 5))
    step = next(s for s in steps if end - start <= s * TICKS)
    return range(-(-start // step) * step, end + 1, step)


def label(x: float, y: float, words: str, anchor: str = "start") -> str:
    """anchor: which end of the words is at x: start, middle or end."""
    placed = "" if anchor == "start" else f' text-anchor="{anchor}"'
    return f'<text x="{px(x)}" y="{px(y)}"{placed}>{escape(words)}</text>'


def box(x: float, y: float, width: float, height: float, kind: str, tip: str = "") -> str:
    """kind: its class. tip: shown where a pointer rests."""
    place = f'x="{px(x)}" y="{px(y)}" width="{px(width)}" height="{px(height)}"'
    return f'<rect {place} class="{kind}">{title(tip)}</rect>'


def title(tip: str) -> str:
    return f"<title>{escape(tip)}</title>" if tip else ""


def hue(number: int | None) -> str:
    """The class of a colour's number."""
    return "plain" if number is None else f"hue{number % HUES}"


def px(number: float) -> str:
    return f"{number:.2f}".rstrip("0").rstrip(".")
