"""What can be given to a command, as its parser has it: what is not drawn is found by a test."""

from __future__ import annotations

import argparse
from functools import lru_cache

from gemmgen import cli


@lru_cache(maxsize=64)
def arguments(command: str) -> dict[str, argparse.Action]:
    """Options by their first spelling, others by where they are kept; --help, which does nothing else, is left out."""
    sub = cli.subcommands(cli._parser([command]))[command]
    kept = (x for x in sub._actions if x.dest != "help")
    return {(x.option_strings or [x.dest])[0]: x for x in kept}


def options(command: str) -> dict[str, argparse.Action]:
    return {name: x for name, x in arguments(command).items() if x.option_strings}


def positionals(command: str) -> dict[str, argparse.Action]:
    return {name: x for name, x in arguments(command).items() if not x.option_strings}


def is_flag(x: argparse.Action) -> bool:
    return x.nargs == 0


def takes_many(x: argparse.Action) -> bool:
    return x.nargs in ("*", "+")


def adds_up(x: argparse.Action) -> bool:
    """Whether it says more each time that it is given."""
    return isinstance(x, argparse._AppendAction)
