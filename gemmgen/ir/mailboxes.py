"""Where in the memory of the rank that stores a tile another rank's flags and sums of it lie, and where a rank's own launches are
numbered: expressions, as in places.py."""

from __future__ import annotations

from functools import partial

from .collectives import MOST_CHUNKS
from .exchange import PARTIALS
from .nodes import AddPartials, Kernel, Registers, SendPartials, Signal
from .places import numbered

FLAGS = "2 * (ranks - 1) * (long long)flag_stride"  # all that a rank's memory has
COUNT = 2  # words behind the epoch
PARCEL_TILES, RANK_TILES = (
    "parcel_tiles",
    "rank_tiles",
)  # parameters: tiles of a parcel, and of a rank's rows
PARCEL_FLAGS = (
    2 * MOST_CHUNKS
)  # of a sender: of each parcel, whether it is there, and warps that have counted themselves in it
OWED = 2  # registers that note a flag: how many ranks its owner is before this one (0: none is noted), and the tile there


def epoch_flag(
    kernel: Kernel, place: str, owner: str = "tile.owner", slot: str = "tile.slot"
) -> str:
    """This warp's flag of the tile `slot`, where its owner's memory has those of the other rank `place`: in words of 32 bits."""
    tile = f"{slot} * {kernel.peers.flags} + {numbered(0)} * 4 + warp"
    return f"{PARTIALS}[{owner}] + 2 * ({place} * (long long)flag_stride + {tile})"


def parcel_flag(place: str, owner: str = "tile.owner", slot: str = "tile.slot") -> str:
    """The flag of the parcel that the tile `slot` is in, where its owner's memory has those of the other rank `place`: behind the flags that
    warps raise, whose writers they are not."""
    first = f"({place} + 1) * (long long)flag_stride - {PARCEL_FLAGS}"
    return f"{PARTIALS}[{owner}] + 2 * ({first} + {slot} / {PARCEL_TILES})"


def of_rank(
    kernel: Kernel,
    s: SendPartials | AddPartials,
    acc: str,
    place: str,
    owner: str = "tile.owner",
) -> str:
    """This thread's first word in the slot of the tile that is the sender's `place`, in the owner's memory: behind all flags, in the buffer
    of this epoch. place: which of the others it is; where every rank has slots, how many ranks the owner is before it."""
    buffer = f"int(epoch % {kernel.peers.buffers}) * slots_stride"
    slot = f"({place} * (long long)tile.slots + tile.slot) * {kernel.peers.slot}"
    mine = f"{numbered(s.wave * kernel.consumers)} * {128 * words(kernel, acc)} + threadIdx.x % 128 * 4"
    return f"{PARTIALS}[{owner}] + {FLAGS} + {buffer} + {slot} + {mine}"


def over(kernel: Kernel) -> str:
    """Behind all buffers of this rank's own memory, the epoch of its launch that is over."""
    return f"{PARTIALS}[rank] + {FLAGS} + {kernel.peers.buffers} * slots_stride"


def passed(kernel: Kernel) -> str:
    """Behind that, how many CTAs of the running launch have read it."""
    return f"{over(kernel)} + {COUNT}"


def owed_flag(kernel: Kernel, s: Signal) -> str:
    """The flag that is noted: the warp's, or the parcel's that it counts itself in."""
    back, slot = (f"{s.owed}[{i}]" for i in range(OWED))
    at = partial(epoch_flag, kernel) if s.by == "raising" else parcel_flag
    return at(f"({back} - 1)", f"(rank + ranks - {back}) % ranks", slot)


def counted(kernel: Kernel, s: Signal) -> str:
    """How many warps have counted themselves in the parcel that is noted: behind the flags of all parcels."""
    return f"{owed_flag(kernel, s)} + {2 * kernel.peers.parcels}"


def last_of_parcel(kernel: Kernel, s: Signal) -> str:
    """The number of the last of those; the last parcel has what tiles are left."""
    first = f"{s.owed}[1] / {PARCEL_TILES} * {PARCEL_TILES}"
    return f"min({PARCEL_TILES}, {RANK_TILES} - {first}) * {kernel.peers.flags} - 1"


def words(kernel: Kernel, acc: str) -> int:
    """Of a thread, in the slot: a register each, or one of two that are rounded."""
    return _sums(kernel, acc).count // kernel.peers.per_word


def word(kernel: Kernel, acc: str) -> str:
    """The C type of one."""
    return "uint32_t" if kernel.peers.wire else _sums(kernel, acc).dtype.cuda


def _sums(kernel: Kernel, acc: str) -> Registers:
    return next(r for role in kernel.roles for r in role.locals if r.name == acc)
