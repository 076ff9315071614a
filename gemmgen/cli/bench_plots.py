"""Two pictures of what a bench measured: TFLOP/s against size, and the roofline under the ceilings of the same run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from ..bench.ceilings import Ceilings
from ..bench.select import FLOOR
from ..see.page import Plot, Series
from .bench_report import Row

SIZES, INTENSITY, RATE = "GFLOP of a call (2 M N K)", "FLOP per byte", "TFLOP/s"  # the axes
MEASURE = "`gemmgen bench -o FOLDER` measures them and writes them to bench.json"

Point = tuple[float, float]
Place = Callable[[Row], Point]


@dataclass(frozen=True, kw_only=True)
class Measured:
    """Rows of one run, but for the floor's, which computes nothing, under its ceilings, None where it has none."""

    name: str
    rows: tuple[Row, ...]
    ceilings: Ceilings | None


def computing(rows: Iterable[Row]) -> tuple[Row, ...]:
    return tuple(r for r in rows if r.provider != FLOOR)


def size(r: Row) -> Point:
    """(GFLOP of a call, TFLOP/s)."""
    return r.tflops * r.microseconds * 1e-3, r.tflops


def intensity(r: Row) -> Point:
    """(FLOP per byte, TFLOP/s); bytes: read once, written once."""
    return r.tflops * 1e3 / r.gigabytes_per_second, r.tflops


def shape(r: Row) -> str:
    return f"{r.groups} x " * (r.groups > 1) + f"{r.m} x {r.n} x {r.k}"


def fastest(rows: Sequence[Row]) -> set[Row]:
    """The one that took least at each shape; of several, the first."""
    found: dict[str, Row] = {}
    for r in rows:
        if r.microseconds < found.setdefault(shape(r), r).microseconds:
            found[shape(r)] = r
    return set(found.values())


def roof(c: Ceilings, intensities: Sequence[float]) -> list[Point]:
    """The roof over `intensities` (FLOP per byte): its ends, and its corner if that lies between them."""
    low, high, corner = min(intensities), max(intensities), c.flops / c.bytes
    xs = [low, *([corner] if low < corner < high else []), high]
    return [(x, min(c.flops, x * c.bytes) * 1e-12) for x in xs]


def named(c: Ceilings) -> str:
    """A roof's label."""
    return (
        f"measured: {c.flops * 1e-12:.0f} TFLOP/s ({c.gemm}), {c.bytes * 1e-12:.2f} TB/s (a read)"
    )


def against_size(of: Measured) -> Plot:
    series = _series(of, size, {})
    return Plot(title="TFLOP/s against size", x=SIZES, y=RATE, series=series, log_x=True)


def roofline(of: Measured, labels: Mapping[str, str] | None = None) -> Plot:
    """labels: what providers are called, where not as they are."""
    series = _series(of, intensity, labels or {})
    xs = [x for s in series for x, _ in s.points]
    line: tuple[Series, ...] = ()
    if of.ceilings:
        points = roof(of.ceilings, (min(xs) / 2, 2 * max(xs)))
        line = (Series(name=named(of.ceilings), points=tuple(points), line=True),)
    return Plot(
        title="Roofline",
        x=INTENSITY,
        y=RATE,
        series=(*series, *line),
        log_x=True,
        log_y=True,
        note="" if line else f"The ceilings were not measured: {MEASURE}.",
    )


def _series(of: Measured, place: Place, labels: Mapping[str, str]) -> tuple[Series, ...]:
    """One per provider, by x."""
    best = fastest(of.rows)
    found = []
    for provider in dict.fromkeys(r.provider for r in of.rows):
        mine = sorted((r for r in of.rows if r.provider == provider), key=place)
        name = labels.get(provider, provider)
        points = tuple(map(place, mine))
        found.append(
            Series(
                name=name,
                points=points,
                tips=tuple(_tip(name, r, x) for r, (x, _) in zip(mine, points, strict=True)),
                best=tuple(i for i, r in enumerate(mine) if r in best),
            )
        )
    return tuple(found)


def _tip(name: str, r: Row, x: float) -> str:
    return f"{name}, {shape(r)}: {x:.4g}, {r.tflops:.4g} TFLOP/s"
