"""`gemmgen pack`: kernels of a family, and C code that loads and launches them. Needs no GPU."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

from ..bench import shapes
from ..config import Config
from ..errors import CompileError
from ..ops.building import config_for
from ..ops.preparing import device_name
from ..ops.refused import Kernel, all_built
from ..pack import (
    Pack,
    PackedKernel,
    Sides,
    check_prefix,
    check_target,
    compile_all,
    files,
    pack,
    switched,
)
from ..pack.groups import choice
from ..problem import Problem
from . import files as folders
from . import given
from . import prepare_command as prepare
from .progress import Bar


def add(parser: argparse.ArgumentParser) -> None:
    prepare.add_shapes(parser)
    parser.add_argument(
        "-o", type=given.path, required=True, metavar="FOLDER", help="where the files are written"
    )
    parser.add_argument(
        "--prefix", help="what all C names begin with (default: gemmgen_ and the family)"
    )
    parser.add_argument(
        "--jax",
        action="store_true",
        help="also a target of XLA's FFI, in C++, and a Python function that calls it from JAX",
    )


def main(args: argparse.Namespace) -> int:
    p = prepare.prepared_problem(args)
    device = device_name(prepare.device(args))
    prefix = f"gemmgen_{p.family}" if args.prefix is None else args.prefix
    check_prefix(prefix)  # before anything is compiled, and kept
    if args.jax:
        check_target(p)
    with Bar() as bar:
        chosen, compiled = _compiled(args, p, device, bar)
        made = pack(
            p,
            chosen,
            prefix=prefix,
            device=device,
            compiled=compiled,
        )
    written = [
        folders.write(args.o, name, data) for name, data in files(made, jax=args.jax).items()
    ]
    print(_described(made, written) if args.json else _summary(made, args.o))
    return 0


def _compiled(
    args: argparse.Namespace, p: Problem, device: str, bar: Bar
) -> tuple[dict[Sides, Config], dict[Config, PackedKernel]]:
    """The config of every shape, and the kernel of every config: where the build refuses one, of the next."""
    threads = args.threads or len(os.sched_getaffinity(0))
    chosen: dict[Sides, Config] = {}

    def choose() -> list[Kernel]:
        chosen.clear()
        chosen.update(_chosen(args, p, device, bar))
        return [(p, c) for c in chosen.values()]

    def build(kernels: list[Kernel]) -> dict[Kernel, PackedKernel | CompileError]:
        told = partial(bar.update, "compiling")
        found = compile_all(p, [c for _, c in kernels], threads, told)
        return {(p, c): x for c, x in found.items()}

    made = all_built(choose, build)
    return chosen, {c: x for (_, c), x in made.items()}


def _chosen(args: argparse.Namespace, p: Problem, device: str, bar: Bar) -> dict[Sides, Config]:
    """The config of every shape asked for, as `gemmgen.ops` chooses it; with --up-to of every M."""
    listed = list(dict.fromkeys(shapes.parse(args.shapes, p)))
    if args.up_to is not None:
        return _up_to(args, p, device, listed, bar)
    found: dict[Sides, Config] = {}
    for done, shape in enumerate(listed, 1):
        groups, (m, n, k) = shape[0] if len(shape) > 3 else 1, shape[-3:]
        found[shape] = config_for(p, (m, n, k), groups, device, pointers=False)
        bar.update("choosing", done, len(listed))
    return found


def _up_to(
    args: argparse.Namespace, p: Problem, device: str, listed: list[Sides], bar: Bar
) -> dict[Sides, Config]:
    rows = [m for m, *_ in prepare.every_shape(args, p, (1, 1, 1))]
    found: dict[Sides, Config] = {}
    for n, k in dict.fromkeys(s[1:] for s in listed):
        step = bar.steps(f"choosing, N={n} K={k}", len(rows))  # and then where choices change
        configs = switched(rows, partial(_of_rows, p, n, k, device, step))
        found |= {(m, n, k): c for m, c in configs.items()}
    return found


def _of_rows(p: Problem, n: int, k: int, device: str, step: Callable[[], None], m: int) -> Config:
    step()
    return config_for(p, (m, n, k), 1, device, pointers=False)


def _summary(made: Pack, folder: Path) -> str:
    size, sizes = sum(len(x.image) for x in made.kernels), choice(made.problem).says
    return (
        f"{folder}: {len(made.kernels)} cubins of {size} bytes serve {len(made.ranges)} ranges of {sizes}; "
        f"include {made.prefix}.h, build {made.prefix}.c"
    )


def _described(made: Pack, written: list[Path]) -> str:
    return json.dumps({"prefix": made.prefix, "files": [str(x) for x in written]}, indent=2)
