"""How shared memory is swizzled: bytes, or the widest that fits."""

from __future__ import annotations

from .lever import Lever, choice

WIDTHS = choice(None, 0, 32, 64, 128)


def _of(name: str, tag: str, what: str) -> Lever:
    def asked(c: object) -> bool:
        return getattr(c, name) is not None

    return Lever(
        name=name,
        values=WIDTHS,
        default=None,
        tag=lambda c: f"{tag}{getattr(c, name)}" * asked(c),
        word=lambda c: f"{what} swizzled by {getattr(c, name)}" * asked(c),
        reads=f"rows of {what} are swizzled by so many bytes, not by the most that fits",
    )


SWIZZLE_AB = _of("swizzle_ab", "sab", "A and B")
SWIZZLE_D = _of("swizzle_d", "sd", "D")
