"""What is costed: one launch, and what of its cost no config changes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, lru_cache

from .config import Config
from .errors import ArgumentError
from .ir.collectives import COLLECTIVES
from .ir.expr import PerElement, arguments, fold
from .ir.groupings import GROUPINGS, summed_k
from .ir.nodes import Cluster
from .ir.packed import COLUMNS, ROWS
from .ir.row_sums import fold_rows
from .levers.split_k import ANY
from .passes.split_scales import copied
from .problem import Problem, Shape, check_groups, check_shape
from .recipes import SCALE_BLOCK, Recipe, recipe
from .target import Target

K_BLOCK = Config.block_k_bytes
TAKEN = 4  # rows of the product that one of A stands for, where they come by index: nobody tells
ROWS_OF_GROUPS = (0.7, 0.82, 0.94, 1.06, 1.18, 1.3)  # of the mean: what ragged ones are costed with


@dataclass(frozen=True, kw_only=True)
class Workload:
    """`groups` times D[M, N] = A[M, K] B[N, K]^T, shape (M, N, K). Of a collective the groups are its ranks, each with M rows
    of A and D, of which this GPU computes all with one B; where each rank stores all rows M is all there are.

    rows: M, that tiles are counted for: of groups whose rows vary about M, several to take the mean of.
    promotes: of the problem. k_bytes: of a row of A or B; where tiles sum all groups, of all, each in whole K blocks. d_bytes, read_bytes: per element of the product, of D and of what the epilogue reads per element. dram_bytes, b_bytes: of all
    groups, all operands' and B's. split_k: CTAs that must divide K of a config that is chosen for it. pointers: whether a kernel may
    read operands without tensor maps.
    """

    problem: Problem
    recipe: Recipe
    shape: Shape
    target: Target
    groups: int
    rows: tuple[int, ...]
    promotes: bool
    k_bytes: int
    d_bytes: float
    read_bytes: float
    dram_bytes: float
    b_bytes: float
    split_k: int = ANY
    pointers: bool = True

    @property
    def deep(self) -> Shape:
        """M, N and the K that a tile sums."""
        return *self.shape[:2], self.k_bytes // self.problem.a.bytes

    @property
    def packed(self) -> float:
        """Bytes of B in memory over those of the numbers that are multiplied."""
        return stored_bytes(self.problem) / self.problem.b.bytes

    @property
    def ranks(self) -> int:
        """GPUs that the launch is of."""
        return self.groups if self.problem.together else 1

    @property
    def grids(self) -> int:
        """Of tiles that cover M rows, which this GPU walks."""
        return grids(self.problem, self.groups)

    @property
    def height(self) -> int:
        """Rows of a group in the mean, as tiles cover them."""
        ragged = GROUPINGS[self.problem.grouping].ragged
        return self.shape[0] if ragged else ceil(sum(self.rows), len(self.rows))

    def covering(self, side: int) -> int:
        """Tiles of so many rows that cover M, of all `rows` together."""
        return _covering(self.rows, side)

    def tiles(self, c: Config) -> int:
        """CTA tiles of `c`: whole clusters."""
        return count_tiles(c, (self.height, *self.shape[1:]), self.grids)

    def copies(self, block_n: int) -> int:
        """Of the K loop, one for each place where a tile's second scale block can begin; 0 where it is not copied."""
        return len(copied(block_n)) * self.recipe.scales_blocks


@lru_cache(maxsize=256)
def _covering(rows: tuple[int, ...], side: int) -> int:
    return sum(ceil(m, side) for m in rows)


def grids(p: Problem, groups: int) -> int:
    """Groups, unless they are ranks that each have all rows, or are summed."""
    return 1 if COLLECTIVES[p.collective].whole or GROUPINGS[p.grouping].summed else groups


def gemms(p: Problem, groups: int) -> int:
    """That are multiplied."""
    return groups if GROUPINGS[p.grouping].summed else grids(p, groups)


def launch(p: Problem, shape: Shape, target: Target, groups: int = 1) -> Workload:
    """groups: of a grouping, those that have rows, as a launch without the others costs; or ranks of a collective. Raises ArgumentError for what is no problem or target, a side below 1, and groups that there
    cannot be."""
    for name, value, kind in (("problem", p, Problem), ("target", target, Target)):
        if not isinstance(value, kind):
            raise ArgumentError(name, value, f"must be a {kind.__module__}.{kind.__name__}")
    check_shape(shape)
    check_groups(p, groups)
    of_operands = operand_bytes(p, shape, groups)
    return Workload(
        problem=p,
        recipe=recipe(p.family),
        shape=(shape[0], shape[1], shape[2]),
        target=target,
        groups=groups,
        rows=_rows(p, shape[0]),
        promotes=promotes(p),
        k_bytes=summed_k(GROUPINGS[p.grouping].summed, shape[2] * p.a.bytes, groups, K_BLOCK),
        d_bytes=d_bytes(p),
        read_bytes=read_bytes(p),
        dram_bytes=sum(of_operands.values()),
        b_bytes=of_operands["b"],
    )


