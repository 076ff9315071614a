"""Operands on their way to registers that wait in shared memory, each thread's in places of its own (docs/adr/0050-direct-weights.md)."""

from __future__ import annotations

from .lever import C, Changes, flag

AHEAD = 4  # K blocks on their way


def _others(c: C) -> tuple[Changes, ...]:
    return ({"slots": True, "stages": AHEAD, "unroll": AHEAD},) * (c.direct and not c.slots)


SLOTS = flag(
    "slots",
    tag="slots",
    word="slots",
    reads="K blocks on their way wait in shared memory, each thread's pieces in places of its own",
    sums=False,
    others=_others,
    tile=True,
    matters=21,
)
