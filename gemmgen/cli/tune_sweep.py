"""`gemmgen tune --sweep m`: the default choice at every M, and where fewer rows take longer."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from ..bench import shapes
from ..bench.tuning import held_out
from ..bench.tuning.jobs import Job
from ..bench.tuning.sweep import (
    WITHIN,
    Cliff,
    Swept,
    cliffs,
    digest,
    load,
    measure,
    to_json,
    to_text,
)
from ..errors import ArgumentError
from ..heuristics.database import brief
from ..problem import Problem
from ..runtime import nvrtc
from ..target import Target
from . import given
from .progress import Bar
from .tune_report import described
from .tune_steps import (
    SIDE,
    SIDES,
    Cubins,
    asked_for,
    at_most,
    check_effort,
    chosen,
    cubins_in,
    device_of,
    each,
    filled,
    kept,
    left_of,
    problems_of,
    say,
    settings,
    target_for,
    write,
)

ROWS = range(1, 513)
UNUSED = ("shard", "log", "no_reference", "limit", "factor", "budget", "groupings")
Place = tuple[Problem, int, int]  # of N and K


def main(args: argparse.Namespace) -> int:
    """1 if there is a cliff, a default choice does not run, or Ctrl-C ended it."""
    _check(args)
    problems = problems_of(args)
    device = device_of(args)
    with at_most(args.sms, device), cubins_in(args) as folder:
        target = target_for(device)
        known = {x.key: x for x in kept(args, load)}
        asked = {x: _asked(x, device, target) for x in _places(args, problems, device)}
        keys = {x: (*x, device, args.sms, nvrtc.version(), today) for x, today in asked.items()}
        left = left_of(args, keys, known, "N and K to sweep")
        if args.compile_only:
            return _compile_only(args, left, target, folder)
        whole = _measured(args, {x: asked[x] for x in left}, device, target, folder, known)
    found = [known[key] for key in keys.values() if key in known]
    print(json.dumps([*map(to_json, found)], indent=2) if args.json else text(found))
    return int(not whole or any(cliffs(x.points) or x.failed for x in found))


def _check(args: argparse.Namespace) -> None:
    if args.sweep != SIDE:
        raise ArgumentError("--sweep", args.sweep, f"must be {SIDE}")
    given.refuse(args, UNUSED, "cannot be given with --sweep")
    if args.grouping not in (None, "none"):
        raise ArgumentError(
            "--grouping", args.grouping, "must be none with --sweep: M is one GEMM's"
        )
    check_effort(args)
    args.groupings = "none" if args.kernel is None else None


def _places(args: argparse.Namespace, problems: Sequence[Problem], device: str) -> list[Place]:
    """Of the problems N and K: those of --shapes, or of shapes that are drawn."""
    if args.shapes is not None:
        given.refuse(args, ("count", "seed"), "is for shapes that are drawn, not for --shapes")
        (p,) = problems
        return [*dict.fromkeys((p, n, k) for _, n, k in shapes.parse(args.shapes, p))]
    taken = partial(held_out.in_database, device=device)
    drawn = held_out.jobs(problems, args.count or SIDES, args.seed, taken)
    return [*dict.fromkeys((j.problem, *j.shape[1:]) for j in drawn)]


def _sides(place: Place) -> str:
    return "Mx{}x{}".format(*place[1:])


def _jobs(place: Place) -> dict[int, Job]:
    p, n, k = place
    return {m: Job(problem=p, shape=(m, n, k)) for m in ROWS if m % _step(p) == 0}


def _step(p: Problem) -> int:
    """Of M: any, but where A is contiguous along it."""
    return held_out.ROWS_STEP if p.mn_major[0] else 1


def _asked(place: Place, device: str, target: Target) -> str:
    """The digest of today's choices."""
    return digest({m: asked_for(j, device, target) for m, j in _jobs(place).items()})


def _compile_only(
    args: argparse.Namespace, places: Sequence[Place], target: Target, folder: Path
) -> int:
    built: Cubins = {}
    for place in places:
        built |= chosen(args, [*_jobs(place).values()], "", target, folder)[1]
    return filled(args, built, [*map(_sides, places)])


def _measured(
    args: argparse.Namespace,
    left: dict[Place, str],
    device: str,
    target: Target,
    folder: Path,
    known: dict[tuple[object, ...], Swept],
) -> bool:
    """Every N and K that is left, with what is asked for, into `known` and the file, which is written after each. Whether nobody
    stopped it."""
    from ..bench.tuning.trial import HANDLER
    from ..bench.tuning.worker import Worker

    of = settings(args, device, reference=False)

    with Worker(HANDLER) as worker:

        def one(place: Place) -> None:
            jobs = _jobs(place)
            picks, built = chosen(args, [*jobs.values()], device, target, folder)
            choices = {m: (picks[j].config, picks[j].source(j.shape)) for m, j in jobs.items()}
            mine = {c: built[place[0], c] for c, _ in choices.values()}
            with Bar() as bar:
                told = partial(bar.update, _sides(place))
                x = measure(place[0], place[1:], left[place], choices, mine, worker, of, told)
            known[x.key] = x
            say(_summary(x))
            if args.database:
                write(args.database, to_text(known.values()))

        return each(args, left, len(left), one, "sweeps")


# ---- what it came to ------------------------------------------------------------------------


def text(found: Sequence[Swept]) -> str:
    lines = []
    for x in found:
        lines += [_summary(x), *map(_line, cliffs(x.points))]
        lines += [f"  M={m} does not run: {why}" for m, why in x.failed]
    return "\n".join(lines) or "nothing was swept"


def _summary(x: Swept) -> str:
    here = cliffs(x.points)
    worst = f", worst {max(c.ratio for c in here):.3f}" if here else ""
    sms = f", {x.sms} SMs" if x.sms else ""
    configs = len({point.config for point in x.points})
    return (
        f"{described(x.problem)} Mx{x.n}x{x.k} on {x.device}{sms}: {len(x.points)} M, {configs} configs, "
        f"{len(here)} where more rows take less time by over {WITHIN:.0%}{worst}"
    )


def _line(c: Cliff) -> str:
    rows = f"M={c.first}" if c.first == c.last else f"M={c.first} to {c.last}"
    sides = (
        f"M={x.m} {x.median * 1e6:.1f} us {x.source} {json.dumps(brief(x.config))}"
        for x in (c.slow, c.fast)
    )
    return f"  {c.ratio:.3f}  {rows}: {' against '.join(sides)}"
