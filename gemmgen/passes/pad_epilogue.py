"""Pad D's rows where they are not swizzled, so that stmatrix meets no bank twice."""

from __future__ import annotations

from dataclasses import replace

from ..ir.nodes import Kernel, Smem
from ..target import Target


def pad_epilogue(kernel: Kernel, target: Target) -> Kernel:
    """Make an unswizzled 8- or 16-bit D row a multiple of 4 but not of 8 banks: eight rows of a
    16-byte matrix row then fall into eight different bank quads. Sets Smem.pad."""
    return replace(kernel, smem=tuple(replace(s, pad=_pad(s, target)) for s in kernel.smem))


def _pad(s: Smem, target: Target) -> int:
    if s.use != "output" or s.swizzle or s.dtype.bytes > 2:
        return 0
    banks = s.cols * s.dtype.bytes // target.bank_bytes
    return (4 - banks) % 8 * target.bank_bytes // s.dtype.bytes
