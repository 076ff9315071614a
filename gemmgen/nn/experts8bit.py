"""The experts of a mixture whose weights have 8 bits: two grouped GEMMs, and an activation in the first's epilogue."""

from __future__ import annotations

from typing import Any

from .experts4bit import Experts4bit


class Experts8bit(Experts4bit):
    """`experts` gated MLPs of INT8 or FP8 with a scale for each row, by 16 bits: `gemmgen.ops.w8a16_grouped_gemm`, scales and biases in its epilogues.

    hidden, intermediate: features, multiples of 8. weights: their name, as of `Linear8bit`. order, activation, bias: as of `Experts4bit`, as which it is made, loaded, divided among ranks and refused.
    Buffers: uint8 blocks `gate_up` of [experts, 2 * intermediate, hidden] and `down` of [experts, hidden, intermediate]; float32 `gate_up_factors` and `down_factors` of their rows; float32 `gate_up_bias`
    [experts, 2 * intermediate] and `down_bias` [experts, hidden]. activations: None. Raises ArgumentError.
    """

    bits = 8

    def __init__(
        self,
        experts: int,
        hidden: int,
        intermediate: int,
        device: Any = None,
        *,
        weights: str = "int8_column_f32",
        order: str = "alternating",
        activation: str = "swiglu",
        activations: str | None = None,
        bias: bool = False,
    ) -> None:
        super().__init__(
            experts,
            hidden,
            intermediate,
            device,
            weights=weights,
            order=order,
            activation=activation,
            activations=activations,
            bias=bias,
        )
