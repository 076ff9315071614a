"""`gemmgen.compile_to_source`: of a config that is given, or of the one that is chosen for a shape."""

from __future__ import annotations

from dataclasses import replace

from . import pipeline
from .config import Config
from .errors import ArgumentError
from .passes import Observer
from .pipeline import Artifact
from .problem import Problem, Shape, check_groups, check_shape
from .target import H200, Target

CHOOSES = "goes with shape, for which a config is chosen"


def compile_to_source(
    problem: Problem,
    config: Config | None = None,
    target: Target = H200,
    observer: Observer | None = None,
    stamps: int = 0,
    *,
    shape: Shape | None = None,
    groups: int = 1,
    invariant: bool | None = None,
) -> Artifact:
    """Lower, prove and emit one kernel, and read its text back. Needs no GPU.

    config: how it runs. Or shape: (M, N, K) in elements, of one group in the mean, for which a config is chosen as `gemmgen
    emit` does and `gemmgen.ops` on a GPU of the target's name: a measured one, else the cost model's.
    `Artifact.config_from` says which. groups: GEMMs in the launch it is chosen for, those that have rows. invariant: as of `gemmgen.ops.gemm`. observer: called with the name of
    each pass and the kernel after it. stamps: so many of each warpgroup are kept of when it did what, a power of two;
    0 for a kernel without.

    Raises ArgumentError naming the argument, IllegalConfig naming the rule, UnsupportedProblem if no tile fits an SM, or
    what no legal config may bring about, a bug in gemmgen: ProtocolViolation with the shortest trace that breaks the
    kernel, or TextDiffers where the text is not what was proved.
    """
    if shape is None:
        if groups != 1:
            raise ArgumentError("groups", groups, CHOOSES)
        if invariant is not None:
            raise ArgumentError("invariant", invariant, CHOOSES)
        if config is None:
            raise ArgumentError("config", None, "must be a gemmgen.Config, or shape be given")
        return pipeline.compile_to_source(problem, config, target, observer, stamps)
    if config is not None:
        raise ArgumentError("shape", shape, "chooses a config, but config gives one")
    pipeline.require(problem, Config(), target, observer, stamps)
    check_shape(shape)
    check_groups(problem, groups)
    from .ops import invariance  # loads what launches
    from .ops.building import picked_for

    split_k = invariance.split_of(problem, *shape[1:], invariant)
    picked = picked_for(problem, shape, groups, target.device_name, target, split_k)
    made = pipeline.compile_to_source(problem, picked.config, target, observer, stamps)
    return replace(made, config_from=picked.source(shape))
