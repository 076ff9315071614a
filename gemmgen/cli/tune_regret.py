"""`gemmgen tune --regret`: the default choice against the best of the tuner's candidates, at held-out shapes."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from ..bench import shapes
from ..bench.tuning import held_out
from ..bench.tuning.jobs import Candidate, Job, job
from ..bench.tuning.regret import (
    Regret,
    Summary,
    beginning_with,
    by_problem,
    load,
    of_found,
    summary,
    to_json,
    to_text,
    worst_first,
)
from ..bench.tuning.session import NOISY, Settings, tune
from ..config import Config
from ..heuristics.database import brief
from ..heuristics.tuned import Pick
from ..problem import Problem
from ..runtime import nvrtc
from ..target import Target
from . import given
from .progress import Bar
from .tune_report import described, number
from .tune_steps import (
    SHAPES,
    Cubins,
    asked_for,
    at_most,
    check_effort,
    chosen,
    compiled,
    cubins_in,
    device_of,
    each,
    filled,
    kept,
    left_of,
    planned,
    problems_of,
    say,
    settings,
    target_for,
    write,
)

BATCH = 8  # shapes that are compiled before the first of them is measured: an interruption costs no more
AGAIN = 2  # times that what is noisy is timed again
WORST = 10
UNUSED = ("sweep", "shard", "log", "no_reference")


def main(args: argparse.Namespace) -> int:
    """1 if a default choice does not run, or Ctrl-C ended it."""
    given.refuse(args, UNUSED, "cannot be given with --regret")
    check_effort(args)
    problems = problems_of(args)
    device = device_of(args)
    with at_most(args.sms, device), cubins_in(args) as folder:
        target = target_for(device)
        known = {r.key: r for r in kept(args, load)}
        asked = {j: asked_for(j, device, target) for j in _jobs(args, problems, device)}
        keys = {j: (j, device, args.sms, nvrtc.version(), c) for j, c in asked.items()}
        left = left_of(args, keys, known, "shapes to measure")
        if args.compile_only:
            return _compile_only(args, left, target, folder)
        whole = _measured(args, {j: asked[j] for j in left}, device, target, folder, known)
    found = [known[key] for key in keys.values() if key in known]
    print(json.dumps(_json(args, found), indent=2) if args.json else text(found, args.seed))
    return int(not whole or any(r.ratio is None for r in found))


def _jobs(args: argparse.Namespace, problems: Sequence[Problem], device: str) -> list[Job]:
    """--shapes, or what is drawn."""
    if args.shapes is not None:
        given.refuse(args, ("count", "seed"), "is for shapes that are drawn, not for --shapes")
        (p,) = problems
        return [*dict.fromkeys(job(p, shape) for shape in shapes.parse(args.shapes, p))]
    taken = partial(held_out.in_database, device=device)
    return [*held_out.jobs(problems, args.count or SHAPES, args.seed, taken)]


def _batches(jobs: Sequence[Job]) -> Iterator[list[Job]]:
    for first in range(0, len(jobs), BATCH):
        yield [*jobs[first : first + BATCH]]


def _compiled(
    args: argparse.Namespace, jobs: list[Job], device: str, target: Target, folder: Path
) -> tuple[dict[Job, Pick], dict[Job, list[Candidate]], Cubins]:
    """The default choices, the candidates that begin with them, and all cubins."""
    picks, built = chosen(args, jobs, device, target, folder)
    plan = {
        j: beginning_with(picks[j].config, found, j, target)
        for j, found in planned(args, jobs, target).items()
    }
    kernels = [(j.problem, c.config) for j, found in plan.items() for c in found]
    built |= compiled(args, [k for k in kernels if k not in built], folder)
    return picks, plan, built


def _compile_only(
    args: argparse.Namespace, jobs: Sequence[Job], target: Target, folder: Path
) -> int:
    built: Cubins = {}
    for batch in _batches(jobs):
        built |= _compiled(args, batch, "", target, folder)[2]
    return filled(args, built, [*map(str, jobs)])


def _measured(
    args: argparse.Namespace,
    left: dict[Job, Config],
    device: str,
    target: Target,
    folder: Path,
    known: dict[tuple[object, ...], Regret],
) -> bool:
    """Every job that is left, with the choice that is asked for, into `known` and the file, which is written after each. Whether
    nobody stopped it."""
    from ..bench.tuning.trial import HANDLER
    from ..bench.tuning.worker import Worker

    of = settings(args, device, reference=False, again=AGAIN)

    def ready() -> Iterator[tuple[Job, Pick, list[Candidate], Cubins]]:
        for batch in _batches([*left]):
            picks, plan, built = _compiled(args, batch, device, target, folder)
            yield from ((j, picks[j], plan[j], built) for j in batch)

    with Worker(HANDLER) as worker:

        def one(of_job: tuple[Job, Pick, list[Candidate], Cubins]) -> None:
            r = _one(left[of_job[0]], *of_job, worker, of)
            known[r.key] = r
            if args.database:
                write(args.database, to_text(known.values()))

        return each(args, ready(), len(left), one, "shapes")


def _one(
    asked: Config,
    j: Job,
    pick: Pick,
    found: list[Candidate],
    built: Cubins,
    worker: Any,
    of: Settings,
) -> Regret:
    mine = {c.config: built[j.problem, c.config] for c in found}
    with Bar() as bar:
        tuned = tune(j, found, mine, worker, of, partial(bar.update, str(j)))
    r = of_found(j, asked, pick, tuned, of)
    say(f"{_line(r)}  ({r.tried} timed, {r.failed} failed)")
    return r


# ---- what it came to ------------------------------------------------------------------------


def text(found: Sequence[Regret], seed: int) -> str:
    """One line per problem, one for all, and the shapes that lose most."""
    if not found:
        return "no shape was measured"
    one = found[0]
    sms = f", {one.sms} SMs" if one.sms else ""
    lines = [
        f"default over the best of the candidates, {len(found)} shapes on {one.device}{sms}, seed {seed}",
        "",
        f"{'mean':>7} {'median':>7} {'worst':>7} {'shapes':>6} {'told':>5} {'noisy':>5} {'failed':>6}  problem",
    ]
    of = by_problem(found)
    lines += [_row(summary(mine), described(p)) for p, mine in of.items()]
    if len(of) > 1:
        lines.append(_row(summary(found), "all"))
    lines += ["", f"{'ratio':>7} {'us':>9}  worst shapes", *map(_line, worst_first(found)[:WORST])]
    lines += [
        "",
        "told: the best is another config, and further from the default than either's interquartile range;",
        f"noisy: that range is over {NOISY:.0%} of the median, timed again {AGAIN} times.",
    ]
    return "\n".join(lines)


def _row(s: Summary, name: str) -> str:
    ratios = f"{number(s.mean):>7} {number(s.median):>7} {number(s.worst):>7}"
    return f"{ratios} {s.shapes:>6} {s.told:>5} {s.noisy:>5} {s.failed:>6}  {name}"


def _line(r: Regret) -> str:
    us = f"{r.best.median * 1e6:.1f}" if r.best else "-"
    best = json.dumps(brief(r.best.config)) if r.best else "nothing ran"
    marks = " (noisy)" * r.noisy
    return (
        f"{number(r.ratio):>7} {us:>9}  {described(r.job.problem)} {r.job} {r.source}{marks}: "
        f"{json.dumps(brief(r.choice))} -> {best}"
    )


def _json(args: argparse.Namespace, found: Sequence[Regret]) -> dict[str, Any]:
    return {
        "seed": args.seed,
        "all": vars(summary(found)),
        "problems": [
            {"problem": p.to_json(), **vars(summary(mine))} for p, mine in by_problem(found).items()
        ],
        "shapes": [to_json(r) for r in found],
    }
