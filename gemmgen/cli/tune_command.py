"""`gemmgen tune`: measure configs on a GPU, and keep the fastest of each shape in a database."""

from __future__ import annotations

import argparse
import json
import os
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from .. import __version__
from ..bench import shapes
from ..bench.clocks import watch
from ..bench.tuning import candidates as choosing
from ..bench.tuning import conditions, shares
from ..bench.tuning.compiling import Built, cores
from ..bench.tuning.jobs import Job, job
from ..config import Config
from ..errors import ArgumentError
from ..heuristics.database import Row, brief, load, to_line, to_text
from ..runtime import driver, nvrtc
from ..target import Target
from . import (
    given,
    options,
    tune_calibrate,
    tune_merge,
    tune_regret,
    tune_report,
    tune_share,
    tune_sweep,
)
from .offers import some
from .progress import Bar
from .tune_share import Share, refuse_ranks
from .tune_steps import (
    OF_CHOICES,
    Cubins,
    Plan,
    add_choices,
    check_effort,
    compiled,
    cubins_in,
    device_of,
    each,
    filled,
    kept,
    planned,
    say,
    settings,
    tally,
    target_for,
    write,
)

MODES = {  # by the option that asks for one; without, shapes are tuned
    "merge": tune_merge.main,
    "report": tune_report.main,
    "calibrate": tune_calibrate.main,
    "regret": tune_regret.main,
    "sweep": tune_sweep.main,
}


def add(parser: argparse.ArgumentParser) -> None:
    options.add_kernel(parser, required=False)
    parser.add_argument(
        "--shapes",
        help=f"{', '.join(shapes.SETS)}, or MxNxK,...; with groups "
        f"{', '.join(shapes.GROUPED)}, or GxMxNxK,... (default the first of them)",
        offers=some((*shapes.SETS, *shapes.GROUPED)),
    )
    parser.add_argument(
        "-o", "--database", metavar="PATH", type=given.path, help="add the rows to this file"
    )
    _add_effort(parser)
    parser.add_argument(
        "--again", action="store_true", help="tune shapes that the database has, too"
    )
    parser.add_argument(
        "--no-reference", action="store_true", help="do not time the benchmark's reference"
    )
    parser.add_argument(
        "--cubins",
        metavar="FOLDER",
        type=given.path,
        help="keep cubins here, and use those that are here",
    )
    parser.add_argument(
        "--compile-only", action="store_true", help="fill --cubins and stop: needs no GPU"
    )
    parser.add_argument(
        "--log", metavar="PATH", type=given.path, help="add a JSON line per candidate to this file"
    )
    parser.add_argument(
        "--merge",
        metavar="PATH",
        type=given.path,
        nargs="+",
        help="merge databases, into -o or to standard output: of rows for one shape the newest NVRTC's, the median of those of one "
        "config, the fastest; exit code 1 if they disagree on more",
    )
    parser.add_argument(
        "--report",
        metavar="PATH",
        type=given.path,
        help="how far the cost model's choices are from the tuned ones",
    )
    parser.add_argument(
        "--shard",
        metavar="I/N",
        help="tune share I of N of the shapes, into -o's name with I-of-N: by other processes, machines, the others (under torchrun "
        "its ranks say which)",
    )
    add_choices(parser)


def _add_effort(parser: argparse.ArgumentParser) -> None:
    for flag, default, what in (
        ("--budget", 60.0, "seconds on the GPU per shape: in half of them candidates are verified"),
        ("--total", 0.0, "seconds in all, after which no shape is begun (default 0: no limit)"),
        ("--timeout", 60.0, "seconds after which a candidate's process is killed"),
        ("--factor", choosing.FACTOR, "candidates cost at most so much more in the model"),
    ):
        text = what if "default" in what else f"{what} (default {default:g})"
        parser.add_argument(flag, type=float, default=default, help=text)
    for flag, count, what in (
        ("--limit", choosing.LIMIT, "candidates per shape"),
        ("--repeats", 21, "rounds in which the finalists are timed"),
        ("--processes", cores(), "that compile at a time"),
    ):
        parser.add_argument(flag, type=int, default=count, help=f"{what} (default {count})")


def main(args: argparse.Namespace) -> int:
    for mode, run in MODES.items():
        if getattr(args, mode) not in (None, False):
            refuse_ranks(os.environ, f"--{mode}")
            return run(args)
    _check(args)
    share = tune_share.asked(args, os.environ)
    p = options.problem(args)
    started = time.monotonic()
    every = list(dict.fromkeys(job(p, shape) for shape in shapes.parse(args.shapes, p)))
    device = device_of(args, share.device)
    of_all = kept(args, load)
    _take(args, share)
    old = kept(args, load)
    jobs = shares.share(every, share.number, share.count, _effort(args))
    left = [j for j in jobs if args.again or not _known([*of_all, *old], j, device)]
    mine = "" if share.count == 1 else f"share {share} of {len(every)} shapes: "
    say(f"{mine}{len(left)} of {len(jobs)} shapes to tune")
    with cubins_in(args) as folder:
        try:
            plan, built = _compiled(args, left, folder, target_for(device, share.device))
        except KeyboardInterrupt:
            say("stopped while compiling; nothing was tuned")
            return 1
        if args.compile_only:
            found = {str(j): len(configs) for j, configs in plan.items()}
            return filled(args, built, found, "" if share.count == 1 else str(share))
        return _tune(args, share, plan, built, old, device, started)


