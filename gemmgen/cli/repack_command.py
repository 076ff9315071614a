"""`gemmgen repack`: a checkpoint's weights of 4 or 8 bits, packed once, into a folder. Needs torch, and no GPU."""

from __future__ import annotations

import argparse
import json
import re
from dataclasses import asdict
from typing import TYPE_CHECKING

from ..errors import ArgumentError
from ..ir.dtypes import BF16, E4M3, F16
from ..ir.packed import BY_BLOCK
from ..ops.names import ArgumentNames
from ..quant.loading import METHODS
from . import given
from .progress import Bar

if TYPE_CHECKING:
    from ..repacking import Repacked

ACTIVATIONS = (*(t.name for t in (BF16, F16, E4M3)), BY_BLOCK)
SIZE = re.compile(r"([0-9]{1,10})(|MB|GB|MiB|GiB)", re.ASCII)
UNITS = {"": 1, "MB": 10**6, "GB": 10**9, "MiB": 1 << 20, "GiB": 1 << 30}
SHARD = "5GB"
NAMES = ArgumentNames(
    names={
        "source": "CHECKPOINT",
        "paths": "CHECKPOINT",
        "out": "-o",
        "activations": "--activations",
        "method": "--method",
    }
)
MB = 10**6


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "checkpoint",
        type=given.path,
        metavar="CHECKPOINT",
        help="a folder of safetensors files and a config.json, as Hugging Face has it, or one such file",
    )
    parser.add_argument(
        "-o",
        type=given.path,
        required=True,
        metavar="FOLDER",
        help="where files are written: an empty folder, or none yet",
    )
    parser.add_argument(
        "--activations",
        choices=ACTIVATIONS,
        help="what packed weights are multiplied with; e4m3, to which layers quantise rows of bf16, is for MXFP4, e4m3_128, with "
        "a scale for each 128 columns, also for INT4 without zeros in groups of 128 or whole rows (default: the model's dtype "
        "as config.json says it, else bf16)",
    )
    parser.add_argument(
        "--method",
        choices=tuple(METHODS),
        help="how weights are quantised, of a checkpoint whose config.json does not say it",
    )
    parser.add_argument(
        "--shard-size",
        default=SHARD,
        metavar="SIZE",
        help=f"the most bytes of tensors in a file, as 500MB or 4GiB (default {SHARD})",
    )


def main(args: argparse.Namespace) -> int:
    size = _bytes(args.shard_size)
    with NAMES, Bar() as bar:
        from ..repacking import repack  # torch

        made = repack(
            args.checkpoint,
            args.o,
            activations=args.activations,
            method=args.method,
            shard_bytes=size,
            progress=lambda done, of, name: bar.update("repacking, MB", done // MB, of // MB),
        )
    print(json.dumps(_described(made), indent=2) if args.json else made)
    return 0


def _described(made: Repacked) -> dict[str, object]:
    return {**asdict(made), "out": str(made.out)}


def _bytes(text: str) -> int:
    """What --shard-size says."""
    found = SIZE.fullmatch(text)
    size = int(found[1]) * UNITS[found[2]] if found else 0
    if not size:
        raise ArgumentError("--shard-size", text, "must be a positive number of bytes, MB, GB, MiB or GiB, as in 5GB")  # fmt: skip
    return size
