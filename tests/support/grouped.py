"""Grouped problems, shapes and group sizes that the tests share."""

from __future__ import annotations

import itertools
from random import Random

from gemmgen.epilogues import EPILOGUES
from gemmgen.ir.dtypes import BF16, E4M3, E5M2, F16, F32, S8, S32
from gemmgen.ir.groupings import GROUPINGS, OF_SIZES, Layout, split_side
from gemmgen.problem import Problem, depth_step

PROBLEMS = {
    "fp8_block": {"family": "fp8_block", "a": E4M3, "b": E4M3},
    "fp8_block_f32": {"family": "fp8_block", "a": E4M3, "b": E4M3, "d": F32},
    "fp8_1d1d": {"family": "fp8_1d1d", "a": E4M3, "b": E4M3, "d": F32},
    "s8_block": {"family": "fp8_block", "a": S8, "b": S8},
    "fp8_rowwise": {"family": "fp8", "a": E4M3, "b": E5M2, "epilogue": EPILOGUES["scaled"]},
    "bf16": {"family": "dense", "a": BF16, "b": BF16, "epilogue": EPILOGUES["bias_relu"]},
    "f16_f32": {"family": "dense", "a": F16, "b": F16, "d": F32, "epilogue": EPILOGUES["alpha"]},
    "s8": {"family": "dense", "a": S8, "b": S8, "d": S32},
    "s8_scaled": {"family": "dense", "a": S8, "b": S8, "epilogue": EPILOGUES["scaled"]},
}


def problem(name: str, grouping: str, alignment: int = 128) -> Problem:
    return Problem(**PROBLEMS[name], grouping=grouping, alignment=alignment)


def layout(p: Problem, shape: tuple[int, int, int], sizes: tuple[int, ...]) -> Layout:
    """Groups of `sizes` rows, as far as A (of each group, if it has its own) has rows for them. Where
    groups split K, of about so much K each."""
    g, side = GROUPINGS[p.grouping], split_side(p.grouping, shape)
    if g.depths:
        step, most = depth_step(p), max(1, side // len(sizes))
        sizes = tuple(min(s, most) // step * step for s in sizes)
    return OF_SIZES[p.grouping](side, sizes, p.alignment * g.aligned)


# (M, N, K) and the rows of each group: none, one, tails, all; more groups than SMs of an emulated GPU.
CASES = (
    ((1, 8, 16), (1,)),
    ((130, 100, 260), (130, 0, 0)),
    ((300, 136, 200), (0, 130, 41)),
    ((520, 72, 300), (64, 0, 129, 1)),
)


def random_cases(count: int, seed: int) -> list[tuple[tuple[int, int, int], tuple[int, ...]]]:
    """Shapes around tile sides, N and K with and without tails, 1 to 9 groups of any size."""
    random = Random(seed)
    sides = (1, 7, 63, 64, 65, 127, 128, 129, 200, 256, 300, 513)
    depths = (16, 64, 100, 128, 200, 384, 520, 1000)
    columns = (8, 24, 100, 128, 129, 264, 576)
    corners = [*itertools.islice(itertools.cycle(CASES), min(count, 4))]
    drawn = []
    for _ in range(count - len(corners)):
        groups = random.randint(1, 9)
        sizes = tuple(random.choice((0, *sides)) for _ in range(groups))
        rows = random.choice((max(max(sizes), 1), sum(-(-s // 128) * 128 for s in sizes) or 1))
        drawn.append(((rows, random.choice(columns), random.choice(depths)), sizes))
    return corners + drawn
