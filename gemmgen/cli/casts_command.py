"""`gemmgen casts`: what quantising takes, against a copy of as many bytes."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from typing import TYPE_CHECKING

from ..casts import INPUTS, LIMITS
from ..errors import ArgumentError
from ..ir.dtypes import BF16, DTYPES, E4M3
from ..runtime import driver
from ..untrusted import whole
from .progress import counted

if TYPE_CHECKING:
    from ..bench.casts import Row

SHAPES = "4096x7168,16384x7168,128x7168"


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--shapes", default=SHAPES, help=f"rows x columns,... (default {SHAPES})")
    parser.add_argument(
        "--x", default=BF16.name, choices=[t.name for t in INPUTS], help="(default bf16)"
    )
    parser.add_argument(
        "--q", default=E4M3.name, choices=[t.name for t in LIMITS], help="(default e4m3)"
    )
    parser.add_argument("--power-of-two", action="store_true", help="scales are powers of two")
    parser.add_argument("--repeats", type=int, default=31, help="rounds per shape (default 31)")


def main(args: argparse.Namespace) -> int:
    if args.repeats < 2:
        raise ArgumentError("--repeats", args.repeats, "must be at least 2")
    shapes = [_shape(text) for text in args.shapes.split(",")]
    gpu = driver.require_hopper(0)
    from ..bench import casts

    timed = counted("timing", shapes)
    rows = casts.measure(timed, DTYPES[args.x], args.q, args.power_of_two, args.repeats)
    found = [{**asdict(r), "share": r.share} for r in rows]
    report = {"gpu": gpu, "power_of_two": args.power_of_two, "rows": found}
    print(json.dumps(report, indent=2) if args.json else _text(gpu, rows))
    return 0


def _shape(text: str) -> tuple[int, int]:
    match [whole(n) for n in text.split("x")]:
        case [int(rows), int(columns)] if rows and columns:
            return rows, columns
    raise ArgumentError("--shapes", text, "must be rows x columns, as 4096x7168")


def _text(gpu: str, rows: list[Row]) -> str:
    head = f"{'rows':>8} {'columns':>8} {'per':<8} {'x':<5} {'q':<5} {'us':>8} {'spread':>6} {'GB/s':>6} {'copy':>6} {'share':>6}"
    lines = [
        f"{r.rows:>8} {r.columns:>8} {r.per:<8} {r.x:<5} {r.q:<5} {r.microseconds:>8.2f} {r.spread:>6.1%}"
        f" {r.gigabytes_per_second:>6.0f} {r.copy_gigabytes_per_second:>6.0f} {r.share:>6.1%}"
        for r in rows
    ]
    return "\n".join([f"{gpu}: quantising, cold L2, device time, medians", head, *lines])
