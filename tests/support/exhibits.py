"""The gallery's kernels, and those that are there for tests alone: what each has that no other has."""

from __future__ import annotations

from dataclasses import replace

from gemmgen.config import Config
from gemmgen.epilogues import EPILOGUES
from gemmgen.gallery import GALLERY, path_of
from gemmgen.gallery.exhibit import B16, B16_TN, FP8, FP8_F32, Exhibit
from gemmgen.ir.dtypes import BF16, E4M3, F16, F32, S8, S32
from gemmgen.problem import Problem

FP8_F16 = replace(FP8, d=F16)
B16_BIAS_SILU = replace(B16, epilogue=EPILOGUES["bias_silu"])
B16_NN = Problem(family="dense", a=BF16, b=BF16, layout="nn")
H16_TT = Problem(family="dense", a=F16, b=F16, d=F16, layout="tt")

OTHERS: tuple[Exhibit, ...] = (
    Exhibit(
        name="three_consumers",
        problem=FP8,
        config=Config(block_m=192, consumers=3, stages=4, multicast="a", unroll=4),
        shows="while one warpgroup promotes, two keep the tensor cores busy",
    ),
    Exhibit(
        name="n104_f32",
        problem=FP8_F32,
        config=Config(block_n=104, stages=5),
        shows="FP32 output: plain stores into a swizzled tile",
    ),
    Exhibit(
        name="m64_n32_f16",
        problem=FP8_F16,
        config=Config(block_m=64, block_n=32, stages=12, consumers=1),
        shows="small M: one consumer warpgroup, a deep ring, FP16 output",
    ),
    Exhibit(
        name="n56_flat",
        problem=FP8,
        config=Config(block_n=56, stages=6),
        shows="a D row that no swizzle divides: stored flat, free of bank conflicts as it is",
    ),
    Exhibit(
        name="s8_block",
        problem=Problem(family="fp8_block", a=S8, b=S8),
        config=Config(stages=5, unroll=4),
        shows="INT8 with block scales: exact sums of 128 of K, scaled and added in FP32",
    ),
    Exhibit(
        name="swap_ab",
        problem=replace(FP8_F32, family="fp8_1d1d", epilogue=EPILOGUES["residual_f32"]),
        config=Config(swap_ab=True, block_m=64, block_n=128, stages=6, multicast="a", unroll=4),
        shows="scales of rows and columns exchanged, FP32 stored element by element",
    ),
    Exhibit(
        name="s8",
        problem=Problem(family="dense", a=S8, b=S8, d=S32),
        config=Config(block_n=96, stages=5),
        shows="INT8 with INT32 sums and output",
    ),
    Exhibit(
        name="swap_ab",
        problem=B16_BIAS_SILU,
        config=Config(swap_ab=True, block_m=8, block_n=64, consumers=1, stages=12, swizzle_d=0),
        shows="8 rows by 64 columns of weights, padded D; the bias is one value per accumulator row",
    ),
    Exhibit(
        name="n176_multicast_b",
        problem=B16,
        config=Config(block_n=176, stages=4, multicast="b"),
        shows="a block_n that fits the SM count better than a power of two",
    ),
    Exhibit(
        name="bias_silu",
        problem=B16_BIAS_SILU,
        config=Config(),
        shows="a fused epilogue: SiLU of the sum with a per-column bias",
    ),
    Exhibit(
        name="bias_gelu",
        problem=Problem(family="dense", a=BF16, b=BF16, epilogue=EPILOGUES["bias_gelu"]),
        config=Config(block_n=256, stages=3),
        shows="a fused epilogue: exact GELU, by erf, in steps that keep registers free",
    ),
    Exhibit(
        name="swiglu_fp8",
        problem=replace(B16, d=E4M3, epilogue=EPILOGUES["swiglu"]),
        config=Config(block_n=256, stages=3, in_flight=1),
        shows="SwiGLU, quantised to FP8 for the next layer with a scale per row and 128 columns",
    ),
    Exhibit(
        name="wide_k",
        problem=B16,
        config=Config(block_k_bytes=256, stages=3),
        shows="256 bytes of K per stage: two swizzled slabs per operand",
    ),
    Exhibit(
        name="nn",
        problem=B16_NN,
        config=Config(block_n=256, stages=3, in_flight=1),
        shows="B stored [K, N]: MN-major, in slabs of 64 columns; wgmma transposes it",
    ),
    Exhibit(
        name="tt",
        problem=H16_TT,
        config=Config(block_n=160, multicast="b"),
        shows="A stored [K, M]: FP16, a warpgroup's 64 rows are one slab",
    ),
    Exhibit(
        name="masked_swap_ab",
        problem=replace(FP8, grouping="masked"),
        config=Config(swap_ab=True, block_m=32, block_n=256, stages=5, unroll=4),
        shows="experts of few rows: two waves side by side, each with a scale of B of its own",
    ),
    Exhibit(
        name="masked_swiglu",
        problem=replace(FP8, grouping="masked", epilogue=EPILOGUES["swiglu"]),
        config=Config(stages=5, unroll=4),
        shows="experts' first GEMM: SwiGLU of neighbouring columns",
    ),
    Exhibit(
        name="masked_bf16",
        problem=replace(B16, grouping="masked"),
        config=Config(block_n=256, stages=3, in_flight=1),
        shows="BF16 experts with rows of their own",
    ),
    Exhibit(
        name="k_grouped_bf16",
        problem=replace(B16_TN, d=F32, grouping="k_columns"),
        config=Config(stages=5, in_flight=1, multicast="b"),
        shows="BF16 weight gradients of experts: each group sums K of its own, cut off by its tensor maps",
    ),
    Exhibit(
        name="summed",
        problem=replace(B16, d=F32, accumulate=True, grouping="summed"),
        config=Config(block_m=64, block_n=96, consumers=1, stages=6, split_k=4, in_flight=1),
        shows="the sum of a batch of GEMMs, added to an FP32 D: one's K blocks after the other's, divided by the CTAs of a cluster",
    ),
)
EXHIBITS = {path_of(e): e for e in (*GALLERY, *OTHERS)}


def exhibit(name: str) -> Exhibit | None:
    """The one called `family/name`, or None."""
    return EXHIBITS.get(name)
