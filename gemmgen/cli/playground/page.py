"""The page as HTML, and its parts as JSON for the script that follows a lever."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from ...cost import cost
from ...errors import ArgumentError, IllegalConfig
from ...passes import RULES
from ...see import html
from ...see.page import Facts, Page, microseconds
from ...see.price_page import beside
from ...target import H200
from . import controls
from .controls import Control, lever_controls, problem_controls
from .panes import PANES, USUAL, inside
from .position import Position, position
from .query import Query, read

HERE = Path(__file__).parent
SCRIPT, STYLE = ((HERE / f"playground.{suffix}").read_text() for suffix in ("js", "css"))
PLACES = {rule.id: f"/rules#section-{i}" for i, rule in enumerate(RULES)}


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """kind: legal or refused. words: in a line. more: why, and what to do; rule: the id of the one that forbids."""

    kind: str
    words: str
    more: tuple[str, ...] = ()
    rule: str = ""


def asked(text: str) -> Position:
    """What a query string leads to; what cannot be read as one is refused as a config would be."""
    try:
        q = read(text)
        for name in q.panes or ():
            if name not in PANES:
                raise ArgumentError("show", name, f"must be of {', '.join(PANES)}")
    except ArgumentError as e:
        return Position(query=Query(), refused=e)
    return position(q)


def verdict(p: Position) -> Verdict:
    match p.refused:
        case None:
            return Verdict(kind="legal", words=f"Legal: {_priced(p)}.", more=(LOWERED,))
        case IllegalConfig() as e:
            values = ", ".join(f"{name}={v}" for name, v in e.values.items())
            words = f"Illegal by {e.rule.id}: {e.rule.says}."
            return Verdict(
                kind="refused", words=words, more=(f"Here: {values}.", e.fix), rule=e.rule.id
            )
    return Verdict(kind="refused", words=f"Refused: {p.refused}")


LOWERED = "Lowered, not proved: the pane Proof proves it."


def _priced(p: Position) -> str:
    assert p.launch and p.config
    of = (p.launch.shape, H200, p.launch.groups)
    seconds = cost(p.launch.problem, p.config, *of).seconds
    words = f"{microseconds(seconds)} us modelled"
    if not p.pick:
        return f"{words}; nothing is chosen to compare with"
    if p.config == p.pick.config:
        return f"{words}, the choice itself"
    other = cost(p.launch.problem, p.pick.config, *of).seconds
    return f"{words}, {beside(seconds, other)}"


def answer(p: Position) -> dict[str, Any]:
    """What a move changes beside the panes, for the script."""
    v = verdict(p)
    moved = [*problem_controls(p), *lever_controls(p)]
    return {
        "kind": v.kind,
        "verdict": _verdict(v),
        "title": _title(p),
        "controls": {c.name: c.texts for c in moved},
    }


def render(p: Position) -> str:
    """The whole page, as without a script."""
    v = verdict(p)
    asked = p.query.panes
    open_panes = USUAL if asked is None else asked
    body = (
        f"<header><h1>gemmgen playground</h1>{_links()}</header>\n"
        f'<div id="verdict" class="{v.kind}" role="status" aria-live="polite" aria-atomic="true">{_verdict(v)}</div>\n'
        f'<form id="controls" role="form" aria-label="Controls" tabindex="0" autocomplete="off">\n{_form(p, open_panes)}</form>\n'
        f"<main>\n{''.join(_section(name, p, name in open_panes) for name in PANES)}</main>"
    )
    head = '<script src="/playground.js" defer></script>\n'
    return html.document(_title(p), "playground", body, style=STYLE, head=head)


def rules() -> str:
    """Every rule, each to be linked to."""
    blocks = (
        Facts(title=r.id, items=(("says", f"{r.says}."), ("because", f"{r.because}.")))
        for r in RULES
    )
    return html.render(Page(title="Legality rules", blocks=tuple(blocks)))


def _title(p: Position) -> str:
    if not p.launch:
        return "gemmgen playground"
    m, n, k = p.launch.shape
    return f"{p.launch.problem.family} M={m} N={n} K={k}: gemmgen playground"


def _verdict(v: Verdict) -> str:
    more = " ".join(map(escape, v.more))
    link = f' <a href="{PLACES[v.rule]}">The rule</a>' if v.rule in PLACES else ""
    return f"<p><strong>{escape(v.words)}</strong></p>\n<p>{more}{link}</p>"


def _links() -> str:
    return '<nav aria-label="Pages"><a href="/">The default</a> <a href="/rules">Rules</a></nav>'


def _form(p: Position, open_panes: Iterable[str]) -> str:
    config = escape(p.query.config)
    start = (
        '<div class="control long"><label for="control-config">Start from this config, not from the choice</label>'
        f'<textarea id="control-config" name="config" rows="2" spellcheck="false" data-base="" '
        f'aria-describedby="control-config-says">{config}</textarea>'
        '<small id="control-config-says">JSON; empty: the choice for this shape</small></div>'
    )
    panes = "".join(_check(name, name in open_panes) for name in PANES)
    return (
        f"{_set('Problem and shape', problem_controls(p))}"
        f"{_set('Levers', lever_controls(p), start)}"
        f'<fieldset id="panes"><legend>Show</legend>{panes}</fieldset>\n'
        '<p><button type="button" id="back">Back to the choice</button></p>\n'
        "<noscript><p>Without its script the page shows what its address says; no control moves it.</p></noscript>\n"
    )


def _set(legend: str, of: list[Control], more: str = "") -> str:
    fields = "\n".join(map(controls.html, of))
    return f"<fieldset><legend>{legend}</legend>\n{fields}\n{more}</fieldset>\n"


def _check(name: str, checked: bool) -> str:
    on = " checked" if checked else ""
    usual = str(name in USUAL).lower()
    box = f'<input type="checkbox" name="show" value="{name}" id="show-{name}" data-usual="{usual}"{on}>'
    return f'<span class="pane">{box}<label for="show-{name}">{escape(PANES[name].title)}</label></span>\n'


def _section(name: str, p: Position, is_open: bool) -> str:
    text = inside(name, p) if is_open else ""
    hidden = "" if is_open else " hidden"
    return (
        f'<section class="shown" id="pane-{name}" aria-labelledby="title-{name}"{hidden}>\n'
        f'<h2 id="title-{name}">{escape(PANES[name].title)}</h2>\n<div class="inside">{text}</div>\n</section>\n'
    )
