"""Checkpoints that others have quantised, by what their `quantization_config` says."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

from ... import formats
from ...errors import ArgumentError
from ...ir.packed import COLUMN, OF_16_BITS
from ...nn.kinds import IN_FP8
from ...quant.stated import stated
from ...runtime.torch_tensors import torch_dtype
from .config import GemmgenConfig

BLOCK = [128, 128]
HEAD = "lm_head"  # of causal models, wide in checkpoints, whose lists name only what else stays
LEFT = {"gptq": ("dynamic", "modules_in_block_to_quantize", "lm_head")}  # what says more of layers
PLACE = "config.quantization_config"
SCALES = {torch_dtype(t): t.name for t in OF_16_BITS}


def with_gemmgen(config: Any, dtype: Any = None) -> Any:
    """A copy of `config` by which `from_pretrained(path, config=...)` reads a checkpoint of AWQ (version gemm), GPTQ, both in groups of 32, 64, 128 or all columns, or FP8 in blocks of 128 x 128
    into gemmgen's layers.

    config: of the checkpoint, a PreTrainedConfig with a `quantization_config`. dtype: of the model, torch.bfloat16 or float16, to which scales of 4 bits
    are rounded; None: what `config` says. FP8 has bfloat16. Raises ArgumentError for what gemmgen's layers do not multiply by, naming it.
    """
    theirs = getattr(config, "quantization_config", None)
    if theirs is None:
        allowed = "must be of a checkpoint that is quantised: it has no quantization_config"
        raise ArgumentError("config", type(config).__name__, allowed)
    said: Mapping[str, Any] = theirs if isinstance(theirs, Mapping) else theirs.to_dict()
    method = said.get("quant_method")
    method = getattr(method, "value", method)
    if method not in TAKEN:
        allowed = f"must be one of {', '.join(TAKEN)}"
        raise ArgumentError(f"{PLACE}.quant_method", method, allowed)
    made = copy.deepcopy(config)
    made.dtype = config.dtype if dtype is None else dtype
    made.quantization_config = TAKEN[method]({**said, "quant_method": method}, made.dtype).to_dict()
    return made


def _coded(said: Mapping[str, Any], dtype: Any) -> GemmgenConfig:
    found = stated(said, PLACE)
    for name in LEFT.get(said["quant_method"], ()):
        _one_of(name, said.get(name) or None, (None,))
    if dtype not in SCALES:
        raise ArgumentError("dtype", dtype, f"must be {' or '.join(map(str, SCALES))}")
    form = formats.int4(found.group or COLUMN, SCALES[dtype], zeros=found.zeros)
    left = said.get("modules_to_not_convert")
    return GemmgenConfig(
        form.name, stored=found.method, modules_to_not_convert=[*left, HEAD] if left else None
    )


def _fp8(said: Mapping[str, Any], dtype: Any) -> GemmgenConfig:
    block = said.get("weight_block_size")
    _one_of("weight_block_size", block if block is None else [*block], (BLOCK,))
    _one_of("activation_scheme", said.get("activation_scheme", "dynamic"), ("dynamic",))
    _one_of("fmt", said.get("fmt", "e4m3"), ("e4m3",))
    _one_of("modules_to_convert", said.get("modules_to_convert"), (None,))
    left = said.get("modules_to_not_convert") or said.get("ignored_layers")
    return GemmgenConfig(IN_FP8, modules_to_not_convert=left or None)


TAKEN: dict[str, Callable[[Mapping[str, Any], Any], GemmgenConfig]] = {
    "awq": _coded,
    "gptq": _coded,
    IN_FP8: _fp8,
}


def _one_of(name: str, value: Any, allowed: tuple[Any, ...]) -> Any:
    if value not in allowed:
        text = f"must be {' or '.join(map(repr, allowed))}"
        raise ArgumentError(f"{PLACE}.{name}", value, text)
    return value
