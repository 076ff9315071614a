"""Operands that go from global memory straight into registers (docs/adr/0050-direct-weights.md)."""

from __future__ import annotations

from typing import Any

from ..ir.dtypes import BF16, E4M3, F16
from ..ir.fragments import ROWS as FRAGMENT_ROWS
from ..ir.fragments import registers
from .lever import AS_IT_IS, C, Changes, L, flag

# Tiles that are tried instead of a swapped one: 64 columns for each of the warpgroups that share it, few rows, and K blocks
# of which registers hold fragments.
WIDE, ROWS, HELD = 64, (8, 16), 2
LINE = 128  # bytes: K is whole ones, or a lane's rows lie across sectors of 32
# Registers beside fragments and sums: of kernels with 35 of 12 some spilled 12 bytes, with 41 none. With three to eight CTAs on an SM the
# prototype was as fast; more were not tried.
BESIDE, CTAS = 44, 8
SCALED = 16  # more where sums are scaled, beside partial sums: scales, and operands of 8 bits that are converted


def per_sm(c: C, target: Any) -> int:
    """CTAs that share an SM of a `Target`, of 16-bit operands, or with `lane_scales` of scaled FP8: what `passes.split_registers` sets, known
    before a kernel is."""
    held = registers(FRAGMENT_ROWS, c.block_k_bytes) + registers(c.block_m, c.block_k_bytes)
    sums = c.block_m * WIDE // target.warpgroup
    need = c.stages * held + sums + BESIDE + (sums + SCALED) * c.lane_scales
    return sharing(need, target.warpgroup, target, CTAS)


def sharing(need: int, threads: int, target: Any, most: int) -> int:
    """CTAs of so many threads, at most `most`, each with `need` registers, that share an SM; one in any case."""
    fit = [n for n in range(1, most + 1) if of_each(n, threads, target) >= need]
    return max(fit, default=1)


def of_each(ctas: int, threads: int, target: Any) -> int:
    """Registers per thread where so many CTAs of so many threads share an SM."""
    share, most = target.registers_per_sm // (threads * ctas) // 8 * 8, target.registers_per_thread
    return int(min(share, most))


def _instead(c: C) -> Changes:
    plain: Changes = {"consumers": 1, "block_n": WIDE, "stages": HELD, "unroll": HELD}
    plain |= {"multicast": "none", "ping_pong": False, "peek": False, "stream": False}
    plain |= {
        "in_flight": 0,
        "weights_ahead": False,
        "slots": False,
        "swizzle_ab": None,
        "registers": None,
    }
    return {"direct": True, **plain}


def _others(c: C) -> tuple[Changes, ...]:
    return (_instead(c),) * (c.swap_ab and not c.direct and c.block_m in ROWS)


def _offers(of: L, c: C) -> tuple[Changes, ...]:
    """Also it, where it was measured: 16-bit operands, or E4M3 with block scales, one GEMM of few rows; not where sums must be those of other
    tiles, too, or a program says that all operands come by tensor maps."""
    p = of.problem
    tile = c.swap_ab and (c.block_n, c.consumers) == (WIDE, 1) and of.height <= c.block_m in ROWS
    scaled = p.a == E4M3 and of.recipe.scales_blocks
    right = p.a == p.b and (p.a in (BF16, F16) or scaled)
    right &= not any(p.mn_major) and p.grouping == "none"
    right &= (
        p.collective == "none"
        and not of.recipe.coded
        and of.split_k == 0
        and of.k_bytes % LINE == 0
        and of.pointers
    )
    return AS_IT_IS if not (tile and right) else ({}, _instead(c) | {"lane_scales": scaled})


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