def _rows(p: Problem, m: int) -> tuple[int, ...]:
    """Where groups' rows vary, of several. Where an array says each row's group, rows of none up to where the next one begins are
    multiplied too, and are among the M rows of a group in the mean: half an alignment of them."""
    g = GROUPINGS[p.grouping]
    if not (g.ragged or g.again):
        return (m,)
    step = p.alignment if g.again else 1
    mean = m - step // 2 if m >= step else m
    found = tuple(ceil(max(1, round(mean * part)), step) * step for part in ROWS_OF_GROUPS)
    return found if g.ragged or len({*found}) > 1 else found[:1]


def cluster_of(c: Config) -> Cluster:
    """The cluster the config asks for."""
    return _cluster(c.cluster_size, c.multicast)


@cache
def _cluster(size: int, multicast: str) -> Cluster:
    shared = None if multicast == "none" else multicast
    return Cluster(size=size, shared=shared)  # type: ignore[arg-type]


def count_tiles(c: Config, shape: Shape, groups: int = 1) -> int:
    """CTA tiles of the launch: whole clusters."""
    cluster = cluster_of(c)
    clusters = ceil(shape[0], c.block_m * cluster.m) * ceil(shape[1], c.block_n * cluster.n)
    return groups * clusters * cluster.size


def promotes(p: Problem) -> bool:
    """Whether CUDA cores rescale every K block (and so drain the tensor core each time)."""
    return recipe(p.family).promotes


def dram_bytes(p: Problem, shape: Shape, groups: int = 1) -> float:
    """Operands, scales and D of all groups, each once; D twice where it is added to. Of rows by index A is what TAKEN says."""
    return sum(operand_bytes(p, shape, groups).values())


def operand_bytes(p: Problem, shape: Shape, groups: int = 1) -> dict[str, float]:
    """What `dram_bytes` adds up, by operand, D's with what the epilogue reads like it. Ranks have one B."""
    (m, n, k), weights, results = shape, 1 if p.together else groups, grids(p, groups)
    groups = gemms(p, groups)
    scales = scale_bytes(p, groups * m, k) + scale_bytes(p, weights * ceil(n, SCALE_BLOCK), k)
    written = results * m * n * (d_bytes(p) * (1 + p.accumulate) + read_bytes(p))
    rows = groups * m / (TAKEN if p.indexed else 1)
    read = {"a": rows * k * p.a.bytes, "b": weights * n * k * stored_bytes(p)}
    return {**read, "d": written, "scales": scales}


def stored_bytes(p: Problem) -> float:
    """Of a number of B in memory, with its part of what groups of weights are scaled by."""
    return p.form.block_bytes / (ROWS * COLUMNS) if p.form else p.b.bytes


def scale_bytes(p: Problem, rows: int, k: int) -> int:
    """Of so many rows of scales."""
    return 4 * rows * ceil(k, SCALE_BLOCK) if promotes(p) else 0


def d_bytes(p: Problem) -> float:
    """Of D, per element of the product."""
    scales = 4 / SCALE_BLOCK if p.quantised else 0
    return (p.d.bytes + scales) / (fold(p.epilogue) * fold_rows(p.epilogue))


def read_bytes(p: Problem) -> float:
    """Of what the epilogue reads per element of D, per element of the product."""
    read = sum(x.dtype.bytes for x in arguments(p.epilogue) if isinstance(x, PerElement))
    return read / fold(p.epilogue)


def floors(p: Problem, shape: Shape, target: Target, groups: int = 1) -> tuple[float, float]:
    """Seconds that no kernel beats: of the products at the tensor cores' peak and `Target.clock_hz`, of
    `dram_bytes` at HBM's peak. Of rows by index the second is an estimate: that each row of A stands for TAKEN of the product."""
    peak = target.sms * target.flops_per_clock(p.a.bytes) * target.clock_hz
    return flops(shape, gemms(p, groups)) / peak, dram_bytes(
        p, shape, groups
    ) / target.hbm_bytes_per_second


def flops(shape: Shape, groups: int = 1) -> int:
    """Two per product."""
    m, n, k = shape
    return 2 * groups * m * n * k


def ceil(a: int, b: int) -> int:
    return -(-a // b)
