"""Shapes from a file: one to a line, or a CSV with a column for each side."""

from __future__ import annotations

import csv

from ..errors import ArgumentError
from ..ir.counts import MOST_SIDE
from ..untrusted import read_text, whole

Shape = tuple[int, ...]


def read(path: str, sides: str) -> tuple[Shape, ...]:
    """The shapes in the file `path`. `sides`: the letters of a shape in order, as "mnk" or "gmnk".

    A line is `4096x576x7168` or `4096,576,7168`; blank lines and those that begin with # say nothing.
    If the first line names the sides, in any order and among other columns, the file is a CSV with
    a header, as `bench.csv` is; shapes that repeat count once. Raises ArgumentError.
    """
    text = read_text("--shapes", path)
    lines = [line.strip() for line in text.splitlines()]
    lines = [line for line in lines if line and not line.startswith("#")]
    header = [_side(c) for c in lines[0].split(",")] if lines else []
    if {*sides} <= {*header}:
        found = [_cells(path, row, sides) for row in csv.DictReader([",".join(header), *lines[1:]])]
    else:
        found = [_line(path, line, sides) for line in lines]
    if not found:
        raise ArgumentError("--shapes", f"@{path}", "must hold at least one shape")
    return tuple(dict.fromkeys(found))


def _side(column: str) -> str:
    """`bench.csv` spells g out."""
    name = column.strip().lower()
    return "g" if name == "groups" else name


def _cells(path: str, row: dict[str, str], sides: str) -> Shape:
    return _shape(path, ",".join(str(row.get(s)) for s in sides), sides, ",")


def _line(path: str, line: str, sides: str) -> Shape:
    return _shape(path, line, sides, "," if "," in line else "x")


def _shape(path: str, text: str, sides: str, separator: str) -> Shape:
    values = [v.strip() for v in text.split(separator)]
    numbers = [n for n in map(whole, values) if n and n <= MOST_SIDE]
    if len(values) != len(sides) or len(numbers) < len(values):
        form = "x".join(sides.upper())
        allowed = f"has the line {text[:100]!r}; a line must be {form}, sides at least 1"
        raise ArgumentError("--shapes", f"@{path}", allowed)
    return tuple(numbers)
