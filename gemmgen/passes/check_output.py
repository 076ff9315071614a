"""Reject tiles of D that its columns, or the copy engine, cannot be cut into."""

from __future__ import annotations

from ..errors import IllegalConfig, Rule
from ..ir.nodes import Accumulate, Kernel, RowAmax
from ..ir.promotion import OF_BLOCKS, promotes
from ..ir.rewrite import statements
from ..ir.stores import OUTPUT_SCALE_BLOCK
from ..target import Target

OUTPUT_PIECES = Rule(
    id="output-pieces",
    says="a row of D's tile must be a multiple of 16 bytes",
    because="TMA and bulk copies write whole pieces of 16 bytes; a piece that two tiles share would be "
    "written by both. An epilogue that pairs columns halves the row.",
)
OUTPUT_SCALES = Rule(
    id="output-scales",
    says="a tile of an FP8 output must have whole blocks of 128 columns of D",
    because="128 columns of a row share a scale, which depends on the largest of them: it must be known before any is rounded.",
)
PROMOTED_PAIRS = Rule(
    id="promoted-pairs",
    says="a family that promotes must pair columns and quantise the output in two parts",
    because="128 columns of D are then 256 of the product: their accumulator and a partial sum of all of them "
    "are 256 registers, more than a thread has.",
)
ROW_SUMS = Rule(
    id="row-sums",
    says="an output that sums rows needs swap_ab, and block_m a multiple of the rows that make one",
    because="The rows are then the accumulator's columns, which a thread and its quad hold; sums of what two tiles have would meet "
    "in no thread.",
)
RULES = (OUTPUT_PIECES, OUTPUT_SCALES, PROMOTED_PAIRS, ROW_SUMS)


def check_output(kernel: Kernel, target: Target) -> Kernel:
    """Check the width of D's tile. Changes nothing."""
    if kernel.block.fold_rows > 1:
        _check_sums(kernel)
    if any(isinstance(s, RowAmax) for s in statements(kernel)):
        _check_scales(kernel)
    row = kernel.block.d_n * kernel.buffer("smem_d").dtype.bytes
    if row % target.tma_alignment:
        values = {"block_n": kernel.block.n, "columns": kernel.block.d_n, "row_bytes": row}
        step = target.tma_alignment * kernel.block.n // row
        raise IllegalConfig(OUTPUT_PIECES, values, f"Use a block_n that is a multiple of {step}.")
    return kernel


def _check_sums(kernel: Kernel) -> None:
    b, swapped = kernel.block, kernel.buffer("smem_d").along == "n"
    if not swapped or b.m % b.fold_rows:
        values = {"swap_ab": swapped, "block_m": b.m, "rows": b.fold_rows}
        fix = " or ".join(str(m) for m in range(b.fold_rows, 257, b.fold_rows))
        raise IllegalConfig(ROW_SUMS, values, f"Use swap_ab=true and block_m={fix}.")


def _check_scales(kernel: Kernel) -> None:
    b = kernel.block
    promoted = any(
        isinstance(s, Accumulate) or promotes(s, *OF_BLOCKS, "columns") for s in statements(kernel)
    )
    if promoted and b.fold > 1 and kernel.instr.n == b.n:
        values = {"fold": b.fold, "columns": b.d_n, "parts": 1}
        raise IllegalConfig(PROMOTED_PAIRS, values, "Use parts=2 and block_n=256.")
    if b.d_n % OUTPUT_SCALE_BLOCK:
        step = OUTPUT_SCALE_BLOCK * b.fold
        fix = f"Use block_n={' or '.join(str(n) for n in range(step, 257, step))}."
        raise IllegalConfig(OUTPUT_SCALES, {"block_n": b.n, "columns": b.d_n}, fix)
