"""`gemmgen host`: what calls and imports cost the CPU."""

from __future__ import annotations

import argparse
import json
from functools import partial
from typing import Any

from ..errors import ArgumentError
from ..runtime import driver
from .progress import Bar

WHAT = ("calls", "operators", "imports", "first")


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "what",
        nargs="?",
        default="calls",
        choices=WHAT,
        help="calls (the default), the same as torch's operators, imports, or the first call of a process; the last two "
        "need no GPU",
    )
    parser.add_argument(
        "--repeats", type=int, default=31, help="batches of calls, or processes (default 31)"
    )


def main(args: argparse.Namespace) -> int:
    if args.repeats < 2:
        raise ArgumentError("--repeats", args.repeats, "must be at least 2")
    device = driver.require_hopper(0) if args.what in ("calls", "operators") else None
    from ..bench import host

    timers = {
        "calls": host.calls,
        "operators": host.operators,
        "imports": host.imports,
        "first": host.first,
    }
    with Bar() as bar:
        rows = timers[args.what](args.repeats, partial(bar.update, "timing"))
    report = {"gpu": device, "calls_per_batch": host.CALLS, "rows": [vars(r) for r in rows]}
    print(json.dumps(report, indent=2) if args.json else _text(report))
    return 0


def _text(report: dict[str, Any]) -> str:
    wide = max(18, *(len(r["what"]) for r in report["rows"]))
    head = f"{'':<{wide}} {'':<14} {'us':>10} {'spread':>6}"
    lines = [
        f"{r['what']:<{wide}} {r['how']:<14} {r['microseconds']:>10.2f} {r['spread']:>6.1%}"
        for r in report["rows"]
    ]
    shown = f"{report['gpu']}: host time per call" if report["gpu"] else "time in a new process"
    return "\n".join([f"{shown}, medians", head, *lines])
