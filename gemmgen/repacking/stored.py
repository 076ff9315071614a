"""How methods store linear layers: which tensors, by which names, and what their shapes say."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

WORD, OCTET_WORD = 8, 4  # codes of an int32, of 4 bits and of 8
Sides = Callable[[Mapping[str, tuple[int, ...]]], tuple[int, int]]


@dataclass(frozen=True, kw_only=True)
class Stored:
    """How a method stores a linear layer: names behind the layer's. tensors: those that are read. beside: those that say nothing more of packed weights, and
    may be missing. sides: N and K, of their shapes. scales: those of INT4's groups, which lie `along` this side."""

    tensors: tuple[str, ...]
    beside: tuple[str, ...]
    sides: Sides
    scales: str = "scales"
    along: int = 0


GPTQ = Stored(
    tensors=("qweight", "qzeros", "scales"),
    beside=("g_idx",),
    sides=lambda x: (x["qweight"][1], x["qweight"][0] * WORD),
)
# By method; MXFP4 is of experts.
LINEAR = {
    "awq": Stored(
        tensors=("qweight", "qzeros", "scales"),
        beside=(),
        sides=lambda x: (x["qweight"][1] * WORD, x["qweight"][0]),
    ),
    "gptq": GPTQ,
    "gptq_v2": GPTQ,
    "int4_packed": Stored(
        tensors=("weight_packed", "weight_scale", "weight_shape"),
        beside=("weight_zero_point", "weight_g_idx"),
        # Of a K that is no multiple of 8 the last word has fewer codes: groups have whole ones.
        sides=lambda x: (x["weight_packed"][0], x["weight_packed"][1] * WORD),
        scales="weight_scale",
        along=1,
    ),
    "nvfp4": Stored(
        tensors=("weight", "weight_scale", "weight_scale_2"),
        beside=("input_scale",),
        sides=lambda x: (x["weight"][0], 2 * x["weight"][1]),
    ),
    "nvfp4_packed": Stored(
        tensors=("weight_packed", "weight_scale", "weight_global_scale"),
        beside=("input_global_scale",),
        sides=lambda x: (x["weight_packed"][0], 2 * x["weight_packed"][1]),
    ),
    "channels": Stored(
        tensors=("weight", "weight_scale"),
        beside=("weight_zero_point", "input_scale", "input_zero_point"),
        sides=lambda x: (x["weight"][0], x["weight"][1]),
    ),
    "channels_packed": Stored(
        tensors=("weight_packed", "weight_scale", "weight_shape"),
        beside=("weight_zero_point",),
        sides=lambda x: (x["weight_packed"][0], x["weight_packed"][1] * OCTET_WORD),
    ),
}


# By method, how names of tensors end that only its layers have.
OWN = {
    "awq": (".qzeros",),
    "gptq": (".qzeros", ".g_idx"),
    "gptq_v2": (".qzeros", ".g_idx"),
    "mxfp4": ("_scales",),
    "int4_packed": (".weight_scale", ".weight_shape"),
    "nvfp4": (".weight_scale",),
    "nvfp4_packed": (".weight_scale", ".weight_global_scale"),
    "channels": (".weight_scale",),
    "channels_packed": (".weight_scale", ".weight_shape"),
}
# The group of each column, where a method may put columns in another order.
REORDERED = {"gptq": "g_idx", "gptq_v2": "g_idx", "int4_packed": "weight_g_idx"}
WEIGHT = ".weight"  # how a wide weight's name ends
CODES = (".qweight", ".weight_packed")  # and those of methods that put codes elsewhere
