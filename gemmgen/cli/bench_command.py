"""`gemmgen bench`: shapes x providers, interleaved in one run, cold L2, device time."""

from __future__ import annotations

import argparse
import csv
import io
import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..bench import shapes
from ..config import Config
from ..families import FAMILIES
from ..heuristics import choose
from ..problem import Problem
from ..runtime import driver
from ..runtime.gpu import Gpu
from ..target import H200
from ..verification.trial import judge
from . import files, options

SMALLEST = (1, 1, 1, 1)  # to learn the problem, which no shape changes
VERIFIED_ROWS = 600


@dataclass(frozen=True, kw_only=True)
class Row:
    """One provider at one shape; m: rows of a group, in the mean. ratio: its time over the reference's;
    bytes: read once, written once."""

    groups: int
    m: int
    n: int
    k: int
    provider: str
    microseconds: float
    spread: float
    tflops: float
    gigabytes_per_second: float
    ratio: float
    config: str
    kernels: str


def add(parser: argparse.ArgumentParser) -> None:
    options.add_kernel(parser)
    parser.add_argument(
        "--shapes",
        default="large",
        help=f"{', '.join(shapes.SETS)}, or MxNxK,... (default large); with groups "
        f"{', '.join(shapes.GROUPED)}, or GxMxNxK,...",
    )
    parser.add_argument("--repeats", type=int, default=15, help="rounds per shape (default 15)")
    parser.add_argument("--no-verify", action="store_true", help="time without verifying first")
    parser.add_argument(
        "-o", metavar="FOLDER", type=Path, help="write bench.csv and bench.json here"
    )
    parser.set_defaults(m=None, n=None, k=None)


def main(args: argparse.Namespace) -> int:
    gpu = driver.require_hopper(0)
    p, _ = _for_shape(args, SMALLEST)
    rows = [row for shape in shapes.parse(args.shapes, p) for row in measure(args, shape)]
    summary = {"gpu": gpu, "kernel": args.kernel, "geomean_ratio": geomean(rows)}
    data = {**summary, "rows": [asdict(r) for r in rows]}
    if args.o:
        mark = {"generator": "gemmgen bench"}
        files.write(args.o, "bench.json", json.dumps({**mark, **data}, indent=2).encode())
        files.write(args.o, "bench.csv", as_csv(rows).encode())
    print(json.dumps(data, indent=2) if args.json else table(rows, summary))
    return 0


def measure(args: argparse.Namespace, shape: shapes.Shape) -> list[Row]:
    """Every provider at `shape`, gemmgen's result verified first unless told not to."""
    from .. import ops
    from ..bench import grouped, providers
    from ..bench.timing import interleave

    p, config = _for_shape(args, shape)
    source = providers if p.grouping == "none" else grouped
    if not args.no_verify:
        program = ops.loaded(p, config, 0)
        judge(Gpu(), program, program.kernel, p, _verified(shape))
    samples = interleave(source.calls(p, shape, config), args.repeats)
    base = samples[source.reference(p)].median
    return [_row(p, shape, name, s, base, config) for name, s in samples.items()]


def _verified(shape: shapes.Shape) -> tuple[int, int, int]:
    """What is verified before `shape` is timed: itself, or with groups M of A cut to some hundred rows."""
    m, n, k = shape[-3:]
    return (m, n, k) if len(shape) == 3 else (min(m, VERIFIED_ROWS), n, k)


def geomean(rows: list[Row]) -> float:
    """Of gemmgen's ratios to the reference."""
    ratios = [r.ratio for r in rows if r.provider == "gemmgen"]
    return math.exp(sum(map(math.log, ratios)) / len(ratios))


def as_csv(rows: list[Row]) -> str:
    text = io.StringIO()
    text.write("# gemmgen bench\n")
    writer = csv.DictWriter(text, [*asdict(rows[0])])
    writer.writeheader()
    writer.writerows(asdict(r) for r in rows)
    return text.getvalue()


def table(rows: list[Row], summary: dict[str, Any]) -> str:
    lines = [
        f"{summary['gpu']}: {summary['kernel']}, cold L2, device time, medians",
        f"{'G':>3} {'M':>6} {'N':>6} {'K':>6}  {'provider':<22} {'us':>8} {'spread':>6} {'TFLOP/s':>7} {'GB/s':>6} {'ratio':>6}  config",
    ]
    lines += [
        f"{r.groups:>3} {r.m:>6} {r.n:>6} {r.k:>6}  {r.provider:<22} {r.microseconds:>8.1f} {r.spread:>6.1%} "
        f"{r.tflops:>7.0f} {r.gigabytes_per_second:>6.0f} {r.ratio:>6.3f}  {r.config}"
        for r in rows
    ]
    return "\n".join(
        [*lines, f"geometric mean of gemmgen's ratios: {summary['geomean_ratio']:.3f}"]
    )


def _for_shape(args: argparse.Namespace, shape: shapes.Shape) -> tuple[Problem, Config]:
    if args.kernel in FAMILIES and not (args.config or args.set):
        p = options.problem(args)
        m, n, k = shape[-3:]
        return p, choose(p, (m, n, k), H200, shape[0] if len(shape) > 3 else 1)
    return options.problem_and_config(args)


def _row(
    p: Problem, shape: shapes.Shape, name: str, samples: Any, base: float, config: Config
) -> Row:
    from ..bench.grouped import rows_of

    groups, (m, n, k) = shape[0] if len(shape) > 3 else 1, shape[-3:]
    rows = m if len(shape) == 3 else sum(rows_of(p, groups, m))
    moved = rows * k * p.a.bytes + groups * n * k * p.b.bytes + rows * n * p.d.bytes
    return Row(
        groups=groups,
        m=m,
        n=n,
        k=k,
        provider=name,
        microseconds=samples.median * 1e6,
        spread=samples.spread,
        tflops=2.0 * rows * n * k / samples.median * 1e-12,
        gigabytes_per_second=moved / samples.median * 1e-9,
        ratio=samples.median / base,
        config=_short(config) if name == "gemmgen" else "",
        kernels=" + ".join(samples.kernels),
    )


def _short(c: Config) -> str:
    return (
        f"{c.block_m}x{c.block_n}{' swapped' * c.swap_ab} s{c.stages} mc={c.multicast} "
        f"{c.raster}{c.panel} w{c.in_flight}"
    )
