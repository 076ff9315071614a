"""Reject tiles the instructions cannot compute."""

from __future__ import annotations

from ..errors import IllegalConfig, Rule
from ..ir.nodes import Kernel, Mma, MultiplyFragments
from ..ir.rewrite import statements
from ..target import Target

WGMMA_N = Rule(
    id="wgmma-n",
    says="block_n (with swap_ab, block_m; with parts, its half) must be an N that wgmma has for this dtype",
    because="wgmma.mma_async exists for N in steps of 8 up to 256; for integers, above 32, in steps of 16.",
)
TILE_ROWS = Rule(
    id="tile-rows",
    says="block_m (with swap_ab, block_n) must be a multiple of 64 rows for each consumer warpgroup that shares "
    "the tile",
    because="One wgmma computes 64 rows and belongs to one warpgroup; a block of rows with no owner is never stored.",
)
PARTS_PROMOTED = Rule(
    id="parts-promoted",
    says="only a family that promotes can multiply a tile in parts",
    because="Parts make the partial sum smaller that is promoted. A sum that stays in the tensor core has none: "
    "one wgmma of all columns needs no more registers, and reads A once.",
)
RULES = (PARTS_PROMOTED, WGMMA_N, TILE_ROWS)

PRODUCTS = (Mma, MultiplyFragments)
FINE_N = 32  # up to here every dtype has N in steps of 8


def check_tile(kernel: Kernel, target: Target) -> Kernel:
    """Check block_m and block_n against the warpgroups and what wgmma has. Changes nothing."""
    sides = [("block_m", kernel.block.m), ("block_n", kernel.block.n)]
    (shared, side), (other, width) = sides if kernel.buffer("smem_d").along == "m" else sides[::-1]
    n = kernel.instr.n
    parts = width // n
    if parts > 1 and any(isinstance(s, Mma) and s.fresh != "block" for s in statements(kernel)):
        raise IllegalConfig(PARTS_PROMOTED, {"parts": parts}, "Use parts=1.")
    step = kernel.instr.a.wgmma_n_step if n > FINE_N else 8
    if n % step or not step <= n <= target.wgmma_n:
        values = {other: width} | ({"parts": parts} if parts > 1 else {})
        raise IllegalConfig(WGMMA_N, values, f"Use a multiple of {step * parts} up to 256.")
    waves = len({s.wave for s in statements(kernel) if isinstance(s, PRODUCTS)})
    rows = target.wgmma_m * kernel.consumers * waves
    if rows != side:
        values = {shared: side, "consumers": kernel.consumers, "waves": waves}
        raise IllegalConfig(
            TILE_ROWS, values, f"{waves} wave(s) of these consumers make {rows} rows."
        )
    return kernel
