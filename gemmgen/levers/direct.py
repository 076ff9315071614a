"""Operands that go from global memory straight into registers (docs/adr/0050-direct-weights.md)."""

from __future__ import annotations

from ..ir.dtypes import BF16, F16
from .lever import AS_IT_IS, C, Changes, L, flag

# Tiles that are tried instead of a swapped one: 64 columns for each of the warpgroups that share it, few rows, and K blocks
# of which registers hold fragments.
WIDE, ROWS, HELD = 64, (8, 16), 2
LINE = 128  # bytes: K is whole ones, or a lane's rows lie across sectors of 32
# Registers of an SM and of a thread at most; of a thread beside its fragments and sums; threads of a CTA; CTAs of an SM at most.
FILE, MOST, BESIDE, THREADS, CTAS = 65536, 255, 44, 128, 8
# Rows of B that a warp has; bytes of a K block of which a thread holds a register per row.
ROWS_OF_B, K_BYTES = 16, 128


def per_sm(c: C) -> int:
    """CTAs that share an SM, as many as their registers let: what `passes.split_registers` finds of 16-bit operands."""
    held = c.stages * (ROWS_OF_B + c.block_m) * c.block_k_bytes // K_BYTES
    need = held + c.block_m * WIDE // THREADS + BESIDE
    fit = [n for n in range(1, CTAS + 1) if min(FILE // (THREADS * n) // 8 * 8, MOST) >= need]
    return max(fit, default=1)


def _instead(c: C) -> Changes:
    plain: Changes = {"consumers": 1, "block_n": WIDE, "stages": HELD, "unroll": HELD}
    plain |= {"multicast": "none", "ping_pong": False, "peek": False, "stream": False}
    plain |= {"in_flight": 0, "weights_ahead": False, "swizzle_ab": None, "registers": None}
    return {"direct": True, **plain}


def _others(c: C) -> tuple[Changes, ...]:
    return (_instead(c),) * (c.swap_ab and not c.direct and c.block_m in ROWS)


def _offers(of: L, c: C) -> tuple[Changes, ...]:
    """Also it, where it was measured: 16-bit operands, one GEMM of few rows; not where sums must be those of other tiles, too, or a
    program says that all operands come by tensor maps."""
    p = of.problem
    tile = c.swap_ab and (c.block_n, c.consumers) == (WIDE, 1) and of.height <= c.block_m in ROWS
    right = p.a == p.b and p.a in (BF16, F16) and not any(p.mn_major) and p.grouping == "none"
    right &= p.collective == "none" and of.split_k == 0 and of.k_bytes % LINE == 0 and of.pointers
    return AS_IT_IS if not (tile and right) else ({}, _instead(c))


DIRECT = flag(
    "direct",
    tag="direct",
    word="direct",
    reads="warps load their operands into registers, and multiply them by mma.sync",
    others=_others,
    offers=_offers,
    beside=("split_k",),
    tile=True,
    matters=20,
)
