"""The levers: one record each, in one order, that of `Config`'s fields, of JSON and of kernels' names.

What a lever does to a kernel is a pass that is handed its value (`gemmgen.passes.PIPELINE`). A program may `add` one.
A choice asks them from the last to the first what they offer: operands are shared of what the others have made of a tile.
"""

from __future__ import annotations

from ..errors import ArgumentError
from .d_columns import D_COLUMNS
from .direct import DIRECT
from .in_flight import IN_FLIGHT
from .lane_scales import LANE_SCALES
from .lever import Lever as Lever
from .lever import Values
from .multicast import MULTICAST
from .one_block import ONE_BLOCK
from .order import ORDER, PANEL, RASTER
from .outbox import OUTBOX
from .parts import PARTS
from .pdl import PDL
from .peek import PEEK
from .ping_pong import PING_PONG
from .price import Price as Price
from .registers import REGISTERS
from .shares import SHARES
from .slice_k import SLICE_K
from .slots import SLOTS
from .split_k import SPLIT_K
from .stream import STREAM
from .swap_ab import SWAP_AB
from .swizzles import SWIZZLE_AB, SWIZZLE_D
from .tile import BLOCK_K_BYTES, BLOCK_M, BLOCK_N, CONSUMERS, STAGES
from .unroll import UNROLL
from .watchdog import WATCHDOG
from .weights_ahead import WEIGHTS_AHEAD

LEVERS: list[Lever] = [
    *(BLOCK_M, BLOCK_N, BLOCK_K_BYTES, STAGES, CONSUMERS),
    *(MULTICAST, RASTER, PANEL, UNROLL, IN_FLIGHT, SWIZZLE_AB, SWIZZLE_D, REGISTERS),
    # Names of kernels have what the problem adds before these.
    *(
        WATCHDOG,
        SWAP_AB,
        PARTS,
        SPLIT_K,
        PDL,
        D_COLUMNS,
        PING_PONG,
        PEEK,
        ORDER,
        STREAM,
        LANE_SCALES,
        WEIGHTS_AHEAD,
        DIRECT,
        SLOTS,
        SHARES,
        OUTBOX,
        SLICE_K,
        ONE_BLOCK,
    ),
]
FIELDS: dict[str, Values] = {x.name: x.values for x in LEVERS}  # which values each takes
MORE: dict[str, Lever] = {}  # those that programs added
# What a Config has besides.
TAKEN = (
    "more",
    "cluster_size",
    "wgmma_m",
    "wgmma_n",
    "turns",
    "slices",
    "sharing",
    "waves",
    "having",
    "values",
    "to_json",
    "from_json",
)


def add(lever: Lever) -> None:
    """Make a lever known to every layer of this process: `Config(more={name: value})` has it. Raises ArgumentError for a
    name that is taken or is no lower-case identifier, and for a default that is no value of it."""
    taken = (*FIELDS, *TAKEN)
    if lever.name in taken or not (lever.name.isidentifier() and lever.name.islower()):
        allowed = "must be an identifier of lower case, and none of " + ", ".join(taken)
        raise ArgumentError("name", lever.name, allowed)
    if not lever.values.holds(lever.default):
        raise ArgumentError("default", lever.default, f"must be {lever.values.says}")
    if not (lever.added and lever.tag):
        raise ArgumentError(
            "tag", lever.tag, "must be said, and added be true: names of kernels tell configs apart"
        )
    LEVERS.append(lever)
    FIELDS[lever.name] = lever.values
    MORE[lever.name] = lever
