"""Pad D's rows where they are not swizzled, so that stmatrix meets no bank twice."""

from __future__ import annotations

from dataclasses import replace

from ..ir.nodes import Kernel, Smem
from ..target import Target


def pad_epilogue(kernel: Kernel, target: Target) -> Kernel:
    """Make an unswizzled 8- or 16-bit D row a multiple of 4 but not of 8 banks: eight rows of a
    16-byte matrix row then fall into eight different bank quads. Where rows leave one by one, make
    a 32-bit row 8 banks more than a multiple of 16: the four rows of half a warp's 8-byte stores
    then fall into all 32. Folded, a warp stores at most 16 bytes to each of eight rows: 32-bit rows
    as 16-bit ones. Transposed, it stores 8 elements to every second of eight rows: 4 banks more than a
    multiple of 16. Sets Smem.pad."""
    words = (8, 16) if kernel.block.fold == 1 else (4, 8)
    steps = {(1, "m"): (4, 8), (2, "m"): (4, 8), (2, "n"): (4, 8)}
    if kernel.groups.ragged:
        steps |= {(4, "m"): words, (4, "n"): (4, 16)}
    return replace(kernel, smem=tuple(replace(s, pad=_pad(s, steps, target)) for s in kernel.smem))


def _pad(s: Smem, steps: dict[tuple[int, str], tuple[int, int]], target: Target) -> int:
    """`steps`: by element size and Smem.along, the remainder and modulus of a row's banks."""
    kind = s.dtype.bytes, s.along
    if s.use != "output" or s.swizzle or kind not in steps:
        return 0
    banks = s.cols * s.dtype.bytes // target.bank_bytes
    remainder, modulus = steps[kind]
    return (remainder - banks) % modulus * target.bank_bytes // s.dtype.bytes
