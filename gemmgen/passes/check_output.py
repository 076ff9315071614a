"""Reject tiles of D that its columns, or the copy engine, cannot be cut into."""

from __future__ import annotations

from ..errors import IllegalConfig, Rule
from ..ir.nodes import Kernel
from ..target import Target

OUTPUT_PIECES = Rule(
    id="output-pieces",
    says="a row of D's tile must be a multiple of 16 bytes",
    because="TMA and bulk copies write whole pieces of 16 bytes; a piece that two tiles share would be "
    "written by both. An epilogue that pairs columns halves the row.",
)
RULES = (OUTPUT_PIECES,)


def check_output(kernel: Kernel, target: Target) -> Kernel:
    """Check the width of D's tile. Changes nothing."""
    row = kernel.block.d_n * kernel.buffer("smem_d").dtype.bytes
    if row % target.tma_alignment:
        values = {"block_n": kernel.block.n, "columns": kernel.block.d_n, "row_bytes": row}
        step = target.tma_alignment * kernel.block.n // row
        raise IllegalConfig(OUTPUT_PIECES, values, f"Use a block_n that is a multiple of {step}.")
    return kernel
