"""`gemmgen timeline`: who does what when, simulated. Needs no GPU; nothing is timed."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from ..errors import ArgumentError
from ..pipeline import lower
from ..see import html, svg, text
from ..see.chrome_trace import chrome_trace
from ..see.timeline import Timeline
from ..see.timeline_page import Selection, page, to_json
from ..target import H200
from ..untrusted import whole
from . import files, options
from .simulated import simulated


def add(parser: argparse.ArgumentParser) -> None:
    options.add_kernel(parser)
    options.add_shape(parser)
    options.add_rows(parser)
    parser.add_argument("--sms", type=int, default=H200.sms, help=f"SMs (default {H200.sms})")
    for name, what in (("--tiles", "tiles of the CTA"), ("--blocks", "K blocks of a tile")):
        parser.add_argument(name, metavar="A:B", help=f"show only {what} A to B - 1, from 0")
    parser.add_argument("--trace", type=Path, metavar="FILE", help="write a trace for Perfetto")
    to = parser.add_mutually_exclusive_group()
    to.add_argument("--text", action="store_true", help="to standard output (the default)")
    to.add_argument("--svg", type=Path, metavar="FILE", help="write the pictures")
    to.add_argument("--html", type=Path, metavar="FILE", help="write one HTML page")


def main(args: argparse.Namespace) -> int:
    if not 1 <= args.sms <= H200.sms:
        raise ArgumentError("--sms", args.sms, f"must be from 1 to {H200.sms}")
    chosen = Selection(tiles=span("--tiles", args.tiles), blocks=span("--blocks", args.blocks))
    t, launch = _timeline(args)
    shown = page(t, chosen, launch)
    written: list[str] = []
    if args.trace:
        _write(args.trace, chrome_trace(t, H200.clock_hz), written)
    for file, rendered in ((args.svg, svg.render), (args.html, html.render)):
        if file:
            _write(file, rendered(shown), written)
    if args.json:
        print(json.dumps(to_json(t) | {"files": written}, indent=2))
    elif written:
        print("\n".join(written))
    else:
        print(text.render(shown), end="")
    return 0


def span(option: str, given: str | None) -> tuple[int, int] | None:
    """A:B as numbers. Raises ArgumentError naming the option."""
    if given is None:
        return None
    first, end = map(whole, given.partition(":")[::2])
    if first is None or end is None or first >= end:
        raise ArgumentError(option, given, "must be A:B, whole numbers with A before B")
    return first, end


def _timeline(args: argparse.Namespace) -> tuple[Timeline, tuple[tuple[str, str], ...]]:
    """The simulated cluster, and what it was taken from."""
    shape = options.shape(args)
    problem, config = options.problem_and_config(args, shape)
    kernel, layout = lower(problem, config), options.layout(args, problem, shape)
    return simulated(problem, config, kernel, shape, args.sms, layout)


def _write(file: Path, rendered: str, written: list[str]) -> None:
    files.write(file.parent, file.name, rendered.encode())
    written.append(str(file))
