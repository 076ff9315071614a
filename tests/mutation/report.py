"""Tables of verdicts, in Markdown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from . import nets, survivors
from .mutant import Mutant
from .score import Verdict

ORDER = ("G", "S", "P", "A", "C", "E", "N", "X", "H", "hang")


def tables(mutants: Sequence[Mutant], verdicts: Sequence[Verdict]) -> str:
    pairs = list(zip(mutants, verdicts, strict=True))
    rows = [p for p in pairs if p[0].id.startswith("row ")]
    others = [p for p in pairs if not p[0].id.startswith("row ")]
    parts = [_rows(rows)] * bool(rows) + [_totals(others)] * bool(others) + [_left(pairs)]
    return "\n\n".join(parts)


def _rows(pairs: Sequence[tuple[Mutant, Verdict]]) -> str:
    lines = ["| row | mutation | layer | killed by |", "| --- | --- | --- | --- |"]
    for m, v in pairs:
        by = ", ".join(v.killed) or f"**{v.outcome}**"
        lines.append(f"| {m.id.removeprefix('row ')} | {m.says} | {m.layer} | {by} |")
    return "\n".join(lines)


def _totals(pairs: Sequence[tuple[Mutant, Verdict]]) -> str:
    layers = sorted({m.layer for m, _ in pairs})
    lines = [
        "| layer | mutants | killed | " + " | ".join(ORDER) + " | equivalent | survived | score |",
        "| --- " * (len(ORDER) + 6) + "|",
    ]
    for layer in [*layers, "all"]:
        mine = [v for m, v in pairs if layer in (m.layer, "all")]
        outcomes = Counter(v.outcome for v in mine)
        first = Counter(v.killed[0] for v in mine if v.killed)
        real = len(mine) - outcomes["equivalent"]
        score = f"{100 * outcomes['killed'] / real:.1f} %" if real else ""
        cells = [layer, len(mine), outcomes["killed"], *(first[x] for x in ORDER)]
        cells += [outcomes["equivalent"], outcomes["survived"], score]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines)


def _left(pairs: Sequence[tuple[Mutant, Verdict]]) -> str:
    lines = ["| id | kernel | mutation | verdict |", "| --- | --- | --- | --- |"]
    for m, v in pairs:
        if v.outcome != "killed":
            why = v.equivalent or f"**survived** {survivors.limit(m)}".strip()
            lines.append(f"| {m.id} | {m.kernel} | `{m.says}` | {why} |")
    return "\n".join(lines)


def legend() -> str:
    return "\n".join(f"- **{letter}**: {what}" for letter, what in nets.NAMES.items())
