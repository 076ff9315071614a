"""A layer of experts, timed from hidden states to hidden states: each launch, and the whole, in a CUDA graph and eager, beside others' ways."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from ..errors import GemmgenError, RuntimeUnavailable
from ..runtime.torch_tensors import torch
from . import chain, grouped_torch, moe_deep_gemm, moe_layer, read
from .agree import ADDED, REQUANTISED, SUMMED, Bound, check_near
from .clocks import UNKNOWN, Log
from .contest import reason
from .modes import CHAIN, Method, captured
from .moe_layer import Matrices, Tokens, Weights
from .moe_sizes import DEEP_GEMM, OURS, THEIRS, Asked
from .select import FLOOR
from .timing import Run, Samples, launches, recorded, samples

# What a launch does, by how its kernel's name begins. GEMMs have numbers.
STAGES = {"route_": "route", "cast_": "cast", "spread_": "spread", "combine_": "combine"}
GEMM, GEMMS = "gemmgen_", "GEMM"
WAYS, REPLAYED = ("eager", "graph"), "replayed"
Started = tuple[str, float, float]


@dataclass(frozen=True, kw_only=True)
class Row:
    """One number of tokens, which go to `touched` experts. Microseconds, medians. launches: of each launch of gemmgen's layer its
    device time; kernels: of all of them, with their interquartile range over it; read: of a kernel that only reads the
    weights of as many experts. graph, torch and chains, DeepGEMM's by name: replays between events. None, or not there: not timed;
    left_out says why, by name. eager: by name, calls between events, the host's time in them where that is longer. timeline: of gemmgen's layer called and replayed
    (`WAYS`) each launch, what it does, when it began after the first did, and how long it took."""

    tokens: int
    touched: int
    launches: Mapping[str, float]
    kernels: float
    spread: float
    graph: float
    graph_spread: float
    torch: float | None = None
    read: float | None = None
    chains: Mapping[str, float] = field(default_factory=dict)
    eager: Mapping[str, float] = field(default_factory=dict)
    left_out: Mapping[str, str] = field(default_factory=dict)
    timeline: Mapping[str, tuple[Started, ...]] = field(default_factory=dict)
    sm_mhz: float | None = None

    @property
    def gemms(self) -> float:
        return sum(us for name, us in self.launches.items() if name.startswith(GEMMS))

    @property
    def ratios(self) -> dict[str, float | None]:
        """Device time over the GEMMs' and over the read's; the graph's over torch's, and over each chain's."""
        return {
            "over_gemms": self.kernels / self.gemms,
            "over_read": self.kernels / self.read if self.read else None,
            "over_torch": self.graph / self.torch if self.torch else None,
            **{
                f"over_{name.replace(' ', '_')}": self.graph / us
                for name, us in self.chains.items()
            },
        }


@dataclass(frozen=True, kw_only=True)
class Way:
    """How another computes the layer, and the matrices, roundings and activation of the layer in float64 that this is."""

    call: Callable[[], Any]
    matrices: Matrices
    rounded: Callable[[Any], Any] = moe_layer.as_it_is
    gated: Callable[[Any, Any], Any] = moe_layer.swiglu
    bound: Bound = SUMMED


def measure(asked: Asked, counts: Iterable[int], log: Log) -> list[Row]:
    """A row per number of tokens. Each way is compared with the layer in float64 first. Needs a GPU; raises VerificationError if
    gemmgen's result is wrong; RuntimeUnavailable where weights do not fit, for a torch without `_grouped_mm`, or without the
    DeepGEMM that is asked for."""
    beside, deep = (name in asked.providers for name in (THEIRS, DEEP_GEMM))
    if beside and not grouped_torch.available():
        raise RuntimeUnavailable(f"provider {THEIRS}: this torch has no _grouped_mm")
    if deep:
        moe_deep_gemm.check()
    _check_memory(asked, beside, deep)
    weights = moe_layer.drawn(asked.sizes, asked.seed, beside, asked.device, asked.kind, deep)
    return [_row(asked, weights, count, log) for count in counts]


def _check_memory(asked: Asked, beside: bool, deep: bool) -> None:
    free, _ = torch().cuda.mem_get_info()
    taken, alone = (asked.sizes.bytes(x, deep, asked.kind) for x in (beside, False))
    if taken > free:
        gib = 2.0**-30
        hint = f"; without provider {THEIRS} {alone * gib:.1f}" if beside else ""
        raise RuntimeUnavailable(
            f"the experts' weights take {taken * gib:.1f} GiB, of which the GPU has {free * gib:.1f} free{hint}"
        )


