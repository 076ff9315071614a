"""Column parts of a tile that are multiplied and promoted one after the other (docs/adr/0011-parts.md)."""

from __future__ import annotations

from ..ir.expr import fold
from .lever import AS_IT_IS, C, Changes, L, Lever, choice


def _offers(of: L, c: C) -> tuple[Changes, ...]:
    """128 columns of D that share a scale are 256 of the product, more than one part promotes; swapped they are four M sub-tiles."""
    if c.swap_ab:
        return AS_IT_IS
    paired = of.problem.quantised and fold(of.problem.epilogue) > 1
    return ({"parts": 2},) if paired and of.promotes else AS_IT_IS


PARTS = Lever(
    name="parts",
    values=choice(1, 2),
    default=1,
    added=True,
    tag="p{}",
    word="{} parts",
    reads="column parts are multiplied and promoted one after the other",
    sums=False,
    offers=_offers,
    # Parts take turns in a warp's registers: each wave loads them again.
    price=lambda price, of, c: {"loads": c.waves},
)
