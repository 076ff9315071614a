"""Problem + Config -> Artifact: build, lower, prove, emit, read back."""

from __future__ import annotations

import json
from dataclasses import dataclass

from . import passes
from .check import Proof, check
from .config import Config
from .emit import emit
from .errors import ArgumentError
from .families import build as build
from .families import computes
from .ir.nodes import Kernel
from .link import Link, link
from .notebook import folded
from .problem import Problem
from .target import H200, Target

MOST_STAMPS = 1 << 17  # of a warpgroup


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
    config_from: str = "given"  # or what chose it: "cost model", "tuned", "tuned at M=..."

    @property
    def name(self) -> str:
        return self.kernel.name

    def _repr_html_(self) -> str:
        """In a notebook."""
        parts = (self.problem, self.config, self.kernel)
        source = folded(f"CUDA, {len(self.source.splitlines())} lines", self.source)
        return "".join(p._repr_html_() for p in parts) + source


def lower(
    problem: Problem,
    config: Config,
    target: Target = H200,
    observer: passes.Observer | None = None,
    stamps: int = 0,
) -> Kernel:
    """The lowered kernel. stamps: so many of each warpgroup are kept of when it did what, a power of two; 0 for
    a kernel without. Raises IllegalConfig naming the rule, ArgumentError for what is no problem, config or target."""
    require(problem, config, target, observer, stamps)
    kernel = build(problem, config)
    if observer:
        observer("build", kernel)
    return passes.run(kernel, target, {**config.values(), "stamps": stamps}, observer)


def require(
    problem: object, config: object, target: object, observer: object, stamps: object
) -> None:
    """Raise ArgumentError unless each is what `lower` takes."""
    wanted = {"problem": (problem, Problem), "config": (config, Config), "target": (target, Target)}
    for name, (value, kind) in wanted.items():
        if not isinstance(value, kind):
            raise ArgumentError(name, value, f"must be a {kind.__module__}.{kind.__name__}")
    if not (observer is None or callable(observer)):
        raise ArgumentError("observer", observer, "must be a function of a name and a kernel")
    if type(stamps) is not int or not 0 <= stamps <= MOST_STAMPS or stamps & (stamps - 1):
        raise ArgumentError("stamps", stamps, f"must be 0 or a power of two up to {MOST_STAMPS}")


def compile_to_source(
    problem: Problem,
    config: Config,
    target: Target = H200,
    observer: passes.Observer | None = None,
    stamps: int = 0,
) -> Artifact:
    """Lower, prove and emit one kernel, and read its text back. stamps: as `lower` has it. `gemmgen.compile_to_source`
    does the same, and chooses a config if asked to.

    Raises IllegalConfig naming the rule, or what no legal config may bring about, a bug in
    gemmgen: ProtocolViolation with the shortest trace that breaks the kernel, or TextDiffers where the text is not
    what was proved.
    """
    kernel = lower(problem, config, target, observer, stamps)
    proof = check(kernel)
    source = emit(kernel, (*_header(problem, config), str(proof)))
    return Artifact(
        problem=problem,
        config=config,
        target=target,
        kernel=kernel,
        proof=proof,
        source=source,
        link=link(kernel, source),
    )


def draft(p: Problem, c: Config, kernel: Kernel) -> str:
    """The text of `kernel`, lowered from `p` and `c`, that nothing has proved or read back: to look at. The line of its
    header that says the proof is missing."""
    return emit(kernel, _header(p, c))


def _header(p: Problem, c: Config) -> tuple[str, ...]:
    asked = (f"problem {json.dumps(p.to_json())}", f"config {json.dumps(c.to_json())}")
    return (computes(p), "", *asked)
