"""How a kernel is lowered, pass by pass: what each changes in the IR, and why."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass
from difflib import unified_diff

from ..config import Config
from ..errors import IllegalConfig, Rule
from ..families import FAMILIES
from ..ir.nodes import Kernel
from ..ir.text import dump
from ..passes import PIPELINE
from ..pipeline import lower
from ..problem import Problem
from ..target import H200, Target
from .page import Facts, Listing, Page, Table

CONTEXT = 2  # lines around a change


@dataclass(frozen=True, kw_only=True)
class Step:
    """One pass. decides: why it is there; does: what it sets; rules: what it may refuse; diff: of the IR's text,
    empty where nothing changed."""

    name: str
    decides: str
    does: str
    rules: tuple[Rule, ...]
    diff: tuple[str, ...]

    def lines(self, sign: str) -> str:
        """How many it added (+) or removed (-), nothing for none."""
        return str(sum(line.startswith(sign) for line in self.diff) or "")


@dataclass(frozen=True, kw_only=True)
class Lowering:
    """built: the family's IR. steps: the passes that ran, and, if one refused the config, that one."""

    family: Step
    built: tuple[str, ...]
    steps: tuple[Step, ...]
    refused: IllegalConfig | None = None


def lowering(p: Problem, c: Config, target: Target = H200) -> Lowering:
    """Lower, and note every step. An illegal config is noted, not raised."""
    texts: list[list[str]] = []

    def note(name: str, kernel: Kernel) -> None:
        texts.append(dump(kernel).splitlines())

    refused = None
    try:
        lower(p, c, target, note)
    except IllegalConfig as e:
        if not texts:
            raise  # the family's own rule: no kernel, nothing to show
        refused = e
        texts.append(texts[-1])  # of the pass that refused: it changed nothing
    steps = [
        _step(run.by, tuple(_diff(before, after)))
        for run, before, after in zip(PIPELINE, texts, texts[1:], strict=False)
    ]
    family = _step(FAMILIES[p.family].build, ())
    return Lowering(family=family, built=tuple(texts[0]), steps=tuple(steps), refused=refused)


def _step(run: Callable[..., Kernel], diff: tuple[str, ...]) -> Step:
    """A pass' module says what is decided, its function what that sets."""
    home = sys.modules[run.__module__]
    return Step(
        name=run.__name__,
        decides=_joined(inspect.getdoc(home)),
        does=_joined(inspect.getdoc(run)),
        rules=tuple(getattr(home, "RULES", ())),
        diff=diff,
    )


def _joined(doc: str | None) -> str:
    return " ".join((doc or "").split())


def _diff(before: list[str], after: list[str]) -> list[str]:
    return list(unified_diff(before, after, n=CONTEXT, lineterm=""))[2:]


def page(name: str, of: Lowering) -> Page:
    """name: the kernel's."""
    changed = [s for s in of.steps if s.diff]
    facts = [
        ("family", of.family.decides),
        ("passes", f"{len(of.steps)} of {len(PIPELINE)} ran, {len(changed)} changed this kernel"),
    ]
    if of.refused:
        facts.append(("refused", f"by {of.steps[-1].name}: {of.refused}"))
    built = Listing(
        title="As the family builds it", lines=of.built, folded=True, note=of.family.does
    )
    blocks = (Facts(title="Lowering", items=tuple(facts)), _passes(of), built)
    return Page(title=f"Lowering of {name}", blocks=(*blocks, *map(_change, changed)))


def _passes(of: Lowering) -> Table:
    rows = tuple(
        (s.name, *map(s.lines, "+-"), s.decides, ", ".join(r.id for r in s.rules)) for s in of.steps
    )
    columns = ("pass", "added", "removed", "decides", "may refuse by")
    note = "Lines of the IR's text. A pass without any leaves this kernel as it is."
    marked = len(rows) - 1 if of.refused else None
    return Table(title="Passes, in order", columns=columns, rows=rows, marked=marked, note=note)


def _change(s: Step) -> Listing:
    return Listing(title=f"{s.name}: {s.decides}", lines=s.diff, diff=True, note=s.does)
