"""Columns of D left out between heads' parts: right calls, and what is wrong with others."""

from __future__ import annotations

from dataclasses import replace

from fake_torch import Placed

from gemmgen import ops
from gemmgen.config import Config
from gemmgen.errors import IllegalConfig

from .gemms import BLOCK_SCALED, BLOCKED, BLOCKS_K, FP8, PAIR, K, M, blocks
from .model import Function, Given, Output, Wrong, wrong

LEFT, MID, RIGHT = SPLITS = (64, 8, 80)
SIDE = LEFT + RIGHT
NO_NUMBERS = (-16, 4, 8192, "64", 64.0, True, None)


def splits(argument: str) -> tuple[Wrong, ...]:
    """What is none, whatever the function calls it."""
    others = (128, (64, 8), (0, 8, 0), "648", {"left": 64})
    whole = (wrong(f"heads of {x!r}", argument, **{argument: x}) for x in others)
    parts = (
        wrong(f"{name} columns {x!r}", f"{argument} {name}", **{argument: (*SPLITS[:i], x, *SPLITS[i + 1 :])})
        for i, name in enumerate(("left", "mid", "right"))
        for x in NO_NUMBERS
    )  # fmt: skip
    return (*whole, *parts)


def right() -> Given:
    """Of one head."""
    b, d = Placed(SIDE, K, dtype=FP8), Output(M, SIDE + MID)
    scales = Placed(2, BLOCKS_K)
    return blocks(FP8) | {"b": b, "scale_b": scales, "out": d, "heads": SPLITS}


WRONG = (
    *PAIR,
    *BLOCKED,
    *splits("heads"),
    wrong("no whole heads", "b rows", heads=(64, 8, 64)),
    wrong("an output without gaps", "out shape", out=Output(M, SIDE)),
    wrong("an FP8 output", "d", out=None, out_dtype="e4m3"),
    wrong("pairs of columns", "epilogue", out=None, epilogue="swiglu"),
    wrong("boxes over a gap", "heads-boxes", IllegalConfig, config=Config(block_n=64, stages=2, swizzle_d=64)),
    wrong("rows without a swizzle", "heads-boxes", IllegalConfig, config=Config(block_n=64, stages=2, swizzle_d=0)),
    wrong("tiles of half a box", "heads-boxes", IllegalConfig, config=Config(block_n=8, stages=2)),
)  # fmt: skip


def _any() -> Given:
    given = right() | {"problem": replace(BLOCK_SCALED, heads=SPLITS), "scale_layout": "mn"}
    return {x: v for x, v in given.items() if x not in ("heads", "scale_a_layout")}


OF_ANY = (
    wrong("no whole heads", "b rows", problem=replace(BLOCK_SCALED, heads=(64, 8, 64))),
    wrong("an output without gaps", "out shape", out=Output(M, SIDE)),
    wrong(
        "an output of other gaps", "out shape", problem=replace(BLOCK_SCALED, heads=(64, 16, 80))
    ),
)
FUNCTIONS = (
    Function(name="ops.fp8_block_gemm, heads", call=ops.fp8_block_gemm, right=right, wrong=WRONG),
    Function(name="ops.multiply, heads", call=ops.multiply, right=_any, wrong=OF_ANY),
)
