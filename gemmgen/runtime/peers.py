"""The memory by which ranks hand sums over, as the host lays it out: the same on each of them (gemmgen/link/meaning_ranks.py says what
kernels make of it)."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..errors import ArgumentError
from ..ir.collectives import WIRES, check_ranks
from ..ir.counts import check_side
from ..ir.dtypes import DType
from ..ir.launchable import Launchable
from ..ir.mailboxes import PARCEL_FLAGS
from ..ir.walks import NO_PEERS, Peers
from ..target import Target

LINE = 128  # bytes: flags of two ranks, two buffers and tensors have none in common
FLAG, WORD = 8, 4  # bytes
BUFFERS = NO_PEERS.buffers
LEAST = 32  # words as long as a flag, of a tile's slot for each of its flags: 8 x 64 elements of 16 bits, and four flags
SIDE = 2 * Target.tma_box  # elements that no tile of a pair of CTAs is longer than on either side


@dataclass(frozen=True, kw_only=True)
class Mailbox:
    """flags: 64-bit ones that each other rank has there, the last of them parcels'. words: of 32 bits, of each buffer of slots. Behind those is a line of the
    rank's own, by which its launches are numbered: the epoch of the last one, and what CTAs of the running one count. All but the
    slots is zero before the first launch."""

    ranks: int
    flags: int
    words: int
    buffers: int

    @classmethod
    def of(cls, size: int, ranks: int) -> Mailbox:
        """All of `size` bytes, however they will be used: of each tile a slot is at least so many times as large as its flags."""
        others = max(1, ranks - 1)
        size = max(0, size - LINE - FLAG * others * PARCEL_FLAGS)
        flags = whole(-(-size // (others * (1 + BUFFERS * LEAST) * FLAG)), LINE // FLAG)
        words = max(0, size - FLAG * others * flags) // (BUFFERS * LINE) * (LINE // WORD)
        return cls(ranks=ranks, flags=flags + PARCEL_FLAGS, words=words, buffers=BUFFERS)

    @property
    def flag_bytes(self) -> int:
        """The flags come first."""
        return FLAG * (self.ranks - 1) * self.flags

    def buffer(self, epoch: int) -> int:
        """Where the slots of a launch begin."""
        return self.flag_bytes + WORD * (epoch % self.buffers) * self.words

    @property
    def over(self) -> int:
        """Where the epoch of the rank's last launch is."""
        return self.flag_bytes + WORD * self.buffers * self.words

    @property
    def bytes(self) -> int:
        return self.over + LINE

    def holds(self, other: Mailbox) -> bool:
        """Whether what needs `other` may use this."""
        return (
            (self.ranks, self.buffers) == (other.ranks, other.buffers)
            and self.flags >= other.flags
            and self.words >= other.words
        )

    def values(self, rank: int, table: int) -> dict[str, int]:
        """The kernel's parameters. table: the address of all ranks' addresses."""
        return {
            "ranks": self.ranks,
            "rank": rank,
            "flag_stride": self.flags,
            "slots_stride": self.words,
            "partials": table,
        }


def mailbox(kernel: Launchable, shape: tuple[int, int, int], ranks: int) -> Mailbox:
    """The least that a launch of (M, N, K), M rows of D on each rank, takes: of all tiles of an all-reduce. Raises ArgumentError for more ranks than one host
    has, or more rows than are counted."""
    check_ranks(ranks)
    if not kernel.peers.every:
        check_side("ranks * m", ranks * shape[0])
    if not kernel.peers.every and shape[0] % (step := row_step(kernel)):
        allowed = f"must be a multiple of {step} on each rank: its rows begin at 16 bytes of what lies along M"
        raise ArgumentError("m", shape[0], allowed)
    p, tiles = kernel.peers, tiles_of(kernel, shape)
    flags = 0 if p.parcels else tiles * p.flags
    return Mailbox(
        ranks=ranks,
        flags=whole(flags, LINE // FLAG) + PARCEL_FLAGS,
        words=whole(p.senders(ranks) * tiles * p.slot, LINE // WORD),
        buffers=p.buffers,
    )


def tiles_of(kernel: Launchable, shape: tuple[int, int, int]) -> int:
    """Of each rank's rows, with those that fill up clusters."""
    b, c = kernel.block, kernel.cluster
    return whole(-(-shape[0] // b.m), c.m) * whole(-(-shape[1] // b.n), c.n)


def mailbox_bytes(m: int, n: int, ranks: int, wire: DType | str | None = None) -> int:
    """Memory that each of `ranks` GPUs needs so that launches of up to M rows of D on each, and N columns, fit, whatever the config.
    wire: the problem's; for one of 16 bits it is half as much. Raises ArgumentError for another dtype, and for what is no number of rows, columns or ranks."""
    return _bytes(m, n, ranks, wire, NO_PEERS)


def all_reduce_bytes(m: int, n: int, ranks: int, wire: DType | str | None = None) -> int:
    """The same for launches that all store up to M rows, the sum of all: of M rows, not of each rank's, it is more than `mailbox_bytes`."""
    return _bytes(m, n, ranks, wire, replace(NO_PEERS, every=True))


def _bytes(m: int, n: int, ranks: int, wire: DType | str | None, peers: Peers) -> int:
    for name, side in (("m", m), ("n", n)):
        check_side(name, side)
    check_ranks(ranks, least=2)
    size = WORD if wire is None else _wire(wire).bytes
    tiles = (m + SIDE - 1) * (n + SIDE - 1)  # elements: no tile reaches further past a side
    slots = size * BUFFERS * peers.senders(ranks) * tiles
    flags = slots // (BUFFERS * LEAST) + FLAG * (ranks - 1) * PARCEL_FLAGS
    return whole(slots + flags + LINE * (ranks + BUFFERS + 1), LINE)


def row_step(kernel: Launchable) -> int:
    """What the rows of each rank must be a multiple of, so that boxes of A and of its scales begin where TMA lets them."""
    along = [m for m in kernel.maps if m.inner == "m" and m.tensor != "d"]
    return max(
        (Target.tma_alignment // kernel.buffer(m.smem).dtype.bytes for m in along), default=1
    )


def _wire(wire: DType | str) -> DType:
    found = next((t for t in WIRES if wire in (t, t.name)), None)
    if found is None:
        raise ArgumentError("wire", wire, f"must be None, or {' or '.join(map(str, WIRES))}")
    return found


def whole(count: int, step: int) -> int:
    """The least multiple of `step` that is no less."""
    return -(-count // step) * step
