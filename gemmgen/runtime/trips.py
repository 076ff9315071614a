"""Reads PTX back: can a K loop run any number of times, as it was written, now that it is unrolled?

NVVM (of NVRTC 12.9 to 13.5, at least) takes min(a, b - c) trips, unrolled by 3 or 5, for a multiple of that: nothing runs
the rest, and a kernel waits for K blocks that never come.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass

CALL = "ptx::k_block<__LINE__>();"  # in a K loop's body in CUDA
MARK = re.compile(r"\s*// K block (\d+)\s*")  # in each copy of it in PTX, with the line of the call
MOST = 17  # trips: past two rounds of the greatest `unroll` all is alike
WANTED = (1 << MOST + 1) - 2  # a bit for each number of trips, from 1 on

# What the flow of control hangs on. Inline assembly has labels and branches of its own, and goes through.
POINT = re.compile(
    r"^\t// begin inline asm\n(?P<asm>.*?)^\t// end inline asm$"
    r"|^(?P<label>\$\w+):"
    r"|^\t(?:bra|bra\.uni)\s+(?P<always>\$\w+);"
    r"|^\t@!?%\w+ bra\s+(?P<maybe>\$\w+);"
    r"|^\tbrx\.idx\s+.*?, (?P<table>\$\w+);"
    r"|^\t(?P<stop>ret|exit|trap);",
    re.M | re.S,
)
TABLE = re.compile(r"^\s*(\$\w+):\s*\.branchtargets\s*(.*?);", re.M | re.S)


@dataclass(frozen=True, kw_only=True)
class Point:
    """One point of a kernel's flow of control, and where it goes from there."""

    mark: int = 0  # the line of the K loop whose body begins here
    falls: bool = True
    jumps: tuple[str, ...] = ()  # to labels
    returns: bool = False


def lost_trips(source: str, ptx: str) -> dict[int, tuple[int, ...]]:
    """Of the K loops of a kernel, those that cannot run every number of times: by their line in `source`, the numbers
    from 1 to MOST that no way through `ptx`, made of it, has. All of them if the loop is not there.

    Necessary, not sufficient: this reads which ways there are, not which of them is taken."""
    points, goes = _flow(ptx)
    lines = (i for i, line in enumerate(source.split("\n"), 1) if CALL in line)
    found = {line: _missing(_trips(points, goes, line)) for line in lines}
    return {line: numbers for line, numbers in found.items() if numbers}


def _missing(trips: int) -> tuple[int, ...]:
    return tuple(n for n in range(MOST + 1) if (WANTED & ~trips) >> n & 1)


def _trips(points: list[Point], goes: list[list[int]], mark: int) -> int:
    """From the entry to a return: how often `mark` can be passed, a bit for each number."""
    comes: defaultdict[int, list[int]] = defaultdict(list)
    for i, to in enumerate(goes):
        for j in to:
            comes[j].append(i)
    trips = [int(p.returns) for p in points]
    changed = [i for i, p in enumerate(points) if p.returns]
    while changed:
        at = changed.pop()
        for i in comes[at]:
            new = trips[i] | trips[at] << (points[i].mark == mark) & (WANTED | 1)
            if new != trips[i]:
                trips[i] = new
                changed.append(i)
    return trips[0]


def _flow(ptx: str) -> tuple[list[Point], list[list[int]]]:
    """The points of a kernel, in order, and for each the points that may follow."""
    tables = {name: tuple(re.findall(r"\$\w+", to)) for name, to in TABLE.findall(ptx)}
    points: list[Point] = []
    labels: dict[str, int] = {}
    for x in POINT.finditer(ptx, ptx.find(".entry")):
        if x["label"]:
            labels[x["label"]] = len(points)
        elif x["asm"] is not None:
            found = MARK.fullmatch(x["asm"])
            points += [Point(mark=int(found[1]))] if found else []
        elif x["maybe"]:
            points.append(Point(jumps=(x["maybe"],)))
        elif x["always"]:
            points.append(Point(falls=False, jumps=(x["always"],)))
        elif x["table"]:
            points.append(Point(falls=False, jumps=tables[x["table"]]))
        else:
            points.append(Point(falls=False, returns=x["stop"] == "ret"))
    points.append(Point(falls=False))
    return points, [[labels[x] for x in p.jumps] + [i + 1] * p.falls for i, p in enumerate(points)]
