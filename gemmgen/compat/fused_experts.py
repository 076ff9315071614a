"""vLLM's layer of experts by its name, its keywords and their order, as of its release 0.10, for 0.9 by keyword: `from gemmgen.compat.fused_experts
import fused_experts`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .. import ops
from ..errors import ArgumentError
from ..ir.dtypes import S32
from ..ops.names import ArgumentNames
from ..runtime.torch_tensors import dtype_of, torch
from .experts import (
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

BIASES = {"w1_bias": "bias_w1", "w2_bias": "bias_w2"}
NAMES = ArgumentNames(
    names=OPERANDS
    | {of_moe: name for name, of_moe in (SCALES | BIASES).items()}
    | {"experts": "global_num_experts"}
)
NONE_OTHER = {**ONLY, "use_mxfp4_w4a4": False, "quant_config": None}


def fused_experts(
    hidden_states: Any,
    w1: Any,
    w2: Any,
    topk_weights: Any,
    topk_ids: Any,
    inplace: bool = False,
    activation: str = "silu",
    apply_router_weight_on_input: bool = False,
    use_fp8_w8a8: bool = False,
    use_int8_w8a8: bool = False,
    use_int8_w8a16: bool = False,
    use_int4_w4a16: bool = False,
    use_mxfp4_w4a4: bool = False,
    per_channel_quant: bool = False,
    global_num_experts: int = -1,
    expert_map: Any = None,
    w1_scale: Any = None,
    w2_scale: Any = None,
    w1_zp: Any = None,
    w2_zp: Any = None,
    a1_scale: Any = None,
    a2_scale: Any = None,
    block_shape: Sequence[int] | None = None,
    allow_deep_gemm: bool = False,
    allow_cutlass_block_scaled_grouped_gemm: bool = False,
    w1_bias: Any = None,
    w2_bias: Any = None,
    quant_config: Any = None,
) -> Any:
    """`gemmgen.ops.moe` of w1 [E, 2 * I, H], gate's rows, then up's: bfloat16 [T, H], `hidden_states` itself if `inplace`.

    activation: "silu", "gelu" (by erf), or "swigluoai", gpt-oss's, for which w1's rows alternate between gate and up. w1_bias, w2_bias, of later releases: float32,
    bfloat16 or float16 [E, 2 * I] and [E, H], both or none; not float32, they are converted by every call.

    hidden_states: bfloat16 [T, H]. w2: [E, H, I]. topk_weights, topk_ids: [T, top], int32 or int64 ids. Weights are bfloat16, or with
    use_fp8_w8a8 float8_e4m3fn, with block_shape [128, 128] and float32 scales of such blocks; I is then a multiple of 128. With per_channel_quant
    float8_e4m3fn, or int8 with use_int8_w8a8: w1_scale float32 [E, 2 * I], w2_scale [E, H], or with a side of 1 behind these. Nothing is
    kept of them, nor copied, but for scales per channel and biases of rows in halves. expert_map: int32 [global_num_experts], of each expert its place here, -1 of one that is elsewhere: its copies add nothing, and
    those of ids that it has not. global_num_experts: -1 for E, or as many as the map has.
    What `allow_*` permit is not needed; `quant_config`, of later releases, must be None; all else must be as it is by default. The copy back that `inplace` asks for is a launch more, and so are those that read the map.
    Raises as `gemmgen.ops.moe`; for what gemmgen cannot do ArgumentError, with the argument's name.
    """
    asked = locals()
    check_only(asked, NONE_OTHER)
    check_flags(asked, ("inplace", *FLAGS))
    how = {**gate_of(activation), **quantised(asked), **biases(asked, BIASES)}
    ids = topk_ids if expert_map is None else _mapped(topk_ids, expert_map)
    experts = _experts(global_num_experts, expert_map)
    with NAMES:
        y = ops.moe(
            *(hidden_states, w1, w2, ids, topk_weights),
            **{"experts": experts, **how},
        )
    return hidden_states.copy_(y) if inplace else y


def _experts(count: Any, expert_map: Any) -> int | None:
    """Of all ranks, if said."""
    if type(count) is not int or (count < 1 and count != -1):
        raise ArgumentError("global_num_experts", count, "must be a positive integer, or -1")
    if expert_map is None:
        return None if count == -1 else count
    here = int(expert_map.shape[0])
    if count not in (-1, here):
        allowed = f"must be {here}, as expert_map has"
        raise ArgumentError("global_num_experts", count, allowed)
    return here


def _mapped(ids: Any, expert_map: Any) -> Any:
    """Of each id the place of its expert here, or -1."""
    dtype_of("expert_map", expert_map, (S32,))
    if expert_map.dim() != 1 or not expert_map.shape[0]:
        allowed = "must be [global_num_experts]"
        raise ArgumentError("expert_map shape", tuple(expert_map.shape), allowed)
    if not isinstance(ids, torch().Tensor) or ids.dtype not in (torch().int32, torch().int64):
        kind = getattr(ids, "dtype", type(ids).__name__)
        raise ArgumentError("topk_ids dtype", kind, "must be torch.int32 or torch.int64")
    if ids.device != expert_map.device:
        allowed = f"must be on {ids.device}, as topk_ids is"
        raise ArgumentError("expert_map device", str(expert_map.device), allowed)
    beside = torch().nn.functional.pad(expert_map, (1, 1), value=-1)
    return beside[ids.clamp(-1, expert_map.shape[0]).long() + 1]
