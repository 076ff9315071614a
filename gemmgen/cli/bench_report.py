"""What `gemmgen bench` says: its rows, as a table and as CSV."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from ..bench.select import FLOOR

RULE = "tie: no further from the fastest median than the larger of the two interquartile ranges"
COLUMNS = (
    "G",
    "M",
    "N",
    "K",
    "provider",
    "us",
    "spread",
    "TFLOP/s",
    "GB/s",
    "ratio",
    "over read",
    "",
    "MHz",
    "W",
    "C",
    "config",
)
FORMAT = "{:>3} {:>6} {:>6} {:>6}  {:<22} {:>8} {:>6} {:>7} {:>6} {:>6} {:>9} {:<7} {:>5} {:>4} {:>3}  {}"


@dataclass(frozen=True, kw_only=True)
class Row:
    """One provider at one shape; m: rows of a group, in the mean, or k where groups split it. ratio: its time
    over the reference's; over_read: over the floor's, None where that was not measured. Products and bytes, for every
    provider, are those of gemmgen's launch (bench.work), but for the floor's bytes: those it reads.
    config_from: as `gemmgen run` says. standing: "fastest", "tie" or "". The rest: of the device meanwhile,
    medians in MHz, W and degrees Celsius, None where not known."""

    groups: int
    m: int
    n: int
    k: int
    provider: str
    microseconds: float
    spread: float
    tflops: float
    gigabytes_per_second: float
    ratio: float | None
    config: str
    config_from: str = ""
    kernels: str
    over_read: float | None = None
    standing: str = ""
    sm_mhz: float | None = None
    sm_mhz_least: float | None = None
    watts: float | None = None
    celsius: float | None = None


@dataclass(frozen=True, kw_only=True)
class LeftOut:
    """A provider that was not timed at one shape, and why."""

    groups: int
    m: int
    n: int
    k: int
    provider: str
    reason: str


def geomean(rows: Sequence[Row]) -> float | None:
    """Of gemmgen's ratios to the reference, None if there are none."""
    ratios = [r.ratio for r in rows if r.provider == "gemmgen" and r.ratio is not None]
    return math.exp(sum(map(math.log, ratios)) / len(ratios)) if ratios else None


def firsts(rows: Sequence[Row]) -> dict[str, int]:
    """How often each provider was the fastest alone, and under "tie" how many shapes nobody was."""
    names = dict.fromkeys(r.provider for r in rows if r.provider != FLOOR)
    counts = {n: sum(r.provider == n and r.standing == "fastest" for r in rows) for n in names}
    shapes = {(r.groups, r.m, r.n, r.k) for r in rows if r.standing == "tie"}
    return {**counts, "tie": len(shapes)}


def over_read(rows: Sequence[Row]) -> list[Row]:
    """`rows` of one shape, with their times over the floor's where that is one of them."""
    floors = [r.microseconds for r in rows if r.provider == FLOOR]
    return [replace(r, over_read=r.microseconds / floors[0]) if floors else r for r in rows]


def as_csv(rows: Sequence[Row]) -> str:
    text = io.StringIO()
    text.write("# gemmgen bench\n")
    writer = csv.DictWriter(text, [f.name for f in fields(Row)])
    writer.writeheader()
    writer.writerows(asdict(r) for r in rows)
    return text.getvalue()


def table(rows: Sequence[Row], left_out: Sequence[LeftOut], summary: dict[str, Any]) -> str:
    epilogue = summary.get("epilogue")
    alone = f"epilogue {epilogue}: gemmgen's; the others compute the product alone"
    lines = [
        f"{summary['gpu']}: {summary['kernel']}, {summary['title']}, {summary['data']} data",
        *(alone,) * bool(epilogue),
        _line(COLUMNS),
        *(_line(cells(r)) for r in rows),
    ]
    lines += [
        f"{x.groups:>3} {x.m:>6} {x.n:>6} {x.k:>6}  {x.provider:<22} not timed: {x.reason}"
        for x in left_out
    ]
    counts = ", ".join(f"{name} {count}" for name, count in firsts(rows).items())
    mean = summary["geomean_ratio"]
    shown = f"{mean:.3f}" if mean is not None else "none"
    return "\n".join(
        [
            *lines,
            f"fastest: {counts} ({RULE})",
            f"clocks, power, temperature: {summary['clocks']}",
            f"geometric mean of gemmgen's ratios: {shown}",
            *_reference(summary),
        ]
    )


def _reference(summary: Mapping[str, Any]) -> list[str]:
    """Of groups, what the ratios are to."""
    if "reference" not in summary:
        return []
    if not summary["reference_is_one_gemm"]:
        return [f"ratios: to {summary['reference']}, which computes the same"]
    return [
        f"ratios: to {summary['reference']}, which computes something else: one GEMM of as many products. No library that "
        "computes these groups was timed"
    ]


def _shown(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.3f}"


def _line(cells: Sequence[str]) -> str:
    return FORMAT.format(*cells).rstrip()


def cells(r: Row) -> tuple[str, ...]:
    """Of a row, in the order of COLUMNS."""
    device = ("-" if x is None else f"{x:.0f}" for x in (r.sm_mhz, r.watts, r.celsius))
    return (
        *map(str, (r.groups, r.m, r.n, r.k)),
        r.provider,
        f"{r.microseconds:.1f}",
        f"{r.spread:.1%}",
        f"{r.tflops:.0f}",
        f"{r.gigabytes_per_second:.0f}",
        _shown(r.ratio),
        _shown(r.over_read),
        r.standing,
        *device,
        r.config,
    )
