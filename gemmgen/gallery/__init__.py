"""The kernels under generated/: one per family and one per feature that changes the emitted code."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from .. import recipes
from ..config import Config
from ..epilogues import EPILOGUES, mqa_logits
from ..ir.dtypes import BF16, E4M3, E5M2, F16, F32, S8
from ..ir.heads import Heads
from ..pipeline import Artifact, compile_to_source
from ..problem import Problem
from ..target import H200, Target
from .coded import CODED
from .exhibit import B16, B16_TN, FP8, Exhibit
from .grouped import GROUPED

FP8_F16 = replace(FP8, d=F16)
B16_BIAS_SILU = replace(B16, epilogue=EPILOGUES["bias_silu"])
B16_NN = Problem(family=recipes.DENSE, a=BF16, b=BF16, layout="nn")
H16_TT = Problem(family=recipes.DENSE, a=F16, b=F16, d=F16, layout="tt")
H16_F32 = Problem(family=recipes.DENSE, a=F16, b=F16, d=F32)

GALLERY: tuple[Exhibit, ...] = (
    Exhibit(
        name="base", problem=FP8, config=Config(stages=5), shows="the plain kernel: start here"
    ),
    Exhibit(
        name="two_wave_multicast_a",
        problem=FP8,
        config=Config(block_m=256, stages=3, multicast="a", unroll=4),
        shows="256 rows as two waves per warpgroup, a cluster of two shares A",
    ),
    Exhibit(
        name="peek",
        problem=FP8,
        config=Config(block_m=256, stages=3, multicast="a", peek=True),
        shows="before they promote, consumers look whether the next stage is filled, and wait only if not",
    ),
    Exhibit(
        name="n192_multicast_b",
        problem=FP8,
        config=Config(block_n=192, stages=4, multicast="b", raster="n"),
        shows="block_n over 128: two scales of B per tile as a switch, a cluster shares B",
    ),
    Exhibit(
        name="n144",
        problem=FP8,
        config=Config(block_n=144, stages=5),
        shows="block_n that does not divide 128: two scales of B per tile as selects",
    ),
    Exhibit(
        name="heads",
        problem=replace(FP8, heads=Heads(left=128, mid=64, right=128)),
        config=Config(stages=5, unroll=4, multicast="b"),
        shows="D with gaps, the middle of each head: a box's column goes past those before it, and none lies over one",
    ),
    Exhibit(
        name="wgrad",
        problem=Problem(family=recipes.FP8_1D1D, a=E4M3, b=E4M3, d=F32, accumulate=True),
        config=Config(stages=4, multicast="b", unroll=2),
        shows="a weight gradient: a scale per row and per column of every 128 of K, added to FP32 by TMA",
    ),
    Exhibit(
        name="overlapped",
        problem=Problem(family=recipes.FP8_1D1D, a=E4M3, b=E4M3, d=F32, accumulate=True),
        config=Config(block_m=256, block_n=80, stages=3, multicast="a", in_flight=1),
        shows="the tensor core multiplies one wave's rows while the other's sum is promoted",
    ),
    Exhibit(
        name="swap_ab",
        problem=FP8,
        config=Config(swap_ab=True, block_m=16, block_n=128, stages=10, unroll=4),
        shows="16 rows: B on wgmma's 64, A on its N; A's scales by column, D stored transposed",
    ),
    Exhibit(
        name="split_k",
        problem=FP8,
        config=Config(split_k=4, block_m=64, block_n=32, consumers=1, stages=8, unroll=4),
        shows="few tiles: four CTAs divide K, and send their sums to the first, which stores",
    ),
    Exhibit(
        name="overlapping",
        problem=FP8,
        config=Config(
            swap_ab=True, block_m=8, block_n=64, consumers=1, stages=12, unroll=4, pdl=True
        ),
        shows="begins while the launch before it ends: barriers are up when that is over",
    ),
    Exhibit(
        name="residual",
        problem=Problem(family=recipes.FP8_BLOCK, a=E4M3, b=E4M3, epilogue=EPILOGUES["residual"]),
        config=Config(block_m=256, stages=3, multicast="a", unroll=4),
        shows="a fused epilogue: a BF16 tensor of D's shape is added, read in pairs of columns",
    ),
    Exhibit(
        name="fp8_out",
        problem=replace(FP8, d=E4M3, epilogue=EPILOGUES["silu"]),
        config=Config(block_m=256, stages=3, multicast="a", unroll=4),
        shows="FP8 output, ready for the next layer: a scale per row and 128 columns beside it",
    ),
    Exhibit(
        name="row_scaled",
        problem=Problem(family=recipes.FP8, a=E4M3, b=E5M2, epilogue=EPILOGUES["scaled"]),
        config=Config(block_n=160, stages=5, unroll=4),
        shows="FP8 with one scale per row and column: promoted without block scales, E4M3 x E5M2",
    ),
    Exhibit(
        name="fp8_fast",
        problem=Problem(family=recipes.DENSE, a=E4M3, b=E4M3, epilogue=EPILOGUES["tensor_scaled"]),
        config=Config(block_m=256, stages=3, multicast="a", in_flight=1),
        shows="FP8 with one scale per tensor, read on the device; fast accumulation, never promoted",
    ),
    Exhibit(
        name="mqa_logits",
        problem=Problem(family=recipes.DENSE, a=E4M3, b=E4M3, d=F32, epilogue=mqa_logits(64)),
        config=Config(swap_ab=True, block_m=128, block_n=256, stages=4),
        shows="an indexer's scores: 64 rows of A, its heads, are one of D, in a window of each; where no window is, nothing is multiplied",
    ),
    Exhibit(
        name="paged_mqa_logits",
        problem=Problem(
            family=recipes.DENSE,
            a=E4M3,
            b=E4M3,
            d=F32,
            grouping="batched",
            paged=True,
            epilogue=mqa_logits(64, from_first=True),
        ),
        config=Config(swap_ab=True, block_m=64, block_n=256, stages=4),
        shows="the same for queries that decode: a sequence's keys lie in pages of 64, which a table names",
    ),
    Exhibit(
        name="s8_scaled",
        problem=Problem(family=recipes.DENSE, a=S8, b=S8, epilogue=EPILOGUES["scaled"]),
        config=Config(block_n=256, stages=3, multicast="b", in_flight=1),
        shows="INT8 dequantised by a scale per row and column to BF16",
    ),
    Exhibit(
        name="n256",
        problem=B16,
        config=Config(block_n=256, stages=3),
        shows="BF16, the widest wgmma",
    ),
    Exhibit(
        name="two_wave_in_flight",
        problem=B16,
        config=Config(block_m=256, stages=3, multicast="a", in_flight=1),
        shows="a wgmma group stays in flight across K blocks; the stage before is released",
    ),
    Exhibit(
        name="f16_f32",
        problem=H16_F32,
        config=Config(),
        shows="FP16 operands, FP32 output",
    ),
    Exhibit(
        name="swiglu",
        problem=replace(B16, epilogue=EPILOGUES["bias_swiglu"]),
        config=Config(block_n=256, stages=3),
        shows="gate and up in neighbouring columns: SwiGLU of both, D half as wide",
    ),
    Exhibit(
        name="padded_d",
        problem=B16,
        config=Config(swizzle_d=0),
        shows="D without a swizzle: padded rows, stored one bulk copy per row",
    ),
    Exhibit(
        name="slice_k",
        problem=B16,
        config=Config(
            slice_k=True,
            swap_ab=True,
            block_m=16,
            block_n=64,
            consumers=4,
            stages=16,
            in_flight=1,
        ),
        shows="few rows: four warpgroups divide the K blocks of one tile, and the first adds up their sums",
    ),
    Exhibit(
        name="ping_pong",
        problem=B16,
        config=Config(stages=6, multicast="b", in_flight=1, d_columns=64, ping_pong=True),
        shows="ping-pong: each consumer has a tile of its own, one stores while the other multiplies",
    ),
    Exhibit(
        name="d_columns",
        problem=B16,
        config=Config(block_m=256, stages=4, multicast="a", in_flight=1, d_columns=64),
        shows="D staged 64 columns at a time, double-buffered: room for a fourth stage",
    ),
    Exhibit(
        name="unswizzled_ab",
        problem=B16,
        config=Config(swizzle_ab=0),
        shows="operands without a swizzle: core matrices side by side, one TMA box per 16 bytes of K",
    ),
    Exhibit(
        name="tn",
        problem=B16_TN,
        config=Config(block_m=256, stages=3, multicast="a", in_flight=1),
        shows="A stored [K, M] and B [K, N]: a cluster shares A in slices of K",
    ),
    *GROUPED,
    *CODED,
)


def exhibit(name: str) -> Exhibit | None:
    """The exhibit called `family/name`, or None."""
    return next((e for e in GALLERY if path_of(e) == name), None)


def path_of(e: Exhibit) -> str:
    """`family/name`: where it lies under generated/, without a suffix."""
    return f"{e.problem.family}/{e.name}"


@cache
def artifact(e: Exhibit, target: Target = H200) -> Artifact:
    """Proved and emitted once in a process."""
    return compile_to_source(e.problem, e.config, target)
