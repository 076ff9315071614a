"""Where one move leads: each lever to each value near the one that it has, what that costs, or which rule forbids it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from ...config import Config
from ...cost import cost
from ...errors import ArgumentError, IllegalConfig, UnsupportedProblem
from ...levers import LEVERS
from ...levers.lever import Lever
from ...see.page import Page, Table, microseconds
from ...see.price_page import BLIND
from ...target import H200
from ..fields import spelled
from .position import Asked, Position, lowered
from .query import write


@dataclass(frozen=True, kw_only=True)
class Move:
    """seconds: modelled, None where the config is refused; why: then the rule's id."""

    config: Config
    words: str
    seconds: float | None = None
    why: str = ""


def moves(p: Position) -> Page:
    """Of a position that has a config, legal or not."""
    assert p.launch and p.config
    found = sorted(
        _judged(p.launch, p.config), key=lambda m: (m.seconds is None, m.seconds or 0, m.why)
    )
    here = _seconds(p.launch, p.config) if p.kernel else None
    rows = tuple((m.words, *_cells(m, here)) for m in found)
    table = Table(
        title="Legal ones first, the cheapest on top",
        columns=("to", "us", "beside this", "refused by"),
        rows=rows,
        links=tuple(_link(p, m.config) for m in found),
        note=BLIND,
    )
    return Page(title="Every next move", blocks=(table,))


def _cells(m: Move, here: float | None) -> tuple[str, str, str]:
    if m.seconds is None:
        return "", "", m.why
    beside = f"{m.seconds / here - 1:+.1%}" if here else ""
    return microseconds(m.seconds), beside, ""


def _judged(at: Asked, config: Config) -> Iterator[Move]:
    for c, words in _next(config).items():
        try:
            lowered(at.problem, c)
        except IllegalConfig as e:
            yield Move(config=c, words=words, why=e.rule.id)
        except UnsupportedProblem as e:
            yield Move(config=c, words=words, why=e.id)
        else:
            yield Move(config=c, words=words, seconds=_seconds(at, c))


def _seconds(at: Asked, c: Config) -> float:
    return cost(at.problem, c, at.shape, H200, at.groups).seconds


def _next(config: Config) -> dict[Config, str]:
    """What one move, or one of the tuner's, makes of it, and in words."""
    found: dict[Config, str] = {}
    for x in LEVERS:
        for changes in ({x.name: v} for v in _near(x, getattr(config, x.name))):
            found[config.having(**changes)] = _words(changes)
        for changes in x.others(config):
            try:
                found.setdefault(config.having(**changes), _words(changes))
            except ArgumentError:
                continue  # a lever of a program may try what it does not take
    return {c: words for c, words in found.items() if c != config}


def _words(changes: dict[str, object]) -> str:
    return ", ".join(f"{name}={spelled(v)}" for name, v in changes.items())


def _near(x: Lever, v: object) -> Iterator[object]:
    """All values, where they are listed; of a span the next two either way, the half and the double."""
    if x.values.listed:
        yield from x.values.listed()
        return
    if x.values.null:
        yield None
    if not x.values.span:
        return
    _, high, step = x.values.span
    at = v if isinstance(v, int) else high
    near = (at - 2 * step, at - step, at + step, at + 2 * step, at // 2, at * 2)
    yield from (n for n in dict.fromkeys(near) if x.values.holds(n))


def _link(p: Position, c: Config) -> str:
    """The view with that config."""
    moved = {x.name: getattr(c, x.name) for x in LEVERS}
    levers = {n: _plain(v) for n, v in moved.items() if v != getattr(p.base, n)}
    return f"/?{write(replace(p.query, levers=levers))}"


def _plain(v: object) -> object:
    """As JSON has it."""
    return list(v) if isinstance(v, tuple) else v
