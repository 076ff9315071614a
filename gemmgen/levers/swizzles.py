"""How shared memory is swizzled: bytes, or the widest that fits."""

from __future__ import annotations

from .lever import Lever, choice

WIDTHS = choice(None, 0, 32, 64, 128)


SWIZZLE_AB = Lever(
    name="swizzle_ab",
    values=WIDTHS,
    default=None,
    tag="sab{}",
    word="A and B swizzled by {}",
    reads="rows of A and B are swizzled by so many bytes, not by the most that fits",
    sums=False,
)
SWIZZLE_D = Lever(
    name="swizzle_d",
    values=WIDTHS,
    default=None,
    tag="sd{}",
    word="D swizzled by {}",
    reads="rows of D are swizzled by so many bytes, not by the most that fits",
    sums=False,
)
