"""A timeline in the Trace Event Format that Perfetto and chrome://tracing open."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from ..check import ops
from .timeline import Flight, Step, Timeline
from .timeline_lanes import Track, describe, tracks


def chrome_trace(t: Timeline, clock_hz: float) -> str:
    """JSON text: a process per CTA, a thread per line, a complete event ("X") per interval that takes time;
    times in microseconds at `clock_hz`, and as cycles among the arguments."""
    lines = tracks(t)
    events = [*_names(lines)]
    for number, line in enumerate(lines):
        events += [_event(i, line.cta, number, 1e6 / clock_hz) for i in line.items]
    about = {
        "generator": "gemmgen",
        "kernel": t.program.kernel.name,
        "source": "simulated, not timed",
        "instance": str(t.program.instance),
        "clock_hz": clock_hz,
        "latency_cycles": asdict(t.latency),
    }
    body = ",\n".join(json.dumps(e) for e in events)
    head = json.dumps(about)
    return f'{{"otherData": {head},\n"displayTimeUnit": "ns",\n"traceEvents": [\n{body}\n]}}\n'


def _names(lines: tuple[Track, ...]) -> Iterator[dict[str, Any]]:
    for cta in sorted({line.cta for line in lines}):
        yield _meta("process_name", cta, 0, name=f"CTA {cta}")
    for number, line in enumerate(lines):
        yield _meta("thread_name", line.cta, number, name=line.name)
        yield _meta("thread_sort_index", line.cta, number, sort_index=number)


def _meta(kind: str, cta: int, thread: int, **args: Any) -> dict[str, Any]:
    return {"name": kind, "ph": "M", "pid": cta, "tid": thread, "args": args}


def _event(i: Step | Flight, cta: int, thread: int, scale: float) -> dict[str, Any]:
    return {
        "name": describe(i),
        "cat": i.carried if isinstance(i, Flight) else "wait" if i.waits else "work",
        "ph": "X",
        "ts": round(i.start * scale, 6),
        "dur": round(i.cycles * scale, 6),
        "pid": cta,
        "tid": thread,
        "args": _arguments(i),
    }


def _arguments(i: Step | Flight) -> dict[str, Any]:
    found: dict[str, Any] = {"statement": type(i.op.stmt).__name__, "cycles": i.cycles}
    found |= {n: v for n, v in (("tile", i.op.tile), ("k_block", i.op.k)) if v != ops.OUTSIDE}
    if isinstance(i, Step) and isinstance(i.op, ops.Wait):
        name, _, stage = i.op.bar
        found |= {"barrier": name, "stage": stage, "phase": i.op.phase}
    elif isinstance(i, Flight) and i.carried == "load":
        found["stage"] = i.stage
    return found
