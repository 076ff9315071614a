"""AWQ's layers, as AutoAWQ's version "gemm" stores them: words of eight neighbouring outputs, interleaved."""

from __future__ import annotations

from ..runtime.torch_tensors import torch
from .named import Tensors, finite, floats, int4_of, shaped, tensor
from .quantised import Quantised, packed_rows, words

# Where in a word the code of output 8 j + i is: outputs 0, 2, 4, 6, 1, 3, 5, 7 from the low bits up
# (awq/utils/packing_utils.py of github.com/casper-hansen/AutoAWQ).
PLACES = (0, 4, 1, 5, 2, 6, 3, 7)
WORD = 8


def awq(tensors: Tensors, name: str) -> Quantised:
    """The linear layer `name` of AWQ's version "gemm": a weight is (code - zero) * scale.

    It is three tensors: `name`.qweight, int32 [K, N / 8], `name`.qzeros, int32 [K / g, N / 8], and `name`.scales, float16,
    bfloat16 or float32 [K / g, N], where g is 32, 64, 128 or K. Other tensors, a bias among them, are left to the caller.

    Returns weights [N, K] with zeros, on the device of the tensors. Raises ArgumentError naming the tensor: one that is missing, of another dtype or shape
    (as of the versions "gemv" and "gemv_fast", or of another number of bits), or a scale that is no finite number.
    """
    weight = tensor(tensors, f"{name}.qweight", (torch().int32,), 2)
    scales = tensor(tensors, f"{name}.scales", floats(), 2)
    zeros = tensor(tensors, f"{name}.qzeros", (torch().int32,), 2)
    k, n = weight.shape[0], scales.shape[1]
    as_gemm = "eight outputs of 4 bits to a word, of version gemm"
    shaped(f"{name}.qweight", weight, (k, n // WORD), as_gemm)
    shaped(f"{name}.scales", scales, (scales.shape[0], weight.shape[1] * WORD), as_gemm)
    shaped(f"{name}.qzeros", zeros, (scales.shape[0], n // WORD), as_gemm)
    form = int4_of(f"{name}.scales", k, scales, zeros=True)
    finite(f"{name}.scales", scales)
    places = list(PLACES)
    return Quantised(
        format=form,
        codes=packed_rows(words(weight)[..., places].reshape(k, n)),
        scales=scales.t().contiguous(),
        zeros=words(zeros)[..., places].reshape(-1, n).t().contiguous(),
    )
