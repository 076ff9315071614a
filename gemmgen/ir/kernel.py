"""A Kernel: tables of resources and a body of statements per role."""

from __future__ import annotations

from dataclasses import dataclass

from ..notebook import folded, table
from .arrivals import NO_ARRIVALS, Arrivals
from .blocks import Stmt
from .pointed import Pointed
from .resources import (
    ONE_GEMM,
    Barrier,
    Groups,
    Param,
    Registers,
    Smem,
    TmaMap,
    Wgmma,
)
from .text import dump
from .tiles import Block, Cluster
from .walks import NO_PEERS, NO_WORKSPACE, Peers, Scheduler, Workspace


@dataclass(frozen=True, kw_only=True)
class Role:
    """What a range of warpgroups does, with its per-thread registers."""

    name: str
    warpgroups: tuple[int, int]  # first, end
    locals: tuple[Registers, ...]
    body: tuple[Stmt, ...]
    registers: int | None = None  # split_registers
    turns: int = 1  # warpgroups that take tiles in turns
    slices: int = 1  # warpgroups that divide a tile's K blocks

    @property
    def count(self) -> int:
        return self.warpgroups[1] - self.warpgroups[0]

    @property
    def sharing(self) -> int:
        """Warpgroups that share out a tile's rows."""
        return 1 if max(self.turns, self.slices) > 1 else self.count

    @property
    def numbered(self) -> bool:
        """Whether its warpgroups have a number of their own, in the CTA, beside the one among those that share a tile's rows."""
        return self.turns > 1 or self.slices > 1


@dataclass(frozen=True, kw_only=True)
class Kernel:
    name: str
    block: Block
    cluster: Cluster
    scheduler: Scheduler
    maps: tuple[TmaMap, ...]
    params: tuple[Param, ...]
    smem: tuple[Smem, ...]
    barriers: tuple[Barrier, ...]
    instr: Wgmma
    prologue: tuple[Stmt, ...]
    roles: tuple[Role, ...]
    groups: Groups = ONE_GEMM
    watchdog: bool = False  # every wait is watched; guard_waits
    shares: int = 1  # of a tile's K, which one CTA sums one after the other; add_shares
    stamps: int = 0  # of each warpgroup that are kept, a power of two; instrument
    keeps_address: bool = False  # shared memory's address is not derived anew; keep_address
    workspace: Workspace = NO_WORKSPACE  # stream_k
    peers: Peers = NO_PEERS  # scatter_rows
    arrivals: Arrivals = NO_ARRIVALS  # gather_rows
    ready: tuple[
        str, ...
    ] = ()  # tensors that no launch which may still run writes, as the caller promises
    pdl: bool = False  # launched while the one before still ends; overlap_launches
    device_code: tuple[
        str, ...
    ] = ()  # templates a statement needs besides the PTX layer; guard_waits, instrument
    smem_bytes: int | None = None  # layout_smem
    pointed: tuple[Pointed, ...] = ()  # operands that no tensor map loads; read_direct, index_rows
    per_sm: int = 1  # CTAs that share an SM; split_registers
    unstaged: tuple[
        Smem, ...
    ] = ()  # of D, pieces that take no memory: registers are stored; store_sums

    @property
    def threads(self) -> int:
        return 128 * max(r.warpgroups[1] for r in self.roles)

    @property
    def consumer(self) -> Role:
        return next(r for r in self.roles if r.name == "consumer")

    @property
    def consumers(self) -> int:
        """The consumer warpgroups that share out a tile's rows."""
        return self.consumer.sharing

    @property
    def slices(self) -> int:
        """The consumer warpgroups that divide a tile's K blocks."""
        return self.consumer.slices

    @property
    def ring(self) -> bool:
        """Whether operands come through a ring of stages in shared memory."""
        return any(b.per == "stage" for b in self.barriers)

    @property
    def stages(self) -> int:
        """Of the ring; 1 where there is none."""
        return next((b.stages for b in self.barriers if b.per == "stage"), 1)

    @property
    def tables(self) -> tuple[str, ...]:
        """The parameters that the scheduler reads in global memory."""
        pointers = {p.name for p in self.params if p.ctype.endswith("*")}
        return tuple(name for name in self.scheduler.params if name in pointers)

    @property
    def loading(self) -> str:
        """In words: how K blocks come."""
        by = f"per stage, {self.stages} stages" if self.ring else "at a time, into registers"
        return f"{self.block.k} of K {by}"

    def buffer(self, name: str) -> Smem:
        """A buffer, or what would be D's where it has none."""
        return next(s for s in (*self.smem, *self.unstaged) if s.name == name)

    def map(self, name: str) -> TmaMap:
        return next(m for m in self.maps if m.name == name)

    def _repr_html_(self) -> str:
        """In a notebook: what it is, and its IR behind a click."""
        ir = dump(self)
        b = self.block
        rows = {
            "tile": f"{b.m} x {b.n}, {self.loading}",
            "roles": ", ".join(f"{r.count} {r.name}" for r in self.roles),
            "cluster": self.cluster.size,
            "bytes of shared memory": self.smem_bytes
            if self.smem_bytes is not None
            else "not lowered",
        }
        return table(self.name, rows) + folded(f"IR, {len(ir.splitlines())} lines", ir)
