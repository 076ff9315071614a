"""A page as text for a terminal."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import zip_longest
from textwrap import wrap

from .page import (
    Bar,
    Block,
    Book,
    Facts,
    Grid,
    Headline,
    Lane,
    Lanes,
    Listing,
    Page,
    Part,
    Plot,
    Strips,
    Table,
)

WIDTH = 100
GAP = 2  # spaces between columns
NARROWEST = 12  # a column is wrapped no further
LONGEST = 16  # of a bar
NUMBER = re.compile(r"[+-]?[\d,.]+( ?[%kMGTP]?(B|FLOP)?)?$")


def render(page: Page, width: int = WIDTH) -> str:
    """Lines of at most `width` columns where words allow."""
    blocks = "\n\n".join(_block(b, width) for b in page.blocks)
    return f"{page.title}\n\n{blocks}\n"


def book(b: Book, width: int = WIDTH) -> str:
    """Its pages one after the other."""
    parts = (f"{p.name}\n{'=' * len(p.name)}\n\n{_pages(p, width)}" for p in b.parts)
    return "\n".join([b.title, "", *parts])


def _pages(p: Part, width: int) -> str:
    return "\n".join(render(page, width) for page in p.pages)


def _block(b: Block, width: int) -> str:
    match b:
        case Headline():
            return "\n".join([b.says, *(line for words in b.more for line in _note(words, width))])
        case Facts():
            return "\n".join([b.title, *_facts(b, width)])
        case Table():
            return "\n".join([b.title, *_table(b, width), *_note(b.note, width)])
        case Grid():
            return "\n".join([b.title, *grid(b), *_note(b.note, width)])
        case Strips():
            return "\n".join([b.title, *strips(b, width), *_note(b.note, width)])
        case Lanes():
            return "\n".join([b.title, *lanes(b, width), *_note(b.note, width)])
        case Plot():
            return "\n".join([b.title, *plot(b), *_note(b.note, width)])
        case Listing():
            return "\n".join([b.title, *b.lines, *_note(b.note, width)])


def _note(note: str, width: int) -> list[str]:
    return wrap(note, width - GAP, initial_indent=" " * GAP, subsequent_indent=" " * GAP)


def _facts(b: Facts, width: int) -> list[str]:
    name = max((len(n) for n, _ in b.items), default=0)
    lines: list[str] = []
    for label, value in b.items:
        parts = wrap(value, width - name - 2 * GAP) or [""]
        heads = [label] + [""] * (len(parts) - 1)
        lines += [
            f"{'':{GAP}}{h:<{name}}{'':{GAP}}{p}".rstrip()
            for h, p in zip(heads, parts, strict=True)
        ]
    return lines


def _table(t: Table, width: int) -> list[str]:
    """The marked row begins with a star; bars stand behind the cells."""
    if not t.rows:
        return []
    if t.lengths:
        t = _barred(t)
    rows = [t.columns, *t.rows]
    widths = _fitted([max(map(len, column)) for column in zip(*rows, strict=True)], width - GAP)
    right = [numeric(column) for column in zip(*t.rows, strict=True)]
    lines: list[str] = []
    for number, row in enumerate(rows):
        star = "* " if t.marked is not None and number == t.marked + 1 else "  "
        lines += _row(row, widths, right, star)
    return lines


def _barred(t: Table) -> Table:
    """With its bars as a column."""
    drawn = ("#" * round(share * LONGEST) for share in t.bars)
    rows = tuple((*row, bar) for row, bar in zip(t.rows, drawn, strict=True))
    return replace(t, columns=(*t.columns, ""), rows=rows, lengths=())


def strips(s: Strips, width: int = WIDTH) -> list[str]:
    """A letter per cell, or for several where there are more cells than columns: what most of them are."""
    head = max((len(name) for name, _ in s.rows), default=0)
    each = -(-s.across // (width - head - 2 * GAP))
    lines = []
    for name, runs in s.rows:
        marks = "".join(run.mark * run.cells for run in runs)
        parts = (marks[at : at + each] for at in range(0, s.across, each))
        letters = "".join(max(part, key=part.count) for part in parts)
        lines.append(f"{'':{GAP}}{name:<{head}}{'':{GAP}}{letters}")
    legend = ", ".join(f"{mark} {words}" for mark, _, words in s.legend)
    return [*lines, *_note(f"{legend}; {each} to a letter" if each > 1 else legend, width)]


def grid(g: Grid) -> list[str]:
    """Its lines, as wide as its labels need."""
    head = max(map(len, g.rows), default=0)
    labels = [g.columns, *([c.label for c in row] for row in g.cells)]
    widths = [max(map(len, column)) for column in zip(*labels, strict=True)]
    lines = []
    for name, row in zip(("", *g.rows), labels, strict=True):
        cells = "  ".join(f"{x:<{w}}" for x, w in zip(row, widths, strict=True))
        lines.append(f"{'':{GAP}}{name:>{head}}{'':{GAP}}{cells}".rstrip())
    return lines


def plot(p: Plot) -> list[str]:
    """Its points, as a table."""
    rows = tuple((s.name, f"{x:.4g}", f"{y:.4g}") for s in p.series for x, y in s.points)
    return _table(Table(title=p.title, columns=("series", p.x, p.y), rows=rows), WIDTH)


def lanes(b: Lanes, width: int = WIDTH) -> list[str]:
    """A letter per slice of time: what the lane does for most of it, a dot for nothing."""
    head = max((len(lane.name) for lane in b.lanes), default=0)
    slices = max(NARROWEST, min(width - head - 2 * GAP, b.end - b.start))
    per = (b.end - b.start) / slices
    lines = [
        f"{'':{GAP}}{'':{head}}{'':{GAP}}{b.start:,} to {b.end:,}, {per:.1f} {b.unit} a letter"
    ]
    lines += [
        f"{'':{GAP}}{lane.name:<{head}}{'':{GAP}}{_letters(lane, b.start, per, slices)}"
        for lane in b.lanes
    ]
    legend = ", ".join(f"{mark} {words}" for mark, _, words in b.legend)
    return [*lines, *_note(legend, width)]


def _letters(lane: Lane, start: int, per: float, slices: int) -> str:
    most: list[tuple[float, str]] = [(0.0, ".")] * slices
    for b in lane.bars:
        first, last = (min(slices - 1, int((x - start) / per)) for x in (b.start, b.end))
        for at in range(first, last + 1):
            most[at] = max(most[at], (_covered(b, start + at * per, per), b.mark))
    return "".join(mark if covered > per / 4 else "." for covered, mark in most)


def _covered(b: Bar, start: float, per: float) -> float:
    return max(0.0, min(b.end, start + per) - max(b.start, start))


def _row(row: tuple[str, ...], widths: list[int], right: list[bool], star: str) -> list[str]:
    cells = [wrap(cell, w) or [""] for cell, w in zip(row, widths, strict=True)]
    lines = []
    for number, parts in enumerate(zip_longest(*cells, fillvalue="")):
        placed = [
            f"{p:>{w}}" if r else f"{p:<{w}}" for p, w, r in zip(parts, widths, right, strict=True)
        ]
        lines.append(((star if number == 0 else "  ") + (" " * GAP).join(placed)).rstrip())
    return lines


def numeric(column: tuple[str, ...]) -> bool:
    """Whether a table's column holds numbers, with their units or without, and perhaps empty cells."""
    return all(NUMBER.match(cell) for cell in column if cell) and any(column)


def _fitted(widths: list[int], width: int) -> list[int]:
    """Take from the widest column until all fit."""
    widths = list(widths)
    while sum(widths) + GAP * (len(widths) - 1) > width and max(widths) > NARROWEST:
        widths[widths.index(max(widths))] -= 1
    return widths
