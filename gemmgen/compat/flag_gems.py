"""FlagGems' block-scaled FP8 functions, by its names: `from gemmgen.compat import flag_gems`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .. import ops
from ..errors import ArgumentError, UnsupportedProblem
from ..ir.dtypes import BF16, E4M3, F32, FLOATS, DType
from ..ops.names import ArgumentNames
from ..runtime.torch_tensors import check_tensor, empty, torch_dtype
from .scales import scale_layout

BLOCK = (128, 128)
OUTPUTS = FLOATS
NAMES = ArgumentNames(names={"a": "x", "b": "y", "scale_a": "xs", "scale_b": "ys", "out": "z"})
BY_HEAD = "bhr,hdr->bhd"


def w8a8_block_fp8_bmm(
    x: Any,
    y: Any,
    xs: Any,
    ys: Any,
    block_size: Sequence[int] = BLOCK,
    z: Any = None,
    output_dtype: Any = None,
) -> Any:
    """`z[g] = (x[g] * xs[g]) @ (y[g] * ys[g])^T` for every g, promoted to FP32 every 128 of K; returns `z`.

    x: float8_e4m3fn [G, M, K]; y: float8_e4m3fn [G, N, K]; contiguous along K, other strides multiples of 16
    bytes (permuted views too). N and K need not be multiples of 128.
    xs: float32 [G, M, ceil(K/128)], any strides: read in place if contiguous along M with other strides multiples of 4
    elements, else as `gemmgen.ops` reads layout "row". ys: float32 [G, ceil(N/128), ceil(K/128)], any strides.
    block_size: (128, 128). output_dtype: torch.bfloat16 (None), float16 or float32. z: [G, M, N] of
    output_dtype, strides as x's; allocated if None, its rows padded to 16 bytes. Raises as `gemmgen.ops`.
    """
    if not isinstance(block_size, Sequence) or tuple(block_size) != BLOCK:
        raise ArgumentError("block_size", block_size, "must be [128, 128]")
    dtype = _output(output_dtype)
    with NAMES:
        layout = scale_layout("xs", xs)
        return ops.fp8_block_batched_gemm(
            x, xs, y, ys, z, scale_a_layout=layout, out_dtype=dtype.name
        )


def fp8_einsum(
    equation: str,
    x: Any,
    xs: Any,
    y: Any,
    ys: Any,
    block_size: Sequence[int] = BLOCK,
    output_dtype: Any = None,
) -> Any:
    """A GEMM of every head h as in `w8a8_block_fp8_bmm`: a new tensor [b, h, d].

    equation: "bhr,hdr->bhd"; others raise UnsupportedProblem. x: float8_e4m3fn [b, h, r]; xs: float32
    [b, h, ceil(r/128)]; y: float8_e4m3fn [h, d, r]; ys: float32 [h, ceil(d/128), ceil(r/128)].
    """
    if equation != BY_HEAD:
        raise UnsupportedProblem(f"fp8_einsum: equation={equation!r} is not {BY_HEAD!r}")
    b, h, _ = check_tensor("x", x, E4M3, (None, None, None))
    check_tensor("xs", xs, F32, (b, h, None), x.device)
    _, d, _ = check_tensor("y", y, E4M3, (h, None, None), x.device)
    z = empty((b, h, d), _output(output_dtype), x.device)
    by_head = [t.transpose(0, 1) for t in (x, xs, z)]
    w8a8_block_fp8_bmm(by_head[0], y, by_head[1], ys, block_size, by_head[2], output_dtype)
    return z


def _output(dtype: Any) -> DType:
    if dtype is None:
        return BF16
    for known in OUTPUTS:
        if dtype == torch_dtype(known):
            return known
    names = ", ".join(str(torch_dtype(t)) for t in OUTPUTS)
    raise ArgumentError("output_dtype", dtype, f"must be one of {names}")
