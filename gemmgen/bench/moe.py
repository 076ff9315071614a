"""A layer of experts, timed from hidden states to hidden states: each launch, and the whole in a CUDA graph beside torch's way."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from ..errors import GemmgenError, RuntimeUnavailable
from ..runtime.torch_tensors import torch
from . import chain, grouped_torch, moe_layer, read
from .agree import ADDED, SUMMED, Bound, check_near
from .clocks import UNKNOWN, Log
from .contest import reason
from .modes import CHAIN, Method, captured
from .moe_layer import Matrices, Tokens, Weights
from .moe_sizes import OURS, THEIRS, Asked, Sizes
from .select import FLOOR
from .timing import Run, Samples, launches, recorded, samples

# What a launch does, by how its kernel's name begins. GEMMs have numbers.
STAGES = {"route_": "route", "cast_": "cast", "spread_": "spread", "combine_": "combine"}
GEMM, GEMMS = "gemmgen_", "GEMM"


@dataclass(frozen=True, kw_only=True)
class Row:
    """One number of tokens, which go to `touched` experts. Microseconds, medians. launches: of each launch of gemmgen's layer its
    device time; kernels: of all of them, with their interquartile range over it; read: of a kernel that only reads the
    weights of as many experts. graph and torch: replays between events. None: not timed; left_out says why."""

    tokens: int
    touched: int
    launches: Mapping[str, float]
    kernels: float
    spread: float
    graph: float
    graph_spread: float
    torch: float | None = None
    read: float | None = None
    left_out: str = ""
    sm_mhz: float | None = None

    @property
    def gemms(self) -> float:
        return sum(us for name, us in self.launches.items() if name.startswith(GEMMS))

    @property
    def ratios(self) -> dict[str, float | None]:
        """Device time over the GEMMs' and over the read's; the graph's over torch's."""
        return {
            "over_gemms": self.kernels / self.gemms,
            "over_read": self.kernels / self.read if self.read else None,
            "over_torch": self.graph / self.torch if self.torch else None,
        }


def measure(asked: Asked, counts: Iterable[int], log: Log) -> list[Row]:
    """A row per number of tokens. Each way is compared with the layer in float64 first. Needs a GPU; raises VerificationError if
    gemmgen's result is wrong; RuntimeUnavailable where weights do not fit, or for a torch without `_grouped_mm`."""
    beside = THEIRS in asked.providers
    if beside and not grouped_torch.available():
        raise RuntimeUnavailable(f"provider {THEIRS}: this torch has no _grouped_mm")
    _check_memory(asked.sizes, beside)
    weights = moe_layer.drawn(asked.sizes, asked.seed, beside, asked.device, asked.kind)
    return [_row(asked, weights, count, log) for count in counts]


def _check_memory(s: Sizes, beside: bool) -> None:
    free, _ = torch().cuda.mem_get_info()
    if s.bytes(beside) > free:
        gib = 2.0**-30
        hint = f"; without provider {THEIRS} {s.bytes(False) * gib:.1f}" if beside else ""
        raise RuntimeUnavailable(
            f"the experts' weights take {s.bytes(beside) * gib:.1f} GiB, of which the GPU has {free * gib:.1f} free{hint}"
        )


def _row(asked: Asked, w: Weights, count: int, log: Log) -> Row:
    t = moe_layer.tokens(asked.sizes, count, asked.router, asked.seed, asked.device)
    ours = partial(w.layer, t)
    verify(ours, t, w.quantised, w.rounded)
    graphs, left_out = {OURS: captured(ours, 1)}, ""
    if THEIRS in asked.providers:
        try:
            graphs[THEIRS] = _theirs(w, t)
        except Exception as e:  # whatever torch raises
            left_out = reason(e)
    floor = {}
    if FLOOR in asked.providers:
        floor[FLOOR] = read.over(w.spans(t.touched))
        floor[FLOOR].check()
    found = recorded({OURS: ours, **floor}, asked.repeats)
    device = {name: samples(name, runs) for name, runs in found.items()}
    replayed = chain.measure(Method(mode=CHAIN, repeats=asked.repeats), graphs, log)
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
        left_out=left_out,
        sm_mhz=(graph.clocks or UNKNOWN).sm_mhz,
    )


def _theirs(w: Weights, t: Tokens) -> Callable[[], Any]:
    """A replay of torch's layer, verified. Raises VerificationError, and whatever torch does."""
    call = partial(moe_layer.by_torch, w, t)
    verify(call, t, w.plain, moe_layer.as_it_is, ADDED)
    return captured(call, 1)


def verify(
    call: Callable[[], Any],
    t: Tokens,
    matrices: Matrices,
    rounded: Callable[[Any], Any],
    bound: Bound = SUMMED,
) -> None:
    """Raise VerificationError unless `call` gives what `moe_layer.exact` does, within `bound`."""
    check_near(call().double(), moe_layer.exact(t, matrices, rounded), bound)


def named(run: Run) -> dict[str, float]:
    """Microseconds of a call's launches by what they do, in order. Raises GemmgenError if no GEMM is among them."""
    found: dict[str, float] = {}
    gemms = 0
    for x in run:
        gemms += x.kernel.startswith(GEMM)
        of = next((s for begins, s in STAGES.items() if x.kernel.startswith(begins)), x.kernel)
        name = f"{GEMMS} {gemms}" if x.kernel.startswith(GEMM) else of
        found[name] = found.get(name, 0.0) + x.seconds * 1e6
    if not gemms:
        raise GemmgenError(f"the profiler saw no GEMM, only {', '.join(found) or 'nothing'}")
    return found


def _microseconds(found: Mapping[str, Samples], name: str) -> float | None:
    return found[name].median * 1e6 if name in found else None
