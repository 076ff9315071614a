"""Random moves of levers in the playground, each answered: `PYTHONPATH=tests/support python -m serve_walk`.

A move takes a random lever to a random value of those that it takes. Where that is illegal, four times in five the next
move is to the last that was legal, as a user's is. What is timed is what the page asks for: the answer, then each pane that is shown.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from http.client import HTTPConnection
from statistics import median
from urllib.parse import urlsplit

from gemmgen.cli.playground.panes import PANES, USUAL
from gemmgen.cli.playground.query import Query, write
from gemmgen.levers import LEVERS

# Where walks begin: every family and grouping, epilogues of each kind, few rows and many.
STARTS = (
    {},
    {"family": "fp8_block", "m": 16, "n": 7168, "k": 16384},
    {"family": "fp8_block", "grouping": "masked", "groups": 32, "m": 128, "n": 4096, "k": 7168},
    {"family": "fp8_block", "grouping": "rows", "groups": 8, "m": 512, "epilogue": "silu"},
    {"family": "fp8_block", "ab": "s8,s8", "d": "f16", "m": 2048},
    {"family": "fp8_1d1d", "m": 7168, "n": 2048, "k": 4096},
    {"family": "fp8_1d1d", "grouping": "k_flat", "groups": 4, "d": "f32", "accumulate": True},
    {"family": "fp8", "ab": "e5m2,e4m3", "m": 64, "n": 2112, "k": 7168},
    {"family": "dense", "m": 4096, "n": 7168, "k": 2048, "epilogue": "bias_gelu"},
    {"family": "dense", "ab": "f16,f16", "d": "f16", "layout": "tn", "m": 1000, "n": 777, "k": 520},
    {"family": "dense", "grouping": "ends", "alignment": 64, "groups": 16, "m": 96, "n": 1536},
    {"family": "dense", "grouping": "batched", "groups": 12, "m": 512, "n": 512, "k": 128},
)
Get = Callable[[str], tuple[int, str]]  # of a path and its query: the status, the text


@dataclass(frozen=True)
class Step:
    """One move, answered. kind: legal or refused. texts: of the panes that are shown."""

    query: Query
    answer: dict
    texts: dict[str, str]
    seconds: float

    @property
    def kind(self) -> str:
        return self.answer["kind"]


def value(random, lever):
    """One of those that it takes."""
    of = lever.values
    if of.listed:
        return random.choice(of.listed())
    if of.null and random.random() < 0.5:
        return None
    if of.span:
        low, high, step = of.span
        return random.randrange(low, high + 1, step)
    return [8 * random.randrange(3, 13), 8 * random.randrange(3, 32)]  # the pair of registers


def walk(get: Get, start: dict, moves: int, seed: int, panes=USUAL) -> Iterator[Step]:
    """What comes of so many moves from there."""
    dice = random.Random(seed)
    at = Query(said=start)
    before = at
    for _ in range(moves):
        lever = dice.choice(LEVERS)
        asked = replace(at, levers={**at.levers, lever.name: value(dice, lever)})
        if before is not at and dice.random() < 0.8:
            asked = before
        step = answered(get, asked, panes)
        before = asked if step.kind == "legal" else before  # the last that was legal
        at = asked
        yield step


def answered(get: Get, q: Query, panes) -> Step:
    """As the page's script asks."""
    query, start = write(q), time.perf_counter()
    answer = json.loads(_text(get, f"/answer?{query}"))
    texts = {name: _text(get, f"/pane/{name}?{query}") for name in panes}
    return Step(q, answer, texts, time.perf_counter() - start)


def _text(get: Get, path: str) -> str:
    status, text = get(path)
    assert status == 200, (path, status, text)
    return text


def asking(url: str) -> Get:
    """Over one connection."""
    connection = HTTPConnection(urlsplit(url).netloc, timeout=120)

    def get(path: str) -> tuple[int, str]:
        connection.request("GET", path)
        got = connection.getresponse()
        return got.status, got.read().decode()

    return get


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--moves", type=int, default=1000, help="in all, shared out (default 1000)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--panes", default=",".join(USUAL), help=f"some of {','.join(PANES)}")
    args = parser.parse_args()
    panes = tuple(filter(None, args.panes.split(",")))
    command = [sys.executable, "-m", "gemmgen", "serve", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout
            url = json.loads(server.stdout.readline())["url"]
            said = report([*_all(asking(url), args.moves, args.seed, panes)], panes)
        finally:
            server.terminate()
    print("\n".join(said))
    return 0


def _all(get: Get, moves: int, seed: int, panes) -> Iterator[Step]:
    for i, start in enumerate(STARTS):
        own = (moves * (i + 1)) // len(STARTS) - (moves * i) // len(STARTS)
        yield from walk(get, start, own, seed + i, panes)


def wrong(steps: list[Step]) -> list[str]:
    """Verdicts that are neither legal nor say which rule forbids."""
    return [
        f"{write(s.query)}: {s.answer['verdict']}"
        for s in steps
        if s.kind != "legal" and "Illegal by" not in s.answer["verdict"]
    ]


def report(steps: list[Step], panes) -> list[str]:
    kinds = Counter(s.kind for s in steps)
    new = [
        *{write(s.query): s for s in reversed(steps)}.values()
    ]  # the first time each was asked for
    legal = [s for s in new if s.kind == "legal"]
    return [
        *wrong(steps),
        f"{len(steps)} moves, {kinds['legal']} legal, {kinds['refused']} refused, {len(wrong(steps))} not by a rule",
        f"panes: {', '.join(panes)}",
        *(
            f"{what}: {_times([s.seconds for s in of])}"
            for what, of in (("all", steps), ("new and legal", legal))
        ),
    ]


def _times(seconds: list[float]) -> str:
    if not seconds:
        return "none"
    ordered = [1e3 * s for s in sorted(seconds)]
    within = ordered[int(0.95 * (len(ordered) - 1))]
    return f"{len(ordered)}, median {median(ordered):.0f} ms, 95% within {within:.0f} ms, worst {ordered[-1]:.0f} ms"


if __name__ == "__main__":
    raise SystemExit(main())
