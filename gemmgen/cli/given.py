"""What the command line gives: used, or refused by name; nothing is passed over in silence."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from pathlib import Path

from ..errors import ArgumentError

KERNEL = ("kernel",)
PROBLEM = (
    *("ab", "layout", "d", "grouping", "alignment", "accumulate", "epilogue"),
    *("weights", "weights_ready"),
)
COLLECTIVE = ("collective", "wire")  # of a problem, where a command takes ranks
CONFIG = ("config", "set")
INVARIANT = ("invariant",)
SHAPE = ("m", "n", "k")
ALL = (*KERNEL, *PROBLEM, *CONFIG, *INVARIANT, *SHAPE)  # what says which kernel
ABSENT = object()  # a positional argument that was not given


def read(sub: argparse.ArgumentParser, argv: Sequence[str]) -> dict[str, str]:
    """Which arguments of a subcommand `argv` has, by where they are kept, as a user writes them. Spoils `sub`:
    it keeps no default, so that what is there afterwards was given."""
    flags: dict[str, str] = {}
    for action in sub._actions:
        # Argparse holds a positional's default against its choices if it is text, and SUPPRESS is.
        action.default = argparse.SUPPRESS if action.option_strings else ABSENT
        name = str(action.metavar or action.dest).upper()
        flags.setdefault(action.dest, action.option_strings[0] if action.option_strings else name)
    sub._defaults.clear()
    found = vars(sub.parse_known_args(list(argv))[0])
    return {name: flags[name] for name, value in found.items() if value is not ABSENT}


def refuse(args: argparse.Namespace, names: Iterable[str], allowed: str) -> None:
    """Raise ArgumentError for the first of `names` that was given."""
    was = getattr(args, "given", {})
    for name in names:
        if name in was:
            raise ArgumentError(was[name], _shown(getattr(args, name)), allowed)


def others(args: argparse.Namespace, *used: str) -> tuple[str, ...]:
    """What was given beside `used` and --json."""
    return tuple(x for x in getattr(args, "given", {}) if x not in (*used, "json"))


def path(text: str) -> Path:
    """A file or folder. An empty name would be the folder that one stands in."""
    if not text:
        raise argparse.ArgumentTypeError("'': must be a name")
    return Path(text)


def _shown(value: object) -> object:
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return str(value) if isinstance(value, Path) else value
