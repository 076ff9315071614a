"""`gemmgen chart`: what `gemmgen bench` measured, as bars or under its roofline. Needs no GPU and no other package."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from ..errors import ArgumentError
from ..see import svg
from ..see.bars import Bar, Bars, render
from ..see.page import Page
from . import bench_page, files, given
from .bench_page import Results
from .bench_plots import MEASURE, Measured, computing, roofline, shape
from .bench_report import Row

OURS = "gemmgen"
BY = {
    "file": "geometric means over its shapes, a group of bars per file (the default)",
    "shape": "a group of bars per shape",
    "speedup": "the fastest other's time over gemmgen's, a bar per shape",
    "roofline": "TFLOP/s against FLOP per byte, under the ceilings measured",
}
Times = dict[str, dict[str, float]]  # by shape, by provider: over gemmgen's
Groups = list[tuple[str, list[Bar]]]


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "bench", nargs="+", type=given.path, metavar="FILE", help="bench.json of `gemmgen bench -o`"
    )
    parser.add_argument(
        "--by",
        choices=BY,
        default="file",
        help="; ".join(f"{name}: {says}" for name, says in BY.items()),
    )
    parser.add_argument(
        "--name",
        action="append",
        default=[],
        help="heading of a file's group, repeatable, in the files' order (default: its kernel)",
    )
    parser.add_argument(
        "--label",
        action="append",
        default=[],
        metavar="PROVIDER=TEXT",
        help="what a provider is called in the picture, repeatable",
    )
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="PROVIDER",
        help="beside gemmgen this one alone, repeatable (default: all)",
    )
    parser.add_argument("-o", required=True, type=given.path, metavar="FILE.svg", help="write here")


def main(args: argparse.Namespace) -> int:
    if Path(args.o).suffix != ".svg":
        raise ArgumentError("-o", str(args.o), "must end in .svg")
    found = [bench_page.read(path, "FILE") for path in args.bench]
    if len(args.name) > len(found):
        raise ArgumentError("--name", args.name[len(found)], f"there are {len(found)} files")
    names = [*args.name, *(r.says["kernel"] for r in found[len(args.name) :])]
    measured = {row.provider for r in found for row in computing(r.rows)}
    for name in args.only:
        if name not in measured:
            raise ArgumentError("--only", name, f"must be one of {', '.join(sorted(measured))}")
    runs = [
        Measured(name=name, rows=_chosen(r.rows, args.only), ceilings=r.ceilings)
        for r, name in zip(found, names, strict=True)
    ]
    labels = _labels(args.label, {name for run in runs for name in _compared(run, args.by)})
    if args.by == "roofline":
        picture, data = _roofline(args, runs, labels)
    else:
        picture, data = _bars(args, runs, labels, found)
    written = files.write(Path(args.o).parent, Path(args.o).name, picture.encode())
    print(json.dumps(data, indent=2) if args.json else written)
    return 0


def _chosen(rows: Iterable[Row], only: Sequence[str]) -> tuple[Row, ...]:
    return tuple(r for r in computing(rows) if not only or r.provider in (OURS, *only))


def _bars(
    args: argparse.Namespace, runs: list[Measured], labels: dict[str, str], found: list[Results]
) -> tuple[str, dict[str, dict[str, float]]]:
    groups = [group for run in runs for group in _groups(run, args.by, labels)]
    if not any(bars for _, bars in groups):
        raise ArgumentError("FILE", str(args.bench[0]), "has no shape that gemmgen was timed at")
    title, subtitle = TITLES[args.by == "speedup"]
    picture = Bars(
        title=title,
        subtitle=subtitle,
        groups=groups,
        note="; ".join(dict.fromkeys(f"{r.says['gpu']}, {r.says['title']}" for r in found)),
    )
    return render(picture), {h: {b.name: b.length for b in bars} for h, bars in groups}


TITLES = (
    (
        "Time relative to gemmgen",
        "longer is slower; the same GPU and the same run in each group",
    ),
    (
        "Speed-up of gemmgen over the fastest other",
        "its time over gemmgen's, and who it is; above 1 gemmgen is faster; the same GPU and the same run in each group",
    ),
)


def _roofline(
    args: argparse.Namespace, runs: list[Measured], labels: dict[str, str]
) -> tuple[str, dict[str, Any]]:
    """Raises ArgumentError for a file without ceilings."""
    for run, path in zip(runs, args.bench, strict=True):
        if run.ceilings is None:
            raise ArgumentError("FILE", str(path), f"has no ceilings: {MEASURE}")
        if not run.rows:
            raise ArgumentError("FILE", str(path), "has no rows")
    plots = [replace(roofline(run, labels), title=f"Roofline, {run.name}") for run in runs]
    title = f"Rooflines of {', '.join(run.name for run in runs)}"
    return svg.render(Page(title=title, blocks=tuple(plots))), {p.title: asdict(p) for p in plots}


def _labels(texts: Iterable[str], shown: set[str]) -> dict[str, str]:
    """By provider. Raises ArgumentError for one that is not compared, or that has a label."""
    found: dict[str, str] = {}
    for text in texts:
        provider, equals, label = text.partition("=")
        if not equals or not label or provider not in shown:
            allowed = (
                f"must be PROVIDER=TEXT, PROVIDER one that is compared: {', '.join(sorted(shown))}"
            )
            raise ArgumentError("--label", text, allowed)
        if provider in found:
            raise ArgumentError(
                "--label", text, f"{provider} is called {found[provider]!r} already"
            )
        found[provider] = label
    return found


def _compared(run: Measured, by: str) -> set[str]:
    """The providers that a picture may name; of speed-ups, whoever is the fastest beside gemmgen."""
    return {row.provider for row in run.rows} - ({OURS} if by == "speedup" else set())


def _groups(run: Measured, by: str, labels: dict[str, str]) -> Groups:
    """By heading, each provider's time over gemmgen's; a mean is of those that were timed at every shape."""
    times = relative(run.rows)
    if by == "speedup":
        return [(run.name, [x for shape, of in times.items() for x in _speedup(shape, of, labels)])]
    if by == "shape":
        return [(f"{run.name}, {shape}", _named(of, labels)) for shape, of in times.items()]
    everywhere = [p for p in _providers(times) if all(p in x for x in times.values())]
    means = {p: geometric_mean(x[p] for x in times.values()) for p in everywhere}
    shapes = f"{len(times)} shape" + "s" * (len(times) > 1)
    return [(f"{run.name}: {shapes}", _named(means, labels))] if times else []


def _named(times: dict[str, float], labels: dict[str, str]) -> list[Bar]:
    """A bar per provider; the shortest is the fastest."""
    best = min(times, key=lambda p: times[p])
    return [
        Bar(name=labels.get(p, p), length=x, ours=p == OURS, says="fastest" * (p == best))
        for p, x in times.items()
    ]


def _speedup(shape: str, times: dict[str, float], labels: dict[str, str]) -> list[Bar]:
    """None where nobody else was timed."""
    others = {p: x for p, x in times.items() if p != OURS}
    if not others:
        return []
    best = min(others, key=lambda p: others[p])
    faster = others[best] >= 1
    return [Bar(name=shape, length=others[best], ours=faster, says=labels.get(best, best))]


def relative(rows: Iterable[Row]) -> Times:
    """Each provider's time over gemmgen's, at the shapes where gemmgen was timed."""
    by_shape: Times = {}
    for r in computing(rows):
        by_shape.setdefault(shape(r), {})[r.provider] = r.microseconds
    return {
        name: {p: us / times[OURS] for p, us in times.items()}
        for name, times in by_shape.items()
        if OURS in times
    }


def _providers(times: Times) -> list[str]:
    return [*dict.fromkeys(p for x in times.values() for p in x)]
