"""`gemmgen show`: one kernel as IR, CUDA, PTX or SASS."""

from __future__ import annotations

import argparse
import json

from ..pipeline import compile_to_source
from ..see.ansi import paint
from . import levels, options


def add(parser: argparse.ArgumentParser) -> None:
    options.add_kernel(parser)
    options.add_shape(parser)
    levels.add_level(parser)


def main(args: argparse.Namespace) -> int:
    levels.check(args)
    a = compile_to_source(*options.problem_and_config(args))
    text = levels.LEVELS[args.level](a)
    if args.json:
        print(json.dumps({"name": a.name, "level": args.level, "text": text}, indent=2))
    else:
        print(paint(text, args.level) if levels.coloured(args) else text, end="")
    return 0
