"""Two pictures of a bench: TFLOP/s against size, and the roofline. matplotlib is loaded to draw only."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any, Protocol

from ..errors import RuntimeUnavailable
from .ceilings import Ceilings

SIZE = (9.0, 5.5)  # inches
SIZES, INTENSITY, RATE = "GFLOP of a call (2 M N K)", "FLOP per byte", "TFLOP/s"  # the axes

Points = list[tuple[float, float]]


class Plotted(Protocol):
    """A row of a table; bytes: read once, written once."""

    @property
    def provider(self) -> str: ...

    @property
    def tflops(self) -> float: ...

    @property
    def microseconds(self) -> float: ...

    @property
    def gigabytes_per_second(self) -> float: ...


def require() -> None:
    """Raises RuntimeUnavailable if there is no matplotlib."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as e:
        allowed = "Run: pip install matplotlib, or leave out --plot"
        raise RuntimeUnavailable(f"plots need matplotlib ({e}). {allowed}") from e


def against_size(rows: Sequence[Plotted]) -> dict[str, Points]:
    """By provider: (GFLOP of a call, TFLOP/s), the smallest call first."""
    found: dict[str, Points] = {}
    for r in rows:
        found.setdefault(r.provider, []).append((r.tflops * r.microseconds * 1e-3, r.tflops))
    return {name: sorted(points) for name, points in found.items()}


def roofline(rows: Sequence[Plotted]) -> dict[str, Points]:
    """By provider: (FLOP per byte, TFLOP/s)."""
    found: dict[str, Points] = {}
    for r in rows:
        intensity = r.tflops * 1e3 / r.gigabytes_per_second
        found.setdefault(r.provider, []).append((intensity, r.tflops))
    return {name: sorted(points) for name, points in found.items()}


def roof(c: Ceilings, intensities: Sequence[float]) -> Points:
    """The roof over `intensities` (FLOP per byte): its ends, and its corner if that lies between them."""
    low, high, corner = min(intensities), max(intensities), c.flops / c.bytes
    xs = [low, *([corner] if low < corner < high else []), high]
    return [(x, min(c.flops, x * c.bytes) * 1e-12) for x in xs]


def draw(rows: Sequence[Plotted], ceilings: Ceilings, title: str) -> dict[str, bytes]:
    """PNG files by name: tflops.png, roofline.png. Raises RuntimeUnavailable."""
    require()
    by_size, by_intensity = against_size(rows), roofline(rows)
    line = roof(ceilings, around([x for points in by_intensity.values() for x, _ in points]))
    return {
        "tflops.png": _picture(by_size, title, SIZES),
        "roofline.png": _picture(by_intensity, title, INTENSITY, (named(ceilings), line)),
    }


def around(intensities: Sequence[float]) -> list[float]:
    """From half the least to twice the greatest: what a roof spans."""
    return [min(intensities) / 2, 2 * max(intensities)]


def named(c: Ceilings) -> str:
    """A roof's label."""
    return (
        f"measured: {c.flops * 1e-12:.0f} TFLOP/s ({c.gemm}), {c.bytes * 1e-12:.2f} TB/s (a read)"
    )


def _picture(
    series: dict[str, Points], title: str, x: str, line: tuple[str, Points] | None = None
) -> bytes:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure: Any = Figure(figsize=SIZE, layout="constrained")
    axes = figure.add_subplot()
    for (name, points), marker in zip(series.items(), "osD^vP*Xph<>d" * 4, strict=False):
        axes.plot(*zip(*points, strict=True), marker, label=name, alpha=0.8)
    if line is not None:
        axes.plot(*zip(*line[1], strict=True), "k-", label=line[0])
        axes.set_yscale("log")
    else:
        axes.set_ylim(bottom=0)
    axes.set_xscale("log")
    axes.set(xlabel=x, ylabel=RATE, title=title)
    axes.grid(True, alpha=0.3, which="both")
    axes.legend(fontsize="small")
    out = io.BytesIO()
    FigureCanvasAgg(figure).print_png(out, metadata={"Software": "gemmgen bench"})
    return out.getvalue()
