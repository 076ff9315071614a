"""vLLM's layer of experts by its name, its keywords and their order, as of its release 0.10, for 0.9 by keyword: `from gemmgen.compat.fused_experts
import fused_experts`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .. import ops
from ..errors import ArgumentError
from ..ir.dtypes import E4M3, S8, S32
from ..ops.names import ArgumentNames
from ..runtime.torch_tensors import dtype_of, torch

BLOCK = (128, 128)
MOE = {"w1_scale": "scale_w1", "w2_scale": "scale_w2"}
NAMES = ArgumentNames(
    names={
        "x": "hidden_states",
        "chosen": "topk_ids",
        "weights": "topk_weights",
        **{of_moe: name for name, of_moe in MOE.items()},
        "experts": "global_num_experts",
    }
)
# Of numbers that gemmgen has no layer for, or of a layer that computes something else.
ONLY = {
    "activation": "silu",
    **dict.fromkeys(("apply_router_weight_on_input", "use_int8_w8a16"), False),
    **dict.fromkeys(("use_int4_w4a16", "use_mxfp4_w4a4"), False),
    **dict.fromkeys(("w1_zp", "w2_zp", "a1_scale", "a2_scale"), None),
    **dict.fromkeys(("w1_bias", "w2_bias", "quant_config"), None),
}

FLAGS = ("inplace", "use_fp8_w8a8", "use_int8_w8a8", "per_channel_quant")


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

    hidden_states: bfloat16 [T, H]. w2: [E, H, I]. topk_weights, topk_ids: [T, top], int32 or int64 ids. Weights are bfloat16, or with
    use_fp8_w8a8 float8_e4m3fn, with block_shape [128, 128] and float32 scales of such blocks; I is then a multiple of 128. With per_channel_quant
    float8_e4m3fn, or int8 with use_int8_w8a8: w1_scale float32 [E, 2 * I], w2_scale [E, H], or with a side of 1 behind these. Nothing is
    kept of them, nor copied, but for scales per channel. expert_map: int32 [global_num_experts], of each expert its place here, -1 of one that is elsewhere: its copies add nothing, and
    those of ids that it has not. global_num_experts: -1 for E, or as many as the map has.
    What `allow_*` permit is not needed; `w1_bias`, `w2_bias` and `quant_config`, of later releases, must be None; all else must be as it is by default. The copy back that `inplace` asks for is a launch more, and so are those that read the map.
    Raises as `gemmgen.ops.moe`; for what gemmgen cannot do ArgumentError, with the argument's name.
    """
    asked = locals()
    for name, known in ONLY.items():
        _check_only(name, asked[name], known)
    for name in FLAGS:
        if not isinstance(asked[name], bool):
            raise ArgumentError(name, asked[name], "must be True or False")
    scales = _scales(asked)
    ids = topk_ids if expert_map is None else _mapped(topk_ids, expert_map)
    experts = _experts(global_num_experts, expert_map)
    with NAMES:
        y = ops.moe(
            *(hidden_states, w1, w2, ids, topk_weights),
            **{"order": "halves", "experts": experts, **scales},
        )
    return hidden_states.copy_(y) if inplace else y


def _check_only(name: str, value: Any, known: Any) -> None:
    if type(value) is not type(known) or value != known:
        shown = value if isinstance(value, str | bool | None) else type(value).__name__
        raise ArgumentError(name, shown, f"must be {known!r}: gemmgen has no other")


def _scales(asked: Mapping[str, Any]) -> dict[str, Any]:
    """As `ops.moe` calls them: of blocks, or of rows where quantisation is per channel."""
    given = {name: asked[name] for name in ("w1_scale", "w2_scale")}
    fp8, by_row, block = (asked[x] for x in ("use_fp8_w8a8", "per_channel_quant", "block_shape"))
    integers = asked["use_int8_w8a8"]
    if fp8 and integers:
        raise ArgumentError("use_int8_w8a8", True, "must be False with use_fp8_w8a8")
    if not (fp8 or integers):
        for name, x in {**given, "block_shape": block}.items():
            if x is not None:
                raise ArgumentError(name, type(x).__name__, "must be None without use_fp8_w8a8")
        if by_row:
            raise ArgumentError("per_channel_quant", True, "must be False for 16 bits")
        return {}
    if integers and not by_row:
        raise ArgumentError("per_channel_quant", False, "must be True with use_int8_w8a8")
    dtype_of("w1", asked["w1"], (S8 if integers else E4M3,))
    if by_row and block is not None:
        raise ArgumentError("block_shape", block, "must be None with per_channel_quant")
    if not by_row and (not isinstance(block, Sequence) or tuple(block) != BLOCK):
        raise ArgumentError("block_shape", block, "must be [128, 128]")
    return {MOE[name]: _scale(name, x, by_row) for name, x in given.items()}


def _scale(name: str, x: Any, by_row: bool) -> Any:
    """Of weights, [E, rows] if `by_row`, which may have a side of 1 behind them."""
    if x is None:
        what = "rows" if by_row else "blocks of 128 x 128"
        raise ArgumentError(name, None, f"must be given: scales of {what}")
    shape = tuple(getattr(x, "shape", ()))
    if by_row and shape[2:] == (1,):
        return x.squeeze(-1)
    if shape and len(shape) != (2 if by_row else 3):
        allowed = "must be [E, rows] or [E, rows, 1]" if by_row else "must have three sides"
        raise ArgumentError(f"{name} shape", shape, allowed)
    return x


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
