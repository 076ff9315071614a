"""The order of tiles: the axis that an L2 panel spans, and its height in (cluster) tiles."""

from __future__ import annotations

from .lever import Lever, choice, integer

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
)
PANEL = Lever(  # the raster's tag has it
    name="panel",
    values=integer(1, 64),
    default=PLAIN[1],
    others=lambda c: ({"panel": x} for x in PANELS if x != c.panel),
    matters=40,
    ordered=True,
)
