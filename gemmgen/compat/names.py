"""Errors in the caller's words: gemmgen's functions name their own arguments."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from ..errors import ArgumentError


@contextmanager
def arguments_named(names: Mapping[str, str]) -> Iterator[None]:
    """Inside, an ArgumentError about one of gemmgen's arguments names the caller's instead.

    names: from the first word of `ArgumentError.argument` to what replaces it.
    """
    try:
        yield
    except ArgumentError as e:
        word, space, rest = e.argument.partition(" ")
        if word not in names:
            raise
        raise ArgumentError(names[word] + space + rest, e.value, e.allowed) from e
