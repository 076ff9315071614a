"""Calls of public functions over tensors that only say what they are."""

from __future__ import annotations

from fake_torch import Placed

from gemmgen.config import Config
from gemmgen.epilogues import PerColumn, Scalar
from gemmgen.ir.expr import ACC

CONFIG = Config(block_n=64, stages=2)
WIDE = Config(block_n=128, stages=2)
FP8 = "float8_e4m3fn"
SCALED_BIAS = ACC * Scalar("alpha") + PerColumn("bias")


class OneNumber(Placed):
    """A tensor that the host can read."""

    def __float__(self):
        return 2.0


def dense(**changes):
    """The arguments of a gemm of M, N, K = 24, 40, 72 with an epilogue that reads a vector and a number."""
    return {
        "a": Placed(24, 72, dtype="bfloat16"),
        "b": Placed(40, 72, dtype="bfloat16"),
        "out": Placed(24, 40, dtype="bfloat16"),
        "config": CONFIG,
        "epilogue": SCALED_BIAS,
        "bias": Placed(40),
        "alpha": 2.0,
        **changes,
    }


def block(**changes):
    return {
        "a": Placed(24, 256, dtype=FP8),
        "scale_a": Placed(24, 2, stride=(1, 24)),
        "b": Placed(40, 256, dtype=FP8),
        "scale_b": Placed(1, 2),
        "out": Placed(24, 40, dtype="bfloat16"),
        "config": CONFIG,
        "scale_a_layout": "mn",
        **changes,
    }


def masked(**changes):
    return {
        "a": Placed(3, 24, 72, dtype="bfloat16"),
        "b": Placed(3, 40, 72, dtype="bfloat16"),
        "group_rows": Placed(3, dtype="int32"),
        "out": Placed(3, 24, 40, dtype="bfloat16"),
        "expected_rows": 8,
        "config": CONFIG,
        **changes,
    }


def deep(**changes):
    """The arguments of a k_grouped_gemm, which needs a workspace."""
    return {
        "a": Placed(72, 24, dtype="bfloat16"),
        "b": Placed(72, 40, dtype="bfloat16"),
        "group_depths": Placed(3, dtype="int32"),
        "out": Placed(3, 24, 40),
        "config": CONFIG,
        **changes,
    }


FUNCTIONS = {
    "gemm": dense,
    "fp8_block_gemm": block,
    "masked_gemm": masked,
    "k_grouped_gemm": deep,
}


def seen(t: Placed, **changes) -> Placed:
    """The same memory as another object, with other attributes."""
    other = t.seen(t.shape, t.strides)
    for name, value in changes.items():
        setattr(other, name, value)
    return other
