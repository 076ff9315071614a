"""What `gemmgen bench` measures at a shape: the problem, gemmgen's config, and who else."""

from __future__ import annotations

import argparse
from functools import partial
from typing import TYPE_CHECKING

from ..bench import shapes
from ..bench.work import launched
from ..config import Config
from ..heuristics.tuned import pick
from ..ir.groupings import GROUPINGS
from ..problem import Problem
from ..runtime import driver
from ..runtime.devices import target_of
from . import options

if TYPE_CHECKING:
    from ..bench.select import Offer


def providers(args: argparse.Namespace, p: Problem, config: Config) -> tuple[Offer, ...]:
    """Those that `--providers` selects; of one GEMM all are `providers.Provider`."""
    from ..bench import sources
    from ..bench.select import select

    return select(args.providers, p, sources.offers(p, config), sources.reference(p))


def problem(args: argparse.Namespace) -> Problem:
    """What is measured, at any shape. Raises ArgumentError, UnsupportedProblem."""
    return launched(options.problem(args))


def for_shape(args: argparse.Namespace, shape: shapes.Shape) -> tuple[Problem, Config, str]:
    """The problem, its config at `shape` and where that comes from."""
    from ..ops import invariance
    from ..ops.building import built
    from ..ops.refused import first_built

    groups, (m, n, k) = shape[0] if len(shape) > 3 else 1, shape[-3:]
    p = problem(args)
    k = shapes.mean_depth(groups, k) if GROUPINGS[p.grouping].depths else k
    at, device = (m, n, k), driver.require_hopper(0)
    if args.set or options.is_fixed(args):
        return p, *options.config(args, p, at, groups, device)
    split_k = invariance.split_of(p, n, k)
    target = target_of(0, device)
    choose = partial(pick, p, at, target, groups, device, split_k=split_k)
    found, _ = first_built(p, choose, partial(built, p))
    return p, found.config, found.source(at)
