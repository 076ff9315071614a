"""`--providers`: names and libraries, to the providers of one problem."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TypeVar

from ..errors import ArgumentError, RuntimeUnavailable
from ..problem import Problem

REFERENCE, ALL = "reference", "all"
FLOOR = "read"  # the provider that only reads the operands; "all" leaves it out
OURS = ("gemmgen", FLOOR)  # libraries that are never missing
DEFAULT = f"gemmgen,{REFERENCE}"


@dataclass(frozen=True, kw_only=True)
class Offer:
    """What `--providers` selects. library: whose it is, and what must be importable. takes: whether it
    computes a problem, or one like it."""

    name: str
    library: str
    takes: Callable[[Problem], bool]


Offered = TypeVar("Offered", bound=Offer)


def select(
    text: str, p: Problem, offered: Sequence[Offered], reference: str
) -> tuple[Offered, ...]:
    """Those of `offered` that `text` names, in its order, each once.

    text: comma-separated names of providers, or of libraries for all of theirs that take `p`;
    "reference"; or "all", which leaves out the floor and libraries that are not installed. Raises ArgumentError for a
    name that nobody has or whose providers do not take `p`; RuntimeUnavailable for a library that is not
    installed.
    """
    found: dict[str, Offered] = {}
    for item in text.split(","):
        name = reference if item == REFERENCE else item
        for provider in _named(name, item, text, p, offered):
            found[provider.name] = provider
    return tuple(found.values())


def _named(
    name: str, item: str, text: str, p: Problem, offered: Sequence[Offered]
) -> list[Offered]:
    if name == ALL:
        return [x for x in offered if x.takes(p) and not missing(x) and x.name != FLOOR]
    known = [x for x in offered if name in (x.name, x.library)]
    if not known:
        names = (REFERENCE, ALL, *dict.fromkeys(n for x in offered for n in (x.library, x.name)))
        raise ArgumentError("--providers", text, f"{item!r} must be one of {', '.join(names)}")
    taking = [x for x in known if x.takes(p)]
    if not taking:
        what = f"{p.family} of {p.a} x {p.b} to {p.d}, layout {p.layout}, grouping {p.grouping}"
        raise ArgumentError("--providers", text, f"{item!r} has nothing that computes {what}")
    for x in taking:
        if missing(x):
            raise RuntimeUnavailable(f"provider {x.name}: {x.library} is not installed")
    return taking


def missing(offer: Offer) -> bool:
    """Whether its library is not installed."""
    return offer.library not in OURS and find_spec(offer.library) is None
