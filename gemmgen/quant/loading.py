"""All layers of a checkpoint that a method has quantised, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from ..errors import ArgumentError
from .awq import awq
from .channels import channels, channels_packed
from .checkpoint import Checkpoint
from .gptq import gptq
from .microscaled import mxfp4
from .named import Tensors
from .nvfp4 import nvfp4, nvfp4_packed
from .packed_words import int4_packed
from .quantised import Quantised

# By method: what a layer's first tensor ends with, and what reads the layer.
METHODS: Mapping[str, tuple[str, Callable[[Tensors, str], Quantised]]] = {
    "awq": (".qweight", awq),
    "gptq": (".qweight", gptq),
    "gptq_v2": (".qweight", partial(gptq, checkpoint_format="gptq_v2")),
    "mxfp4": ("_blocks", mxfp4),
    "nvfp4": (".weight_scale_2", nvfp4),
    "nvfp4_packed": (".weight_packed", nvfp4_packed),
    "int4_packed": (".weight_packed", int4_packed),
    "channels": (".weight_scale", channels),
    "channels_packed": (".weight_packed", channels_packed),
}
OF_8_BITS = ("channels", "channels_packed")
OF_4_BITS = tuple(x for x in METHODS if x not in OF_8_BITS)
Progress = Callable[[int, int, str], object]


def load(
    source: Tensors | str | Path | Sequence[str | Path],
    method: str,
    *,
    progress: Progress | None = None,
) -> dict[str, Quantised]:
    """Every layer of `source` that `method` has quantised, by its name in the checkpoint.

    source: tensors by name, or safetensors files and folders of them (`Checkpoint`). method: "awq" (version gemm), "gptq", "gptq_v2"
    (GPTQ whose zeros are stored as they are) or "mxfp4", as `quant_method` and `checkpoint_format` of the checkpoint's quantization_config say,
    "nvfp4" (ModelOpt's) or "nvfp4_packed" (compressed-tensors', of the format "nvfp4-pack-quantized"), "int4_packed" (its INT4: "pack-quantized" with 4 bits), "channels" (INT8 or FP8 with a scale for each row: "int-quantized", "float-quantized") or
    "channels_packed" (INT8 of "pack-quantized", with 8 bits). progress: called with
    (layers read, layers, the name of the last one read), at first with 0. Tensors of a file are read when their layer's turn comes, and onto the CPU.

    Raises ArgumentError, naming the argument or the tensor, for what the reader of that name does not take, and where there is no such layer.
    """
    if not isinstance(method, str) or method not in METHODS:
        raise ArgumentError("method", method, f"must be one of {', '.join(METHODS)}")
    if progress is not None and not callable(progress):
        raise ArgumentError("progress", progress, "must be a function of three arguments")
    tensors: Mapping[str, Any] = source if isinstance(source, Mapping) else Checkpoint(source)
    suffix, read = METHODS[method]
    names = [n.removesuffix(suffix) for n in tensors if isinstance(n, str) and n.endswith(suffix)]
    if not names:
        raise ArgumentError("source", sorted(map(str, tensors)), f"must have a tensor *{suffix}")
    said = progress or (lambda done, layers, name: None)
    said(0, len(names), "")
    found = {}
    for done, name in enumerate(names, 1):
        found[name] = read(tensors, name)
        said(done, len(names), name)
    return found
