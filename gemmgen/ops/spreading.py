"""Copies of tokens where a grouped GEMM finds them: in rows sorted by expert."""

from __future__ import annotations

from functools import partial
from typing import Any

from ..errors import ArgumentError
from ..ir.counts import INT_LIMIT
from ..ir.dtypes import F32, S32
from ..runtime import loaded_cast
from ..runtime.torch_tensors import current_stream, dtype_of, empty, torch
from ..spreading import UNITS, Spread, source
from .casting import in_rows
from .quantise import generated
from .tensors import check_matrix, check_no_gradient, check_number, check_together

WORDS = {1: "uint8", 2: "int16", 4: "int32", 8: "int64"}  # torch's dtypes of so many bytes
loaded = partial(loaded_cast.loaded, source)  # of a kernel and a device


def spread(q: Any, scale: Any, slots: Any, rows: int) -> tuple[Any, Any]:
    """(codes, scales): row t of q and of scale in each row slots[t, j]. All other rows hold whatever was in memory.

    q: [T, C] of any dtype whose elements have 1, 2, 4 or 8 bytes: FP8 codes, INT8, BF16, bytes; rows that are contiguous
    may be any stride apart, else q is copied first. scale: float32 [T, B] of any strides, as `quantise_rows` returns it, or None. slots:
    int32 [T, top]; one that is not from 0 to rows - 1, as -1, stands for no copy. rows: of the results, at most 2**31 - 1. All on one
    device. Of slots that are alike any one is obeyed.

    codes: q's dtype [rows, C], contiguous. scales: float32 [rows, B], contiguous along the rows with columns at multiples
    of 16 bytes, as `scale_a` of layout "mn"; without scale B is 0. Bytes are copied: every NaN stays what it is.
    A grouped GEMM reads rows of no copy only where they share a tile with others, and what it makes of them it writes nowhere.

    On CUDA tensors one launch of a generated kernel on torch's current stream; the host never waits, and a CUDA graph may hold it.
    Other tensors, and what a compiler of torch traces, take torch code. Raises ArgumentError, also where a gradient is asked for; on a GPU
    RuntimeUnavailable without NVRTC or if it is not Hopper.
    """
    check(q, scale, slots)
    check_no_gradient({"q": q, "scale": scale}, "must not: copies have none")
    check_number("rows", rows, 0, INT_LIMIT - 1)
    return copied(q, scale, slots, rows)


def check(q: Any, scale: Any, slots: Any) -> None:
    """Raises ArgumentError."""
    given = {"q": q, "scale": scale, "slots": slots}
    check_together({name: x for name, x in given.items() if name != "scale" or x is not None})
    if q.element_size() not in WORDS:
        raise ArgumentError("q dtype", q.dtype, "must have elements of 1, 2, 4 or 8 bytes")
    dtype_of("slots", slots, (S32,))
    check_matrix("q", q, "T, C")
    tokens = q.shape[0]
    if scale is not None:
        dtype_of("scale", scale, (F32,))
    sides = {"scale": "blocks", "slots": "top"}
    for name in ("slots",) if scale is None else ("scale", "slots"):
        check_matrix(name, given[name], f"T, {sides[name]}")
        if given[name].shape[0] != tokens:
            allowed = f"must be [{tokens}, {sides[name]}], of q's rows"
            raise ArgumentError(f"{name} shape", tuple(given[name].shape), allowed)


def copied(q: Any, scale: Any, slots: Any, rows: int) -> tuple[Any, Any]:
    """`spread` of arguments that are checked."""
    tensors = [x for x in (q, scale, slots) if x is not None]
    way = launched if all(map(generated, tensors)) else by_torch
    return way(q, scale, slots, rows)


def by_torch(q: Any, scale: Any, slots: Any, rows: int) -> tuple[Any, Any]:
    """What `launched` returns, by torch's operators, wherever the tensors are: the reference."""
    words = q.detach().view(getattr(torch(), WORDS[q.element_size()]))
    at = torch().where((slots >= 0) & (slots < rows), slots, rows).long()
    codes = _to_rows(words, at, rows)[:rows].view(q.dtype)
    scales = _scales(scale, rows, q.device)
    if scale is not None:
        scales.copy_(_to_rows(scale.detach(), at, rows)[:rows])
    return codes, scales


def _to_rows(x: Any, at: Any, rows: int) -> Any:
    """Row t of x in each row at[t, j]; behind all others the row of what has none."""
    copies = x.repeat_interleave(at.shape[1], 0)
    return x.new_empty((rows + 1, x.shape[1])).index_copy_(0, at.flatten(), copies)


def _scales(scale: Any, rows: int, device: Any) -> Any:
    blocks = 0 if scale is None else scale.shape[1]
    return empty((blocks, rows), F32, device).mT


def launched(q: Any, scale: Any, slots: Any, rows: int) -> tuple[Any, Any]:
    """By a generated kernel on torch's current stream. Raises ArgumentError for more than a launch counts."""
    (q, pitch), (slots, slots_stride) = map(in_rows, (q, slots))
    codes = torch().empty((rows, q.shape[1]), dtype=q.dtype, device=q.device)
    scales = _scales(scale, rows, q.device)
    if scale is not None and max(scale.stride()) >= INT_LIMIT:
        scale = scale.contiguous()
    (tokens, top), blocks = slots.shape, scales.shape[1]
    kernel = Spread(unit=_unit(q, pitch))
    size = q.element_size()
    parts = q.shape[1] * size // kernel.unit
    items = kernel.items(tokens, parts, blocks)
    if not rows or not top or not items:
        return codes, scales
    if items >= INT_LIMIT:
        allowed = f"must have at most {INT_LIMIT - 1} times {kernel.unit} bytes, and scales"
        raise ArgumentError("q shape", tuple(q.shape), allowed)
    values = {"q": q.data_ptr(), "codes": codes.data_ptr(), "q_stride": pitch * size // kernel.unit}
    values |= {"slots": slots.data_ptr(), "slots_stride": slots_stride}
    values |= {"scales": scales.data_ptr(), "scales_stride": scales.stride(1)}
    values |= dict.fromkeys(("scale", "scale_token", "scale_block"), 0)
    if scale is not None:
        values |= {"scale": scale.data_ptr()}
        values |= zip(("scale_token", "scale_block"), scale.stride(), strict=True)
    values |= {"rows": rows, "tokens": tokens, "top": top, "parts": parts, "blocks": blocks}
    stream, tiles = current_stream(q.device), kernel.tiles(tokens, parts, blocks)
    loaded(kernel, q.device.index).launch(values, tiles, stream)
    return codes, scales


def _unit(q: Any, pitch: int) -> int:
    """The most bytes that q's rows begin and end at multiples of; rows of the copies are contiguous."""
    size = q.element_size()
    multiples = (q.data_ptr(), pitch * size, q.shape[1] * size)
    return next(n for n in UNITS if all(x % n == 0 for x in multiples))
