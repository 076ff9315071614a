"""K blocks per trip of the consumers' loop."""

from __future__ import annotations

from .lever import AS_IT_IS, C, Changes, L, Lever, integer

TRIED = (4, 1, 2)
# Of the K loop: 128x192 (2 copies) gains up to 10 % from `unroll=4`, 128x144 (8) loses as much; 4 were not timed.
FEW_COPIES = 4


def _offers(of: L, c: C) -> tuple[Changes, ...]:
    """As the recipe says. Less of a loop that is copied often: its code adds up; or of INT8 (`split-unroll`)."""
    many = 0 if c.swap_ab else of.copies(c.block_n)
    less = many > FEW_COPIES or (many > 1 and of.problem.a.integer)
    unroll = min(2 if less else 4, of.recipe.unroll)
    return AS_IT_IS if c.peek or unroll == c.unroll else ({"unroll": unroll},)


UNROLL = Lever(
    name="unroll",
    values=integer(1, 8),
    default=1,
    tag="u{}",
    word="u{}",
    others=lambda c: ({"unroll": x, "peek": False} for x in TRIED if x != c.unroll),
    matters=50,
    sums=False,
    offers=_offers,
    spares=True,
)
