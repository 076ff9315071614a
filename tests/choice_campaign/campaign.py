"""Processes that choose and build, what they found, and the table of it."""

from __future__ import annotations

import json
import multiprocessing
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gemmgen.runtime import nvrtc

from .building import Chosen, Kernel, built, chosen, legal, rescued, spared

COLUMNS = ("", "drawn", "distinct kernels", "built", "refused at first", "of them without a kernel", "without choice",
           "said to be impossible", "seconds")  # fmt: skip


@dataclass(kw_only=True)
class Tally:
    """Of problems or of configs. kernels: distinct. lost: where the build refused the choice, and every next; of a
    config, also sparing of registers. without: a choice. impossible: likewise, or refused, but the error says of the problem why. unbuilt: for want of time. failures: a line
    each."""

    name: str
    drawn: int = 0
    kernels: int = 0
    refused: int = 0
    lost: int = 0
    without: int = 0
    impossible: int = 0
    unbuilt: int = 0
    seconds: float = 0.0
    failures: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def row(self) -> tuple[object, ...]:
        done = self.kernels - self.unbuilt
        counts = (self.drawn, self.kernels, done, self.refused, self.lost, self.without)
        return (self.name, *counts, self.impossible, f"{self.seconds:.0f}")


class State:
    """Why the build refused which source, "" if it did not: in a file, a line each, if there is one."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.known: dict[str, str] = {}
        if path and path.exists():
            lines = path.read_text().splitlines()
            self.known = dict(x for line in lines if len(x := _line(line)) == 2)

    def add(self, key: str, refused: str) -> None:
        self.known[key] = refused
        if self.path:
            with self.path.open("a") as f:
                f.write(json.dumps([key, refused]) + "\n")


def _line(text: str) -> list[str]:
    """Of a file whose last line may be torn."""
    try:
        return json.loads(text)
    except ValueError:
        return []


@dataclass(kw_only=True)
class Campaign:
    seed: int
    jobs: int
    minutes: float
    state: State

    def __post_init__(self) -> None:
        self.nvrtc = nvrtc.build()
        self.until = time.monotonic() + 60 * self.minutes

    def run(self, *, problems: int, configs: int) -> list[Tally]:
        """What is said of each of them, those of which none is asked for left out."""
        asked = (("problems", problems, chosen), ("legal configs", configs, legal))
        return [self._tally(*x) for x in asked if x[1]]

    def _tally(self, name: str, count: int, drawn: Callable[[str], Chosen]) -> Tally:
        started = time.monotonic()
        seeds = [f"{self.seed}/{name}/{i}" for i in range(count)]
        found = [*self._each(drawn, seeds, f"{name}: chosen")]
        kernels = {k.digest: k for x in found for k in x.kernels}
        self._build(kernels.values(), name)
        tally = Tally(name=name, drawn=count, kernels=len(kernels))
        for x in found:
            tally.impossible += x.unsupported
            if x.failed and not x.unsupported:
                tally.without += 1
                tally.failures.append(f"{x.what}: {x.failed}")
        for digest, k in kernels.items():
            refused = self.state.known.get(self._key(digest))
            tally.unbuilt += refused is None
            if refused:
                tally.refused += 1
                tally.notes.append(f"{k}: {refused}")
        again = spared if drawn is legal else rescued
        for lost, unsupported in self._each(again, self._refused(found), f"{name}: next"):
            tally.impossible += unsupported
            tally.lost += bool(lost) and not unsupported
            tally.failures += [lost] * (bool(lost) and not unsupported)
        tally.seconds = time.monotonic() - started
        return tally

    def _refused(self, found: list[Chosen]) -> list[str]:
        """The launches whose choice the build refused."""
        return [
            x.seed
            for x in found
            if x.seed and any(self.state.known.get(self._key(k.digest)) for k in x.kernels)
        ]

    def _build(self, kernels: Iterable[Kernel], name: str) -> None:
        left = [k for k in kernels if self._key(k.digest) not in self.state.known]
        for k, refused in zip(left, self._each(built, left, f"{name}: built"), strict=False):
            self.state.add(self._key(k.digest), refused)
            if time.monotonic() > self.until:
                break

    def _key(self, digest: str) -> str:
        return f"{self.nvrtc} {digest}"

    def _each(self, work: Callable[[Any], Any], of: list[Any], says: str) -> Iterator[Any]:
        """In order. New processes: NVRTC keeps memory, and a crash takes one."""
        if self.jobs == 1:
            yield from _told(map(work, of), len(of), says)
            return
        context = multiprocessing.get_context("spawn")
        with context.Pool(self.jobs, maxtasksperchild=200) as pool:
            yield from _told(pool.imap(work, of, chunksize=4), len(of), says)


def _told(found: Iterator[Any], count: int, says: str) -> Iterator[Any]:
    for i, x in enumerate(found, 1):
        if i % 100 == 0:
            print(f"{says}: {i} of {count}", file=sys.stderr, flush=True)
        yield x


def table(tallies: list[Tally], compiler: str) -> str:
    """In Markdown."""
    rows = [COLUMNS, ("---", *("---:",) * (len(COLUMNS) - 1)), *(t.row() for t in tallies)]
    lines = ["| " + " | ".join(map(str, row)) + " |" for row in rows]
    return "\n".join((f"NVRTC {compiler.split()[0]}", "", *lines))
