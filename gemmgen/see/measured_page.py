"""A measured timeline beside the simulated one: the same pictures, tables and trace, each line twice."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from ..errors import ArgumentError
from .beside import merged
from .measured import Measured
from .page import Block, Facts, Lanes, Page, Table, microseconds
from .timeline import Timeline, names
from .timeline_lanes import lanes
from .timeline_page import Selection, View, assumed, to_json, views

UPPER = (
    "Of each pair of lines the upper is measured, the lower simulated, each from its own beginning."
)


def measured_page(
    m: Measured, s: Timeline, chosen: Selection, launch: tuple[tuple[str, str], ...]
) -> Page:
    """s: simulated from the same program as `m`. launch: what both were taken from. Raises ArgumentError if
    `chosen` holds nothing of one of them."""
    facts = Facts(title="Launch", items=(*launch, *_instance(m, s)))
    blocks: list[Block] = [facts, *pictures(m, s, chosen), _shares(m, s), assumed(s.latency)]
    title = f"Measured and simulated timeline of {s.program.kernel.name}"
    return Page(title=title, blocks=tuple(blocks))


def _instance(m: Measured, s: Timeline) -> Iterator[tuple[str, str]]:
    agents = len(s.agents)
    yield "shown", f"{s.program.instance}: the first cluster, {agents} warpgroups"
    yield "measured", f"{m.timeline.end:,} SM cycles{_seconds(m)}"
    yield "simulated", f"{s.end:,} SM cycles, {s.end / max(1, m.timeline.end):.1%} of the measured"
    yield "all CTAs", f"start within {m.starts / 1e3:.1f} us and end within {m.ends / 1e3:.1f} us"
    if lost := _lost(m):
        yield "lost", f"the oldest stamps, for want of room: {lost}. --stamps keeps more"


def _seconds(m: Measured) -> str:
    """At the clock that the launch had, if it was long enough to tell."""
    if not m.clock_hz:
        return ""
    return f", {microseconds(m.timeline.end / m.clock_hz)} us at {m.clock_hz / 1e9:.3f} GHz"


def _lost(m: Measured) -> str:
    called = names(m.timeline.program.kernel, m.timeline.agents)
    return ", ".join(f"{n:,} of {who}" for who, n in zip(called, m.lost, strict=True) if n)


def pictures(m: Measured, s: Timeline, chosen: Selection) -> Iterator[Lanes]:
    """Not of a part whose stamps are lost, unless it was chosen: then this is an error. Raises ArgumentError."""
    for v in views(s, chosen):
        if any(x.cycles and v.of.holds(x.op) for own in m.timeline.steps for x in own):
            own = next(x for x in views(m.timeline, chosen) if x.title == v.title)
            yield _beside(m.timeline, own, s, v)
        elif chosen != Selection():
            allowed = f"must hold something whose stamps are left; lost are {_lost(m)}"
            raise ArgumentError("--tiles, --blocks", (chosen.tiles, chosen.blocks), allowed)


def _beside(m: Timeline, of_m: View, s: Timeline, of_s: View) -> Lanes:
    """One picture, both at one scale: as long as the longer takes."""
    span = max(of_m.end - of_m.start, of_s.end - of_s.start)
    upper, lower = (
        lanes(t, v.title, v.start, v.start + span, v.note) for t, v in ((m, of_m), (s, of_s))
    )
    pair = (_from_zero(upper), _from_zero(lower))
    return merged(*pair, ("measured", "simulated"), f"{UPPER} {lower.note}")


def _from_zero(picture: Lanes) -> Lanes:
    """Counted from the picture's beginning on."""
    start = picture.start
    lines = tuple(
        replace(
            lane,
            bars=tuple(replace(b, start=b.start - start, end=b.end - start) for b in lane.bars),
        )
        for lane in picture.lanes
    )
    return replace(picture, start=0, end=picture.end - start, lanes=lines)


def _shares(m: Measured, s: Timeline) -> Table:
    """Of each agent: what it does and waits for, in cycles, most measured first."""
    t, rows = m.timeline, []
    for i, name in enumerate(names(t.program.kernel, t.agents)):
        sums = [(x.work(i), x.waiting(i)) for x in (t, s)]
        for kind, word in ((0, ""), (1, "waits for ")):
            found, simulated = sums[0][kind], sums[1][kind]
            for what in sorted({*found, *simulated}, key=lambda w: (-found[w], -simulated[w], w)):
                cells = _cells(found[what], t.end), _cells(simulated[what], s.end)
                rows.append((name, word + what, *cells[0], *cells[1]))
    return Table(
        title="Where the cycles go",
        columns=("warpgroup", "does", "measured", "share", "simulated", "share"),
        rows=tuple(rows),
        note="Measured: up to a stamp, from the one before it; what is not stamped counts to what comes next.",
    )


def _cells(cycles: int, of: int) -> tuple[str, str]:
    return f"{cycles:,}", f"{cycles / max(1, of):.1%}"


def measured_json(m: Measured, s: Timeline) -> dict[str, Any]:
    """The figures of the page: the simulated as `to_json` has them, and as many measured."""
    found = to_json(m.timeline)
    kept = ("cycles", "warpgroups")
    called = names(m.timeline.program.kernel, m.timeline.agents)
    own = {k: found[k] for k in kept} | {
        "clock_hz": m.clock_hz,
        "start_spread_ns": m.starts,
        "end_spread_ns": m.ends,
        "lost_stamps": dict(zip(called, m.lost, strict=True)),
    }
    return to_json(s) | {"measured": own}
