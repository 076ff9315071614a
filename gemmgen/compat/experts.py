"""What engines' layers of experts say alike, and what that is to `gemmgen.ops.moe`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..errors import ArgumentError
from ..ir.dtypes import E4M3, F32, FLOATS, S8
from ..runtime.torch_tensors import dtype_of

BLOCK = (128, 128)
# Names of theirs, by those of `ops.moe` or the other way about.
OPERANDS = {"x": "hidden_states", "chosen": "topk_ids", "weights": "topk_weights"}
SCALES = {"w1_scale": "scale_w1", "w2_scale": "scale_w2"}
# Of numbers that gemmgen has no layer for, or of a layer that computes something else.
ONLY = {
    **dict.fromkeys(("apply_router_weight_on_input", "use_int8_w8a16", "use_int4_w4a16"), False),
    **dict.fromkeys(("w1_zp", "w2_zp", "a1_scale", "a2_scale"), None),
}
FLAGS = ("use_fp8_w8a8", "use_int8_w8a8", "per_channel_quant")
CLAMPED = {"epilogue": "swiglu_clamped", "order": "alternating"}
GATES = {
    "silu": {"epilogue": "swiglu", "order": "halves"},
    "gelu": {"epilogue": "geglu", "order": "halves"},
    "swigluoai": CLAMPED,
}


def gate_of(activation: Any, known: Iterable[str] = GATES) -> dict[str, str]:
    """As `ops.moe` calls it, of `known` ones. Raises ArgumentError."""
    if not isinstance(activation, str) or activation not in (*known,):
        shown = activation if isinstance(activation, str) else type(activation).__name__
        raise ArgumentError("activation", shown, f"must be one of {', '.join(known)}")
    return GATES[activation]


def biases(asked: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """In float32, as `ops.moe` calls them; names: its, by theirs. Raises ArgumentError."""
    found = {}
    for name, of_moe in names.items():
        if asked[name] is not None:
            wide = dtype_of(name, asked[name], FLOATS) == F32
            found[of_moe] = asked[name] if wide else asked[name].float()
    return found


def check_flags(asked: Mapping[str, Any], names: Iterable[str]) -> None:
    """Raise ArgumentError unless each is true or false."""
    for name in names:
        if not isinstance(asked[name], bool):
            raise ArgumentError(name, asked[name], "must be True or False")


def check_only(asked: Mapping[str, Any], only: Mapping[str, Any]) -> None:
    """Raise ArgumentError for an argument that is not the only one there is."""
    for name, known in only.items():
        _check_only(name, asked[name], known)


def _check_only(name: str, value: Any, known: Any) -> None:
    if type(value) is not type(known) or value != known:
        shown = value if isinstance(value, str | bool | None) else type(value).__name__
        raise ArgumentError(name, shown, f"must be {known!r}: gemmgen has no other")


def quantised(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Scales as `ops.moe` calls them: of blocks, or of rows where quantisation is per channel. Raises ArgumentError."""
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
    return {SCALES[name]: _scale(name, x, by_row) for name, x in given.items()}


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
