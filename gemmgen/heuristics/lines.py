"""Which lines of a database may serve a launch: told by their text, so that the others need not be read.

`database.to_line` names all that a launch is found by in one place and in one way. A line in any other form is read
at once. What is wrong with a line in that form is said when a launch first asks for it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from ..errors import ArgumentError
from ..ir.groupings import GROUPINGS
from ..problem import Problem, Shape
from .database import FORMAT, Line, Row, numbered, read

NUMBER = "([0-9]{1,10})"
FORM = re.compile(
    rf'\{{"gemmgen": {FORMAT}, "problem": \{{"family": "(\w+)", "a": "(\w+)", "b": "(\w+)", .*?\}}, '
    rf'"groups": {NUMBER}, "m": {NUMBER}, "n": {NUMBER}, "k": {NUMBER}, '
    r'"device": "([^"\\]*)", .*\}',
    re.ASCII,
)

T = TypeVar("T")
Start = tuple[str, str, str, str, int, int, int]  # device, family, a, b, groups, sides


@dataclass(frozen=True, kw_only=True)
class Lines:
    """The lines of a file that are not read, by what they say; the rows of the others; what is wrong with those."""

    path: Path
    unread: dict[Start, tuple[Line, ...]]
    rows: dict[Start, tuple[Row, ...]]
    errors: tuple[ArgumentError, ...]

    def found(self, start: Start) -> tuple[list[Row], list[ArgumentError]]:
        """The rows that say `start`, merged, and an error for each line that seemed to and is none."""
        return read(self.path, self.unread.get(start, ()), self.rows.get(start, ()))


def kept_sides(p: Problem, shape: Shape) -> tuple[int, int]:
    """The sides that a launch and the row that serves it have in common: N and K; M and N where groups split K."""
    m, n, k = shape
    return (m, n) if GROUPINGS[p.grouping].depths else (n, k)


def start(device: str, p: Problem, groups: int, shape: Shape) -> Start:
    """What the lines say that may serve such a launch."""
    return device, p.family, p.a.name, p.b.name, groups, *kept_sides(p, shape)


def lines_of(path: Path) -> Lines:
    """The lines of a file. If it cannot be read, none, and an error that says why."""
    try:
        lines = numbered(path)
    except ArgumentError as e:
        return Lines(path=path, unread={}, rows={}, errors=(e,))
    starts = [(starts_of(text), (number, text)) for number, text in lines]
    rows, errors = read(path, [line for said, line in starts if not said])
    return Lines(
        path=path,
        unread=_grouped((s, line) for said, line in starts for s in said),
        rows=_grouped((start(r.device, r.problem, r.groups, r.shape), r) for r in rows),
        errors=tuple(errors),
    )


def starts_of(text: str) -> tuple[Start, ...]:
    """Those that a line may have, whichever sides it keeps; none of a line that must be read to know."""
    form = FORM.fullmatch(text)
    if not form:
        return ()
    family, a, b, *sizes, device = form.groups()
    groups, m, n, k = map(int, sizes)
    return tuple((device, family, a, b, groups, *sides) for sides in {(n, k), (m, n)})


def _grouped(pairs: Iterable[tuple[Start, T]]) -> dict[Start, tuple[T, ...]]:
    found: dict[Start, list[T]] = {}
    for said, x in pairs:
        found.setdefault(said, []).append(x)
    return {said: tuple(x) for said, x in found.items()}
