"""The weighted sum of what experts made of each token, over copies that are rows of a grouped GEMM's result."""

from __future__ import annotations

from functools import partial
from typing import Any

from ..combining import VECTOR_BYTES, Combination, at_once, source
from ..errors import ArgumentError
from ..ir.counts import INT_LIMIT
from ..ir.dtypes import FLOATS, S32
from ..runtime import loaded_cast
from ..runtime.torch_tensors import current_stream, dtype_of, torch
from .casting import in_rows
from .quantise import generated
from .tensors import check_matrix, check_no_gradient, check_shape, check_together

loaded = partial(loaded_cast.loaded, source)  # of a kernel and a device


def combine(y: Any, slots: Any, weights: Any, *, add: Any = None) -> Any:
    """[T, H] of y's dtype: of each token t the sum over j of weights[t, j] * y[slots[t, j]], after add[t] if given.

    y: bfloat16, float16 or float32 [rows, H]. slots: int32 [T, top]; one that is no row of y, as -1, stands for no copy:
    neither its weight nor any row of y counts then, so rows without a copy may hold anything. weights: float32,
    bfloat16 or float16 [T, top]. add: y's dtype [T, H], a residual or the result of a shared expert. All on one
    device; rows that are contiguous may be any stride apart, and other tensors are copied first.

    Numerics: in FP32, product and sum each rounded to nearest even, j in ascending order, from add[t] or from +0 on (a sum
    of zeros without add is +0, whatever their signs); then rounded once to the dtype. The same bits on every device, but
    for those of a NaN.

    On CUDA tensors one launch of a generated kernel on torch's current stream; the host never waits, and a CUDA graph may hold it.
    Other tensors, and what a compiler of torch traces, take torch code, to which `torch.ops.gemmgen.combine` is to
    be preferred there: a compiler may fuse products with sums. That has gradients, too. Raises ArgumentError, also where
    a gradient is asked for; on a GPU RuntimeUnavailable without NVRTC or if it is not Hopper.
    """
    given = check(y, slots, weights, add)
    check_no_gradient(given, "must not: torch.ops.gemmgen.combine has gradients")
    return combined(**given)


def check(y: Any, slots: Any, weights: Any, add: Any) -> dict[str, Any]:
    """The arguments by name. Raises ArgumentError."""
    given = {"y": y, "slots": slots, "weights": weights, "add": add}
    check_together({name: x for name, x in given.items() if name != "add" or x is not None})
    dtype = dtype_of("y", y, FLOATS)
    dtype_of("slots", slots, (S32,))
    dtype_of("weights", weights, FLOATS)
    check_matrix("y", y, "rows, H")
    check_matrix("slots", slots, "T, top")
    check_shape("weights", weights, tuple(slots.shape))
    if add is not None:
        dtype_of("add", add, (dtype,))
        check_shape("add", add, (slots.shape[0], y.shape[1]))
    return given


def combined(y: Any, slots: Any, weights: Any, add: Any) -> Any:
    """`combine` of arguments that are checked."""
    tensors = [x for x in (y, slots, weights, add) if x is not None]
    way = launched if all(map(generated, tensors)) else by_torch
    return way(y, slots, weights, add)


def by_torch(y: Any, slots: Any, weights: Any, add: Any) -> Any:
    """What `launched` returns, by torch's operators, wherever the tensors are: the reference."""
    rows, columns = y.shape
    tokens, top = slots.shape
    new = y.new_zeros((tokens, columns), dtype=torch().float32)
    sums = new if add is None else add.float()
    for j in range(top if rows else 0):
        slot = slots[:, j : j + 1]
        named = (slot >= 0) & (slot < rows)
        copies = y[slot.clamp(0, rows - 1).squeeze(1).long()].float()
        sums = torch().where(named, sums + copies * weights[:, j : j + 1].float(), sums)
    return y.new_empty((tokens, columns)).copy_(sums)  # contiguous, however its terms lie


def launched(y: Any, slots: Any, weights: Any, add: Any) -> Any:
    """By a generated kernel on torch's current stream. Raises ArgumentError for more than a launch counts."""
    given = {"y": y, "slots": slots, "weights": weights, "add": add}
    read = {name: in_rows(x) for name, x in given.items() if x is not None}
    (rows, columns), (tokens, top) = y.shape, slots.shape
    out = torch().empty((tokens, columns), dtype=y.dtype, device=y.device)
    if not out.numel():
        return out
    combination = combination_of(read, columns, top)
    if combination.items(tokens, columns) >= INT_LIMIT:
        allowed = f"must ask for at most {INT_LIMIT - 1} times {combination.vector} elements of H"
        raise ArgumentError("slots shape", (tokens, top), allowed)
    values = {"add": 0, "add_stride": 0, "out": out.data_ptr()}
    values |= {name: x.data_ptr() for name, (x, _) in read.items()}
    values |= {f"{name}_stride": pitch for name, (_, pitch) in read.items()}
    values |= {"rows": rows, "tokens": tokens, "top": top, "columns": columns}
    stream, tiles = current_stream(y.device), combination.tiles(tokens, columns)
    loaded(combination, y.device.index).launch(values, tiles, stream)
    return out


def combination_of(read: dict[str, tuple[Any, int]], columns: int, top: int) -> Combination:
    """The kernel for tensors by name, each with the elements from a row to the next."""
    y, weights = (dtype_of(name, read[name][0], FLOATS) for name in ("y", "weights"))
    multiples = [columns * y.bytes]
    for name in read.keys() & {"y", "add"}:
        x, pitch = read[name]
        multiples += [x.data_ptr(), pitch * y.bytes]
    aligned = all(n % VECTOR_BYTES == 0 for n in multiples)
    return Combination(y=y, weights=weights, aligned=aligned, at_once=at_once(top))
