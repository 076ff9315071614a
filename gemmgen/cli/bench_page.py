"""What `gemmgen bench --json` printed, as pages: tables, and the pictures of `bench_plots`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from math import isfinite
from pathlib import Path
from typing import Any

from ..bench.ceilings import Ceilings
from ..errors import ArgumentError
from ..see.page import Facts, Page, Part, Plot, Table
from ..untrusted import parse_json, read_text
from . import bench_plots
from .bench_report import COLUMNS, RULE, LeftOut, Row, cells

WRITES = "must be a file that `gemmgen bench --json` or `gemmgen bench -o` wrote"
NUMBERS = ("groups", "m", "n", "k", "microseconds", "tflops", "gigabytes_per_second")
SAYS = ("gpu", "kernel", "title", "data", "clocks")


@dataclass(frozen=True, kw_only=True)
class Results:
    """A bench's file. says: what was measured, by the names in SAYS."""

    file: str
    says: dict[str, str]
    rows: tuple[Row, ...]
    left_out: tuple[LeftOut, ...]
    fastest: dict[str, int]
    geomean: float | None
    ceilings: Ceilings | None


def read(file: Path, argument: str = "--bench") -> Results:
    """Raises ArgumentError for a file that no bench wrote, or whose rows are not those of this version."""
    try:
        data = parse_json(argument, read_text(argument, file))
        found = Results(
            file=file.name,
            says={name: str(data[name]) for name in SAYS},
            rows=tuple(Row(**row) for row in data["rows"]),
            left_out=tuple(LeftOut(**row) for row in data["left_out"]),
            fastest=dict(data["fastest"]),
            geomean=data["geomean_ratio"],
            ceilings=Ceilings(**data["ceilings"]) if "ceilings" in data else None,
        )
        _check(found)
    except (ValueError, TypeError, KeyError, OverflowError) as e:
        allowed = f"{WRITES} ({type(e).__name__}: {e})"
        raise ArgumentError(argument, str(file), allowed) from e
    return found


def _check(r: Results) -> None:
    """Raises ValueError for what a row cannot hold: words for a number, a rate that none can be."""
    everything: list[Row | LeftOut] = [*r.rows, *r.left_out]
    for row in everything:
        for field in fields(row):
            value = getattr(row, field.name)
            if not HOLDS[str(field.type)](value) or (field.name in NUMBERS and value <= 0):
                raise ValueError(f"{field.name}={value!r}")
    if not HOLDS["float | None"](r.geomean):
        raise ValueError(f"geomean_ratio={r.geomean!r}")
    if r.ceilings and not all(_number(x) and x > 0 for x in (r.ceilings.flops, r.ceilings.bytes)):
        raise ValueError(f"ceilings={r.ceilings}")


def _number(value: Any) -> bool:
    return type(value) in (int, float) and isfinite(value)


HOLDS: dict[str, Callable[[Any], bool]] = {  # by the annotation of a field
    "int": lambda v: type(v) is int,
    "float": _number,
    "float | None": lambda v: v is None or _number(v),
    "str": lambda v: isinstance(v, str),
}


def part(r: Results) -> Part:
    """Its chapter."""
    pages = [Page(title="Measured times", blocks=(_facts(r), _table(r.rows), *_left_out(r)))]
    if bench_plots.computing(r.rows):
        pages.append(Page(title="Plots", blocks=pictures(r.rows, r.ceilings)))
    return Part(name=f"Bench of {r.says['kernel']} on {r.says['gpu']}", pages=tuple(pages))


def _facts(r: Results) -> Facts:
    mean = "none" if r.geomean is None else f"{r.geomean:.3f}"
    items = [
        ("file", r.file),
        *((name, r.says[name]) for name in SAYS),
        ("fastest", ", ".join(f"{name} {count}" for name, count in r.fastest.items())),
        ("ratio", f"{mean}, the geometric mean of gemmgen's; below 1 is faster than the reference"),
    ]
    return Facts(title="What was measured", items=tuple(items))


def _table(rows: Sequence[Row]) -> Table:
    columns = tuple(name or "standing" for name in COLUMNS)
    note = f"Medians; spread: interquartile range over the median; {RULE}."
    return Table(title="Times", columns=columns, rows=tuple(map(cells, rows)), note=note)


def _left_out(r: Results) -> list[Table]:
    rows = tuple((*map(str, (x.groups, x.m, x.n, x.k)), x.provider, x.reason) for x in r.left_out)
    columns = ("G", "M", "N", "K", "provider", "why")
    return [Table(title="Not timed", columns=columns, rows=rows)] if rows else []


def pictures(rows: Sequence[Row], ceilings: Ceilings | None) -> tuple[Plot, Plot]:
    """TFLOP/s against size; the roofline, with its roof where that was measured."""
    run = bench_plots.Measured(name="", rows=bench_plots.computing(rows), ceilings=ceilings)
    return bench_plots.against_size(run), bench_plots.roofline(run)
