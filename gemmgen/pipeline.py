"""Problem + Config -> Artifact: build, lower, prove, emit, read back."""

from __future__ import annotations

import json
from dataclasses import dataclass

from . import passes
from .check import Proof, check
from .config import Config
from .emit import emit
from .families import build as build
from .families import computes
from .ir.nodes import Kernel
from .link import Link, link
from .notebook import folded
from .problem import Problem
from .target import H200, Target


@dataclass(frozen=True, kw_only=True)
class Artifact:
    """Everything known about one kernel without a GPU."""

    problem: Problem
    config: Config
    target: Target
    kernel: Kernel  # lowered
    proof: Proof  # of the kernel's protocol
    source: str  # self-contained CUDA
    link: Link  # of the source to the kernel

    @property
    def name(self) -> str:
        return self.kernel.name

    def _repr_html_(self) -> str:
        """In a notebook."""
        parts = (self.problem, self.config, self.kernel)
        source = folded(f"CUDA, {len(self.source.splitlines())} lines", self.source)
        return "".join(p._repr_html_() for p in parts) + source


def lower(
    p: Problem,
    c: Config,
    target: Target = H200,
    observer: passes.Observer | None = None,
    stamps: int = 0,
) -> Kernel:
    """The lowered kernel. stamps: so many of each warpgroup are kept of when it did what, a power of two; 0 for
    a kernel without. Raises IllegalConfig naming the rule."""
    kernel = build(p, c)
    if observer:
        observer("build", kernel)
    return passes.run(kernel, target, {**c.values(), "stamps": stamps}, observer)


def compile_to_source(
    p: Problem,
    c: Config,
    target: Target = H200,
    observer: passes.Observer | None = None,
    stamps: int = 0,
) -> Artifact:
    """Lower, prove and emit one kernel, and read its text back. stamps: as `lower` has it.

    Raises IllegalConfig naming the rule, or what no legal config may bring about, a bug in
    gemmgen: ProtocolViolation with the shortest trace that breaks the kernel, or TextDiffers where the text is not
    what was proved.
    """
    kernel = lower(p, c, target, observer, stamps)
    proof = check(kernel)
    asked = (f"problem {json.dumps(p.to_json())}", f"config {json.dumps(c.to_json())}")
    header = (computes(p), "", *asked, str(proof))
    source = emit(kernel, header)
    return Artifact(
        problem=p,
        config=c,
        target=target,
        kernel=kernel,
        proof=proof,
        source=source,
        link=link(kernel, source),
    )
