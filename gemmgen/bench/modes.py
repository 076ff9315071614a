"""What is timed of a call, and at what pace: kernels, whole calls or graphs; bursts, or seconds on end."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..errors import ArgumentError
from ..runtime.torch_tensors import torch
from .clocks import Log, Window
from .timing import FLUSH_BYTES, MARK_BYTES, WARMUP, Samples, interleave

CHAIN = "chain"  # all shapes, one after the other in one graph: bench.chain
MODES = ("kernel", "operator", "cudagraph", CHAIN)
PACES = ("burst", "sustained")
L2 = ("flush", "rotate", "warm")
BURST_SECONDS, SUSTAINED_SECONDS = (
    2e-3,
    10e-3,
)  # of one sample: so many calls that it takes about that
FEWEST_CALLS, MOST_CALLS = 3, 400  # of one sample
ROUNDS = 2  # of a sustained run: A, B, A, B
AHEAD = 4  # samples that the host queues before it waits, so that the GPU never does

Call = Callable[[], Any]
Step = Callable[[], None]


@dataclass(frozen=True, kw_only=True)
class Method:
    """How a bench measures; `docs/performance.md` says what each choice means. seconds: of a sustained run,
    per provider and round. l2 None: flush for bursts of kernels and chains, else rotate."""

    mode: str = "kernel"
    pace: str = "burst"
    l2: str | None = None
    repeats: int = 15
    seconds: float = 3.0

    def __post_init__(self) -> None:
        given = (("mode", self.mode, MODES), ("pace", self.pace, PACES))
        for name, value, allowed in (*given, ("l2", L2[0] if self.l2 is None else self.l2, L2)):
            if value not in allowed:
                raise ArgumentError(f"--{name}", value, f"must be one of {', '.join(allowed)}")
        if self.l2 == "flush" and not (self.single or self.chained):
            why = "is for bursts of kernels: calls queued back to back rotate or are warm"
            raise ArgumentError("--l2", self.l2, why)
        if self.chained and self.pace != "burst":
            raise ArgumentError("--pace", self.pace, "must be burst: a chain is replayed by turns")
        if self.chained and self.l2 == "rotate":
            raise ArgumentError(
                "--l2", self.l2, "must be flush or warm: a chain has one set of inputs"
            )
        if self.repeats < 1:
            raise ArgumentError("--repeats", self.repeats, "must be at least 1")
        if not self.seconds > 0:
            raise ArgumentError("--seconds", self.seconds, "must be more than 0")

    @property
    def single(self) -> bool:
        """Whether every call is timed by itself."""
        return self.mode == "kernel" and self.pace == "burst"

    @property
    def rounds(self) -> int:
        """In which `measure` times, each of every provider."""
        return 1 if self.pace == "burst" else ROUNDS

    @property
    def chained(self) -> bool:
        """Whether the shapes are one chain."""
        return self.mode == CHAIN

    @property
    def cold(self) -> str:
        """How inputs leave the L2: one of L2."""
        return self.l2 or ("flush" if self.single or self.chained else "rotate")

    @property
    def fresh(self) -> bool:
        """Whether a call does all that a user's does."""
        return self.mode == "operator"

    @property
    def title(self) -> str:
        """What a table says of its numbers."""
        times = {
            "kernel": "device time" if self.single else "device time, calls back to back",
            "operator": "wall time of whole calls",
            "cudagraph": "calls replayed from a CUDA graph",
            CHAIN: "a chain replayed from a CUDA graph, between events",
        }
        cold = {"flush": "cold L2", "rotate": "rotating inputs", "warm": "warm L2"}[self.cold]
        pace = "" if self.pace == "burst" else f", sustained for {self.seconds:g} s"
        return f"{cold}, {times[self.mode]}{pace}, medians"


def in_turn(calls: Sequence[Call], start: int = 0) -> Call:
    """Each time the next of `calls`, from number `start` on and around."""
    turns = itertools.cycle([*calls[start:], *calls[:start]])
    return lambda: next(turns)()


