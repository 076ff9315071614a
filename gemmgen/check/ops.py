"""What an unrolled kernel consists of: agents, and the synchronisation and memory operations of each.

An operation says what happens to barriers, bytes and registers; `stmt` says where it comes from. Bytes of shared memory are
named by cells, the pieces no access tells apart (`memory.py`).
"""

from __future__ import annotations

from dataclasses import dataclass

from ..ir.nodes import Kernel, LaunchDependents, Stmt, WaitForGrids
from .agent import Agent as Agent
from .instance import Instance as Instance
from .noted import Noted

Bar = tuple[str, int, int]  # barrier, CTA, stage
Slot = tuple[str, int, int]  # tensor map, CTA, group: where the CTA keeps the group's
Rect = tuple[int, int, int, int]  # first row, end row, first column, end column of an output tile

# Barriers that no kernel initialises, by rank: flags, each says an epoch; a launch that is over; one whose own rows of A are copied; one
# whose CTAs have all read its epoch, which is then passed; a parcel whose sums are all in the outbox; a launch whose parcels have left.
EPOCHS, LAUNCH, OWN, PASSED = "epochs", "launch", "own rows", "passed epochs"
PACKED, SENT = "packed parcels", "sent parcels"

BEGIN, END = (
    WaitForGrids(),
    LaunchDependents(),
)  # what stands in a trace for where a launch begins and ends

OUTSIDE = -1  # the tile or K block of an operation that stands outside such a loop


@dataclass(frozen=True, kw_only=True)
class Op:
    """Base of all operations. single: of one thread, not of whole warps."""

    stmt: Stmt
    tile: int = OUTSIDE
    k: int = OUTSIDE
    single: bool = False


@dataclass(frozen=True, kw_only=True)
class Init(Op):
    bar: Bar
    count: int


@dataclass(frozen=True, kw_only=True)
class InitFence(Op):
    """Makes this agent's Inits visible to the cluster and to the async proxy."""


@dataclass(frozen=True, kw_only=True)
class Sync(Op):
    """Rendezvous `name` of `total` threads, of which this agent brings `threads`. `total` None means every agent of the CTA
    ("cta", c) or of the cluster ("cluster", 0)."""

    name: tuple[str, int, int]
    threads: int
    total: int | None


@dataclass(frozen=True, kw_only=True)
class Enter(Op):
    """`threads` arrive at the rendezvous `name`, and go on at once."""

    name: tuple[str, int, int]
    threads: int


@dataclass(frozen=True, kw_only=True)
class Meet(Op):
    """Wait until all have entered the rendezvous `name`."""

    name: tuple[str, int, int]


@dataclass(frozen=True, kw_only=True)
class Wait(Op):
    """Return when the current phase's parity is not `phase & 1`; phase -1 passes a fresh barrier."""

    bar: Bar
    phase: int


@dataclass(frozen=True, kw_only=True)
class Arrive(Op):
    """`count` arrivals on each of `bars`, announcing `expect` bytes on each."""

    bars: tuple[Bar, ...]
    count: int
    expect: int = 0


@dataclass(frozen=True, kw_only=True)
class Number(Op):
    """Read how many epochs `bar` has passed."""

    bar: Bar


@dataclass(frozen=True, kw_only=True)
class Copy:
    """One destination of a load: `size` bytes into `cells`, completing on `bar`."""

    bar: Bar
    cells: tuple[int, ...]
    size: int
    stmt: Stmt
    slot: Slot | None = None  # of a derived tensor map


@dataclass(frozen=True, kw_only=True)
class Source:
    """Cells of global memory that a load reads, and whose rows it means, by a number."""

    cells: tuple[int, ...]
    rows: int


@dataclass(frozen=True, kw_only=True)
class Load(Op):
    """TMA loads issued one after another. Each copy completes by itself, in any order. source: what of it others write while the
    launch runs."""

    copies: tuple[Copy, ...]
    source: Source | None = None


@dataclass(frozen=True, kw_only=True)
class Read(Op):
    """A generic, synchronous read."""

    cells: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Write(Op):
    """A generic, synchronous write."""

    cells: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Begin(Op):
    """A group of generic writes of `stage` by asynchronous copies, which are over with the Come that waits for it."""

    cells: tuple[int, ...]
    stage: int


@dataclass(frozen=True, kw_only=True)
class Come(Op):
    """Wait until at most `pending` groups of Begins are on their way."""

    pending: int


@dataclass(frozen=True, kw_only=True)
class Tail(Read):
    """A generic read whose `threads` copy their share of what bulk stores leave of `rect`."""

    rect: Rect
    threads: int


@dataclass(frozen=True, kw_only=True)
class Rows(Read):
    """A generic read whose `threads` copy their share of `rect`, but for the tail."""

    rect: Rect
    threads: int


@dataclass(frozen=True, kw_only=True)
class Scales(Op):
    """The scales of `rect` to global memory, each by one of a quad of the `threads`."""

    rect: Rect
    threads: int


@dataclass(frozen=True, kw_only=True)
class Multiply(Op):
    """wgmma: reads `cells` and the registers `sources`, and owns these and `dst` until a Retire of its group."""

    cells: tuple[int, ...]
    dst: str
    sources: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Commit(Op):
    """Close the group of Multiplies issued since the last Commit."""


@dataclass(frozen=True, kw_only=True)
class Retire(Op):
    """Wait until at most `pending` groups of Multiplies are left."""

    pending: int


@dataclass(frozen=True, kw_only=True)
class RegisterFence(Op):
    """Order register accesses before the Multiplies that follow."""


@dataclass(frozen=True, kw_only=True)
class Touch(Op):
    """Read or write registers that a Multiply also uses."""

    registers: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class ProxyFence(Op):
    """Order this agent's generic writes before the async proxy's accesses."""


@dataclass(frozen=True, kw_only=True)
class ArrivalFence(Op):
    """Order what this agent has seen to be in global memory before its accesses through the async proxy."""


@dataclass(frozen=True, kw_only=True)
class Store(Op):
    """Bulk store of `cells` to `rect` of the output tile, issued `times` times."""

    cells: tuple[int, ...]
    rect: Rect
    times: int = 1


@dataclass(frozen=True, kw_only=True)
class StoreCommit(Op):
    """Close the group of Stores issued since the last StoreCommit."""


@dataclass(frozen=True, kw_only=True)
class MapCopy(Op):
    """The host's tensor map into shared memory."""

    tensor_map: str


@dataclass(frozen=True, kw_only=True)
class MapEdit(Op):
    """Replace one field of the copy: "address", "extent" or "stride"."""

    tensor_map: str
    field: str


@dataclass(frozen=True, kw_only=True)
class WarpSync(Op):
    """The lanes of this warp have seen each other's accesses to shared memory."""


@dataclass(frozen=True, kw_only=True)
class MapPublish(Op):
    """Write the copy to its slot in global memory."""

    slot: Slot


@dataclass(frozen=True, kw_only=True)
class MapAcquire(Op):
    """Loads that follow see what was published there."""

    slot: Slot


@dataclass(frozen=True, kw_only=True)
class StoreWait(Op):
    """Wait until at most `pending` groups of Stores still read shared memory."""

    pending: int


@dataclass(frozen=True, kw_only=True)
class Program:
    """An instance of a kernel: per agent, its operations in order. `cells` names every cell. stamps: of each
    agent, in order; none if the kernel has none."""

    kernel: Kernel
    instance: Instance
    agents: tuple[Agent, ...]
    ops: tuple[tuple[Op, ...], ...]
    cells: tuple[str, ...]
    stamps: tuple[tuple[Noted, ...], ...] = ()
