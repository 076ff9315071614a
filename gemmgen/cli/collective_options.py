"""Options that say what several GPUs make together, and how many they are."""

from __future__ import annotations

import argparse

from ..ir.collectives import COLLECTIVES, MOST_RANKS, WIRES, check_ranks
from ..problem import Problem
from . import given

NAMES = tuple(t.name for t in WIRES)
RANKS = 2  # where nothing is given


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--collective",
        metavar="NAME",
        help=f"what several GPUs make together: {', '.join(COLLECTIVES)}",
        offers=COLLECTIVES,
    )
    parser.add_argument(
        "--wire",
        metavar="DTYPE",
        help=f"what sums of a reduce_scatter are rounded to on their way: {' or '.join(NAMES)}",
        offers=NAMES,
    )
    parser.add_argument(
        "--ranks",
        type=int,
        metavar="R",
        help=f"GPUs of a collective, each with -m rows: 1 to {MOST_RANKS} (default {RANKS})",
    )


def ranks(args: argparse.Namespace, p: Problem) -> int:
    """`--ranks` of a problem with a collective, whose launch has so many; 1 of others. Raises ArgumentError."""
    if not p.together:
        given.refuse(args, ("ranks",), "is for kernels with a collective: see --collective")
        return 1
    found: int = RANKS if args.ranks is None else args.ranks
    check_ranks(found, name="--ranks")
    return found
