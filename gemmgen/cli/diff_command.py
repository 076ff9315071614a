"""`gemmgen diff`: what two kernels do not have in common."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from difflib import unified_diff

from ..config import Config
from ..errors import ArgumentError
from ..pipeline import Artifact, compile_to_source
from ..problem import Problem
from ..see import text
from ..see.ansi import paint_diff
from ..see.page import Page, Table, count
from . import compile_command, given, levels, options
from .fields import fields, split
from .offers import changes, either
from .progress import counted

RESOURCES = "resources"


def add(parser: argparse.ArgumentParser) -> None:
    options.add_kernel(parser)
    parser.add_argument(
        "other",
        metavar="OTHER",
        help="a family or gallery kernel, or FIELD=VALUE,... to change in KERNEL's config",
        offers=either(options.KERNELS, changes),
    )
    options.add_shape(parser)
    levels.add_level(parser, RESOURCES)


def main(args: argparse.Namespace) -> int:
    levels.check(args, RESOURCES)
    for option, asked in (("--json", args.json), (f"--level {RESOURCES}", args.level == RESOURCES)):
        if asked:
            levels.uncoloured(args, option)
    both = artifacts(args)
    if args.level == RESOURCES:
        table = resources(*both)
        page = Page(title=" and ".join(a.name for a in both), blocks=(table,))
        print(json.dumps(asdict(table), indent=2) if args.json else text.render(page), end="")
        return 0
    lines = difference(*both, args.level)
    if args.json:
        names = [a.name for a in both]
        print(json.dumps({"names": names, "level": args.level, "diff": lines}, indent=2))
    elif lines:
        print("\n".join(paint_diff(lines) if levels.coloured(args) else lines))
    else:
        print(f"no difference at level {args.level}")
    return 0


def artifacts(args: argparse.Namespace) -> tuple[Artifact, Artifact]:
    """KERNEL and OTHER; the options after a KERNEL describe both."""
    changes = fields("OTHER", split(args.other)) if "=" in args.other else None
    named = argparse.Namespace(**{**vars(args), "kernel": args.other})
    if options.is_fixed(args) and (changes is not None or options.is_fixed(named)):
        given.refuse(args, given.SHAPE, options.NOTHING_CHOSEN)
    problem, config = options.problem_and_config(args, options.shape(args))
    one = compile_to_source(problem, config)
    if changes is None:
        return one, compile_to_source(*_named(named))
    return one, compile_to_source(problem, Config.from_json({**config.to_json(), **changes}))


def _named(other: argparse.Namespace) -> tuple[Problem, Config]:
    try:
        return options.problem_and_config(other, options.shape(other))
    except ArgumentError as e:
        argument = "OTHER" if e.argument == "KERNEL" else e.argument
        raise ArgumentError(argument, e.value, e.allowed) from e


def difference(one: Artifact, other: Artifact, level: str) -> list[str]:
    """A unified diff; empty if there is none."""
    left, right = (levels.comparable(a, level) for a in (one, other))
    return list(unified_diff(left, right, one.name, other.name, lineterm=""))


def resources(one: Artifact, other: Artifact) -> Table:
    """What ptxas and the passes say of both, side by side."""
    left, right = (_resources(a) for a in counted("compiling", (one, other)))
    rows = tuple(
        (name, _cell(left.get(name)), _cell(right.get(name)), _change(left, right, name))
        for name in dict.fromkeys((*left, *right))
    )
    columns = ("of", "KERNEL", "OTHER", "change")
    return Table(title="Resources", columns=columns, rows=rows)


def _resources(a: Artifact) -> dict[str, int]:
    found = compile_command.describe(a.name, a, compile_command.cubin_of(a), "")
    names = ("threads", "registers", "spill_bytes", "stack_bytes", "smem_bytes", "cubin_bytes")
    instruction = {"N of wgmma": a.kernel.instr.n, "stages": a.kernel.stages}
    roles = {f"registers of {role}": n for role, n in found["role_registers"].items()}
    barriers = {f"bytes per phase of {b.name}": b.tx_bytes or 0 for b in a.kernel.barriers}
    return {**instruction, **{n.replace("_", " "): found[n] for n in names}, **roles, **barriers}


def _cell(number: int | None) -> str:
    """Empty for what a kernel does not have."""
    return "" if number is None else count(number)


def _change(left: dict[str, int], right: dict[str, int], name: str) -> str:
    if left.get(name) == right.get(name):
        return ""
    return f"{right[name] - left[name]:+,}" if name in left and name in right else "only one"
