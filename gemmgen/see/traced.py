"""A timeline read back from a trace that `gemmgen timeline --trace` wrote: of another config, or measured elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..errors import ArgumentError
from ..untrusted import parse_json, read_text
from .page import Bar, Lane, Lanes
from .timeline_lanes import FLIGHTS, NUMBERED, flight_legend, step_legend

WRITES = "must be a trace that `gemmgen timeline --trace` wrote"
MEASURED = "measured "  # what the name of a process that was measured begins with
Legend = tuple[str, int, str]


@dataclass(frozen=True, kw_only=True)
class Traced:
    """lanes: by name, each bar with its entry in a legend. source: simulated or measured. end: SM cycles."""

    kernel: str
    source: str
    lanes: tuple[tuple[str, tuple[tuple[Bar, Legend], ...]], ...]

    @property
    def end(self) -> int:
        return max((b.end for _, bars in self.lanes for b, _ in bars), default=0)


def read(file: Path, argument: str) -> Traced:
    """What was measured, of a trace that has both. Raises ArgumentError for a file that is no such trace."""
    try:
        found = _traced(parse_json(argument, read_text(argument, file)))
    except (ValueError, TypeError, LookupError, AttributeError, OverflowError) as e:
        raise ArgumentError(argument, str(file), f"{WRITES} ({type(e).__name__}: {e})") from e
    if not found.end:
        raise ArgumentError(argument, str(file), f"{WRITES}: it has no event that takes time")
    return found


def _traced(data: Mapping[str, Any]) -> Traced:
    about, events = data["otherData"], data["traceEvents"]
    if about["generator"] != "gemmgen":
        raise ValueError(f"generator={about['generator']!r}")
    named = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    measured = {pid for pid, name in named.items() if name.startswith(MEASURED)}
    shown = measured or set(named)
    clock = float(about["measured_clock_hz"] if measured else about["clock_hz"])
    lanes: dict[str, list[tuple[Bar, Legend]]] = {}
    lines = {
        (e["pid"], e["tid"]): str(e["args"]["name"]) for e in events if e["name"] == "thread_name"
    }
    for (pid, _), name in lines.items():
        if pid in shown:
            lanes[name] = []
    for e in events:
        if e["ph"] == "X" and e["pid"] in shown:
            lanes[lines[e["pid"], e["tid"]]].append(_bar(e, clock))
    kept = ((name, tuple(sorted(x, key=lambda b: b[0].start))) for name, x in lanes.items())
    source = "measured" if measured else "simulated"
    return Traced(kernel=str(about["kernel"]), source=source, lanes=tuple(kept))


def _bar(e: Mapping[str, Any], clock_hz: float) -> tuple[Bar, Legend]:
    args, name = e["args"], str(e["name"])
    start, cycles = round(float(e["ts"]) * clock_hz / 1e6), int(args["cycles"])
    if cycles < 0:
        raise ValueError(f"cycles={cycles}")
    place = [str(int(args[n])) for n in ("tile", "k_block") if n in args]
    if e["cat"] in FLIGHTS:
        legend = flight_legend(e["cat"])
    else:
        waits = e["cat"] == "wait"
        doing = str(args.get("barrier", name.removeprefix("waits for ")))
        legend = step_legend(doing, waits, "barrier" in args)
    mark, hue, _ = legend
    numbered = mark == NUMBERED
    letter = str(int(args.get("k_block", 0)) % 10) if numbered else mark
    label = ".".join(place) if numbered else f"{mark} {'.'.join(place)}".rstrip()
    tip = f"{name}: {start:,} to {start + cycles:,}, {cycles:,} cycles"
    bar = Bar(start=start, end=start + cycles, mark=letter, hue=hue, label=label, tip=tip)
    return bar, legend


def lanes(t: Traced, title: str, start: int, end: int) -> Lanes:
    """What happens from `start` to `end`, in cycles since its own beginning."""
    shown = {n: [(b, x) for b, x in bars if b.start < end and b.end > start] for n, bars in t.lanes}
    return Lanes(
        title=title,
        start=start,
        end=end,
        unit="cycles",
        lanes=tuple(
            Lane(name=name, bars=tuple(_cut(b, start, end) for b, _ in bars))
            for name, bars in shown.items()
        ),
        legend=tuple(
            sorted({x for bars in shown.values() for _, x in bars}, key=lambda x: (x[1], x))
        ),
    )


def _cut(b: Bar, start: int, end: int) -> Bar:
    return replace(b, start=max(b.start, start), end=min(b.end, end))
