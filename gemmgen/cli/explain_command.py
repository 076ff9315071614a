"""`gemmgen explain`: why this config, and why not another. Needs no GPU; nothing is timed."""

from __future__ import annotations

import argparse
import json

from ..errors import ArgumentError
from ..ops import invariance
from ..ops.refused import beside
from ..pipeline import lower
from ..runtime.devices import by_name
from ..runtime.launch import grid
from ..see import html, text
from ..see.explain import explain
from ..see.explain_json import to_json
from ..see.explain_page import page
from ..target import BY_DEVICE, H200
from . import collective_options, files, given, options
from .fields import fields, split
from .offers import changes

MOST = 1000  # runners-up


def add(parser: argparse.ArgumentParser) -> None:
    options.add_kernel(parser)
    collective_options.add(parser)
    options.add_shape(parser)
    parser.add_argument(
        "--groups",
        type=int,
        default=1,
        metavar="G",
        help="GEMMs in the launch that have rows (default 1)",
    )
    parser.add_argument(
        "--top", type=int, default=5, metavar="COUNT", help="runners-up to show (default 5)"
    )
    parser.add_argument(
        "--why-not",
        metavar="FIELD=VALUE,...",
        action="append",
        help="fields of the config to change: is it legal, and what would it cost",
        offers=changes,
    )
    parser.add_argument(
        "--device",
        default=H200.device_name,
        metavar="NAME",
        help=f"what the launch runs on: {', '.join(BY_DEVICE)} (default {H200.device_name})",
        offers=BY_DEVICE,
    )
    parser.add_argument("--html", type=given.path, metavar="FILE", help="write one HTML page")


def main(args: argparse.Namespace) -> int:
    for name, value, most in (("--groups", args.groups, 1 << 20), ("--top", args.top, MOST)):
        if not 1 <= value <= most:
            raise ArgumentError(name, value, f"must be from 1 to {most}")
    target = by_name(args.device)
    if target is None:
        raise ArgumentError("--device", args.device, f"must be one of {', '.join(BY_DEVICE)}")
    shape = options.shape(args)
    asked = options.problem(args)
    if asked.grouping == "none":
        given.refuse(args, ("groups",), "is for kernels with groups: see --grouping")
    ranks = collective_options.ranks(args, asked)
    groups = ranks if asked.together else args.groups
    problem, config, source = options.choice(args, shape, groups, args.device)
    items = [item for given in args.why_not or () for item in split(given)]
    changes = fields("--why-not", items) if items else None
    e = explain(
        problem,
        config,
        shape,
        source,
        target=target,
        groups=groups,
        ctas=grid(lower(problem, config), shape, target.sms, groups),
        top=args.top,
        why_not=changes,
        unbuilt=beside(problem, config),
        split_k=invariance.split_of(problem, *shape[1:]),
    )
    if args.html:
        files.write(args.html.parent, args.html.name, html.render(page(e)).encode())
    if args.json:
        print(json.dumps(to_json(e), indent=2))
    elif args.html:
        print(args.html)
    else:
        print(text.render(page(e)), end="")
    return 0
