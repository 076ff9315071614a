"""One launch, simulated: what a timeline is drawn from."""

from __future__ import annotations

from dataclasses import replace

from ..check.unroll import unroller
from ..config import Config
from ..cost import terms
from ..errors import ArgumentError
from ..ir.groupings import OF_SIZES, Layout, split_side
from ..ir.nodes import Kernel
from ..problem import Problem
from ..runtime.launch import grid
from ..see.instance import instance, mean_shape, mean_size
from ..see.latency import latency
from ..see.page import microseconds
from ..see.simulate import WHOLE, simulate
from ..see.timeline import Timeline
from ..target import H200
from .options import Shape


def simulated(
    problem: Problem,
    config: Config,
    kernel: Kernel,
    shape: Shape,
    sms: int,
    layout: Layout | None = None,
) -> tuple[Timeline, tuple[tuple[str, str], ...]]:
    """The first cluster of a launch of shape (M, N, K) on `sms` SMs, and what it was taken from.

    layout: of the groups; None: one group has all. Raises ArgumentError if the SMs hold no cluster.
    """
    layout = layout or alone(problem, shape)
    ctas = grid(kernel, shape, sms, layout.groups)
    if not ctas:
        raise ArgumentError("--sms", sms, f"must hold a cluster of {kernel.cluster.size}")
    target = replace(H200, sms=sms)
    mean = mean_shape(problem, shape, layout)
    program = unroller(kernel, WHOLE).program(instance(kernel, shape, ctas, layout))
    lat = latency(kernel, problem, config, mean, target, layout.groups)
    m, n, k = shape
    launch = [
        ("problem", f"{problem.family}, M={m} N={n} K={k}"),
        ("grid", f"{ctas} CTAs on {sms} SMs, clusters of {kernel.cluster.size}"),
    ]
    if problem.grouping != "none":
        m, _, k = mean_size(problem, shape, layout)
        launch.append(("groups", f"{layout.groups}, on average M={m} K={k}"))
    t = simulate(program, lat)
    priced = terms(problem, config, mean, target, layout.groups)
    launch.append(
        (
            "time",
            f"{microseconds(t.end / target.clock_hz)} us at {target.clock_hz / 1e9} GHz; the cost model says "
            f"{microseconds(priced.seconds)} us, {microseconds(priced.launch)} of them to launch",
        )
    )
    return t, tuple(launch)


def alone(problem: Problem, shape: Shape) -> Layout:
    """One group has all."""
    side = split_side(problem.grouping, shape)
    return OF_SIZES[problem.grouping](side, [side], problem.alignment)
