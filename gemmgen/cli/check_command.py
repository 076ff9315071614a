"""`gemmgen check`: prove that no schedule of a kernel's roles deadlocks, races or corrupts, and that its text is
what was proved."""

from __future__ import annotations

import argparse
import json
from typing import Any

from ..check import PROPERTIES, ProtocolViolation, check
from ..emit import emit
from ..errors import ArgumentError
from ..gallery import GALLERY, path_of
from ..ir.nodes import Kernel
from ..link import TextDiffers, link
from ..pipeline import lower
from . import given, options
from .progress import counted


def add(parser: argparse.ArgumentParser) -> None:
    options.add_kernel(parser, required=False)
    options.add_shape(parser)
    parser.add_argument("--all", action="store_true", help="the whole gallery")
    parser.add_argument(
        "--thorough", action="store_true", help="every instance instead of a sample: minutes"
    )
    parser.add_argument("--properties", action="store_true", help="list what is proved")


def main(args: argparse.Namespace) -> int:
    if args.properties:
        given.refuse(args, given.others(args, "properties"), "cannot be given with --properties")
        return _properties(args)
    rows = [
        _row(label, kernel, args.thorough)
        for label, kernel in counted("proving", [*_kernels(args).items()])
    ]
    if args.json:
        print(json.dumps(rows, indent=2))
    else:
        for r in rows:
            print(f"{'proved' if r['proved'] else 'BROKEN':<7} {r['kernel']}\n  {r['text']}")
    return int(not all(r["proved"] for r in rows))


def _kernels(args: argparse.Namespace) -> dict[str, Kernel]:
    if args.all:
        given.refuse(args, given.ALL, "cannot be given with --all")
        return {path_of(e): lower(e.problem, e.config) for e in GALLERY}
    if args.kernel is None:
        raise ArgumentError("KERNEL", None, "is required without --all")
    return {args.kernel: lower(*options.problem_and_config(args))}


def _row(label: str, kernel: Kernel, thorough: bool) -> dict[str, Any]:
    try:
        proof = check(kernel, thorough=thorough)
        linked = link(kernel, emit(kernel))
    except ProtocolViolation as e:
        return {"kernel": label, "proved": False, "property": e.property.id, "text": str(e)}
    except TextDiffers as e:
        return {"kernel": label, "proved": False, "differs": e.where, "text": str(e)}
    return {
        "kernel": label,
        "proved": True,
        "instances": len(proof.instances),
        "operations": proof.operations,
        "seconds": round(proof.seconds, 3),
        "events": linked.events,
        "text": f"{proof}\n  {linked}",
    }


def _properties(args: argparse.Namespace) -> int:
    if args.json:
        print(json.dumps([vars(p) for p in PROPERTIES], indent=2))
    else:
        for p in PROPERTIES:
            print(f"{p.id:<4} {p.name}: {p.says}")
    return 0
