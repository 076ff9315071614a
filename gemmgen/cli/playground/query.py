"""A view as a query string: what differs from where every view begins. Anybody may have written it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, urlencode

from ...epilogues import EPILOGUES
from ...errors import ArgumentError
from ...families import FAMILIES
from ...ir.counts import MOST_SIDE
from ...ir.groupings import GROUPINGS
from ...ir.packed import every_name
from ...levers.lever import Values, choice, integer
from ...problem import LAYOUTS, OUTPUTS
from ...recipes import recipe
from ..fields import spelled, value
from ..options import DEFAULT_SHAPE

LEVER = "set."  # before a lever's name: one that a program adds may be called as something else is
LONGEST = 8192  # characters
MOST_GROUPS = 1 << 20
UNSAID = ""  # the family's operands, the grouping's alignment
SIDE = integer(1, MOST_SIDE)
M, N, K = DEFAULT_SHAPE


@dataclass(frozen=True, kw_only=True)
class Name:
    """Something that a query may say of problem and shape, and what it is where it does not."""

    label: str
    values: Values
    default: Any
    says: str = ""


def names() -> dict[str, Name]:
    """In the order in which they are asked for. Made anew each time: a program may add a family."""
    pairs = dict.fromkeys(f"{a},{b}" for name in FAMILIES for a, b in recipe(name).operands)
    operands, rows = choice(UNSAID, *pairs), choice(UNSAID, *GROUPINGS["ends"].alignments)
    weights = choice(UNSAID, *every_name())
    of_each = "M, and K where groups split it, are of each in the mean"
    return {
        "family": Name(label="Family", values=choice(*FAMILIES), default=next(iter(FAMILIES))),
        "ab": Name(label="A, B", values=operands, default=UNSAID, says="dtypes"),
        "d": Name(label="D", values=choice(*(t.name for t in OUTPUTS)), default="bf16"),
        "layout": Name(label="Layout", values=choice(*LAYOUTS), default="nt", says="of A, then B"),
        "epilogue": Name(label="Epilogue", values=choice(*EPILOGUES), default="none"),
        "accumulate": Name(label="Accumulate", values=choice(False, True), default=False),
        "weights": Name(label="Weights", values=weights, default=UNSAID, says="packed"),
        "weights_ready": Name(label="Weights ready", values=choice(False, True), default=False),
        "grouping": Name(label="Grouping", values=choice(*GROUPINGS), default="none"),
        "alignment": Name(label="Alignment", values=rows, default=UNSAID, says="of groups' rows"),
        "m": Name(label="M", values=SIDE, default=M),
        "n": Name(label="N", values=SIDE, default=N),
        "k": Name(label="K", values=SIDE, default=K),
        "groups": Name(label="Groups", values=integer(1, MOST_GROUPS), default=1, says=of_each),
    }


@dataclass(frozen=True, kw_only=True)
class Query:
    """said: of `names`, not yet judged. config: JSON to start from, "" for the choice. levers: values of those that were
    moved. panes: names of those that are shown, None for the usual ones."""

    said: Mapping[str, Any] = field(default_factory=dict)
    config: str = ""
    levers: Mapping[str, Any] = field(default_factory=dict)
    panes: tuple[str, ...] | None = None

    def value(self, name: str) -> Any:
        return self.said.get(name, names()[name].default)


def read(text: str) -> Query:
    """Raises ArgumentError for what is no query of ours: an unknown name, one that comes twice, too long a text."""
    if len(text) > LONGEST:
        raise ArgumentError("query", text, f"must have at most {LONGEST} characters")
    given = parse_qsl(text, keep_blank_values=True)
    found = dict(given)
    if len(found) < len(given):
        raise ArgumentError("query", text, "must say each name once")
    config, panes = found.pop("config", ""), found.pop("show", None)
    levers = {x: _lever(found.pop(x)) for x in [*found] if x.startswith(LEVER)}
    for name in found:
        if name not in names():
            allowed = f"must be of {', '.join(names())}, config, show and {LEVER}LEVER"
            raise ArgumentError("query", name, allowed)
    return Query(
        said={name: value(text) for name, text in found.items()},
        config=config,
        levers={name.removeprefix(LEVER): v for name, v in levers.items()},
        panes=None if panes is None else tuple(filter(None, panes.split(","))),
    )


def _lever(text: str) -> Any:
    """An empty field is null: no lever takes an empty word."""
    return value(text) if text else None


def write(q: Query) -> str:
    """The inverse of `read`, as short as it can be."""
    said = {name: v for name, v in q.said.items() if v != names()[name].default}
    pairs = {name: spelled(v) for name, v in said.items()}
    pairs |= {"config": q.config} if q.config else {}
    pairs |= {f"{LEVER}{name}": spelled(v) for name, v in q.levers.items()}
    pairs |= {} if q.panes is None else {"show": ",".join(q.panes)}
    return urlencode(pairs)
