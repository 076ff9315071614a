"""What a shell may offer for an argument. An offer is no check: most arguments take more than is offered."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from ..levers import FIELDS
from .fields import spelled

MOST = 64  # values of a field: more are no help
Words = Callable[[str], Iterable[str]]  # of what is written of the argument so far
Offers = Iterable[str] | Words


def completer(offers: Offers) -> Callable[..., list[str]]:
    """As argcomplete calls it."""
    words = _words(offers)

    def complete(prefix: str, **_: Any) -> list[str]:
        return list(words(prefix))

    return complete


def either(*offers: Offers) -> Words:
    """All that each of them offers."""
    found = [_words(x) for x in offers]
    return lambda prefix: [word for words in found for word in words(prefix)]


def _words(offers: Offers) -> Words:
    if callable(offers):
        return offers
    known = tuple(offers)
    return lambda prefix: known


def some(words: Iterable[str]) -> Words:
    """Of these any number, with commas between."""
    known = tuple(words)

    def following(prefix: str) -> list[str]:
        before, comma, _ = prefix.rpartition(",")
        return [f"{before}{comma}{word}" for word in known if word not in before.split(",")]

    return following


def changes(prefix: str) -> list[str]:
    """FIELD=VALUE of a config, with commas between."""
    before, comma, last = prefix.rpartition(",")
    name, equals, _ = last.partition("=")
    found = [f"{name}={value}" for value in _values(name)] if equals else [f"{x}=" for x in FIELDS]
    return [f"{before}{comma}{item}" for item in found]


def _values(field: str) -> list[str]:
    """None of a field that there is not, or that takes too many to list."""
    if field not in FIELDS:
        return []
    values = FIELDS[field]
    found: list[Any] = list(values.listed()) if values.listed else []
    if values.span:
        least, greatest, step = values.span
        found = [*range(least, greatest + 1, step)]
    found += [None] * values.null
    return [spelled(v) for v in found] if len(found) <= MOST else []


def a_file(prefix: str) -> list[str]:
    """Files, and folders on the way to some."""
    from argcomplete.completers import FilesCompleter

    return list(FilesCompleter()(prefix))
