"""`gemmgen tune --report`: the cost model's choices beside the tuned ones."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence

from ..bench.tuning.report import WORST, Report, correlation, ratio, report
from ..heuristics.database import Row, brief, load
from ..problem import Problem
from . import given


def main(args: argparse.Namespace) -> int:
    given.refuse(args, given.others(args, "report"), "cannot be given with --report")
    rows = load(args.report)
    print(json.dumps(_json(report(rows)), indent=2) if args.json else text(rows))
    return 0


def text(rows: Sequence[Row]) -> str:
    """A summary, one line per problem, and the rows in which the default choice loses most."""
    r = report(rows)
    lines = [
        f"{len(rows)} rows, {len(r.rows)} of them with the default choice's time",
        f"default over tuned, geometric mean:                {number(r.default_over_tuned)}",
        f"tuned over reference, geometric mean:              {number(r.tuned_over_reference)}",
        f"predicted over measured of the default:            {number(r.predicted_over_measured)}",
        f"rank correlation of model and measurement, mean:   {number(r.correlation)}",
        "",
        f"{'default/tuned':>13} {'correlation':>11} rows  problem",
    ]
    for name in dict.fromkeys(_problem(row) for row in rows):
        mine = report([row for row in rows if _problem(row) == name])
        factor, ranked = number(mine.default_over_tuned), number(mine.correlation)
        lines.append(f"{factor:>13} {ranked:>11} {len(mine.rows):>4}  {name}")
    if r.rows:
        lines += ["", f"{'default/tuned':>13} {'correlation':>11} {'us':>9}  worst rows"]
    lines += [_line(row) for row in r.rows[:WORST]]
    return "\n".join(lines)


def _line(row: Row) -> str:
    us = f"{(row.best.seconds or 0.0) * 1e6:.1f}"
    change = f"{json.dumps(brief(row.default.config))} -> {json.dumps(brief(row.best.config))}"
    return (
        f"{number(ratio(row)):>13} {number(correlation(row)):>11} {us:>9}  {_problem(row)} "
        f"{_shape(row)}: {change}"
    )


def _json(r: Report) -> dict[str, object]:
    rows = [
        {
            "problem": row.problem.to_json(),
            "shape": _shape(row),
            "default_over_tuned": ratio(row),
            "rank_correlation": correlation(row),
        }
        for row in r.rows
    ]
    return {
        "default_over_tuned": r.default_over_tuned,
        "tuned_over_reference": r.tuned_over_reference,
        "predicted_over_measured": r.predicted_over_measured,
        "rank_correlation": r.correlation,
        "rows": rows,
    }


def _problem(row: Row) -> str:
    return described(row.problem)


def described(p: Problem) -> str:
    """Family, and what of the problem is not said by it."""
    return " ".join(str(v) for name, v in p.to_json().items() if (name, v) != ("epilogue", "none"))


def _shape(row: Row) -> str:
    groups = (row.groups,) if row.problem.grouping != "none" else ()
    return "x".join(map(str, (*groups, *row.shape)))


def number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
