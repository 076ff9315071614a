"""Operands and scales of the FP8 and INT8 functions, from wider tensors.

Everywhere: x is bfloat16, float16 or float32, on any device, and is computed with in FP32. Of the greatest
|x| that shares a scale, amax, at least 1e-4 (so zeros stay zeros), the scale is amax / limit and q is x *
(limit / amax), limit 448 for "e4m3" and 127 for "s8"; each operation is rounded once, to the nearest, ties to
even. Of finite values that is what `scale_out` and `out` of an FP8 output are, to the bit. power_of_two: scales are
rounded up to powers of two, and q is x / scale. Where an infinity or a NaN shares a scale, that is NaN and the q are 0: every
sum with them is NaN. The host never waits for the device. Results have no gradient. Raises ArgumentError.

`generated` says which tensors a generated kernel quantises (`gemmgen.casts`): CUDA tensors. It reads x once; what
`casting.row_pitch` refuses is made contiguous first. All others are quantised by the torch code below, to the same
bits. On the GPU it raises also RuntimeUnavailable without NVRTC or on a GPU that is not Hopper.
"""

from __future__ import annotations

from typing import Any

from ..casts import LIMITS, Per
from ..errors import ArgumentError
from ..ir.dtypes import FLOATS
from ..ir.stores import LEAST_AMAX
from ..runtime.torch_tensors import dtype_of, mn_major, torch, torch_dtype
from . import casting
from .calls import SCALE_BLOCK

KINDS = {d.name: d for d in LIMITS}
MANTISSA = 0x7FFFFF  # of FP32, in bits

Quantised = tuple[Any, Any]  # q, scale


def quantise_rows(
    x: Any,
    block: int | None = SCALE_BLOCK,
    *,
    dtype: str = "e4m3",
    power_of_two: bool = False,
) -> Quantised:
    """(q, scale) with a scale per row and 128 columns, or per row.

    x: [..., M, K]. block: 128 or None. q: float8_e4m3fn or int8 [..., M, K], contiguous. scale: float32
    [..., M, ceil(K/128)], contiguous along M with columns at multiples of 16 bytes, as `scale_a` of layout "mn";
    for block None [..., M], contiguous, as `scale_a` and `scale_b` of `fp8_gemm` and `int8_gemm`.
    """
    if block not in (SCALE_BLOCK, None):
        raise ArgumentError("block", block, f"must be {SCALE_BLOCK} or None")
    _check(x, dtype, 1 if block is None else 0)
    return _quantised(x, "row" if block is None else "columns", dtype, power_of_two)


def quantise_blocks(
    x: Any, block: int = SCALE_BLOCK, *, dtype: str = "e4m3", power_of_two: bool = False
) -> Quantised:
    """(q, scale) with a scale per 128 rows and 128 columns.

    x: [..., N, K]. block: 128. q: float8_e4m3fn or int8 [..., N, K], contiguous. scale: float32 [...,
    ceil(N/128), ceil(K/128)], contiguous, as `scale_b` of the block-scaled functions.
    """
    if block != SCALE_BLOCK:
        raise ArgumentError("block", block, f"must be {SCALE_BLOCK}")
    _check(x, dtype, 0)
    return _quantised(x, "block", dtype, power_of_two)


def _quantised(x: Any, per: Per, dtype: str, power_of_two: bool) -> Quantised:
    way = casting.quantised if generated(x) else by_torch
    return way(x, per, dtype, power_of_two)


def generated(x: Any) -> bool:
    """Whether a generated kernel quantises x: a CUDA tensor of no subclass, while no compiler of torch traces. What
    such a compiler traces is the torch code; under `torch.ops.gemmgen` it traces nothing, and the kernel runs."""
    if torch().compiler.is_compiling():
        return False
    return type(x) in (torch().Tensor, torch().nn.Parameter) and x.device.type == "cuda"


def _check(x: Any, dtype: str, least: int) -> None:
    if not isinstance(dtype, str) or dtype not in KINDS:
        raise ArgumentError("dtype", dtype, f"must be one of {', '.join(KINDS)}")
    dtype_of("x", x, FLOATS)
    if x.dim() < 2 or x.shape[-1] < least:
        raise ArgumentError("x shape", tuple(x.shape), f"must be [..., rows, {least} or more]")


def by_torch(x: Any, per: Per, dtype: str, power_of_two: bool) -> Quantised:
    """What `casting.quantised` returns, by torch's operators, wherever x is: the reference."""
    sides = {"columns": (1, SCALE_BLOCK), "row": (1, x.shape[-1]), "block": (SCALE_BLOCK,) * 2}
    q, scale = _of_blocks(x, sides[per], dtype, power_of_two)
    match per:
        case "columns":
            return q, mn_major(scale)
        case "row":
            return q, scale.squeeze(-1)
    return q, scale


def _of_blocks(x: Any, sides: tuple[int, int], dtype: str, power_of_two: bool) -> Quantised:
    """q and a dense scale per block of so many rows and columns."""
    kind = KINDS[dtype]
    limit = LIMITS[kind]
    *lead, rows, columns = x.shape
    high, wide = (-(-n // side) for n, side in zip((rows, columns), sides, strict=True))
    below, right = high * sides[0] - rows, wide * sides[1] - columns
    padded = torch().nn.functional.pad(x.detach().float(), (0, right, 0, below))
    blocks = padded.view(*lead, high, sides[0], wide, sides[1])
    amax = blocks.abs().amax((-3, -1), keepdim=True)
    scale, factor = _factors(amax.clamp(min=LEAST_AMAX), limit, power_of_two)
    finite = amax.isfinite()
    scaled = torch().where(finite, blocks * factor, 0.0)
    scaled = scaled.round().clamp(-limit, limit) if kind.integer else scaled
    cut = scaled.to(torch_dtype(kind)).view(padded.shape)[..., :rows, :columns]
    q = cut.flatten().view(x.shape)  # contiguous() would leave a single row its wider stride
    return q, torch().where(finite, scale, float("nan")).view(*lead, high, wide)


def _factors(amax: Any, limit: float, power_of_two: bool) -> tuple[Any, Any]:
    """The scale, and what to multiply with. Tensors divide by tensors: torch multiplies with the rounded
    reciprocal of a number."""
    largest = torch().full_like(amax, limit)
    if not power_of_two:
        return amax / largest, largest / amax
    bits = (amax / largest).view(torch().int32)
    scale = ((bits + MANTISSA) & ~MANTISSA).view(torch().float32)
    return scale, torch().ones_like(scale) / scale