def rotating(turns: Mapping[str, Sequence[Call]]) -> dict[str, Call]:
    """By provider, its calls over each copy of the inputs in turn; where one is, no other has just been."""
    return {
        name: in_turn(calls, i * len(calls) // len(turns))
        for i, (name, calls) in enumerate(turns.items())
    }


def warm_up(turns: Mapping[str, Sequence[Call]]) -> None:
    """Everything once compiled, planned and loaded."""
    for calls in turns.values():
        for call in [*calls, *[calls[0]] * WARMUP]:
            call()
    torch().cuda.synchronize()


def identify(turns: Mapping[str, Sequence[Call]]) -> dict[str, Samples]:
    """What each provider launches."""
    return interleave({name: calls[0] for name, calls in turns.items()}, 1, MARK_BYTES)


def nothing() -> None:
    """At the end of a step, where nobody is told."""


def measure(
    method: Method,
    turns: Mapping[str, Sequence[Call]],
    launched: Mapping[str, Samples],
    log: Log,
    step: Step = nothing,
) -> dict[str, Samples]:
    """The times of every provider's calls, all in one run, with the clocks meanwhile. `turns`: of each, the
    same call over every copy of the inputs, warmed up. `launched`: what `identify` found. step: called after each of
    `method.rounds`, while nothing is timed."""
    calls = rotating(turns)
    if method.single:
        start = time.monotonic()
        found = interleave(
            calls, method.repeats, FLUSH_BYTES if method.cold == "flush" else MARK_BYTES
        )
        window = (start, time.monotonic())
        step()
        return with_clocks(found, dict.fromkeys(found, (window,)), log)
    target = BURST_SECONDS if method.pace == "burst" else SUSTAINED_SECONDS
    counts = {name: _count(_seconds(call, FEWEST_CALLS), target) for name, call in calls.items()}
    if method.mode == "cudagraph":
        counts = {name: max(n, len(turns[name])) for name, n in counts.items()}
        calls = {name: captured(call, counts[name]) for name, call in calls.items()}
        sample = {name: (calls[name], 1, counts[name]) for name in calls}
    else:
        sample = {name: (calls[name], counts[name], counts[name]) for name in calls}
    run = _bursts if method.pace == "burst" else _sustained
    seconds, windows = run(sample, method, step)
    found = {name: replace(launched[name], seconds=tuple(seconds[name])) for name in calls}
    return with_clocks(found, windows, log)


def with_clocks(
    found: Mapping[str, Samples], windows: Mapping[str, Sequence[Window]], log: Log
) -> dict[str, Samples]:
    """`found`, with the clocks during each one's windows."""
    return {n: replace(s, clocks=log.during(windows[n])) for n, s in found.items()}


# By provider: what to call, how often for one sample, and how many of its calls that is.
Sampled = Mapping[str, tuple[Call, int, int]]
Measured = tuple[dict[str, list[float]], Mapping[str, Sequence[Window]]]


def _count(seconds: float, target: float) -> int:
    """Calls of `seconds` that take about `target`."""
    return max(FEWEST_CALLS, min(MOST_CALLS, round(target / seconds)))


def event() -> Any:
    """On the current stream, now."""
    event = torch().cuda.Event(enable_timing=True)
    event.record()
    return event


def _seconds(call: Call, times: int) -> float:
    """Per call, of `times` calls queued on an idle stream, from before the first to the end of the last."""
    torch().cuda.synchronize()
    start = event()
    for _ in range(times):
        call()
    end = event()
    end.synchronize()
    return float(start.elapsed_time(end)) * 1e-3 / times


def _bursts(sample: Sampled, method: Method, step: Step) -> Measured:
    found: dict[str, list[float]] = {name: [] for name in sample}
    began = time.monotonic()
    for _ in range(method.repeats):
        for name, (call, times, calls) in sample.items():
            found[name].append(_seconds(call, times) * times / calls)
    window = (began, time.monotonic())
    step()
    return found, dict.fromkeys(sample, (window,))


def _sustained(sample: Sampled, method: Method, step: Step) -> Measured:
    """Of each run the second half: by then clock and power have settled."""
    found: dict[str, list[float]] = {name: [] for name in sample}
    windows: dict[str, list[Window]] = {name: [] for name in sample}
    for _ in range(ROUNDS):
        for name, (call, times, calls) in sample.items():
            began = time.monotonic()
            seconds = _without_rest(call, times, method.seconds)
            ended = time.monotonic()
            found[name] += [s / calls for s in seconds[len(seconds) // 2 :]]
            windows[name].append(((began + ended) / 2, ended))
        step()
    return found, windows


def _without_rest(call: Call, times: int, seconds: float) -> list[float]:
    """Seconds of every `times` calls, one after the other for at least `seconds`."""
    torch().cuda.synchronize()
    events, began = [event()], time.monotonic()
    while time.monotonic() - began < seconds or len(events) < 3:
        for _ in range(times):
            call()
        events.append(event())
        if len(events) > AHEAD:
            events[-AHEAD].synchronize()
    events[-1].synchronize()
    return [float(a.elapsed_time(b)) * 1e-3 for a, b in itertools.pairwise(events)]


def captured(call: Call, times: int) -> Call:
    """A replay of `times` calls, captured now and replayed once."""
    graph = torch().cuda.CUDAGraph()
    with torch().cuda.graph(graph):
        for _ in range(times):
            call()
    graph.replay()
    torch().cuda.synchronize()
    return lambda: graph.replay()
