"""`gemmgen pack`: kernels of a family, and C code that loads and launches them. Needs no GPU."""

from __future__ import annotations

import argparse
import json
import os
from functools import partial
from pathlib import Path

from ..bench import shapes
from ..config import Config
from ..errors import UnsupportedProblem
from ..ops.calls import config_for
from ..ops.preparing import device_name
from ..pack import Pack, files, pack, switched
from ..problem import Problem, Shape
from . import files as folders
from . import prepare_command as prepare
from .progress import Bar


def add(parser: argparse.ArgumentParser) -> None:
    prepare.add(parser)
    parser.add_argument(
        "-o", type=Path, required=True, metavar="FOLDER", help="where the files are written"
    )
    parser.add_argument(
        "--prefix", help="what all C names begin with (default: gemmgen_ and the family)"
    )


def main(args: argparse.Namespace) -> int:
    p = prepare.prepared_problem(args)
    if p.grouping != "none":
        raise UnsupportedProblem(f"a pack holds single GEMMs: grouping={p.grouping} must be none")
    device = device_name(prepare.device(args))
    with Bar("choosing ") as choosing, Bar("compiling") as compiling:
        made = pack(
            p,
            _chosen(args, p, device, choosing),
            prefix=f"gemmgen_{p.family}" if args.prefix is None else args.prefix,
            device=device,
            threads=args.threads or len(os.sched_getaffinity(0)),
            progress=compiling.update,
        )
    written = [folders.write(args.o, name, data) for name, data in files(made).items()]
    print(_described(made, written) if args.json else _summary(made, args.o))
    return 0


def _chosen(args: argparse.Namespace, p: Problem, device: str, bar: Bar) -> dict[Shape, Config]:
    """The config of every shape asked for, as `gemmgen.ops` chooses it; with --up-to of every M."""
    listed = [prepare.launch_shape(p, s)[1] for s in shapes.parse(args.shapes, p)]
    found: dict[Shape, Config] = {}
    sides = list(dict.fromkeys(s[1:] for s in listed))
    for done, (n, k) in enumerate(sides, 1):
        asked = (x for s in listed if s[1:] == (n, k) for x in prepare.every_shape(args, p, s))
        rows = sorted({m for m, *_ in asked})
        choose = partial(_config, p, n, k, device)
        configs = {m: choose(m) for m in rows} if args.up_to is None else switched(rows, choose)
        found |= {(m, n, k): c for m, c in configs.items()}
        bar.update(done, len(sides))
    return found


def _config(p: Problem, n: int, k: int, device: str, m: int) -> Config:
    return config_for(p, (m, n, k), 1, device)


def _summary(made: Pack, folder: Path) -> str:
    size = sum(len(x.image) for x in made.kernels)
    return (
        f"{folder}: {len(made.kernels)} cubins of {size} bytes serve {len(made.ranges)} ranges of M; "
        f"include {made.prefix}.h, build {made.prefix}.c"
    )


def _described(made: Pack, written: list[Path]) -> str:
    return json.dumps({"prefix": made.prefix, "files": [str(x) for x in written]}, indent=2)
