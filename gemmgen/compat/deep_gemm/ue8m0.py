"""Scales that are powers of two, a byte each: their exponents of float32, four of one row's in an int32.

Blackwell's kernels read them; on Hopper they are layouts, which checkpoints and tools for both have. torch's operators
compute them, bit by bit, wherever the tensors are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...errors import ArgumentError
from ...ir.dtypes import F32, FLOATS, S32
from ...runtime.torch_tensors import dtype_of, torch
from ..scales import check_scales
from .layout import align, ceil_div, get_tma_aligned_size
from .renamed import renamed

PACKED = 4  # scales in an int32
MANTISSA_BITS = 23
LARGEST = 254  # 255 is infinity's and NaN's
GRANULARITIES = (32, 128)  # of K, that share a scale
MOST_GROUPS = 128


def ceil_to_ue8m0(x: Any) -> Any:
    """|x|, rounded up to a power of two from 2^-126 to 2^127: float32 of x's shape. x: float32, bfloat16 or float16. Raises
    ArgumentError."""
    dtype_of("x", x, FLOATS)
    bits = x.abs().float().view(torch().int32)
    exponent = (bits >> MANTISSA_BITS) + (bits & _mantissa()).bool().int()
    return (exponent.clamp(1, LARGEST) << MANTISSA_BITS).view(torch().float32)


def pack_ue8m0_to_int(x: Any) -> Any:
    """x, float32 [..., n] of powers of two, as int32 [..., n / 4], the first in the lowest byte; n a multiple of 4. The
    host waits to see that they are such. Raises ArgumentError."""
    dtype_of("x", x, (F32,))
    if not x.dim() or x.shape[-1] % PACKED:
        raise ArgumentError("x shape", tuple(x.shape), f"must end in a multiple of {PACKED}")
    bits = x.contiguous().view(torch().int32)
    if not bool(((bits >= 0) & (bits & _mantissa() == 0)).all()):
        raise ArgumentError("x", "numbers", "must be powers of two, or 0")
    return _words(_exponents(bits))


def unpack_ue8m0_from_int(packed_sf: Any) -> Any:
    """The reverse of `pack_ue8m0_to_int`: int32 [..., n] as float32 [..., 4 * n]. Raises ArgumentError."""
    dtype_of("packed_sf", packed_sf, (S32,))
    if not packed_sf.dim():
        raise ArgumentError("packed_sf shape", (), "must have a dimension")
    *lead, words = packed_sf.shape
    codes = packed_sf.reshape(-1).view(torch().uint8).view(*lead, PACKED * words).int()
    return (codes << MANTISSA_BITS).view(torch().float32)


def get_mn_major_tma_aligned_packed_ue8m0_tensor(sf: Any, psum_layout: Any = None) -> Any:
    """float32 [rows, blocks] or [groups, rows, blocks] as int32 of ceil(blocks / 4) columns: exponents, 0 behind the last
    block; contiguous along the rows, columns at multiples of 16 bytes, groups behind each other.

    psum_layout: int32, the row after each group's last, of two-dimensional `sf`: of no effect, rows between groups are packed
    too. Signs and mantissas are left out. Raises ArgumentError.
    """
    check_scales("sf", sf)
    if psum_layout is not None:
        _check_table("psum_layout", psum_layout, None)
        if sf.dim() != 2:
            raise ArgumentError(
                "sf shape", tuple(sf.shape), "must have 2 dimensions beside psum_layout"
            )
    *lead, rows, blocks = sf.shape
    columns, pitch = ceil_div(blocks, PACKED), get_tma_aligned_size(rows, 4)
    strides = (*(pitch * columns,) * len(lead), 1, pitch)
    out = torch().empty_strided(
        (*lead, rows, columns), strides, dtype=torch().int32, device=sf.device
    )
    return out.copy_(_packed(sf))


@renamed(ks="ks_cpu")
def get_k_grouped_mn_major_tma_aligned_packed_ue8m0_tensor(
    sf: Any,
    grouped_layout: Any,
    ks_cpu: Sequence[int] | None,
    gran_k: int,
    k_alignment: int,
    use_psum_layout: bool = False,
) -> Any:
    """sf, float32 [blocks of all groups, columns], dense, as int32 [packed blocks of all groups, columns], dense: four
    blocks of a group in one, 0 behind its last.

    ks_cpu: K of each group. gran_k: 32 or 128 of K that share a scale. grouped_layout: int32 [G], checked for its shape, and not
    read: ks_cpu says the same. k_alignment: a multiple of 32, of no effect. use_psum_layout: False. Raises ArgumentError.
    """
    blocks = _blocks(ks_cpu, gran_k)
    dtype_of("sf", sf, (F32,))
    if sf.dim() != 2 or sf.shape[0] != sum(blocks):
        allowed = f"must be [{sum(blocks)}, columns], by ks_cpu"
        raise ArgumentError("sf shape", tuple(sf.shape), allowed)
    _check_table("grouped_layout", grouped_layout, len(blocks))
    if not isinstance(k_alignment, int) or k_alignment < 32 or k_alignment % 32:
        raise ArgumentError("k_alignment", k_alignment, "must be a multiple of 32")
    if use_psum_layout:
        allowed = "must be False: on Hopper groups follow each other without gaps"
        raise ArgumentError("use_psum_layout", use_psum_layout, allowed)
    parts = [_packed(part.mT).mT for part in sf.split(blocks)]
    return torch().cat(parts).contiguous() if parts else sf.new_empty(sf.shape, dtype=torch().int32)


def _blocks(ks_cpu: Sequence[int] | None, gran_k: int) -> list[int]:
    """Of each group. Raises ArgumentError."""
    if gran_k not in GRANULARITIES:
        raise ArgumentError("gran_k", gran_k, f"must be one of {GRANULARITIES}")
    sizes = [*ks_cpu] if isinstance(ks_cpu, list | tuple) else None
    if sizes is None or not all(isinstance(k, int) and k >= 0 for k in sizes):
        raise ArgumentError("ks_cpu", ks_cpu, "must be K of each group")
    if len(sizes) > MOST_GROUPS:
        raise ArgumentError("groups", len(sizes), f"must be at most {MOST_GROUPS}")
    return [ceil_div(k, gran_k) for k in sizes]


def _check_table(name: str, table: Any, groups: int | None) -> None:
    """Raise ArgumentError unless `table` is int32 of so many groups, or of any number."""
    dtype_of(name, table, (S32,))
    if table.dim() != 1 or groups not in (None, table.shape[0]):
        sides = "one dimension" if groups is None else f"the shape [{groups}]"
        raise ArgumentError(f"{name} shape", tuple(table.shape), f"must have {sides}")


def _packed(sf: Any) -> Any:
    """float32 [..., blocks] as int32 [..., ceil(blocks / 4)], row by row."""
    missing = align(sf.shape[-1], PACKED) - sf.shape[-1]
    codes = _exponents(sf.contiguous().view(torch().int32))
    return _words(torch().nn.functional.pad(codes, (0, missing)))


def _words(codes: Any) -> Any:
    """uint8 [..., n] as int32 [..., n / 4]."""
    *lead, count = codes.shape
    return codes.reshape(-1).view(torch().int32).view(*lead, count // PACKED)


def _exponents(bits: Any) -> Any:
    return (bits >> MANTISSA_BITS).to(torch().uint8)


def _mantissa() -> int:
    return (1 << MANTISSA_BITS) - 1
