"""The orders in which a grid of tiles is walked: each on the device and in Python, for every grouping.

A scheduler says which grids there are, one for a GEMM or for each group's part of it; an order says where in its grid a tile
of a given index lies. Tests hold the two sides together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..errors import ArgumentError

if TYPE_CHECKING:
    from .walks import Scheduler


@dataclass(frozen=True, kw_only=True)
class Order:
    """One order. A grid has `tiles_m` x `tiles_n` clusters; `fast` and `slow` are the scheduler's axes, "m" and "n" or the
    other way round, and PANEL is its panel.

    says: comment lines. device: C++ that declares `int` {fast} and {slow} of tile {index}; both are formats with
    fast, slow, FAST, SLOW, and `device` with index besides. place: the same in Python, of the scheduler, the grid's
    sides by axis and an index.
    """

    says: tuple[str, ...]
    device: tuple[str, ...]
    place: Callable[[Scheduler, Mapping[str, int], int], dict[str, int]]


def _panels(s: Scheduler, tiles: Mapping[str, int], index: int) -> dict[str, int]:
    panel, off = divmod(index, s.panel * tiles[s.slow])
    height = min(s.panel, tiles[s.fast] - panel * s.panel)
    slow = off // height
    if panel % 2:
        slow = tiles[s.slow] - 1 - slow
    return {s.fast: panel * s.panel + off % height, s.slow: slow}


PANELS = "panels"  # what every kernel has that asks for no other
ORDERS = {
    PANELS: Order(
        says=(
            "They come in panels of PANEL along {FAST}: within a panel {FAST} varies first, so that CTAs that run",
            "together share operands in L2. Every other panel runs backwards along {SLOW}.",
        ),
        device=(
            "const int whole = min(PANEL, tiles_{fast}) * tiles_{slow}, panel = {index} / whole, off = {index} % whole;",
            "const int height = min(PANEL, tiles_{fast} - panel * PANEL);",
            "const int across = off / height;",
            "const int {fast} = panel * PANEL + off % height;",
            "const int {slow} = panel % 2 ? tiles_{slow} - 1 - across : across;",
        ),
        place=_panels,
    ),
}


def add(name: str, order: Order) -> None:
    """Make an order known to every layer of this process. Raises ArgumentError for a name that is taken, or is none."""
    if name in ORDERS or not (name.isidentifier() and name.islower()):
        raise ArgumentError(
            "name", name, "must be a lower-case identifier, none of " + ", ".join(ORDERS)
        )
    ORDERS[name] = order


def comment(s: Scheduler) -> str:
    """The lines that say in which order a scheduler's tiles come."""
    return "\n".join(f"// {line.format(**_axes(s))}" for line in ORDERS[s.order].says)


def device(s: Scheduler, index: str) -> str:
    """The lines that place tile `index`."""
    lines = ORDERS[s.order].device
    return "\n".join(8 * " " + line.format(index=index, **_axes(s)) for line in lines)


def place(s: Scheduler, tiles: Mapping[str, int], index: int) -> dict[str, int]:
    """Where tile `index` of a grid of `tiles` clusters by axis lies."""
    return ORDERS[s.order].place(s, tiles, index)


def _axes(s: Scheduler) -> dict[str, str]:
    return {"fast": s.fast, "slow": s.slow, "FAST": s.fast.upper(), "SLOW": s.slow.upper()}