def _row(asked: Asked, w: Weights, count: int, log: Log) -> Row:
    t = moe_layer.tokens(asked.sizes, count, asked.router, asked.seed, asked.device)
    ours: Callable[[], Any] = partial(w.layer, t)
    bound = REQUANTISED if w.requantised else SUMMED
    verify(Way(call=ours, matrices=w.quantised, rounded=w.rounded, bound=bound), t)
    calls, graphs, left_out = {OURS: ours}, {OURS: captured(ours, 1)}, {}
    for name, way in _others(asked, w, t).items():
        try:
            verify(way, t)
            calls[name] = way.call  # eager, if it cannot be captured
            graphs[name] = captured(way.call, 1)
        except Exception as e:  # whatever torch or a foreign library raises
            left_out[name] = reason(e)
    floor = {}
    if FLOOR in asked.providers:
        floor[FLOOR] = read.over(w.spans(t.touched))
        floor[FLOOR].check()
    found = recorded({OURS: ours, REPLAYED: graphs[OURS], **floor}, asked.repeats)
    replays = found.pop(REPLAYED)
    device = {name: samples(name, runs) for name, runs in found.items()}
    method = Method(mode=CHAIN, repeats=asked.repeats)
    replayed = chain.measure(method, graphs, log)
    eager = chain.measure(method, calls, log)
    mine, graph = device[OURS], replayed[OURS]
    return Row(
        tokens=count,
        touched=t.touched,
        launches=named(launches(OURS, found[OURS])),
        kernels=mine.median * 1e6,
        spread=mine.spread,
        graph=graph.median * 1e6,
        graph_spread=graph.spread,
        torch=_microseconds(replayed, THEIRS),
        read=_microseconds(device, FLOOR),
        chains={name: replayed[name].median * 1e6 for name in moe_deep_gemm.CAST if name in graphs},
        eager={name: x.median * 1e6 for name, x in eager.items()},
        left_out=left_out,
        timeline={
            way: started(launches(OURS, runs))
            for way, runs in zip(WAYS, (found[OURS], replays), strict=True)
        },
        sm_mhz=(graph.clocks or UNKNOWN).sm_mhz,
    )


def _others(asked: Asked, w: Weights, t: Tokens) -> dict[str, Way]:
    """By name, of those that are asked for."""
    found: dict[str, Way] = {}
    if THEIRS in asked.providers:
        theirs = partial(moe_layer.by_torch, w, t)
        found[THEIRS] = Way(call=theirs, matrices=w.plain, bound=ADDED)
    if DEEP_GEMM in asked.providers:
        for name, call in moe_deep_gemm.ways(w, t).items():
            found[name] = Way(
                call=call,
                matrices=w.quantised_halves,
                rounded=partial(moe_deep_gemm.rounded, name, w),
                gated=moe_deep_gemm.gated,
                bound=REQUANTISED,
            )
    return found


def verify(way: Way, t: Tokens) -> None:
    """Raise VerificationError unless its call gives what `moe_layer.exact` does, within its bound."""
    want = moe_layer.exact(t, way.matrices, way.rounded, way.gated)
    check_near(way.call().double(), want, way.bound)


def named(run: Run) -> dict[str, float]:
    """Microseconds of a call's launches by what they do, in order. Raises GemmgenError if no GEMM is among them."""
    found: dict[str, float] = {}
    for name, _, took in started(run):
        found[name] = found.get(name, 0.0) + took
    return found


def started(run: Run) -> tuple[Started, ...]:
    """Of each of a call's launches, in order, what it does, when it began and how long it took, microseconds. Raises GemmgenError if no GEMM is among them."""
    found: list[Started] = []
    gemms = 0
    for x in run:
        gemms += x.kernel.startswith(GEMM)
        of = next((s for begins, s in STAGES.items() if x.kernel.startswith(begins)), x.kernel)
        name = f"{GEMMS} {gemms}" if x.kernel.startswith(GEMM) else of
        found.append((name, x.start * 1e6, x.seconds * 1e6))
    if not gemms:
        seen = ", ".join(name for name, *_ in found) or "nothing"
        raise GemmgenError(f"the profiler saw no GEMM, only {seen}")
    return tuple(found)


def _microseconds(found: Mapping[str, Samples], name: str) -> float | None:
    return found[name].median * 1e6 if name in found else None
