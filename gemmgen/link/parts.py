"""How parts of statements are spelled in C, for several of them."""

from __future__ import annotations

from ..ir import nodes as ir

UNROLL = "\n#pragma unroll\n"


def registers(k: ir.Kernel, name: str) -> ir.Registers:
    return next(r for role in k.roles for r in role.locals if r.name == name)


def count(k: ir.Kernel, name: str) -> int:
    """Registers of that name."""
    return registers(k, name).count


def coord(c: ir.Coord) -> str:
    if c.base == "page":
        return f"page[{c.offset}]"
    own = f" + cta_rank * {c.rank_step}" if c.rank_step else ""
    place = f"{c.start or 0} + {c.base} * {c.scale}"
    place = {"": place, "depth": f"({place}) % depth", "group": f"({place}) / depth"}[c.of]
    return f"{place} + {c.offset}{own}"


def end_of_rows(k: ir.Kernel) -> str:
    """The row of D where the tile's group ends."""
    rows = "shape_m" if k.block.fold_rows == 1 else f"(shape_m / {k.block.fold_rows})"
    return "tile.d_end" if k.groups.ragged else rows


def rows_of_a(k: ir.Kernel) -> str:
    """All ranks' rows, where they share out those of D."""
    return "shape_m * ranks" if k.peers.slot and not k.peers.every else "shape_m"


def each_share(k: ir.Kernel) -> str:
    """K blocks of each of a tile's, but for the last."""
    return f"(tile.k_blocks + {k.shares} - 1) / {k.shares}"


def first_block(k: ir.Kernel) -> str:
    """The K block that a consumer warpgroup begins a tile with."""
    return "worker" if k.consumer.slices > 1 else "0"


def index(k: ir.Kernel) -> str:
    """What a warpgroup's number in the CTA is called."""
    return "worker" if k.consumer.numbered else "warpgroup"
