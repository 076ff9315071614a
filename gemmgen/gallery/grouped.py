"""The kernels under generated/ that compute several GEMMs in one launch."""

from __future__ import annotations

from dataclasses import replace

from .. import recipes
from ..config import Config
from ..epilogues import EPILOGUES
from ..ir.dtypes import E4M3, F32
from ..problem import Problem
from .exhibit import FP8, Exhibit

GROUPED: tuple[Exhibit, ...] = (
    Exhibit(
        name="k_grouped",
        problem=Problem(
            family=recipes.FP8_1D1D, a=E4M3, b=E4M3, d=F32, accumulate=True, grouping="k_flat"
        ),
        config=Config(stages=4, multicast="b", unroll=4),
        shows="weight gradients of experts: K of each on the device, its matrices after one another",
    ),
    Exhibit(
        name="batched",
        problem=replace(FP8, grouping="batched"),
        config=Config(stages=5),
        shows="a batch: 3-D tensor maps, one GEMM's tiles after the other's",
    ),
    Exhibit(
        name="masked",
        problem=replace(FP8, grouping="masked"),
        config=Config(stages=5, multicast="b"),
        shows="experts with rows of their own, counted on the device; D leaves in boxes but where a group ends",
    ),
    Exhibit(
        name="grouped_by_row",
        problem=replace(FP8, grouping="rows"),
        config=Config(block_m=192, stages=4, consumers=3, multicast="a", unroll=4),
        shows="experts in one A, a group index per row, walked run by run; rows of no group come out as 0",
    ),
    Exhibit(
        name="grouped_by_end",
        problem=replace(FP8, grouping="ends"),
        config=Config(block_m=256, stages=3, multicast="a", unroll=4),
        shows="experts in one A, the end of each on the device; tiles of 256 rows all the same",
    ),
    Exhibit(
        name="indexed_rows",
        problem=replace(FP8, grouping="ends", indexed=True, d=E4M3, epilogue=EPILOGUES["swiglu"]),
        config=Config(block_n=256, stages=4, parts=2, unroll=4, multicast="b"),
        shows="experts' first GEMM on tokens where they are: threads copy rows of A by index, each K block announced when it has come",
    ),
    Exhibit(
        name="masked_swiglu_fp8",
        problem=replace(FP8, grouping="masked", d=E4M3, epilogue=EPILOGUES["swiglu"]),
        config=Config(block_n=256, stages=4, parts=2, unroll=4),
        shows="experts' first GEMM to the second's FP8 operand: 256 columns, promoted in two parts",
    ),
)
