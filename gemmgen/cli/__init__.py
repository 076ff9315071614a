"""The `gemmgen` command. One file per subcommand: `add(parser)` and `main(args) -> exit code`."""

from __future__ import annotations

import argparse
import json
import sys
from importlib import import_module
from typing import NoReturn

from .. import environment
from ..errors import (
    ArgumentError,
    GemmgenError,
    IllegalConfig,
    RuntimeUnavailable,
    UnsupportedProblem,
)
from . import given

COMMANDS = {
    "emit": "print or write the CUDA source of a kernel, or of the whole gallery",
    "compile": "compile a kernel, or the whole gallery, to a cubin and show what it uses",
    "run": "run a kernel on random inputs, verify its result and (on a GPU) time it",
    "check": "prove that no schedule of a kernel deadlocks, races or corrupts",
    "emulate": "execute a kernel's PTX on the CPU and verify its result",
    "bench": "time a family against cuBLAS over a set of shapes",
    "chart": "draw what bench measured as bars",
    "casts": "time quantising against a copy of as many bytes",
    "host": "time what calls and imports cost the CPU",
    "tune": "measure configs on a GPU and keep the fastest of each shape",
    "explain": "say why a shape gets its config, and why not another",
    "layout": "show what lies where: operands, accumulator, D's tile, scales",
    "timeline": "show who does what when, and who waits for what: simulated, and measured on a GPU",
    "report": "put all that is known of kernels, and measurements of them, on one page",
    "show": "print a kernel as IR, CUDA, PTX or SASS, or what each pass changes in it",
    "diff": "compare two kernels' IR, CUDA, PTX, SASS or resources",
    "prepare": "compile the kernels of a family for a set of shapes into the cache on disk",
    "pack": "write kernels of a family and C code that launches them to a folder",
    "cache": "list, verify or remove the compiled kernels that are kept on disk",
    "list": "list families, gallery kernels and epilogues",
    "rules": "list every legality rule with its reason",
    "errors": "list every kind of error with its id",
    "doctor": "show what is installed, what is missing and how to fix it",
}

OK, FAILED, USAGE, UNAVAILABLE = 0, 1, 2, 3
EXIT_CODES = "exit codes: 0 done, 1 a check failed, 2 bad arguments or an illegal config, 3 something is missing here"


class _Refused(Exception):
    """What argparse refuses, before it prints and exits."""

    def __init__(self, parser: argparse.ArgumentParser, message: str) -> None:
        super().__init__(message)
        self.parser = parser


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise _Refused(self, message)


def main(argv: list[str] | None = None) -> int:
    """Run one subcommand and return its exit code; errors go to stderr (with --json as JSON to stdout)."""
    environment.warn_of_unknown()
    argv = sys.argv[1:] if argv is None else argv
    try:
        args = _parsed(argv)
    except _Refused as e:
        if _asks_json(argv):
            return _fail(True, GemmgenError(str(e)), ArgumentError, USAGE)
        argparse.ArgumentParser.error(e.parser, str(e))
    try:
        return int(args.main(args))
    except GemmgenError as e:
        return _fail(args.json, e, type(e), exit_code(type(e)))
    except BrokenPipeError:
        sys.stderr.close()  # the reader of our output went away
        return FAILED


def _parsed(argv: list[str]) -> argparse.Namespace:
    """`given`: which arguments were."""
    parser = _parser(argv)
    args = parser.parse_args(argv)
    if argv[0] not in COMMANDS:
        raise _Refused(parser, "the command comes first")
    args.given = given.read(subcommands(_parser(argv))[argv[0]], argv[1:])
    return args


def _asks_json(argv: list[str]) -> bool:
    """Whether --json is among them, or a beginning of it that argparse takes for it."""
    return any(len(x) > 2 and "--json".startswith(x) for x in argv)


def subcommands(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """The parsers of subcommands by name."""
    actions = (x for x in parser._actions if isinstance(x, argparse._SubParsersAction))
    return dict(next(actions).choices)


def _parser(argv: list[str]) -> argparse.ArgumentParser:
    """Every subcommand by name and help; only the one asked for is imported and given its arguments."""
    parser = _Parser(
        prog="gemmgen",
        description="Generate, inspect and run GEMM kernels for Hopper.",
        epilog=EXIT_CODES,
    )
    subparsers = parser.add_subparsers(required=True, metavar="command")
    for name, text in COMMANDS.items():
        sub = subparsers.add_parser(name, help=text, description=text, epilog=EXIT_CODES)
        sub.add_argument("--json", action="store_true", help="print JSON")
        if name in argv[:1]:
            module = import_module(f".{name}_command", __package__)
            module.add(sub)
            sub.set_defaults(main=module.main)
    return parser


def exit_code(kind: type[GemmgenError]) -> int:
    """What the command exits with after an error of `kind`."""
    if issubclass(kind, ArgumentError | IllegalConfig | UnsupportedProblem):
        return USAGE
    return UNAVAILABLE if issubclass(kind, RuntimeUnavailable) else FAILED


def _fail(as_json: bool, e: GemmgenError, kind: type[GemmgenError], code: int) -> int:
    if as_json:
        id = e.id if isinstance(e, kind) else kind.id
        error: dict[str, object] = {"id": id, "type": kind.__name__, "message": str(e)}
        if isinstance(e, IllegalConfig):
            error |= {
                "rule": e.rule.id,
                "values": {k: str(v) for k, v in e.values.items()},
                "fix": e.fix,
            }
        print(json.dumps({"error": error}, indent=2))
    else:
        print(f"gemmgen: {e.id}: {e}", file=sys.stderr)
    return code
