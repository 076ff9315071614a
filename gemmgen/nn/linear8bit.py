"""A linear layer whose weight has 8 bits: y = x @ weight^T + bias."""

from __future__ import annotations

from typing import Any

from ..ir.packed import named_for
from .linear4bit import Linear4bit


class Linear8bit(Linear4bit):
    """A linear layer of INT8 or FP8 with a scale for each row, in one launch: `gemmgen.ops.w8a16_gemm`, scales and the bias in its epilogue.

    weights: their name, as `gemmgen.quant.Packed.weights`: "int8_column_f32" or "e4m3_column_f32" for an x in bfloat16, with "_f16" behind for float16. in_features: even; out_features: any.
    Made, loaded, moved and refused as a `Linear4bit`; its buffers are `blocks`, `factors`, float32 [out_features], and `bias`. activations: None. Raises ArgumentError.
    """

    bits = 8

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: Any = None,
        *,
        weights: str = "int8_column_f32",
        activations: str | None = None,
    ) -> None:
        super().__init__(
            in_features, out_features, bias, device, weights=weights, activations=activations
        )


def linear_of(weights: str) -> type[Linear4bit]:
    """The layer of packed weights of that name."""
    return Linear8bit if weights in named_for(None, 8) else Linear4bit
