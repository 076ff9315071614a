"""What is tuned: a problem at a shape; and the launches that stand for it when it is verified and timed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

from ...config import Config
from ...ir.groupings import ALONE, GROUPINGS, OF_SIZES, Layout
from ...problem import Problem, Shape, depth_step
from ..shapes import mean_depth, rows_held, rows_of, sizes

# At most this much is multiplied to verify: several tiles per CTA of every size, and many turns of the ring.
VERIFIED: Shape = (4096, 4096, 1152)
VERIFIED_GROUPS = 4


@dataclass(frozen=True, kw_only=True)
class Job:
    """`groups` GEMMs of shape (M, N, K), of one group in the mean, in one launch."""

    problem: Problem
    shape: Shape
    groups: int = 1

    def __str__(self) -> str:
        sides = (*(self.groups,) * (self.problem.grouping != "none"), *self.shape)
        return "x".join(map(str, sides))


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A config and what the cost model says of it, in seconds."""

    config: Config
    predicted: float


def job(p: Problem, shape: tuple[int, ...]) -> Job:
    """Of a shape as `gemmgen.bench.shapes` has it: (M, N, K), or with groups (G, M, N, K). Where groups split
    K, the mean K is what the benchmark's groups add up to, or their multiples if it is less than one."""
    groups, (m, n, k) = shape[0] if len(shape) > 3 else 1, shape[-3:]
    made = Job(problem=p, shape=(m, n, k), groups=groups)
    if GROUPINGS[p.grouping].depths:
        made = replace(made, shape=(m, n, mean_depth(groups, k) or k))
        total = launch(made)[0][2]
        return replace(made, shape=(m, n, -(-total // made.groups)))
    return made


def launch(j: Job) -> tuple[Shape, Layout]:
    """The shape of one launch of `j`, M and K of its tensors, and its groups: of rows, or K, that vary evenly
    from 0.7 to 1.3 of the mean, but in a batch."""
    p, (m, n, k), g = j.problem, j.shape, GROUPINGS[j.problem.grouping]
    if p.grouping == "none":
        return j.shape, ALONE
    if g.depths:
        counts = _depths(p, k, j.groups)
        return (m, n, sum(counts)), OF_SIZES[p.grouping](sum(counts), counts, 0)
    rows = rows_of(p, j.groups, m)
    high = rows_held(p, rows)
    return (high, n, k), OF_SIZES[p.grouping](high, rows, p.alignment * g.aligned)


def verified(j: Job) -> Job:
    """What stands for `j` when its kernels are verified: no side longer than VERIFIED."""
    groups = min(j.groups, VERIFIED_GROUPS)
    m, n, k = (min(side, most) for side, most in zip(j.shape, VERIFIED, strict=True))
    return replace(j, shape=(min(m, VERIFIED[0] // groups), n, k), groups=groups)


def _depths(p: Problem, mean: int, groups: int) -> list[int]:
    """Multiples of the least step, which add up to `groups` times the mean, rounded down to one, and one
    for each group at least."""
    step = depth_step(p)
    total = max(groups, groups * mean // step)
    wanted = sizes(groups, mean)
    ends = [round(total * end / sum(wanted)) for end in accumulate(wanted, initial=0)]
    return [step * (end - first) for first, end in pairwise(ends)]
