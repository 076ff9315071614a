"""Random problems, launches and configs. All that is random follows from the seed."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from random import Random

from gemmgen.config import FIELDS, Config
from gemmgen.epilogues import EPILOGUES, gelu, gelu_tanh, relu, silu
from gemmgen.errors import ArgumentError
from gemmgen.families import FAMILIES
from gemmgen.ir.expr import (
    ACC,
    ELEMENTS,
    DeviceScalar,
    Expr,
    PerColumn,
    PerElement,
    PerRow,
    Scalar,
    fold,
)
from gemmgen.ir.groupings import GROUPINGS
from gemmgen.problem import LAYOUTS, OUTPUTS, Problem, Shape, depth_step
from gemmgen.recipes import recipe

# N and K of layers of language models; M is drawn.
LAYERS = ((4096, 7168), (7168, 2048), (6144, 7168), (7168, 6144), (24576, 1536), (1536, 7168), (576, 7168),
          (2112, 7168), (4096, 4096), (14336, 4096), (28672, 8192), (8192, 28672), (2816, 2048), (2048, 1408),
          (128256, 4096), (12288, 4096), (5120, 17408), (768, 2048), (1536, 2048))  # fmt: skip
EXPERTS = (1, 2, 3, 4, 8, 16, 32, 64, 128, 256)
MOST_GROUP = 16384  # rows of one group, or its K


@dataclass(frozen=True, kw_only=True)
class Launch:
    """What the choice is asked for. shape: (M, N, K), of one group in the mean."""

    problem: Problem
    shape: Shape
    groups: int = 1

    def __str__(self) -> str:
        return f"{self.problem.to_json()} {self.shape} x {self.groups}"


def launch(rng: Random) -> Launch:
    """One that `gemmgen.ops` may be asked for."""
    p = problem(rng)
    groups = 1 if p.grouping == "none" else rng.choice(EXPERTS)
    n, k = layer(rng) if rng.random() < 0.4 else (side(rng, 8, 32768), side(rng, 16, 32768))
    if GROUPINGS[p.grouping].depths:
        k = round_up(side(rng, 1, MOST_GROUP), depth_step(p))
        m = side(rng, 8, MOST_GROUP)
    else:
        m = side(rng, 1, MOST_GROUP)
    n = round_up(n, fold(p.epilogue))
    if p.family == "dense" and p.a.integer:
        k = min(k, MOST_GROUP)
    return Launch(problem=p, shape=(m, n, k), groups=groups)


def layer(rng: Random) -> tuple[int, int]:
    return rng.choice(LAYERS)


def side(rng: Random, least: int, most: int) -> int:
    """Log-uniform; more often than not a multiple of something."""
    found = round(math.exp(rng.uniform(math.log(least), math.log(most))))
    return max(least, round_up(found, rng.choice((1, 8, 8, 16, 64, 128))))


def round_up(x: int, step: int) -> int:
    return -(-x // step) * step


def problem(rng: Random) -> Problem:
    """Of any family, dtypes, output, layout, grouping and epilogue that one kernel has."""
    while True:
        family = rng.choice((*FAMILIES,))
        a, b = rng.choice(recipe(family).operands)
        try:
            return Problem(
                family=family,
                a=a,
                b=b,
                d=rng.choice(OUTPUTS),
                layout=rng.choice(LAYOUTS) if a.transposes and rng.random() < 0.5 else "nt",
                grouping=rng.choice((*GROUPINGS,)) if rng.random() < 0.7 else "none",
                alignment=rng.choice(GROUPINGS["ends"].alignments),
                epilogue=epilogue(rng),
                accumulate=rng.random() < 0.2,
                weights=rng.choice(recipe(family).weights(b)),
            )
        except ArgumentError:
            continue


def epilogue(rng: Random) -> Expr:
    """None, one of the library, or one that reads and calls several things."""
    draw = rng.random()
    if draw < 0.4:
        return ACC
    if draw < 0.7:
        return EPILOGUES[rng.choice((*EPILOGUES,))]
    found: Expr = ACC
    for _ in range(rng.randint(1, 3)):
        found = rng.choice(STEPS)(found, rng)
    return found


def argument(rng: Random) -> Expr:
    kind = rng.choice((Scalar, DeviceScalar, PerColumn, PerRow, PerElement))
    if kind is PerElement:
        dtype = rng.choice(ELEMENTS)
        return PerElement(f"{dtype}_{rng.choice('xy')}", dtype)
    return kind(f"{kind.__name__.lower()}_{rng.choice('xy')}")


STEPS = (
    lambda e, rng: e + argument(rng),
    lambda e, rng: e * argument(rng),
    lambda e, rng: rng.choice((relu, silu, gelu, gelu_tanh))(e),
)

VALUES = (None, False, True, "none", "a", "b", "m", "n", *range(257))
DOMAINS = {
    name: [v for v in VALUES if values.holds(v)]
    for name, values in FIELDS.items()
    if name not in ("registers", "order")  # drawn below; there is one order
}


def config(rng: Random) -> Config:
    """Any there is: of each field any value, the default more often, since few others go together."""
    often = rng.uniform(0.15, 0.8)
    given = {name: rng.choice(values) for name, values in DOMAINS.items() if rng.random() < often}
    if rng.random() < 0.1:
        given["registers"] = (rng.choice((24, 32, 40, 56)), rng.choice(range(128, 257, 8)))
    c = Config(**given)
    if rng.random() < 0.7:  # else nearly none has rows that its warpgroups share out
        rows = 64 * c.sharing * rng.choice((1, 1, 2))
        if rows <= 256:
            c = replace(c, **{"block_n" if c.swap_ab else "block_m": rows})
    return c
