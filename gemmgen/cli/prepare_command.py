"""`gemmgen prepare`: compile what a family needs at a set of shapes, before it is needed. Needs no GPU."""

from __future__ import annotations

import argparse
import json
import re
from dataclasses import asdict
from typing import Any

from ..bench import shapes
from ..bench.work import launched
from ..errors import ArgumentError
from ..families import FAMILIES
from ..ir.groupings import GROUPINGS
from ..ops import Prepared, every_m, prepare
from ..ops.calls import SCALE_LAYOUTS
from ..problem import Problem, Shape
from ..target import BY_DEVICE, H200
from ..untrusted import whole
from . import given, options
from .offers import some
from .progress import Bar

HOPPER = re.compile(
    r"NVIDIA G?H\d{2,3}\b.*"
)  # a wrong name would have no measured configs, and say nothing


def add(parser: argparse.ArgumentParser) -> None:
    add_shapes(parser)
    parser.add_argument(
        "--scale-a-layout",
        choices=SCALE_LAYOUTS,
        default="mn",
        help="how A's block scales lie in the calls (default mn)",
    )


def add_shapes(parser: argparse.ArgumentParser) -> None:
    """What configs are chosen for."""
    options.add_kernel(parser)
    parser.add_argument(
        "--shapes",
        help=f"as of `gemmgen bench`: {', '.join(shapes.SETS)}, MxNxK,...; with groups "
        f"{', '.join(shapes.GROUPED)}, or GxMxNxK,... (default the first of them); or @FILE, a CSV or a shape to a line",
        offers=some((*shapes.SETS, *shapes.GROUPED)),
    )
    parser.add_argument(
        "--device",
        help="a CUDA device's number or a device's name, whose measured configs are used (default: device 0 "
        "if it is a Hopper GPU, else NVIDIA H200)",
        offers=BY_DEVICE,
    )
    parser.add_argument(
        "--up-to",
        type=int,
        metavar="M",
        help="every M from 1 to this one, in place of those of the shapes (without groups)",
    )
    parser.add_argument(
        "--threads", type=int, help="that compile at a time (default: one per core)"
    )


def main(args: argparse.Namespace) -> int:
    p = prepared_problem(args)
    by_groups: dict[int, list[Shape]] = {}
    for groups, shape in (launch_shape(p, s) for s in shapes.parse(args.shapes, p)):
        by_groups.setdefault(groups, []).extend(every_shape(args, p, shape))
    with Bar() as bar:
        found = [_prepared(args, p, listed, groups, bar) for groups, listed in by_groups.items()]
    if args.json:
        print(json.dumps([_described(x) for x in found], indent=2))
    else:
        print("\n".join(map(str, found)))
    return int(any(x.kept < len(x.kernels) for x in found))


def prepared_problem(args: argparse.Namespace) -> Problem:
    """What `gemmgen.ops` launches: the family's scales are part of its epilogue unless one is given."""
    for name, value in (("--threads", args.threads), ("--up-to", args.up_to)):
        if value is not None and value < 1:
            raise ArgumentError(name, value, "must be at least 1")
    if args.kernel not in FAMILIES:
        raise ArgumentError("KERNEL", args.kernel, f"must be one of {', '.join(FAMILIES)}")
    given.refuse(args, given.CONFIG, "cannot be given: configs are chosen")
    p = options.problem(args)
    return launched(p) if args.epilogue is None else p


def launch_shape(p: Problem, shape: shapes.Shape) -> tuple[int, Shape]:
    groups, (m, n, k) = shape[0] if len(shape) > 3 else 1, shape[-3:]
    return groups, (m, n, shapes.mean_depth(groups, k) if GROUPINGS[p.grouping].depths else k)


def every_shape(args: argparse.Namespace, p: Problem, shape: Shape) -> list[Shape]:
    """`shape`, or with --up-to as many as cover every M."""
    if args.up_to is None:
        return [shape]
    if p.grouping != "none":
        raise ArgumentError("--up-to", args.up_to, f"is not for grouping {p.grouping}")
    return [(m, *shape[1:]) for m in every_m(args.up_to)]


def device(args: argparse.Namespace) -> int | str | None:
    """What --device names: a number, a name, or nothing."""
    asked: str | None = args.device
    number = whole(asked or "")
    if number is None and asked is not None and not HOPPER.fullmatch(asked):
        allowed = "must be a CUDA device's number or a Hopper GPU's name as the driver says it"
        raise ArgumentError("--device", asked, f"{allowed}, as in {H200.device_name}")
    return asked if number is None else number


def _prepared(
    args: argparse.Namespace, p: Problem, listed: list[Shape], groups: int, bar: Bar
) -> Prepared:
    return prepare(
        p,
        listed,
        groups=groups,
        device=device(args),
        threads=args.threads,
        scale_a_layout=args.scale_a_layout,
        progress=bar.update,
    )


def _described(x: Prepared) -> dict[str, Any]:
    kernels = [{"problem": p.to_json(), "config": c.to_json()} for p, c in x.kernels]
    return {**asdict(x), "kernels": kernels}