def _take(args: argparse.Namespace, share: Share) -> None:
    """What is of all shares is this one's from here on."""
    args.database, args.log = share.file(args.database), share.file(args.log)
    if "processes" not in args.given:
        args.processes = share.processes()


def _effort(args: argparse.Namespace) -> shares.Effort:
    return shares.Effort(limit=args.limit, repeats=args.repeats)


def _check(args: argparse.Namespace) -> None:
    """Raise ArgumentError for what does not go together or is out of range."""
    if args.kernel is None:
        raise ArgumentError("KERNEL", None, "is required without --merge and --report")
    given.refuse(args, OF_CHOICES, "is for --regret and --sweep")
    check_effort(args)
    if not (args.compile_only or args.database):
        raise ArgumentError("--database", None, "is required: where the rows go")


def _known(rows: list[Row], j: Job, device: str) -> bool:
    """Whether there is a row for `j` from this NVRTC or a newer one."""
    place = (j.problem, j.groups, j.shape, device)
    return any(
        (r.problem, r.groups, r.shape, r.device) == place and r.nvrtc >= nvrtc.version()
        for r in rows
    )


def _compiled(
    args: argparse.Namespace, jobs: list[Job], folder: Path, target: Target
) -> tuple[Plan, Cubins]:
    plan = planned(args, jobs, target)
    kernels = [(j.problem, c.config) for j, found in plan.items() for c in found]
    built = compiled(args, kernels, folder)
    say(f"{len(built)} kernels compiled, {tally(built)['refused']} of them refused")
    return plan, built


def _tune(
    args: argparse.Namespace,
    share: Share,
    plan: Plan,
    built: Cubins,
    old: list[Row],
    device: str,
    started: float,
) -> int:
    """Every job of the plan, the database written after each. 1 if a job has no row, or Ctrl-C ended it."""
    from ..bench.tuning.session import tune
    from ..bench.tuning.trial import HANDLER
    from ..bench.tuning.worker import Worker

    of = settings(args, device, reference=not args.no_reference)
    now = conditions.versions(__version__)
    rows = {r.key: r for r in old}
    new: list[Row] = []
    without: list[Job] = []
    own = Worker(HANDLER, environment=share.environment(os.environ))
    with watch(driver.pci_bus_id(share.device)) as log, own as worker:

        def one(at: tuple[int, Job]) -> None:
            number, j = at
            mine = {c.config: built[j.problem, c.config] for c in plan[j]}
            with Bar() as bar:
                told = partial(bar.update, f"{j}, shape {number} of {len(plan)}")
                tuned = tune(j, plan[j], mine, worker, of, told)
            _describe(j, tuned, mine)
            _log(args, j, tuned, of)
            if tuned.row is None:
                without.append(j)
                return
            row = replace(tuned.row, conditions=conditions.during(now, log, tuned.window))
            new.append(row)
            rows[row.key] = row
            write(args.database, to_text(rows.values()))

        whole = each(args, enumerate(plan, 1), len(plan), one, "shapes", started)
    if args.json:
        print(json.dumps([json.loads(to_line(r)) for r in new], indent=2))
    elif new:
        print(tune_report.text(new))
    return int(not whole or bool(without))


def _describe(j: Job, found: Any, built: dict[Config, Built]) -> None:
    """One line per job, one per candidate that compiled and failed, one per note."""
    r = found.row
    if r is None:
        say(f"{j}: no candidate ran")
    else:
        before = f"{r.default.seconds * 1e6:.1f}" if r.default.seconds else "?"
        theirs = f"; {r.reference[0]} {r.reference[1] * 1e6:.1f} us" if r.reference else ""
        say(
            f"{j}: {before} -> {r.best.seconds * 1e6:.1f} us of {len(r.tried)} timed{theirs}  "
            f"{json.dumps(brief(r.best.config))}",
        )
    for o in found.outcomes:
        if o.seconds is None and o.failed != "no time left" and built[o.candidate.config].cubin:
            say(f"  failed: {json.dumps(brief(o.candidate.config))}: {o.failed}")
    for note in found.notes:
        say(f"  {note}")


def _log(args: argparse.Namespace, j: Job, found: Any, settings: Any) -> None:
    if not args.log:
        return
    m, n, k = j.shape
    head = {"gemmgen": "tune", "problem": j.problem.to_json(), "groups": j.groups}
    head |= {"m": m, "n": n, "k": k, "device": settings.device}
    head["nvrtc"] = ".".join(map(str, settings.nvrtc))
    lines = []
    for o in found.outcomes:
        c = o.candidate
        result = {"failed": o.failed} if o.seconds is None else {"seconds": o.seconds}
        lines.append({**head, "config": brief(c.config), "predicted": c.predicted, **result})
    old = args.log.read_text() if args.log.exists() else ""
    write(args.log, old + "".join(json.dumps(line) + "\n" for line in lines))
