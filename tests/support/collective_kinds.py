"""Kernels of every kind that several GPUs launch together, small enough for the emulator."""

from __future__ import annotations

from dataclasses import replace

from kernels import DENSE, DENSE_F32, DENSE_TN, FP8, INT8_BLOCK, PAIRED, VECTOR

from gemmgen.config import Config
from gemmgen.epilogues import EPILOGUES
from gemmgen.ir.dtypes import F32, S8, S32
from gemmgen.problem import Problem

PLAIN = Config(block_m=64, block_n=32, consumers=1, stages=3)
SWAPPED = Config(swap_ab=True, block_m=16, block_n=64, consumers=1, stages=3)
# Of each family and output, of either operand stored otherwise, and watched.
FAMILIES = {
    "f32": (DENSE_F32, PLAIN),
    "tn": (DENSE_TN, PLAIN),
    "vector": (VECTOR, PLAIN),
    "pairs": (PAIRED, PLAIN),
    "residual": (replace(FP8, epilogue=EPILOGUES["residual"]), SWAPPED),
    "bias": (replace(DENSE, epilogue=EPILOGUES["bias"]), PLAIN),
    "accumulate": (replace(DENSE, d=F32, accumulate=True), PLAIN),
    "int8_block": (INT8_BLOCK, SWAPPED),
    "int8": (Problem(family="dense", a=S8, b=S8, d=S32), PLAIN),
    "watched": (DENSE, replace(PLAIN, watchdog=True)),
}
SCALED = Problem(family="fp8", a="e4m3", b="e4m3", epilogue="scaled")
# Those, and of each lever that a kernel of several GPUs takes.
KINDS = {
    **FAMILIES,
    "two_waves": (DENSE, replace(PLAIN, block_m=128)),
    "two_consumers": (DENSE, replace(PLAIN, block_m=128, consumers=2)),
    "ping_pong": (DENSE, replace(PLAIN, consumers=2, ping_pong=True)),
    "multicast_a": (DENSE, replace(PLAIN, multicast="a")),
    "multicast_b": (DENSE, replace(PLAIN, multicast="b")),
    "pieces": (DENSE, replace(PLAIN, block_n=128, d_columns=64)),
    "fp8": (FP8, replace(PLAIN, block_n=64)),
    "orders": (DENSE, replace(PLAIN, raster="n", panel=1)),
}
