"""The parser of the command line. What it refuses is an ArgumentError too: argument, value, what is allowed."""

from __future__ import annotations

import argparse
import re
from typing import Any, NoReturn, TypeVar

from ..errors import ArgumentError
from . import given
from .offers import Offers, a_file, completer

A = TypeVar("A", bound=argparse.Action)
KINDS = {int: "must be an integer", float: "must be a number"}
# What argparse says where no value is to blame: the argument's name, and the rest.
SAID = (
    (re.compile(r"the following arguments are required: ([^,]+)"), "is required"),
    (re.compile(r"unrecognized arguments: (\S+)"), "is no argument of this command: see --help"),
    (re.compile(r"ambiguous option: (\S+) (could match .+)", re.S), "{rest}"),
    (re.compile(r"argument (\S+): (.+)", re.S), "{rest}"),
)


class Refused(Exception):
    """What argparse refuses, before it prints and exits. said: in argparse's words."""

    def __init__(self, parser: argparse.ArgumentParser, said: str, error: ArgumentError) -> None:
        super().__init__(said)
        self.parser = parser
        self.error = error


class Parser(argparse.ArgumentParser):
    """`add_argument` takes `offers` too: words of a value, or what gives them; of a path it offers files."""

    def add_argument(self, *names: Any, offers: Offers = (), **options: Any) -> argparse.Action:
        action = super().add_argument(*names, **options)
        if offers:
            action.completer = completer(offers)  # type: ignore[attr-defined]
        return action

    def _add_action(self, action: A) -> A:
        """Of groups of arguments too."""
        if action.type is given.path:
            action.completer = completer(a_file)  # type: ignore[attr-defined]
        return super()._add_action(action)

    def error(self, message: str) -> NoReturn:
        raise Refused(self, message, _error(message))

    def _get_value(self, action: argparse.Action, arg_string: str) -> Any:
        try:
            return super()._get_value(action, arg_string)
        except argparse.ArgumentError as e:
            allowed = KINDS.get(action.type, e.message)  # type: ignore[call-overload]
            raise self._refused(action, arg_string, e, allowed) from None

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        try:
            super()._check_value(action, value)
        except argparse.ArgumentError as e:
            allowed = f"must be one of {', '.join(map(str, action.choices or ()))}"
            raise self._refused(action, value, e, allowed) from None

    def _refused(
        self, action: argparse.Action, value: object, e: argparse.ArgumentError, allowed: str
    ) -> Refused:
        return Refused(self, str(e), ArgumentError(name(action), value, allowed))


def subcommands(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """The parsers of subcommands by name."""
    actions = (x for x in parser._actions if isinstance(x, argparse._SubParsersAction))
    return dict(next(actions).choices)


def name(action: argparse.Action) -> str:
    """An argument as a user writes it."""
    if action.option_strings:
        return action.option_strings[0]
    return str(action.metavar or action.dest)


def _error(message: str) -> ArgumentError:
    for pattern, allowed in SAID:
        if found := pattern.match(message):
            rest = found[2] if pattern.groups > 1 else ""
            given = found[1].partition("/")[0]
            return ArgumentError(given, None, allowed.format(rest=rest))
    return ArgumentError("arguments", None, message)
