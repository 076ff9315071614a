"""The levers: one record each, in one order, that of `Config`'s fields, of JSON and of kernels' names.

What a lever does to a kernel is a pass that is handed its value (`gemmgen.passes.PIPELINE`).
"""

from __future__ import annotations

from .d_columns import D_COLUMNS
from .in_flight import IN_FLIGHT
from .lever import Lever as Lever
from .multicast import MULTICAST
from .order import ORDER, PANEL, RASTER
from .parts import PARTS
from .pdl import PDL
from .peek import PEEK
from .ping_pong import PING_PONG
from .registers import REGISTERS
from .split_k import SPLIT_K
from .swap_ab import SWAP_AB
from .swizzles import SWIZZLE_AB, SWIZZLE_D
from .tile import BLOCK_K_BYTES, BLOCK_M, BLOCK_N, CONSUMERS, STAGES
from .unroll import UNROLL
from .watchdog import WATCHDOG

LEVERS: tuple[Lever, ...] = (
    *(BLOCK_M, BLOCK_N, BLOCK_K_BYTES, STAGES, CONSUMERS),
    *(MULTICAST, RASTER, PANEL, UNROLL, IN_FLIGHT, SWIZZLE_AB, SWIZZLE_D, REGISTERS),
    # Names of kernels have what the problem adds before these.
    *(WATCHDOG, SWAP_AB, PARTS, SPLIT_K, PDL, D_COLUMNS, PING_PONG, PEEK, ORDER),
)
