"""`gemmgen show`: one kernel as IR, CUDA, PTX or SASS, or how the passes lower it."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict

from ..pipeline import compile_to_source
from ..see import html, lowering, text
from ..see.ansi import paint, paint_diff
from ..see.page import Listing, Page
from . import files, given, levels, options

TRACE = "trace"


def add(parser: argparse.ArgumentParser) -> None:
    options.add_kernel(parser)
    options.add_shape(parser)
    levels.add_level(parser, TRACE)
    parser.add_argument("--html", type=given.path, metavar="FILE", help="write one HTML page")


def main(args: argparse.Namespace) -> int:
    levels.check(args, TRACE)
    for option, asked in (("--html", args.html), ("--json", args.json)):
        if asked:
            levels.uncoloured(args, option)
    return _trace(args) if args.level == TRACE else _level(args)


def _level(args: argparse.Namespace) -> int:
    a = compile_to_source(*options.problem_and_config(args))
    shown = levels.LEVELS[args.level](a)
    if args.html:
        listing = Listing(title=args.level, lines=tuple(shown.splitlines()))
        _write(args, Page(title=a.name, blocks=(listing,)))
    elif args.json:
        print(json.dumps({"name": a.name, "level": args.level, "text": shown}, indent=2))
    else:
        print(paint(shown, args.level) if levels.coloured(args) else shown, end="")
    return 0


def _trace(args: argparse.Namespace) -> int:
    """Of an illegal config, too, up to the pass that refuses it; that is raised then."""
    found = lowering.lowering(*options.problem_and_config(args))
    page = lowering.page(args.kernel, found)
    if args.html:
        _write(args, page, quiet=args.json and found.refused is not None)
    elif not args.json:
        lines = text.render(page).splitlines()
        print("\n".join(paint_diff(lines) if levels.coloured(args) else lines))
    elif not found.refused:
        print(json.dumps(asdict(page), indent=2))
    if found.refused:
        raise found.refused
    return 0


def _write(args: argparse.Namespace, page: Page, *, quiet: bool = False) -> None:
    """quiet: the JSON to come is the error's."""
    files.write(args.html.parent, args.html.name, html.render(page).encode())
    if not quiet:
        print(json.dumps({"files": [str(args.html)]}) if args.json else args.html)
