"""What moves a position: a labelled control for each name of a query and each lever, as the values say that it takes."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from typing import Any

from ...errors import ArgumentError, IllegalConfig
from ...levers import LEVERS
from ...levers.lever import Values
from ..fields import spelled
from .position import Position
from .query import LEVER, names


@dataclass(frozen=True, kw_only=True)
class Control:
    """name: in the query. value: what is said; base: what it is where nothing is, in the query left out. says: below it;
    more: where a pointer rests."""

    name: str
    label: str
    values: Values
    value: Any
    base: Any
    says: str
    more: str = ""
    refused: bool = False

    @property
    def id(self) -> str:
        return f"control-{self.name}"

    @property
    def texts(self) -> dict[str, object]:
        """What changes of it when the position does."""
        moved = f"was {spelled(self.base)}" if self.value != self.base else ""
        return {
            "value": _text(self.value),
            "base": _text(self.base),
            "moved": moved,
            "refused": self.refused,
        }


def problem_controls(p: Position) -> list[Control]:
    return [
        Control(
            name=name,
            label=x.label,
            values=x.values,
            value=p.query.value(name),
            base=x.default,
            says=x.says,
            refused=_blamed(p, name),
        )
        for name, x in names().items()
    ]


def lever_controls(p: Position) -> list[Control]:
    """One for each, in their order."""
    return [
        Control(
            name=f"{LEVER}{x.name}",
            label=x.name,
            values=x.values,
            value=p.query.levers.get(x.name, _plain(getattr(p.base, x.name))),
            base=_plain(getattr(p.base, x.name)),
            says="" if x.values.listed else x.values.says,
            more=x.reads,
            refused=_blamed(p, x.name),
        )
        for x in LEVERS
    ]


def _plain(v: Any) -> Any:
    """As JSON has it."""
    return list(v) if isinstance(v, tuple) else v


def _blamed(p: Position, name: str) -> bool:
    """Whether the refusal names it."""
    match p.refused:
        case ArgumentError():
            return p.refused.argument.lstrip("-") == name
        case IllegalConfig():
            return name in p.refused.values
    return False


def _text(v: Any) -> str:
    """Of a control; an empty number is null."""
    return "" if v is None else spelled(v)


def html(c: Control) -> str:
    """The control, its label, and what it was before it was moved."""
    described = (
        f'aria-describedby="{c.id}-moved {c.id}-says"' + f' title="{escape(c.more)}"' * bool(c.more)
    )
    common = f'id="{c.id}" name="{escape(c.name)}" data-base="{escape(_text(c.base))}" {described}'
    invalid = ' aria-invalid="true"' if c.refused else ""
    label = f'<label for="{c.id}">{escape(c.label)}</label>'
    says = f'<small id="{c.id}-says">{escape(c.says)}</small>'
    moved = f'<small class="moved" id="{c.id}-moved">{escape(str(c.texts["moved"]))}</small>'
    return f'<div class="control">{label}{_field(c, common + invalid)}{moved}{says}</div>'


def _field(c: Control, common: str) -> str:
    listed = c.values.listed() if c.values.listed else None
    if listed and {*map(type, listed)} == {bool}:
        checked = " checked" if c.value is True else ""
        return f'<input type="checkbox" value="true" {common}{checked}>'
    if listed:
        return f"<select {common}>{''.join(_option(v, c.value) for v in _with(listed, c.value))}</select>"
    value = f'value="{escape(_text(c.value))}"'
    if c.values.span and (c.value is None or isinstance(c.value, int)):
        low, high, step = c.values.span
        return f'<input type="number" min="{low}" max="{high}" step="{step}" {value} {common}>'
    return f'<input type="text" spellcheck="false" autocomplete="off" {value} {common}>'


def _with(listed: tuple[Any, ...], value: Any) -> tuple[Any, ...]:
    """What is refused is shown too."""
    known = any(type(v) is type(value) and v == value for v in listed)
    return listed if known else (*listed, value)


def _option(v: Any, value: Any) -> str:
    selected = " selected" if type(v) is type(value) and v == value else ""
    shown = "null" if v is None else "default" if v == "" else spelled(v)
    return f'<option value="{escape(_text(v))}"{selected}>{escape(shown)}</option>'
