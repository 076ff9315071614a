"""SGLang's layer of experts by its name, its keywords and their order: `from gemmgen.compat.sglang import fused_experts`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from .. import ops
from ..errors import ArgumentError
from ..ir.dtypes import FLOATS
from ..ops.mixture_weights import ALPHA, LIMIT
from ..ops.names import ArgumentNames
from ..runtime.torch_tensors import dtype_of
from .experts import (
    CLAMPED,
    FLAGS,
    ONLY,
    OPERANDS,
    SCALES,
    biases,
    check_flags,
    check_only,
    gate_of,
    quantised,
)

BIASES = {"b1": "bias_w1", "b2": "bias_w2"}
NAMES = ArgumentNames(names=OPERANDS | {of_moe: name for name, of_moe in (SCALES | BIASES).items()})
ACTIVATIONS = ("silu", "gelu")
# What a config says, where it says nothing.
SAID = {
    "activation": "silu",
    "is_gated": True,
    "apply_router_weight_on_input": False,
    "inplace": True,
    "no_combine": False,
    "routed_scaling_factor": None,
    "gemm1_alpha": None,
    "gemm1_clamp_limit": None,
    "gate_up_interleaved": True,
    "swiglu_limit": None,
    "custom_act_fn": None,
}
NO_OTHER = {"is_gated": True, "no_combine": False, "swiglu_limit": None, "custom_act_fn": None}


def fused_experts(
    hidden_states: Any,
    w1: Any,
    w2: Any,
    topk_output: Any,
    moe_runner_config: Any,
    b1: Any = None,
    b2: Any = None,
    use_fp8_w8a8: bool = False,
    use_int8_w8a8: bool = False,
    use_int8_w8a16: bool = False,
    use_int4_w4a16: bool = False,
    per_channel_quant: bool = False,
    w1_scale: Any = None,
    w2_scale: Any = None,
    w1_zp: Any = None,
    w2_zp: Any = None,
    a1_scale: Any = None,
    a2_scale: Any = None,
    block_shape: Sequence[int] | None = None,
) -> Any:
    """`gemmgen.ops.moe` of w1 [E, 2 * I, H]: bfloat16 [T, H], `hidden_states` itself if the config says `inplace`.

    hidden_states: bfloat16 [T, H]. w2: [E, H, I]. topk_output: (topk_weights, topk_ids, router_logits), of which the first two are read: [T, top], int32 or int64 ids of
    experts here, others, as -1, adding nothing. moe_runner_config: any object with attributes of SGLang's `MoeRunnerConfig`: activation "silu" or "gelu" (by erf) of
    w1's rows, gate's, then up's; or, with "silu", gemm1_alpha 1.702 and gemm1_clamp_limit 7, gpt-oss's, of rows that alternate, or not where gate_up_interleaved is False; inplace; routed_scaling_factor, with which weights are
    multiplied; is_gated must be True, apply_router_weight_on_input and no_combine False, swiglu_limit and custom_act_fn None. b1, b2: float32, bfloat16 or float16 [E, 2 * I] and [E, H], both or none; not float32, they are converted by every call.
    Weights and scales: as of `gemmgen.compat.fused_experts`. Nothing is kept of them, nor copied, but for scales per channel and biases of rows in halves. All else must be as it is by default. Raises as `gemmgen.ops.moe`; for what gemmgen
    cannot do ArgumentError, with the argument's or the attribute's name.
    """
    asked = locals()
    said = {name: getattr(moe_runner_config, name, known) for name, known in SAID.items()}
    check_only(asked | said, {**ONLY, **NO_OTHER})
    check_flags(asked | said, ("inplace", "gate_up_interleaved", *FLAGS))
    topk_weights, topk_ids = _chosen(topk_output)
    topk_weights = _times(topk_weights, said["routed_scaling_factor"])
    how = {**_gate(said), **quantised(asked), **biases(asked, BIASES)}
    with NAMES:
        y = ops.moe(hidden_states, w1, w2, topk_ids, topk_weights, **how)
    return hidden_states.copy_(y) if said["inplace"] else y


def _chosen(topk_output: Any) -> tuple[Any, Any]:
    """(topk_weights, topk_ids). Raises ArgumentError."""
    if not isinstance(topk_output, tuple) or len(topk_output) != 3:
        allowed = "must be (topk_weights, topk_ids, router_logits)"
        raise ArgumentError("topk_output", type(topk_output).__name__, allowed)
    return topk_output[:2]


def _times(weights: Any, factor: Any) -> Any:
    if factor is None:
        return weights
    known = isinstance(factor, int | float) and not isinstance(factor, bool)
    if not known or not math.isfinite(factor):
        raise ArgumentError("routed_scaling_factor", factor, "must be a finite number, or None")
    if factor == 1:
        return weights
    dtype_of("topk_weights", weights, FLOATS)
    return weights.float() * factor


def _gate(said: dict[str, Any]) -> dict[str, str]:
    given = gate_of(said["activation"], ACTIVATIONS)
    alpha, limit = said["gemm1_alpha"], said["gemm1_clamp_limit"]
    if alpha is None and limit is None:
        return given
    if said["activation"] != "silu":
        raise ArgumentError("activation", said["activation"], "must be 'silu' with gemm1_alpha")
    for name, value, only in (("gemm1_alpha", alpha, ALPHA), ("gemm1_clamp_limit", limit, LIMIT)):
        if value != only:
            raise ArgumentError(name, value, f"must be {only}, or both None: gemmgen has no other")
    return CLAMPED if said["gate_up_interleaved"] else {**CLAMPED, "order": "halves"}
