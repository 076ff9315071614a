"""The order of tiles: which, and of panels the axis that one spans, and its height in (cluster) tiles."""

from __future__ import annotations

from ..ir.orders import ORDERS
from ..ir.orders import PANELS as IN_PANELS
from .lever import Lever, Values, choice, integer

PLAIN = ("m", 8)
PANELS = (8, 16, 4, 32, 1)

RASTER = Lever(
    name="raster",
    values=choice("m", "n"),
    default=PLAIN[0],
    tag=lambda c: f"{c.raster}{c.panel}" * ((c.raster, c.panel) != PLAIN),
    others=lambda c: ({"raster": "n" if c.raster == "m" else "m"},),
    matters=20,
    ordered=True,
    sums=False,
)
PANEL = Lever(  # the raster's tag has it
    name="panel",
    values=integer(1, 64),
    default=PLAIN[1],
    others=lambda c: ({"panel": x} for x in PANELS if x != c.panel),
    matters=40,
    ordered=True,
    sums=False,
)
ORDER = Lever(
    name="order",
    # Asked anew each time: a program may add its own.
    values=Values(
        says="one of gemmgen.ir.orders.ORDERS",
        holds=lambda v: isinstance(v, str) and v in ORDERS,
        listed=lambda: tuple(ORDERS),
    ),
    default=IN_PANELS,
    added=True,
    tag="{}",
    word="order {}",
    reads="the order in which tiles come",
    others=lambda c: ({"order": x} for x in ORDERS if x != c.order),
    matters=25,
    ordered=True,
    sums=False,
)
