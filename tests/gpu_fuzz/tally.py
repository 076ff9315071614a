"""What came of it: counted by tier, kept in a file, shown as a table. Knows neither torch nor a GPU."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class Tally:
    """mismatches: launches that were wrong. leaked: bytes of device memory; host: of the process's own.
    failures: what is known of each."""

    cases: int = 0
    launches: int = 0
    mismatches: int = 0
    errors: int = 0
    hangs: int = 0
    leaked: int = 0
    host: int = 0
    failures: list[str] = field(default_factory=list)

    def __iadd__(self, other: Tally) -> Tally:
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)
        return self

    @property
    def bad(self) -> int:
        return self.mismatches + self.errors + self.hangs + max(0, self.leaked)


@dataclass(frozen=True, kw_only=True)
class Chunk:
    """Cases first..end-1 of a tier. careful: one at a time, after something went wrong."""

    tier: str
    first: int
    end: int
    careful: bool = False


class State:
    """A file of JSON lines: what was asked, then each chunk that is done. Appended to, so that what is
    there survives whatever ends the run."""

    def __init__(self, path: Path, asked: dict[str, Any]) -> None:
        """Raises ValueError if the file holds another run."""
        self.path = path
        self.tallies: dict[str, Tally] = {}
        self.done: dict[str, set[int]] = {}
        lines = path.read_text().splitlines() if path.exists() else []
        if lines and json.loads(lines[0]) != asked:
            raise ValueError(f"{path} holds the run {lines[0]}, not {json.dumps(asked)}")
        with path.open("a") as file:
            file.write("" if lines else json.dumps(asked) + "\n")
        for line in lines[1:]:
            self._take(json.loads(line))

    def add(self, chunk: Chunk, tally: Tally) -> None:
        row = {"tier": chunk.tier, "first": chunk.first, "end": chunk.end, "tally": asdict(tally)}
        with self.path.open("a") as file:
            file.write(json.dumps(row) + "\n")
        self._take(row)

    def _take(self, row: dict[str, Any]) -> None:
        tier = row["tier"]
        self.tallies.setdefault(tier, Tally())
        self.tallies[tier] += Tally(**row["tally"])
        self.done.setdefault(tier, set()).update(range(row["first"], row["end"]))

    @property
    def launches(self) -> int:
        return sum(t.launches for t in self.tallies.values())

    def left(self, tier: str, count: int, size: int) -> Iterator[Chunk]:
        """Chunks of at most `size` cases that are not done."""
        done = self.done.get(tier, set())
        first = None
        for i in range(count + 1):
            ends = i == count or i in done or (first is not None and i - first == size)
            if first is not None and ends:
                yield Chunk(tier=tier, first=first, end=i)
                first = None
            if first is None and i < count and i not in done:
                first = i


def table(tallies: dict[str, Tally], says: dict[str, str]) -> str:
    """Markdown: a row for each tier that was run, in the order of `says`, and their sum."""
    total = Tally()
    rows = []
    for tier in (t for t in says if t in tallies):
        total += tallies[tier]
        rows.append(_row(f"{tier}: {says[tier]}", tallies[tier]))
    head = "| tier | cases | launches | mismatches | errors | hangs | leaked bytes |"
    return "\n".join((head, "| --- |" + " ---: |" * 6, *rows, _row("all", total)))


def _row(name: str, t: Tally) -> str:
    return f"| {name} | {t.cases} | {t.launches} | {t.mismatches} | {t.errors} | {t.hangs} | {t.leaked} |"
