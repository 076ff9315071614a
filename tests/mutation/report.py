"""Tables of verdicts, in Markdown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from . import nets, survivors
from .mutant import Mutant
from .reasons import reason
from .score import Verdict, planned

REST = ("equivalent", "undecided", "error", "survived")
ORDER = ("G", "S", "P", "A", "C", "E", "N", "X", "H", "hang")


def tables(mutants: Sequence[Mutant], verdicts: Sequence[Verdict]) -> str:
    pairs = list(zip(mutants, verdicts, strict=True))
    rows = [p for p in pairs if p[0].id.startswith("row ")]
    others = [p for p in pairs if not p[0].id.startswith("row ")]
    parts = [_rows(rows)] * bool(rows) + [_totals(others)] * bool(others)
    return "\n\n".join([*parts, _otherwise(rows), _left(pairs)])


def _otherwise(pairs: Sequence[tuple[Mutant, Verdict]]) -> str:
    """Kills that are not the planned ones, and what was not counted."""
    lines = ["| id | planned | found by | which says |", "| --- | --- | --- | --- |"]
    for m, v in pairs:
        if v.killed and not planned(m, v):
            said = v.texts[0].splitlines()[0][:100].replace("|", "/")
            lines.append(
                f"| {m.id} | {m.expected} `{reason(m).pattern}` | {v.killed[0]} | {said} |"
            )
        if v.ignored:
            lines.append(f"| {m.id} | | {', '.join(v.ignored)} | not counted: not silent here |")
    return "Killed otherwise than planned:\n\n" + ("\n".join(lines) if lines[2:] else "none")


def _rows(pairs: Sequence[tuple[Mutant, Verdict]]) -> str:
    lines = ["| row | mutation | layer | killed by |", "| --- | --- | --- | --- |"]
    for m, v in pairs:
        by = ", ".join(v.killed) or f"**{v.outcome}**"
        lines.append(f"| {m.id.removeprefix('row ')} | {m.says} | {m.layer} | {by} |")
    return "\n".join(lines)


def _totals(pairs: Sequence[tuple[Mutant, Verdict]]) -> str:
    layers = sorted({m.layer for m, _ in pairs})
    lines = [
        "| layer | mutants | killed | " + " | ".join(ORDER) + f" | {' | '.join(REST)} | score |",
        "| --- " * (len(ORDER) + len(REST) + 4) + "|",
    ]
    for layer in [*layers, "all"]:
        mine = [v for m, v in pairs if layer in (m.layer, "all")]
        outcomes = Counter(v.outcome for v in mine)
        first = Counter(v.killed[0] for v in mine if v.killed)
        real = len(mine) - outcomes["equivalent"]
        score = f"{100 * outcomes['killed'] / real:.1f} %" if real else ""
        cells = [layer, len(mine), outcomes["killed"], *(first[x] for x in ORDER)]
        cells += [*(outcomes[x] for x in REST), score]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines)


def _left(pairs: Sequence[tuple[Mutant, Verdict]]) -> str:
    lines = ["| id | kernel | mutation | verdict |", "| --- | --- | --- | --- |"]
    for m, v in pairs:
        if v.outcome != "killed":
            why = v.equivalent or v.undecided or v.error or survivors.limit(m)
            why = why if v.outcome == "equivalent" else f"**{v.outcome}** {why}".strip()
            lines.append(f"| {m.id} | {m.kernel} | `{m.says}` | {why} |")
    return "\n".join(lines)


def legend() -> str:
    return "\n".join(f"- **{letter}**: {what}" for letter, what in nets.NAMES.items())
