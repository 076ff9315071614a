"""Problem + Config -> Artifact: build, lower, emit."""

from __future__ import annotations

import json
from dataclasses import dataclass

from . import passes
from .config import Config
from .emit import emit
from .families import build
from .ir.nodes import Kernel
from .problem import Problem
from .target import H200, Target


@dataclass(frozen=True, kw_only=True)
class Artifact:
    """Everything known about one kernel without a GPU."""

    problem: Problem
    config: Config
    target: Target
    kernel: Kernel  # lowered
    source: str  # self-contained CUDA

    @property
    def name(self) -> str:
        return self.kernel.name


def lower(
    p: Problem, c: Config, target: Target = H200, observer: passes.Observer | None = None
) -> Kernel:
    """The lowered kernel. Raises UnsupportedProblem, or IllegalConfig naming the rule."""
    kernel = build(p, c)
    if observer:
        observer("build", kernel)
    return passes.run(kernel, target, observer)


def compile_to_source(
    p: Problem, c: Config, target: Target = H200, observer: passes.Observer | None = None
) -> Artifact:
    """Lower and emit one kernel. Raises UnsupportedProblem, or IllegalConfig naming the rule."""
    kernel = lower(p, c, target, observer)
    header = (f"problem {json.dumps(p.to_json())}", f"config {json.dumps(c.to_json())}")
    return Artifact(problem=p, config=c, target=target, kernel=kernel, source=emit(kernel, header))
