"""Fuzz every family and grouping on a GPU, and soak it; exits with 1 if anything but right results came.

Run again with the same --state, it goes on where it stopped.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

from .pool import Pool
from .tally import Chunk, State, table
from .tiers import TIERS, counts
from .worker import MACHINE

THREADS = "F7 threads"


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(prog="python -m tests.gpu_fuzz", description=__doc__)
    p.add_argument("--shapes", type=int, default=20_000, help="random shapes (default 20000)")
    p.add_argument("--launches", type=int, default=1_000_000, help="of all (default 1000000)")
    p.add_argument("--seed", type=int, default=1, help="of all that is random (default 1)")
    p.add_argument("--minutes", type=float, default=8.0, help="then stop (default 8)")
    p.add_argument("--state", type=Path, default=Path("fuzz.jsonl"), help="what is done")
    p.add_argument("--cache", type=Path, help="directory of compiled kernels")
    p.add_argument("--workers", type=int, default=8, help="processes (default 8)")
    p.add_argument("--patience", type=float, default=120.0, help="seconds until one hangs")
    p.add_argument("--tiers", help=f"of {', '.join(TIERS)}, separated by commas (default all)")
    p.add_argument("--threads", action="store_true", help=f"only {THREADS}")
    p.add_argument("--table", action="store_true", help="only show what the state holds")
    p.add_argument("--machine", default=MACHINE, help=argparse.SUPPRESS)
    return p


def main(arguments: list[str] | None = None) -> int:
    args = parser().parse_args(arguments)
    asked = {"shapes": args.shapes, "seed": args.seed}
    try:
        state = State(args.state, asked)
    except ValueError as e:
        print(e, file=sys.stderr)
        return 2
    if args.cache:
        args.cache.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.environ["GEMMGEN_CACHE"] = str(args.cache.resolve())
    if not args.table:
        run(args, state)
    report(state)
    return int(any(t.bad for t in state.tallies.values()))


def run(args: argparse.Namespace, state: State) -> None:
    wanted = counts(args.shapes, args.launches)
    if args.threads:
        wanted = {THREADS: 1}
    if args.tiers:
        chosen = [t.strip() for t in args.tiers.split(",")]
        wanted = {t: (wanted | {THREADS: 1})[t] for t in chosen}
    pool = Pool(
        state=state,
        machine=args.machine,
        seed=args.seed,
        count=args.workers,
        patience=args.patience,
        until=time.monotonic() + 60 * args.minutes,
        log=args.state.with_suffix(".log"),
    )

    def enough(chunk: Chunk) -> bool:
        return chunk.tier == "F12" and state.launches >= args.launches

    def left(tiers: list[str]) -> list[Chunk]:
        return [c for t in tiers for c in state.left(t, wanted[t], TIERS[t].chunk)]

    alone = [t for t in wanted if TIERS[t].alone]
    pool.drain(left([t for t in wanted if t == "F0"]), enough)
    for tier in alone:
        pool.drain(left([tier]), enough, count=1)
    pool.drain(left([t for t in wanted if t not in ("F0", *alone)]), enough)


def report(state: State) -> None:
    print(table(state.tallies, {name: tier.says for name, tier in TIERS.items()}))
    host = sum(t.host for t in state.tallies.values())
    print(f"\nHost memory grew by {host} bytes in F12 steady.")
    for tier, tally in state.tallies.items():
        for failure in tally.failures:
            print(f"{tier}: {failure}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
