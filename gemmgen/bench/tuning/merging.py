"""Rows of many runs, machines and GPUs as one database: medians of what is alike, and conflicts by name.

Rows are alike if they are of one key (`Row.key`), one config, one version of NVRTC and one power limit. The file that is made
does not depend on the order of the rows.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from statistics import median
from typing import TypeVar

from ...heuristics.database import VERSIONS, Row, Timed, better, brief, to_line

WINNERS, GPUS, OF_VERSIONS = "winners", "GPUs", "versions"  # kinds of conflicts
NVRTC = "NVRTC"
K = TypeVar("K")


@dataclass(frozen=True, kw_only=True)
class Source:
    """A row and the name of its file."""

    file: str
    row: Row


@dataclass(frozen=True, kw_only=True)
class Conflict:
    """kind: WINNERS, GPUS or OF_VERSIONS. text: what differs, and in which files."""

    kind: str
    text: str


@dataclass(frozen=True, kw_only=True)
class Alike:
    """Rows of one key that are alike, as one. low, high: seconds, the hull of the rows' intervals, each its interquartile range
    about its median."""

    row: Row
    files: tuple[str, ...]
    low: float
    high: float

    def apart(self, other: Alike) -> bool:
        return self.low > other.high or other.low > self.high


def merged(sources: Sequence[Source]) -> tuple[list[Row], list[Conflict]]:
    """One row per key, sorted by key: of the newest NVRTC's, each the medians of those alike, the `better`. And the conflicts: another
    config of that NVRTC for a row's shape whose interval does not overlap with the row's; different GPUs; different versions."""
    rows, conflicts = [], []
    by_key = _grouped(sources, lambda s: s.row.key)
    for key in sorted(by_key):
        row, of_winners = _of_key(by_key[key])
        rows.append(row)
        conflicts += of_winners
    return rows, [*_gpus(sources), *_versions(sources), *conflicts]


def _of_key(sources: Sequence[Source]) -> tuple[Row, list[Conflict]]:
    newest = max(s.row.nvrtc for s in sources)
    mine = [s for s in sources if s.row.nvrtc == newest]
    groups = _grouped(mine, lambda s: (s.row.best.config, s.row.conditions.power_limit))
    found = [_alike(of) for of in groups.values()]
    row = reduce(better, (x.row for x in found))
    (winner,) = (x for x in found if x.row is row)
    others = [x for x in found if x.row.best.config != row.best.config and x.apart(winner)]
    return row, [_winners(winner, x) for x in sorted(others, key=lambda x: to_line(x.row))]


def _alike(sources: Sequence[Source]) -> Alike:
    rows = sorted((s.row for s in sources), key=lambda r: (_seconds(r), to_line(r)))
    sides = [(_seconds(r) * (1 - r.spread / 2), _seconds(r) * (1 + r.spread / 2)) for r in rows]
    return Alike(
        row=_median(rows),
        files=tuple(sorted({s.file for s in sources})),
        low=min(low for low, _ in sides),
        high=max(high for _, high in sides),
    )


def _median(rows: Sequence[Row]) -> Row:
    """Of rows alike, in order of their seconds: the one in the middle, with the medians of all for what all have measured."""
    middle = rows[(len(rows) - 1) // 2]
    clocks = [r.conditions.sm_mhz for r in rows if r.conditions.sm_mhz is not None]
    references = [r.reference for r in rows if r.reference]
    theirs = middle.reference
    if theirs and [name for name, _ in references] == [theirs[0]] * len(rows):
        theirs = theirs[0], median(seconds for _, seconds in references)
    return replace(
        middle,
        best=replace(middle.best, seconds=median(map(_seconds, rows))),
        spread=median(r.spread for r in rows),
        default=_default([r.default for r in rows], middle.default),
        reference=theirs,
        conditions=replace(middle.conditions, sm_mhz=median(clocks) if clocks else None),
    )


def _default(timed: Sequence[Timed], middle: Timed) -> Timed:
    seconds = [t.seconds for t in timed if t.seconds is not None and t.config == middle.config]
    return replace(middle, seconds=median(seconds)) if len(seconds) == len(timed) else middle


def _seconds(row: Row) -> float:
    assert row.best.seconds is not None, "a row's best is measured"
    return row.best.seconds


# ---- conflicts ------------------------------------------------------------------------------


def _winners(kept: Alike, other: Alike) -> Conflict:
    r = kept.row
    sides = "x".join(map(str, (*(r.groups,) * (r.problem.grouping != "none"), *r.shape)))
    of = " ".join(map(str, r.problem.to_json().values()))
    both = " and ".join(_timed(x) for x in (kept, other))
    return Conflict(kind=WINNERS, text=f"{of} {sides} on {r.device}: {both}; the first is kept")


def _timed(x: Alike) -> str:
    us = f"{_seconds(x.row) * 1e6:.4g} us ({x.low * 1e6:.4g} to {x.high * 1e6:.4g})"
    return f"{json.dumps(brief(x.row.best.config))} {us} in {', '.join(x.files)}"


def _gpus(sources: Sequence[Source]) -> list[Conflict]:
    """Of names, and of one name's power limits."""
    found = _different("GPU", sources, lambda s: s.row.device)
    for device, of in sorted(_grouped(sources, lambda s: s.row.device).items()):
        found += _different(f"power limit of {device}", of, _limit)
    return [Conflict(kind=GPUS, text=text) for text in found]


def _limit(s: Source) -> str:
    watts = s.row.conditions.power_limit
    return f"{watts:g} W" if watts else ""


def _versions(sources: Sequence[Source]) -> list[Conflict]:
    found = _different(NVRTC, sources, lambda s: ".".join(map(str, s.row.nvrtc)))
    for name in VERSIONS:
        found += _different(name, sources, partial(_version, name))
    return [Conflict(kind=OF_VERSIONS, text=text) for text in found]


def _version(name: str, s: Source) -> str:
    return str(getattr(s.row.conditions, name))


def _different(what: str, sources: Iterable[Source], of: Callable[[Source], str]) -> list[str]:
    """What to say where there are two; "" is none: not known."""
    values = {x: s for x, s in sorted(_grouped(sources, of).items()) if x}
    if len(values) < 2:
        return []
    each = (
        f"{x} in {', '.join(sorted({s.file for s in values[x]}))} ({len(values[x])} rows)"
        for x in values
    )
    return [f"{what}: {'; '.join(each)}"]


def _grouped(sources: Iterable[Source], of: Callable[[Source], K]) -> dict[K, list[Source]]:
    found: dict[K, list[Source]] = {}
    for s in sources:
        found.setdefault(of(s), []).append(s)
    return found
