"""Score the rows and random mutants, and print the tables."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

from . import report
from .mutant import Mutant
from .random_mutants import KERNELS, draw
from .rows import ROWS
from .score import Verdict, controls, score_all


def main() -> int:
    args = _arguments()
    if args.controls:
        return int(any(_controls({*KERNELS, *(m.kernel for m in ROWS)}, args.jobs).values()))
    mutants = _chosen(args)
    started = time.perf_counter()
    noisy = {} if args.controlled else _controls({m.kernel for m in mutants}, args.jobs)
    done = 0

    def told(v: Verdict) -> None:
        nonlocal done
        done += 1
        by = ",".join(v.killed) or v.outcome + (f" ({v.equivalent})" if v.equivalent else "")
        text = v.texts[0].splitlines()[0][:90] if v.texts else ""
        print(f"[{done}/{len(mutants)}] {v.id}: {by}  {v.seconds:.1f} s  {text}", flush=True)

    verdicts = score_all(mutants, args.jobs, args.all_killers, told, noisy)
    print(f"\n{time.perf_counter() - started:.0f} s in all\n")
    print(report.tables(mutants, verdicts))
    print("\n" + report.legend())
    if args.json:
        rows = [vars(v) | {"outcome": v.outcome} for v in verdicts]
        Path(args.json).write_text(json.dumps(rows, indent=1))
    bad = ("survived", "undecided", "error")
    return int(any(noisy.values()) or any(v.outcome in bad for v in verdicts))


def _controls(names: set[str], jobs: int) -> dict[str, frozenset[str]]:
    def told(name: str, found: list[tuple[str, str]]) -> None:
        print(f"control {name}: {found or 'nothing found'}", flush=True)

    return controls(sorted(names), jobs, told)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument("--rows", action="store_true", help="the planned mutants")
    parser.add_argument("--random", type=int, default=0, metavar="N", help="random mutants")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--controls", action="store_true", help="every net on every right kernel")
    parser.add_argument(
        "--controlled", action="store_true", help="--controls found nothing: do not run them again"
    )
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", action="append", help="the mutants of these ids", default=[])
    parser.add_argument("--all-killers", action="store_true", help="run every net on every mutant")
    parser.add_argument("--json", metavar="FILE", help="write the verdicts here")
    return parser.parse_args()


def _chosen(args: argparse.Namespace) -> list[Mutant]:
    rows = ROWS if args.rows or args.only else ()
    every = [*rows, *draw(args.random, args.seed)]
    if args.only:
        every = [m for m in every if m.id in args.only]
    if not every:
        sys.exit("nothing to do: give --rows, --random N or --only ID")
    return every


if __name__ == "__main__":
    sys.exit(main())
