"""`gemmgen moe --explain`: what a layer of experts launches, what the models say of each launch, and its memory. Needs no GPU."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence

from ..bench.moe_sizes import BLOCKS, Sizes
from ..errors import ArgumentError
from ..runtime.devices import by_name
from ..see import html, svg, text
from ..see.layer_page import page, to_json
from ..target import BY_DEVICE, H200
from . import files, given
from .moe_launches import layer

OURS = ("device", "html", "svg")  # options that nothing else has
TIMED = ("router", "providers", "repeats", "seed", "o", "trace")


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--explain",
        action="store_true",
        help="time nothing: show each launch of the layer, what the models say of it, and the memory that is held; needs no GPU",
    )
    parser.add_argument(
        "--device",
        metavar="NAME",
        help=f"with --explain, what it would run on: {', '.join(BY_DEVICE)} (default {H200.device_name})",
        offers=BY_DEVICE,
    )
    to = parser.add_mutually_exclusive_group()
    to.add_argument(
        "--svg", type=given.path, metavar="FILE", help="with --explain, write the pictures"
    )
    to.add_argument(
        "--html", type=given.path, metavar="FILE", help="with --explain, write one HTML page"
    )


def refuse(args: argparse.Namespace) -> None:
    """Raise ArgumentError for what is said of an explanation where none is asked for."""
    given.refuse(args, OURS, "needs --explain")


def main(args: argparse.Namespace, name: str, sizes: Sizes, counts: Sequence[int]) -> int:
    given.refuse(args, TIMED, "is of what is timed: see --html, --svg and --json")
    if args.kind != BLOCKS:
        raise ArgumentError("--kind", args.kind, f"must be {BLOCKS} with --explain")
    target = by_name(args.device or H200.device_name)
    if target is None:
        raise ArgumentError("--device", args.device, f"must be one of {', '.join(BY_DEVICE)}")
    layers = tuple(layer(name, sizes, count, target) for count in counts)
    shown, written = page(layers), None
    for file, rendered in ((args.svg, svg.render), (args.html, html.render)):
        if file:
            files.write(file.parent, file.name, rendered(shown).encode())
            written = file
    if args.json:
        print(json.dumps({"layers": [to_json(x) for x in layers]}, indent=2))
    else:
        print(written or text.render(shown), end="\n" if written else "")
    return 0
