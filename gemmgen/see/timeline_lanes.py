"""A timeline as lanes: a line per agent, per stage of the ring and per thing that is under way."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ..check import ops
from ..check.finding import when
from .page import Bar, Lane, Lanes
from .timeline import Flight, Step, Timeline, names

NUMBERED = "0-9"  # in place of a letter, the last digit of the K block
# Letter and colour; who waits has a small letter.
WORK = {
    "promote": ("P", 0),
    "stage D": ("S", 2),
    "copy rows": ("C", 2),
    "decode": ("D", 0),
    "issue": ("I", 7),
}
FLIGHTS = {
    "load": (6, "TMA load under way"),
    "copy": (6, "copies of rows under way"),
    "landing": (6, "TMA load, until a warpgroup saw it"),
    "multiply": (4, "the tensor core multiplies"),
    "product": (4, "wgmma, from commit until retired"),
    "store": (2, "D leaves shared memory"),
    "send": (3, "partial sums under way to rank 0"),
}
LOADS, PRODUCTS = ("load", "copy", "landing"), ("multiply", "product")
WAITS = {
    "empty": ("e", 7),
    "turns": ("t", 7),
    "wgmma": ("w", 5),
    "copies": ("c", 1),
    "stores": ("s", 3),
    "partials_full": ("a", 1),
    "partials_empty": ("r", 1),
}


@dataclass(frozen=True, kw_only=True)
class Track:
    """A line's name, the CTA it is of, and what stands on it: in order, none over another."""

    name: str
    cta: int
    items: tuple[Step | Flight, ...]


def tracks(t: Timeline) -> tuple[Track, ...]:
    """By CTA: its agents, then the loads of each stage, its warpgroups' products, and D's way out."""
    called = names(t.program.kernel, t.agents)
    found: list[Track] = []
    for cta in sorted({a.cta for a in t.agents}):
        mine = [i for i, a in enumerate(t.agents) if a.cta == cta]
        found += [
            Track(name=called[i], cta=cta, items=tuple(s for s in t.steps[i] if s.cycles))
            for i in mine
        ]
        carried: dict[str, list[Flight]] = {}
        for f in sorted(t.flights, key=_order):
            if f.cta == cta and f.cycles:
                carried.setdefault(_name(f, called[f.agent], t), []).append(f)
        for name, flights in carried.items():
            found += [
                Track(name=name + " *" * n, cta=cta, items=tuple(line))
                for n, line in enumerate(_apart(flights))
            ]
    return tuple(found)


def _order(f: Flight) -> tuple[int, int, int]:
    return list(FLIGHTS).index(f.carried), f.stage if f.carried in LOADS else f.agent, f.start


def _name(f: Flight, agent: str, t: Timeline) -> str:
    if f.carried in LOADS:
        where = f"CTA {f.cta} " if t.program.kernel.cluster.size > 1 else ""
        return f"{where}loads, stage {f.stage}"
    return f"{agent}: {'wgmma' if f.carried in PRODUCTS else f.carried}"


def _apart(flights: list[Flight]) -> list[list[Flight]]:
    """On as many lines as they need not to overlap: where two CTAs load one stage, or D has two boxes."""
    lines: list[list[Flight]] = []
    for f in sorted(flights, key=lambda f: f.start):
        line = next((x for x in lines if x[-1].end <= f.start), None)
        if line is None:
            lines.append(line := [])
        line.append(f)
    return lines


def lanes(t: Timeline, title: str, start: int, end: int, note: str = "") -> Lanes:
    """What happens from `start` to `end`."""
    shown = tuple(Lane(name=x.name, bars=tuple(_bars(t, x.items, start, end))) for x in tracks(t))
    legend = {_legend(i) for x in tracks(t) for i in x.items if i.start < end and i.end > start}
    return Lanes(
        title=title,
        start=start,
        end=end,
        unit="cycles",
        lanes=shown,
        legend=tuple(sorted(legend, key=lambda entry: (entry[1], entry))),
        note=note,
    )


def _bars(t: Timeline, items: Iterable[Step | Flight], start: int, end: int) -> Iterator[Bar]:
    for i in items:
        if i.start < end and i.end > start:
            mark, hue, _ = _legend(i)
            yield Bar(
                start=max(i.start, start),
                end=min(i.end, end),
                mark=str(i.op.k % 10) if mark == NUMBERED else mark,
                hue=hue,
                label=_label(i, mark),
                tip=tip(i),
            )


def _label(i: Step | Flight, mark: str) -> str:
    """As in: f 0.3, where a warpgroup waits for K block 3 of tile 0."""
    place = ".".join(str(n) for n in (i.op.tile, i.op.k) if n != ops.OUTSIDE)
    return place if mark == NUMBERED else f"{mark} {place}".rstrip()


def tip(i: Step | Flight) -> str:
    """All there is to say of an interval."""
    what = describe(i)
    where = when(i.op)
    return f"{what}{', ' if where else ''}{where}: {i.start:,} to {i.end:,}, {i.cycles:,} cycles"


def describe(i: Step | Flight) -> str:
    """As in: waits for full[2] phase 3."""
    match i:
        case Flight(carried="load" | "landing"):
            return f"TMA load into stage {i.stage}"
        case Flight(carried="copy"):
            return f"copies of rows into stage {i.stage}"
        case Flight(carried="multiply" | "product"):
            return "wgmma"
        case Flight():
            return "D leaves shared memory" if i.carried == "store" else "partial sums to rank 0"
        case Step(op=ops.Wait(bar=(name, _, stage), phase=phase)):
            return f"waits for {name}[{stage}] phase {phase}"
        case Step(waits=True):
            return f"waits for {i.doing}"
    return i.doing


def _legend(i: Step | Flight) -> tuple[str, int, str]:
    if isinstance(i, Flight):
        return flight_legend(i.carried)
    return step_legend(i.doing, i.waits, isinstance(i.op, ops.Wait))


def flight_legend(carried: str) -> tuple[str, int, str]:
    """Letter, colour and words of what is under way."""
    hue, words = FLIGHTS[carried]
    return {"store": "D", "send": ">"}.get(carried, NUMBERED), hue, words


def step_legend(doing: str, waits: bool, barrier: bool) -> tuple[str, int, str]:
    """The same of what an agent does, or waits for: a barrier, or something else."""
    if not waits:
        return (*WORK[doing], doing)
    mark, hue = WAITS.get(doing, (doing[0].lower(), 1 if barrier else 7))
    return mark, hue, f"waits for {doing}"
