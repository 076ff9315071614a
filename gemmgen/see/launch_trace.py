"""Launches that were timed, as a timeline in the Trace Event Format."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from .chrome_trace import Event, document, meta

Started = tuple[
    str, float, float
]  # what a launch does, when it began, how long it took: microseconds


def launch_trace(about: Mapping[str, Any], processes: Mapping[str, Iterable[Started]]) -> str:
    """JSON text that Perfetto and chrome://tracing open: a process per call, by its name, whose launches are complete events ("X") on one line. about: of all of them."""
    events: list[Event] = []
    for number, (name, launches) in enumerate(processes.items()):
        events.append(meta("process_name", number, 0, name=name))
        events.append(meta("process_sort_index", number, 0, sort_index=number))
        events.append(meta("thread_name", number, 0, name="GPU"))
        for does, start, took in launches:
            times = {"ts": round(start, 3), "dur": round(took, 3)}
            events.append(
                {
                    "name": does,
                    "cat": "launch",
                    "ph": "X",
                    **times,
                    "pid": number,
                    "tid": 0,
                    "args": {},
                }
            )
    return document({"generator": "gemmgen", "source": "timed", **about}, events)
