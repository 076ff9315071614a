"""A timeline in the Trace Event Format that Perfetto and chrome://tracing open."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from ..check import ops
from .measured import Measured
from .timeline import Flight, Step, Timeline
from .timeline_lanes import LOADS, Track, describe, tracks

Event = dict[str, Any]


def chrome_trace(t: Timeline, clock_hz: float) -> str:
    """JSON text: a process per CTA, a thread per line, a complete event ("X") per interval that takes time;
    times in microseconds at `clock_hz`, and as cycles among the arguments."""
    return document(_about(t, clock_hz), _events(t, clock_hz, 0, "CTA"))


def measured_trace(m: Measured, s: Timeline, clock_hz: float) -> str:
    """The same with two processes per CTA: the simulated one, at `clock_hz`, and the measured, at its own clock
    (at `clock_hz` too if the launch was too short to tell)."""
    own = m.clock_hz or clock_hz
    about = _about(s, clock_hz) | {
        "source": "simulated, and measured by stamps",
        "measured_clock_hz": own,
        "lost_stamps": list(m.lost),
    }
    ctas = s.program.kernel.cluster.size
    events = [
        *_events(s, clock_hz, 0, "simulated CTA"),
        *_events(m.timeline, own, ctas, "measured CTA"),
    ]
    return document(about, events)


def _about(t: Timeline, clock_hz: float) -> dict[str, Any]:
    return {
        "generator": "gemmgen",
        "kernel": t.program.kernel.name,
        "source": "simulated, not timed",
        "instance": str(t.program.instance),
        "clock_hz": clock_hz,
        "latency_cycles": asdict(t.latency),
    }


def document(about: dict[str, Any], events: list[Event]) -> str:
    body, head = ",\n".join(json.dumps(e) for e in events), json.dumps(about)
    return f'{{"otherData": {head},\n"displayTimeUnit": "ns",\n"traceEvents": [\n{body}\n]}}\n'


def _events(t: Timeline, clock_hz: float, first: int, process: str) -> list[Event]:
    """first: the process of CTA 0."""
    lines = tracks(t)
    events = [*_names(lines, first, process)]
    for number, line in enumerate(lines):
        events += [_event(i, first + line.cta, number, 1e6 / clock_hz) for i in line.items]
    return events


def _names(lines: tuple[Track, ...], first: int, process: str) -> Iterator[Event]:
    for cta in sorted({line.cta for line in lines}):
        yield meta("process_name", first + cta, 0, name=f"{process} {cta}")
    for number, line in enumerate(lines):
        yield meta("thread_name", first + line.cta, number, name=line.name)
        yield meta("thread_sort_index", first + line.cta, number, sort_index=number)


def meta(kind: str, process: int, thread: int, **args: Any) -> Event:
    return {"name": kind, "ph": "M", "pid": process, "tid": thread, "args": args}


def _event(i: Step | Flight, process: int, thread: int, scale: float) -> Event:
    return {
        "name": describe(i),
        "cat": i.carried if isinstance(i, Flight) else "wait" if i.waits else "work",
        "ph": "X",
        "ts": round(i.start * scale, 6),
        "dur": round(i.cycles * scale, 6),
        "pid": process,
        "tid": thread,
        "args": _arguments(i),
    }


def _arguments(i: Step | Flight) -> Event:
    found: Event = {"statement": type(i.op.stmt).__name__, "cycles": i.cycles}
    found |= {n: v for n, v in (("tile", i.op.tile), ("k_block", i.op.k)) if v != ops.OUTSIDE}
    if isinstance(i, Step) and isinstance(i.op, ops.Wait):
        name, _, stage = i.op.bar
        found |= {"barrier": name, "stage": stage, "phase": i.op.phase}
    elif isinstance(i, Flight) and i.carried in LOADS:
        found["stage"] = i.stage
    return found
