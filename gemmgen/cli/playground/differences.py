"""What a config has that the choice has not, and how the command line says it."""

from __future__ import annotations

import json
import shlex

from ...config import Config
from ...levers import LEVERS
from ...see import kernel_page
from ...see.page import Facts, Page, Table, microseconds
from ...see.spelling import spelled as in_words
from .. import given
from ..fields import spelled
from .position import Position
from .query import names


def differences(p: Position) -> Page:
    """Of a position that has a config, legal or not; so are the others here."""
    assert p.launch and p.config
    return Page(title="Config", blocks=(_levers(p, p.config), _choice(p)))


def words(p: Position) -> Page:
    """Problem and config."""
    assert p.launch and p.config
    blocks = [kernel_page.problem(p.launch.problem)]
    blocks += [kernel_page.config(p.config, p.kernel)] if p.kernel else []
    return Page(title="In words", blocks=tuple(blocks))


def commands(p: Position) -> Page:
    assert p.launch and p.config
    return Page(title="Commands", blocks=(_commands(p, p.config),))


def _levers(p: Position, config: Config) -> Table:
    if not p.pick:
        return Table(
            title="Differs from the choice", columns=(), rows=(), note="Nothing is chosen."
        )
    choice = p.pick.config
    changed = [x for x in LEVERS if getattr(config, x.name) != getattr(choice, x.name)]
    rows = tuple((x.name, *_values(x.name, choice, config), x.reads) for x in changed)
    note = "" if rows else "In nothing: this is the choice."
    columns = ("lever", "the choice", "this", "says")
    return Table(title="Differs from the choice", columns=columns, rows=rows, note=note)


def _values(name: str, *configs: Config) -> tuple[str, ...]:
    return tuple(spelled(getattr(c, name)) for c in configs)


def _choice(p: Position) -> Facts:
    assert p.launch
    if not p.pick:
        return Facts(title="The choice", items=(("from", "none is legal for this problem"),))
    items = [
        ("from", p.pick.source(p.launch.shape)),
        ("config", in_words(p.pick.config)),
    ]
    if (row := p.pick.row) and row.best.seconds:
        at = "x".join(map(str, row.shape))
        items.append(("measured", f"{microseconds(row.best.seconds)} us at {at} on {row.device}"))
    return Facts(title="The choice", items=tuple(items))


def _commands(p: Position, config: Config) -> Facts:
    """That say the same of this config; JSON as it is pasted."""
    assert p.launch
    data = json.dumps(config.to_json())
    kernel, (m, n, k) = shlex.join(_kernel(p)), p.launch.shape
    groups = f" --groups {p.launch.groups}" if p.launch.groups > 1 else ""
    said = f"--config {shlex.quote(data)}"
    items = (
        ("as JSON", data),
        ("CUDA", f"gemmgen emit {kernel} {said}"),
        ("why", f"gemmgen explain {kernel} -m {m} -n {n} -k {k}{groups} {said}"),
    )
    return Facts(title="Elsewhere", items=items)


def _kernel(p: Position) -> list[str]:
    """KERNEL and its options, where they are not the usual ones."""
    words = [p.query.value("family")]
    for name in given.PROBLEM:
        v = p.query.value(name)
        if v != names()[name].default:
            words += [f"--{name.replace('_', '-')}", *([] if v is True else [str(v)])]
    return words
