"""The `gemmgen` command. One file per subcommand: `add(parser)` and `main(args) -> exit code`."""
# PYTHON_ARGCOMPLETE_OK: what completes the words of any such script looks for this line.

from __future__ import annotations

import argparse
import errno
import json
import re
import sys
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from difflib import get_close_matches
from importlib import import_module

from .. import __version__, environment
from ..errors import (
    ArgumentError,
    GemmgenError,
    IllegalConfig,
    RuntimeUnavailable,
    UnsupportedProblem,
)
from . import completion, given
from .described import described
from .parser import Parser, Refused
from .parser import subcommands as subcommands

GROUPS = {  # what a command is for, as help has them
    "make a kernel": {
        "emit": "print or write the CUDA source of a kernel, or of the whole gallery",
        "compile": "compile a kernel, or the whole gallery, to a cubin and show what it uses",
        "run": "run a kernel on random inputs, verify its result and (on a GPU) time it",
    },
    "trust it": {
        "check": "prove that no schedule of a kernel deadlocks, races or corrupts",
        "emulate": "execute a kernel's PTX on the CPU and verify its result",
    },
    "measure it": {
        "bench": "time a family against cuBLAS over a set of shapes",
        "chart": "draw what bench measured as bars",
        "casts": "time quantising against a copy of as many bytes",
        "moe": "time a layer of experts, launch by launch, beside torch's way",
        "host": "time what calls and imports cost the CPU",
        "tune": "measure configs on a GPU and keep the fastest of each shape",
    },
    "see why": {
        "serve": "show a page on this machine on which a config's levers are moved",
        "explain": "say why a shape gets its config, and why not another",
        "layout": "show what lies where: operands, accumulator, D's tile, scales",
        "timeline": "show who does what when, and who waits for what: simulated, and measured on a GPU",
        "report": "put all that is known of kernels, and measurements of them, on one page",
        "show": "print a kernel as IR, CUDA, PTX or SASS, or what each pass changes in it",
        "diff": "compare two kernels' IR, CUDA, PTX, SASS or resources",
    },
    "ship it": {
        "prepare": "compile the kernels of a family for a set of shapes into the cache on disk",
        "pack": "write kernels of a family and C code that launches them to a folder",
        "repack": "pack a checkpoint's weights of 4 or 8 bits once, into files that layers load",
        "cache": "list, verify or remove the compiled kernels that are kept on disk",
    },
    "look up": {
        "list": "list families, gallery kernels and epilogues",
        "rules": "list every legality rule with its reason",
        "errors": "list every kind of error with its id",
        "doctor": "show what is installed, what is missing and how to fix it",
    },
}
COMMANDS = {name: text for group in GROUPS.values() for name, text in group.items()}
EXAMPLES = (
    "gemmgen emit fp8_block -m 4096 -n 7168 -k 2048",
    "gemmgen run dense -m 256 -n 256 -k 512 --epilogue silu",
    "gemmgen explain fp8_block -m 16 -n 7168 -k 2048",
)

OK, FAILED, USAGE, UNAVAILABLE, INTERRUPTED = 0, 1, 2, 3, 130
EXIT_CODES = "exit codes: 0 done, 1 a check failed, 2 bad arguments or an illegal config, 3 something is missing here"


def main(argv: list[str] | None = None) -> int:
    """Run one subcommand and return its exit code; errors go to stderr (with --json as JSON to stdout)."""
    if argv is None:
        completion.complete(_parser)
    environment.warn_of_unknown()
    argv = sys.argv[1:] if argv is None else argv
    if not argv:
        _parser(argv).print_help()
        return OK
    try:
        args = _parsed(argv)
    except Refused as e:
        if _asks_json(argv):
            return _fail(True, e.error, USAGE)
        hint = "" if argv[0] in COMMANDS else _meant(argv[0], COMMANDS)
        argparse.ArgumentParser.error(e.parser, f"{e}{hint}")
    try:
        with _settings(args):
            return int(args.main(args))
    except GemmgenError as e:
        return _fail(args.json, e, exit_code(type(e)))
    except KeyboardInterrupt:
        print("gemmgen: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        sys.stderr.close()  # the reader of our output went away
        return FAILED
    except OSError as e:
        if e.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        full = GemmgenError(f"cannot write: {e.strerror}")
        return _fail(args.json, full, FAILED)


def _settings(args: argparse.Namespace) -> AbstractContextManager[None]:
    """What the command asks of the process."""
    if not getattr(args, "invariant", None):
        return nullcontext()
    from ..ops.invariance import asking

    return asking(True)


def _meant(given: str, known: Iterable[str]) -> str:
    """What is like `given`, and may have been meant."""
    found = get_close_matches(given, list(known), 1, 0.7)
    return f"; did you mean {found[0]!r}?" if found else ""


def _parsed(argv: list[str]) -> argparse.Namespace:
    """`given`: which arguments were."""
    parser = _parser(argv)
    args = parser.parse_args(argv)
    if argv[0] not in COMMANDS:
        allowed = f"must be one of {', '.join(COMMANDS)}, before anything else"
        raise Refused(parser, "the command comes first", ArgumentError("command", argv[0], allowed))
    args.given = given.read(subcommands(_parser(argv))[argv[0]], argv[1:])
    return args


def _asks_json(argv: list[str]) -> bool:
    """Whether --json is among them, or a beginning of it that argparse takes for it."""
    return any(len(x) > 2 and "--json".startswith(x) for x in argv)


def _parser(argv: list[str]) -> argparse.ArgumentParser:
    """The subcommand that is asked for, imported and with its arguments; every one by name where none of them is. (A
    parser takes argparse a millisecond: it looks on disk for translations of what all say.)"""
    parser = Parser(
        prog="gemmgen",
        description=f"Generate, inspect and run GEMM kernels for Hopper.\n\n{_listed()}",
        epilog="\n".join(("examples:", *(f"  {x}" for x in EXAMPLES), "", EXIT_CODES)),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"gemmgen {__version__}")
    subparsers = parser.add_subparsers(required=True, metavar="command")
    asked = [name for name in argv[:1] if name in COMMANDS]
    for name in asked or COMMANDS:
        sub = subparsers.add_parser(name, description=COMMANDS[name], epilog=EXIT_CODES)
        sub.add_argument("--json", action="store_true", help="print JSON")
        if asked:
            module = import_module(f".{name}_command", __package__)
            module.add(sub)
            sub.set_defaults(main=module.main)
    return parser


def _listed() -> str:
    """Every command, in groups."""
    width = max(map(len, COMMANDS)) + 2
    return "\n".join(
        line
        for group, commands in GROUPS.items()
        for line in (f"{group}:", *(f"  {name:<{width}}{text}" for name, text in commands.items()))
    )


def exit_code(kind: type[GemmgenError]) -> int:
    """What the command exits with after an error of `kind`."""
    if issubclass(kind, ArgumentError | IllegalConfig | UnsupportedProblem):
        return USAGE
    return UNAVAILABLE if issubclass(kind, RuntimeUnavailable) else FAILED


def _fail(as_json: bool, e: GemmgenError, code: int) -> int:
    if as_json:
        print(json.dumps({"error": described(e)}, indent=2))
    else:
        print(f"gemmgen: {e.id}: {e}{_hint(e)}", file=sys.stderr)
    return code


def _hint(e: GemmgenError) -> str:
    """Where a word was given and another of a few was wanted: the one that is like it."""
    if not (isinstance(e, ArgumentError) and isinstance(e.value, str) and "one of" in e.allowed):
        return ""
    return _meant(e.value, re.findall(r"[\w/.-]+", e.allowed))
