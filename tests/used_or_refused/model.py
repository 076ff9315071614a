"""How a draw is judged, whichever surface it is of."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

# What a wrong argument may come to; every other error is a bug of gemmgen's.
REFUSALS = ("GG-A001", "GG-S001", "GG-P001")


SHOWN = 60  # characters of a value
# An option, an argument with its value, or a word; one letter alone is an article, too.
NAMES = re.compile(r"--?[a-z][\w-]*|\w+(?==)|\w{2,}")


class Ignored(AssertionError):
    """A draw that was neither used nor refused by name."""


@dataclass(kw_only=True)
class Tally:
    """How many draws came to what, and those that were wrong, by what was wrong with them."""

    used: int = 0
    refused: int = 0
    missing: int = 0  # a GPU or NVRTC, which this machine or this campaign has not
    wrong: dict[str, str] = field(default_factory=dict)
    shown: set[str] = field(default_factory=set)  # what was given and seen to be used

    @property
    def draws(self) -> int:
        return self.used + self.refused + self.missing


def named(argument: str, message: str, names: Iterable[str], values: Iterable[Any]) -> bool:
    """Whether an error is of one of the arguments given, or speaks of one, or shows one of their values."""
    plain = {n.lstrip("-").replace("-", "_") for n in names}
    if argument.lstrip("-").replace("-", "_") in plain:
        return True
    spoken = {x.lstrip("-").replace("-", "_") for x in NAMES.findall(message)}
    return bool(plain & spoken) or any(_shows(message, v) for v in values)


def _shows(message: str, value: Any) -> bool:
    """Whether it is there for itself, or begins there, not as a part of another word or number."""
    text = shown(value)
    whole = r"(?!\w)" if len(text) < SHOWN else ""
    return bool(text) and bool(re.search(rf"(?<!\w){re.escape(text)}{whole}", message))


def shown(value: Any) -> str:
    """As errors show it, or the beginning of that."""
    text = value if isinstance(value, str) else repr(value)
    return text[:SHOWN]
