"""Arguments that say how a kernel runs: a config, or how one is chosen."""

from __future__ import annotations

import argparse

from ..config import FIELDS
from .offers import a_file, changes


def add(parser: argparse.ArgumentParser) -> None:
    """A config, or fields to change of the one there is."""
    parser.add_argument(
        "--config",
        metavar="JSON",
        help="a Config as JSON, or the name of a file that holds one, in place of the one chosen",
        offers=a_file,
    )
    parser.add_argument(
        "--set",
        metavar="FIELD=VALUE",
        action="append",
        default=[],
        help="a field of the config to change: of the one chosen for the shape, of a gallery kernel's or of "
        f"--config; repeatable; fields are {', '.join(FIELDS)}",
        offers=changes,
    )
    parser.add_argument(
        "--invariant",
        action="store_true",
        default=None,
        help="choose a config by which bits depend on N, K and dtypes, and not on M, the batch or groups",
    )
    add_swap_ab(parser)
    parser.add_argument(
        "--split-k",
        dest="set",
        action="append",
        type=lambda ranks: f"split_k={ranks}",
        metavar="CTAS",
        help="let 2, 4 or 8 CTAs divide the K of each tile, for few tiles",
        offers=("2", "4", "8"),
    )


def add_swap_ab(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--swap-ab",
        dest="set",
        action="append_const",
        const="swap_ab=true",
        help="compute D^T = B A^T, for few rows: block_m from 8 on, block_n in blocks of 64",
    )
