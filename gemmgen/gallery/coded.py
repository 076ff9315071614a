"""Exhibits of packed weights."""

from __future__ import annotations

from .. import recipes
from ..config import Config
from ..ir.dtypes import BF16, E4M3
from ..ir.expr import ACC, PerColumn
from ..problem import Problem
from .exhibit import Exhibit

INT4 = Problem(family=recipes.W4A16, a=BF16, b=BF16, weights="int4_128_bf16")
MXFP4 = Problem(family=recipes.W4A16, a=BF16, b=BF16, weights="e2m1_32_e8m0", grouping="ends")

SCALED = ACC * PerColumn("scale_b")
INT8 = Problem(family=recipes.W8A16, a=BF16, b=BF16, weights="int8_column_f32", epilogue=SCALED)
BLOCK = Problem(family=recipes.W4A8_BLOCK, a=E4M3, b=E4M3, weights="int4_128_f32")
FP8 = Problem(family=recipes.W4A8, a=E4M3, b=E4M3, weights="e2m1_32_e8m0")

CODED: tuple[Exhibit, ...] = (
    Exhibit(
        name="int4",
        problem=INT4,
        config=Config(swap_ab=True, block_m=16, block_k_bytes=256, stages=12, in_flight=1),
        shows="INT4 weights, a scale per 128: codes become wgmma's A in registers, one half of a K block while the other is multiplied",
    ),
    Exhibit(
        name="mxfp4_grouped",
        problem=MXFP4,
        config=Config(swap_ab=True, block_m=128, block_k_bytes=256, stages=4, in_flight=1),
        shows="experts' weights in MXFP4, an exponent per 32: exact in BF16",
    ),
    Exhibit(
        name="mxfp4",
        problem=FP8,
        config=Config(swap_ab=True, block_m=16, stages=14, in_flight=1),
        shows="FP8 by MXFP4: eight sizes of each row and 32 of K, E4M3's exponents and all, of which a code picks one",
    ),
    Exhibit(
        name="int4",
        problem=BLOCK,
        config=Config(swap_ab=True, block_m=16, block_n=64, consumers=3, stages=15, slice_k=True),
        shows="FP8 with a scale for each 128 of K by INT4, whose sizes' own bits are E4M3: both halves of a K block into one sum, which scales of both promote; "
        "three warpgroups divide K",
    ),
    Exhibit(
        name="int8",
        problem=INT8,
        config=Config(swap_ab=True, block_m=16, block_k_bytes=256, stages=8, in_flight=1),
        shows="INT8 weights, a scale for each channel in the epilogue: blocks have codes alone, which are exact in BF16",
    ),
)
