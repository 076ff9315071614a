"""`gemmgen chart`: times that `gemmgen bench` measured, as bars. Needs no GPU and no other package."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable
from pathlib import Path
from statistics import geometric_mean

from ..errors import ArgumentError
from ..see.bars import Bar, Bars, render
from . import bench_page, files, given
from .bench_page import Results
from .bench_report import Row

OURS = "gemmgen"
BY = ("file", "shape")
Times = dict[str, dict[str, float]]  # by shape, by provider: over gemmgen's


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "bench", nargs="+", type=given.path, metavar="FILE", help="bench.json of `gemmgen bench -o`"
    )
    parser.add_argument(
        "--by",
        choices=BY,
        default=BY[0],
        help="a group of bars per file, of geometric means over its shapes (default), or per shape",
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
    parser.add_argument("-o", required=True, type=given.path, metavar="FILE.svg", help="write here")


def main(args: argparse.Namespace) -> int:
    if Path(args.o).suffix != ".svg":
        raise ArgumentError("-o", str(args.o), "must end in .svg")
    found = [bench_page.read(path, "FILE") for path in args.bench]
    if len(args.name) > len(found):
        raise ArgumentError("--name", args.name[len(found)], f"there are {len(found)} files")
    names = [*args.name, *(r.says["kernel"] for r in found[len(args.name) :])]
    measured = {row.provider for r in found for row in r.rows}
    labels = dict(_labelled(text, measured) for text in args.label)
    groups = [
        (heading, [Bar(name=labels.get(p, p), length=x, ours=p == OURS) for p, x in ratios.items()])
        for r, name in zip(found, names, strict=True)
        for heading, ratios in _groups(r, name, args.by)
    ]
    if not groups:
        raise ArgumentError("FILE", str(args.bench[0]), "has no shape that gemmgen was timed at")
    picture = Bars(
        title="Time relative to gemmgen",
        subtitle="longer is slower; the same GPU and the same run in each group",
        groups=groups,
        note="; ".join(dict.fromkeys(f"{r.says['gpu']}, {r.says['title']}" for r in found)),
    )
    written = files.write(Path(args.o).parent, Path(args.o).name, render(picture).encode())
    data = {h: {b.name: b.length for b in bars} for h, bars in groups}
    print(json.dumps(data, indent=2) if args.json else written)
    return 0


def _labelled(text: str, measured: set[str]) -> tuple[str, str]:
    """Raises ArgumentError."""
    provider, equals, label = text.partition("=")
    if not equals or not label or provider not in measured:
        allowed = f"must be PROVIDER=TEXT, PROVIDER one of {', '.join(sorted(measured))}"
        raise ArgumentError("--label", text, allowed)
    return provider, label


def _groups(r: Results, name: str, by: str) -> list[tuple[str, dict[str, float]]]:
    """By heading, each provider's time over gemmgen's; a mean is of those that were timed at every shape."""
    times = relative(r.rows)
    if by == "shape":
        return [(f"{name}, {shape}", ratios) for shape, ratios in times.items()]
    everywhere = [p for p in _providers(times) if all(p in x for x in times.values())]
    means = {p: geometric_mean(x[p] for x in times.values()) for p in everywhere}
    shapes = f"{len(times)} shape" + "s" * (len(times) > 1)
    return [(f"{name}: {shapes}", means)] if times else []


def relative(rows: Iterable[Row]) -> Times:
    """Each provider's time over gemmgen's, at the shapes where gemmgen was timed."""
    by_shape: Times = {}
    for r in rows:
        shape = f"{r.groups} x " * (r.groups > 1) + f"{r.m} x {r.n} x {r.k}"
        by_shape.setdefault(shape, {})[r.provider] = r.microseconds
    return {
        shape: {p: us / times[OURS] for p, us in times.items()}
        for shape, times in by_shape.items()
        if OURS in times
    }


def _providers(times: Times) -> list[str]:
    return [*dict.fromkeys(p for x in times.values() for p in x)]
