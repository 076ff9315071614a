"""GPTQ's layers, as AutoGPTQ and GPTQModel store them: words of eight neighbouring inputs."""

from __future__ import annotations

from typing import Any

from ..errors import ArgumentError
from ..runtime.torch_tensors import torch
from .named import Tensors, finite, floats, int4_of, shaped, tensor
from .quantised import Quantised, packed_rows, words

WORD = 8
FORMATS = ("gptq", "gptq_v2")  # `checkpoint_format` of the quantization config
LAST = 15


def gptq(tensors: Tensors, name: str, *, checkpoint_format: str = "gptq") -> Quantised:
    """The linear layer `name` of GPTQ: a weight is (code - zero) * scale.

    It is `name`.qweight, int32 [K / 8, N], `name`.qzeros, int32 [K / g, N / 8], `name`.scales, float16, bfloat16 or float32
    [K / g, N], where g is 32, 64, 128 or K, and, if it is there, `name`.g_idx, integers [K]: the group of each input. Other tensors, a bias among
    them, are left to the caller. checkpoint_format: "gptq", whose zeros are stored less one, or "gptq_v2", as they are.

    Returns weights [N, K] on the device of the tensors, without zeros if all of them are 8. Raises ArgumentError naming the tensor: one that is missing, of
    another dtype or shape, a scale that is no finite number, a zero of "gptq" stored as 15 (readers take it for 16 or for 0), and `g_idx` that is not
    k / g, as of checkpoints whose inputs are in another order (desc_act).
    """
    if checkpoint_format not in FORMATS:
        raise ArgumentError(
            "checkpoint_format", checkpoint_format, f"must be {' or '.join(FORMATS)}"
        )
    weight = tensor(tensors, f"{name}.qweight", (torch().int32,), 2)
    scales = tensor(tensors, f"{name}.scales", floats(), 2)
    stored = tensor(tensors, f"{name}.qzeros", (torch().int32,), 2)
    k, n = weight.shape[0] * WORD, weight.shape[1]
    because = "of 4 bits, eight to a word"
    shaped(f"{name}.scales", scales, (stored.shape[0], n), because)
    shaped(f"{name}.qzeros", stored, (scales.shape[0], n // WORD), because)
    shaped(f"{name}.qweight", weight, (k // WORD, stored.shape[1] * WORD), because)
    zeros = _zeros(f"{name}.qzeros", words(stored).reshape(-1, n), checkpoint_format)
    symmetric = bool((zeros == 8).all())
    form = int4_of(f"{name}.scales", k, scales, zeros=not symmetric)
    finite(f"{name}.scales", scales)
    in_order(tensors, f"{name}.g_idx", k, form.group_of(k))
    return Quantised(
        format=form,
        codes=packed_rows(words(weight).permute(0, 2, 1).reshape(k, n)),
        scales=scales.t().contiguous(),
        zeros=None if symmetric else zeros.t().contiguous(),
    )


def _zeros(name: str, stored: Any, checkpoint_format: str) -> Any:
    if checkpoint_format == FORMATS[1]:
        return stored
    if bool((stored == LAST).any()):
        allowed = "must be below 15 where zeros are stored less one: is it a checkpoint of gptq_v2?"
        raise ArgumentError(name, LAST, allowed)
    return stored + 1


def in_order(tensors: Tensors, name: str, k: int, group: int) -> None:
    """Raise ArgumentError if the tensor `name` is there and says another group of a column than k / group."""
    if name not in tensors:
        return
    of = tensor(tensors, name, (torch().int32, torch().int64), 1)
    shaped(name, of, (k,), "the group of each input")
    straight = torch().arange(k, device=of.device) // group
    if not bool((of == straight).all()):
        where = int((of != straight).nonzero()[0])
        allowed = (
            f"must be {int(straight[where])} for input {where}: act-order (desc_act) is not taken"
        )
        raise ArgumentError(name, int(of[where]), allowed)
