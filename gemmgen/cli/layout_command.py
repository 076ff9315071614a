"""`gemmgen layout`: what lies where in shared memory and registers. Needs no GPU."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict

from ..errors import ArgumentError
from ..pipeline import lower
from ..see import html, svg, text
from ..see.layout_page import VIEWS, layout
from . import files, given, options


def add(parser: argparse.ArgumentParser) -> None:
    options.add_kernel(parser)
    parser.add_argument("what", metavar="WHAT", help=f"one of {', '.join(VIEWS)}", offers=VIEWS)
    options.add_shape(parser)
    to = parser.add_mutually_exclusive_group()
    to.add_argument("--text", action="store_true", help="to standard output (the default)")
    to.add_argument("--svg", type=given.path, metavar="FILE", help="write the pictures")
    to.add_argument("--html", type=given.path, metavar="FILE", help="write one HTML page")


def main(args: argparse.Namespace) -> int:
    if args.what not in VIEWS:
        raise ArgumentError("WHAT", args.what, f"must be one of {', '.join(VIEWS)}")
    if args.json:
        given.refuse(args, ("text",), "cannot be given with --json")
    page = layout(lower(*options.problem_and_config(args)), args.what)
    for file, rendered in ((args.svg, svg.render), (args.html, html.render)):
        if file:
            files.write(file.parent, file.name, rendered(page).encode())
            print(json.dumps({"files": [str(file)]}) if args.json else file)
            return 0
    print(json.dumps(asdict(page), indent=2) if args.json else text.render(page), end="")
    return 0
