"""Kernel IR statements: about one PTX instruction each. A `None` field is filled by the pass named."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal, TypeGuard

from .blocks import Stmt
from .resources import UNUSUAL, Coord, Watch, Wgmma


@dataclass(frozen=True, kw_only=True)
class PrefetchMap(Stmt):
    tensor_map: str


@dataclass(frozen=True, kw_only=True)
class InitBarrier(Stmt):
    barrier: str
    arrivals: int | None = None  # size_barriers


@dataclass(frozen=True, kw_only=True)
class LaunchDependents(Stmt):
    """The launch after this one on the stream may begin, as CTAs of this one end; overlap_launches."""


@dataclass(frozen=True, kw_only=True)
class WaitForGrids(Stmt):
    """Wait until the launches before this one on the stream are over and what they wrote is visible;
    overlap_launches."""


@dataclass(frozen=True, kw_only=True)
class SetRegisters(Stmt):
    """setmaxnreg for every warp of the role; inserted by split_registers."""

    direction: Literal["inc", "dec"]
    count: int


# What a barrier has a phase per: a round of the ring, in each of its stages; a tile; a warpgroup's turn.
Per = Literal["stage", "tile", "turn"]


@dataclass(frozen=True, kw_only=True)
class Wait(Stmt):
    """Wait for the running phase of `barrier`; `flip` 1 waits for the phase before it.

    per: as its barrier is. stage: the ring's, of its stage; `seen`: a register, and no wait where the Peek into it has
    seen that. tile: this tile's, and see what other CTAs wrote before it. turn: until the warpgroup before has passed
    its turn on, which at the first tile none has to. `turn`: of tiles and turns, the register that holds the parity."""

    spelled_by: ClassVar[str] = "per"

    barrier: str
    per: Per = field(default="stage", metadata=UNUSUAL)  # split_k, take_turns
    turn: str = field(default="", metadata=UNUSUAL)
    flip: Literal[0, 1] = 0
    seen: str = field(default="", metadata=UNUSUAL)  # peek_ahead
    watch: Watch | tuple[()] = field(default=(), metadata=UNUSUAL)  # guard_waits


@dataclass(frozen=True, kw_only=True)
class Peek(Stmt):
    """dst = 1 if the ring's next stage of `barrier` is seen to have completed its phase, 0 if not yet."""

    barrier: str
    dst: str


@dataclass(frozen=True, kw_only=True)
class Arrive(Stmt):
    """One lane per warp, and per CTA that it tells, arrives on `barrier`.

    to: own: of the stage `lag` steps back. cluster: of that stage in every CTA. next: of the next warpgroup, whose turn
    it is. others: of every rank but 0, whose slot was read. copied: of the stage `lag` steps back, where what the warp has copied has come."""

    spelled_by: ClassVar[str] = "to"

    barrier: str
    to: Literal["own", "cluster", "next", "others", "copied"] = field(
        default="own", metadata=UNUSUAL
    )
    lag: int = 0


def releases(s: Stmt) -> TypeGuard[Arrive]:
    """Whether `s` gives a stage of the ring back."""
    return isinstance(s, Arrive) and s.to in ("own", "cluster")


@dataclass(frozen=True, kw_only=True)
class ExpectTx(Stmt):
    """Arrive once and announce the bytes that will land in this CTA: TMA's of a stage, or per tile those that the other
    ranks send."""

    spelled_by: ClassVar[str] = "per"

    barrier: str
    per: Literal["stage", "tile"] = field(default="stage", metadata=UNUSUAL)
    tx_bytes: int | None = None  # size_barriers


@dataclass(frozen=True, kw_only=True)
class Drain(Stmt):
    """Wait until every stage of `barrier` was released: nobody will touch this CTA again."""

    barrier: str
    watch: Watch | tuple[()] = field(default=(), metadata=UNUSUAL)  # guard_waits


@dataclass(frozen=True, kw_only=True)
class RejoinRing(Stmt):
    """The ring goes on behind the tile's last K block, wherever this warpgroup's own last one stood; slice_k."""


@dataclass(frozen=True, kw_only=True)
class TmaLoad(Stmt):
    """One box of `tensor_map` into `smem[stage]`; its bytes complete on `barrier[stage]`. To the cluster: this CTA's
    slice of a box, into the same place of every CTA of `mask`, and on their barriers."""

    spelled_by: ClassVar[str] = "to"

    tensor_map: str
    smem: str
    barrier: str
    coords: tuple[Coord, ...]  # inner, outer and, if the map is grouped, the group
    offset: int = 0  # bytes within the stage; split_boxes
    # The registers that its page's number is read from
    pages: str = field(default="", metadata=UNUSUAL)
    to: Literal["own", "cluster"] = field(default="own", metadata=UNUSUAL)  # plan_multicast
    # Bytes between the slices of two ranks; split_boxes
    rank_bytes: int | None = field(default=0, metadata=UNUSUAL)
    # Elements of the sliced dimension per CTA
    slice: int = field(default=0, metadata=UNUSUAL)
    # Destination CTAs, one bit per rank
    mask: int = field(default=0, metadata=UNUSUAL)


def multicasts(s: Stmt) -> TypeGuard[TmaLoad]:
    """Whether `s` loads for all CTAs of the cluster."""
    return isinstance(s, TmaLoad) and s.to == "cluster"


@dataclass(frozen=True, kw_only=True)
class Zero(Stmt):
    """dst = 0. total: what a share is added to and becomes the total as it is: -0; of integers 0, and where one of `Kernel.shares` has
    no K blocks: of that a CTA would add zeros."""

    spelled_by: ClassVar[str] = "of"

    dst: str
    of: Literal["array", "total"] = field(default="array", metadata=UNUSUAL)  # add_shares


@dataclass(frozen=True, kw_only=True)
class WgmmaCommit(Stmt):
    pass


@dataclass(frozen=True, kw_only=True)
class WgmmaWait(Stmt):
    pending: int


@dataclass(frozen=True, kw_only=True)
class Mma(Stmt):
    """dst (+)= a[wave's 64 rows, K block] @ b[the part's rows, K block]^T, one wgmma per 32 bytes of K.

    `instr` says which side of a and of b is contiguous; rows are M or N whichever it is. `a` holds the
    problem's B, and `b` its A, where swap_operands exchanged them.

    `fresh` says when the first step overwrites dst: at every K block, at the tile's first, or never
    (then dst was zeroed: allow_empty).

    `part`: of the parts that the tile's columns are multiplied in, one after the other.
    """

    dst: str
    a: str
    b: str
    instr: Wgmma
    wave: int
    fresh: Literal["block", "tile", "never"]
    wave_bytes: int | None = None  # to this wave's A rows; plan_descriptors
    warpgroup_bytes: int | None = None  # between two warpgroups' A rows; plan_descriptors
    steps: tuple[tuple[int, int], ...] | None = (
        None  # bytes into A and B per step; plan_descriptors
    )
    a_bits: int | None = None  # constant descriptor fields; plan_descriptors
    b_bits: int | None = None  # plan_descriptors
    part: int = field(default=0, metadata=UNUSUAL)
    part_bytes: int = field(default=0, metadata=UNUSUAL)  # to this part's B rows; plan_descriptors
