"""Consumer warpgroups of a CTA that divide the K blocks of one tile (sliced-K; docs/adr/0070-slices-of-k.md)."""

from __future__ import annotations

from .lever import C, Changes, L, flag

WIDE = 64  # columns of a swapped tile that is tried instead: those of one wgmma
MEETING = 60.0  # cycles until warpgroups have met: not measured


def adding_cycles(of: L, c: C) -> float:
    """SM cycles per tile until the sums of the warpgroups are together in one: they meet twice, and what is sent is written and read."""
    sent: int = 4 * c.block_m * c.block_n * (c.slices - 1)
    rate: int = of.target.smem_bytes_per_clock
    return 2 * MEETING + 2 * sent / rate


def _others(c: C) -> tuple[Changes, ...]:
    """Of few rows: two to four warpgroups at 64 columns."""
    if not c.swap_ab or c.slice_k or c.direct:
        return ()
    plain: Changes = {"slice_k": True, "block_n": WIDE, "split_k": 1, "stream": False, "shares": 1}
    plain |= {"ping_pong": False, "peek": False}
    return tuple(plain | {"consumers": n, "stages": max(n, c.stages // n * n)} for n in (4, 3, 2))


def _price(price: Changes, of: L, c: C) -> Changes:
    """A warpgroup waits for every so-many-th K block only: what others multiply meanwhile hides what lies between two of its own."""
    return {
        "drain": price["drain"] / c.slices,
        "exchange": price["exchange"] + adding_cycles(of, c),
    }


SLICE_K = flag(
    "slice_k",
    tag="slice",
    word="sliced K",
    reads="consumer warpgroups divide a tile's K blocks, and the first adds up their sums",
    others=_others,
    tile=True,
    matters=25,
    beside=("in_flight",),
    price=_price,
)
