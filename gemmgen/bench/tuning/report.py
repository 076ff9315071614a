"""How far the cost model's choice is from the measured one, and how well it ranks."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import mean

from ...heuristics.database import Row

WORST = 10


@dataclass(frozen=True, kw_only=True)
class Report:
    """rows: those with a time of the default choice, worst first. default_over_tuned, tuned_over_reference and
    predicted_over_measured (of the default choice): geometric means, or None. correlation: the mean of the
    rows' rank correlations, or None."""

    rows: tuple[Row, ...]
    default_over_tuned: float | None
    tuned_over_reference: float | None
    predicted_over_measured: float | None
    correlation: float | None


def report(rows: Sequence[Row]) -> Report:
    """Of any rows."""
    timed = sorted((r for r in rows if ratio(r)), key=lambda r: (-(ratio(r) or 0.0), r.key))
    referred = [(r.best.seconds or 0.0) / r.reference[1] for r in rows if r.reference]
    predicted = [r.default.predicted / r.default.seconds for r in timed if r.default.seconds]
    ranked = [c for r in rows if (c := correlation(r)) is not None]
    return Report(
        rows=tuple(timed),
        default_over_tuned=geomean([ratio(r) or 1.0 for r in timed]),
        tuned_over_reference=geomean(referred),
        predicted_over_measured=geomean(predicted),
        correlation=mean(ranked) if ranked else None,
    )


def ratio(row: Row) -> float | None:
    """The default choice's time over the tuned one's, in one run; at least about 1."""
    if row.default.seconds is None or row.best.seconds is None:
        return None
    return row.default.seconds / row.best.seconds


def geomean(values: Sequence[float]) -> float | None:
    return math.exp(mean(map(math.log, values))) if values else None


def correlation(row: Row) -> float | None:
    """Spearman's, of predicted and measured seconds. Configs that the model does not tell apart (it prices no
    stages and no raster) count once, as the fastest of them. None for fewer than three."""
    fastest: dict[float, float] = {}
    for predicted, measured in row.tried:
        fastest[predicted] = min(measured, fastest.get(predicted, math.inf))
    if len(fastest) < 3:
        return None
    return _pearson(ranks(fastest.keys()), ranks(fastest.values()))


def ranks(values: Iterable[float]) -> list[float]:
    """Of each value its place in order, from 1; equals share the mean of theirs."""
    listed = list(values)
    ordered = sorted(listed)
    return [ordered.index(v) + (ordered.count(v) + 1) / 2 for v in listed]


def _pearson(x: Sequence[float], y: Sequence[float]) -> float | None:
    dx, dy = ([v - mean(values) for v in values] for values in (x, y))
    scale = math.sqrt(sum(v * v for v in dx) * sum(v * v for v in dy))
    return sum(a * b for a, b in zip(dx, dy, strict=True)) / scale if scale else None
