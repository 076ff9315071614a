"""What a check hands back when a property does not hold."""

from __future__ import annotations

from dataclasses import dataclass

from .ops import EPOCHS, LAUNCH, OUTSIDE, OWN, PACKED, PASSED, SENT, Bar, Op
from .properties import Property

Place = tuple[int, int]  # index of an agent, index of one of its operations


@dataclass(frozen=True, kw_only=True)
class Finding:
    """`property` fails, as `message` says, by what happens at `places`.

    `stopped` is where every agent stands, for a deadlock; otherwise the causes of `places` say.
    """

    property: Property
    message: str
    places: tuple[Place, ...] = ()
    stopped: tuple[int, ...] | None = None


def bar_text(bar: Bar, of_cluster: bool) -> str:
    name, cta, stage = bar
    if name in (EPOCHS, LAUNCH, OWN, PASSED, PACKED, SENT):
        return f"{name}[{stage}] of rank {cta}"
    where = f" of CTA {cta}" if of_cluster else ""
    return f"{name}[{stage}]{where}"


def when(op: Op) -> str:
    """`tile 1, K block 3`, or nothing for an operation outside the loops."""
    parts = [f"tile {op.tile}"] * (op.tile != OUTSIDE)
    parts += [f"K block {op.k}"] * (op.k != OUTSIDE)
    return ", ".join(parts)
