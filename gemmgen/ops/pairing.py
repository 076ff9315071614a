"""FP32 weights as pairs of BF16 rows, for a product whose epilogue adds pairs of columns (`pair_sum`)."""

from __future__ import annotations

from functools import partial
from typing import Any

from ..errors import ArgumentError
from ..ir.counts import INT_LIMIT
from ..ir.dtypes import BF16, F32
from ..pairing import GREATEST, TF32_LOST, VECTOR, Pairing, source
from ..runtime import loaded_cast
from ..runtime.torch_tensors import current_stream, dtype_of, empty, torch
from .casting import in_rows
from .quantise import generated
from .tensors import check_matrix, check_no_gradient, check_together

loaded = partial(loaded_cast.loaded, source)  # of a kernel and a device


def paired(weights: Any, *, squares: bool = False, tf32: bool = False) -> Any:
    """bfloat16 [2 N, K]: of row n of weights row 2n holds what BF16 has of it, and row 2n + 1 what BF16 has of the rest.

    As b of `gemm` with `epilogue="pair_sum"` and `out_dtype="f32"` it multiplies by FP32 weights, of whose 24 significant bits a pair has
    at least 17: a router's, for one. weights: float32 [N, K], rows that are contiguous any stride apart, else copied first. squares:
    append a pair of zeros, for the sums of squares of `prenorm_gemm`. tf32: round to TF32 first, to nearest, away from zero if two
    are as near; a pair then is that number exactly. Rows of the result begin at multiples of 16 bytes. The greatest numbers, which BF16
    would round to infinity, are pairs of finite numbers; infinity and NaN have no rest.

    On CUDA tensors one launch of a generated kernel on torch's current stream; the host never waits, and a CUDA graph may hold it.
    Other tensors, and what a compiler of torch traces, take torch code, with the same bits. Raises ArgumentError, also where a gradient
    is asked for; on a GPU RuntimeUnavailable without NVRTC or if it is not Hopper.
    """
    check_together({"weights": weights})
    dtype_of("weights", weights, (F32,))
    check_matrix("weights", weights, "N, K")
    check_no_gradient({"weights": weights}, "must not: a pair has none")
    for name, value in (("squares", squares), ("tf32", tf32)):
        if not isinstance(value, bool):
            raise ArgumentError(name, value, "must be true or false")
    return pairs_of(weights, squares, tf32)


def pairs_of(weights: Any, squares: bool, tf32: bool) -> Any:
    """`paired` of arguments that are checked."""
    way = launched if generated(weights) else by_torch
    return way(weights, squares, tf32)


def by_torch(weights: Any, squares: bool, tf32: bool) -> Any:
    """What `launched` returns, by torch's operators, wherever the tensor is: the reference."""
    number = _tf32(weights.detach()) if tf32 else weights.detach()
    high = number.clamp(-GREATEST, GREATEST).where(number.isfinite(), number).bfloat16()
    rest = (number - high.float()).where(number.isfinite(), number.new_zeros(())).bfloat16()
    pairs = _room(weights, squares).zero_()
    both = torch().stack((high, rest), 1).flatten(0, 1)
    pairs[: len(both)] = both
    return pairs


def _tf32(x: Any) -> Any:
    """Rounded, but for what is too large, and NaN."""
    up = (x.view(torch().int32) + (1 << TF32_LOST - 1)) & -(1 << TF32_LOST)
    rounded = up.view(torch().float32)
    return rounded.where(rounded.isfinite() & x.isfinite(), x)


def _room(weights: Any, squares: bool) -> Any:
    rows, columns = weights.shape
    return empty((2 * (rows + squares), columns), BF16, weights.device)


def launched(weights: Any, squares: bool, tf32: bool) -> Any:
    """By a generated kernel on torch's current stream. Raises ArgumentError for more than a launch counts."""
    weights, pitch = in_rows(weights)
    pairs = _room(weights, squares)
    (rows, columns), all_rows = weights.shape, pairs.shape[0] // 2
    aligned = columns % VECTOR == 0 and (weights.data_ptr() | 4 * pitch) % 16 == 0
    kernel = Pairing(tf32=tf32, aligned=aligned)
    items = kernel.items(all_rows, columns)
    if not items:
        return pairs
    if items >= INT_LIMIT:
        allowed = f"must have at most {INT_LIMIT - 1} times {kernel.vector} elements"
        raise ArgumentError("weights shape", tuple(weights.shape), allowed)
    values = {"x": weights.data_ptr(), "pairs": pairs.data_ptr(), "x_stride": pitch}
    values |= {"pairs_stride": pairs.stride(0), "rows": rows, "all_rows": all_rows}
    stream, tiles = current_stream(weights.device), kernel.tiles(all_rows, columns)
    loaded(kernel, weights.device.index).launch({**values, "columns": columns}, tiles, stream)
    return pairs
