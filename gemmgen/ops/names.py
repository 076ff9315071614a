"""Errors in the caller's words: gemmgen's functions name their own arguments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType

from ..errors import ArgumentError


@dataclass(frozen=True, kw_only=True)
class ArgumentNames:
    """`with` it, an ArgumentError about one of gemmgen's arguments names the caller's instead.

    names: from the first word of `ArgumentError.argument` to what replaces it.
    """

    names: Mapping[str, str]

    def __enter__(self) -> None:
        """Nothing: there is no state, so that threads may share it and calls may nest."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not isinstance(error, ArgumentError):
            return
        word, space, rest = error.argument.partition(" ")
        if word in self.names:
            raise ArgumentError(self.names[word] + space + rest, error.value, error.allowed)
