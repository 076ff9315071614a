"""What registers hold, on names instead of numbers: see values.py."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from ..ir import nodes as ir
from ..ir.dealing import Part
from ..ir.expr import Expr, PerColumn, arguments
from ..ir.promotion import PROMOTION
from ..ir.rewrite import statements
from ..ir.text import expression
from .finding import Finding
from .instance import Post
from .properties import CARRY_OVER


@dataclass(frozen=True, kw_only=True)
class Held:
    """A register array, or a part of one: `what` of a tile, from the rows of `wave` and the columns of
    `part`, over K blocks `ks`, in order."""

    what: str
    tile: int
    wave: int | None = None
    ks: tuple[int, ...] = ()
    part: int = 0

    def __str__(self) -> str:
        rows = "" if self.wave is None else f" of wave {self.wave}"
        rows += f", part {self.part}," * (self.part > 0)
        return f"the {self.what}{rows} of tile {self.tile}, K blocks {list(self.ks)}"


RUN = 2  # tiles
SQUARES, WITH_SQUARES = "squares", "sum and squares"  # of A's rows; added to the product's sum
Sent = dict[
    tuple[int, int, int, int], Held | None
]  # by tile, rank, wave and part: what is in a slot


@dataclass(kw_only=True)
class Reader:
    counts: tuple[int, ...]  # K blocks of each tile
    staged: str  # what of a wave D's tile is filled from
    parts: int  # of the columns, in each sum
    rank: int = 0
    ranks: int = 1  # CTAs that divide a tile's K
    worker: int = 0  # of warpgroups that divide its K blocks, which
    slices: int = 1  # those
    dealt: tuple[Part, ...] = ()  # where CTAs take stretches of K blocks, this one's
    part: Part | None = None  # of those, the running one
    posts: tuple[Post, ...] = ()  # where ranks add their sums up, this one's tiles
    post: Post | None = None  # of those, the running one
    sent: Sent = field(default_factory=dict)
    mine: range = range(0)  # K blocks that this CTA sums
    chunk: range = range(0)  # of those
    first: int = (
        0  # the K block with which the running share of those begins, if it is not the only one
    )
    shares: int = 1  # that one CTA sums those in
    ends: int | None = None  # and the one before which it ends, as far as that was said
    ahead: int = 0  # K blocks of a whole chunk
    partial: frozenset[str] = frozenset()  # registers that hold no sums but what is promoted
    tile: int = 0
    k: int = 0
    stages: int = 1  # places in which K blocks take turns
    waves: int = 1  # of a tile
    maxima: frozenset[str] = frozenset()  # registers that hold them
    squares: frozenset[str] = frozenset()  # registers that hold sums of them
    groups: int = 0  # of copies that were begun
    came: dict[str, int] = field(default_factory=dict)  # the group that a place was last filled by
    registers: dict[str, Held] = field(default_factory=dict)  # by name; of sums by `place`
    found: list[Finding] = field(default_factory=list)

    def fail(self, s: ir.Stmt, name: str, wanted: Held) -> None:
        held = self.registers.get(name)
        text = (
            f"{type(s).__name__} in tile {self.tile} wants {wanted} in {name}, which holds {held}"
        )
        self.found.append(Finding(property=CARRY_OVER, message=text.replace("None", "nothing")))

    def want(self, s: ir.Stmt, name: str, wanted: Held) -> None:
        if self.registers.get(name) != wanted:
            self.fail(s, name, wanted)

    def want_sum(self, s: ir.Stmt, name: str, wave: int, ks: range | None = None) -> None:
        """All parts of it, over all K blocks or those that are given. Over none it is zero, of whichever wave."""
        over = self.order() if ks is None else tuple(ks)
        for part in range(self.parts):
            wanted = Held(what=self.total, tile=self.tile, ks=over, part=part)
            self.want(s, place(name, part), replace(wanted, wave=wave if over else None))

    def want_none(self, s: ir.Stmt) -> None:
        """No K block of this tile."""
        if self.counts[self.tile]:
            text = f"{type(s).__name__} in tile {self.tile}, which has {self.counts[self.tile]} K blocks"
            self.found.append(Finding(property=CARRY_OVER, message=text))

    @property
    def begins_run(self) -> bool:
        """Two tiles make one, of the same rows."""
        return self.tile % RUN == 0

    def argument(self, x: Expr, wave: int) -> Held:
        """What a thread asks of it: of columns, which differ between waves, those of one of the tile; of rows, those of its run."""
        if isinstance(x, PerColumn):
            return Held(what=expression(x), tile=self.tile, wave=wave)
        return Held(what=expression(x), tile=self.tile // RUN)

    def want_held(self, s: ir.Evaluate | ir.StoreValues) -> None:
        """Each argument that it takes from registers."""
        of = {x.name: x for x in arguments(s.value)}
        for name, registers in s.held:
            self.want(s, registers, self.argument(of[name], s.wave))

    def whole(self, what: str, wave: int) -> Held:
        return Held(what=what, tile=self.tile, wave=wave, ks=self.order())

    def holds(self, when: str) -> bool:
        """A condition of a warpgroup that may have no K blocks, or that divides them with others."""
        if when in ("has_blocks", "no_blocks", "idle"):
            return (when == "has_blocks") == bool(self.mine)
        return (when == "first_slice") == (self.worker == 0)

    def order(self) -> tuple[int, ...]:
        """In which a whole sum's K blocks are added up: one slice's after the other's."""
        slices = (range(i, self.counts[self.tile], self.slices) for i in range(self.slices))
        return tuple(k for of in slices for k in of)

    def now(self, what: str, wave: int | None = None, part: int = 0) -> Held:
        return Held(what=what, tile=self.tile, wave=wave, ks=(self.k,), part=part)

    @property
    def total(self) -> str:
        """What a tile's sum is when nothing more is added to it."""
        return WITH_SQUARES if self.squares else "sum"

    def zero(self, name: str) -> None:
        for part in range(self.parts):
            what = SQUARES if name in self.squares else "sum"
            self.registers[place(name, part)] = Held(what=what, tile=self.tile, part=part)

    def add(self, s: ir.Stmt, name: str, wave: int | None, part: int = 0) -> None:
        """One more K block in a part of the sum `name`; a zeroed sum takes its first wave."""
        name = place(name, part)
        held = self.registers.get(name)
        ks = tuple(range(self.first, self.k, self.slices))
        before = Held(what="sum", tile=self.tile, wave=wave, ks=ks, part=part)
        if held == replace(before, wave=None, ks=()):
            held = replace(held, wave=wave)
        if held != before:
            self.fail(s, name, before)
        self.registers[name] = replace(before, ks=(*before.ks, self.k))


def place(name: str, part: int) -> str:
    """Where a part of a sum is held."""
    return f"part {part} of {name}" if part else name


def of_kernel(kernel: ir.Kernel) -> dict[str, Any]:
    """What a reader is told of it."""
    partial = frozenset(s.src for s in statements(kernel) if isinstance(s, PROMOTION))
    return {
        "staged": _staged(kernel),
        "parts": _parts(kernel),
        "ahead": _ahead(kernel),
        "partial": partial,
        "shares": kernel.shares,
        "waves": len(
            {s.wave for s in statements(kernel) if isinstance(s, ir.StageTile | ir.StoreValues)}
        ),
        "squares": frozenset(s.dst for s in statements(kernel) if isinstance(s, ir.SumSquares)),
        "maxima": frozenset(s.dst for s in statements(kernel) if isinstance(s, ir.RowAmax)),
        "stages": next((s.stages for s in kernel.smem if s.use == "slots"), 1),
    }


def _staged(kernel: ir.Kernel) -> str:
    if kernel.buffer("smem_d").dtype.bytes == 1:
        return "quotients"
    return "sum" if kernel.block.fold * kernel.block.fold_rows == 1 else "values"


def _parts(kernel: ir.Kernel) -> int:
    """How many wgmma it takes side by side to compute the tile's columns (swapped: its rows)."""
    swapped = kernel.buffer("smem_d").along == "n"
    return max(1, (kernel.block.m if swapped else kernel.block.n) // kernel.instr.n)


def _ahead(kernel: ir.Kernel) -> int:
    """K blocks of a whole chunk."""
    return max((s.blocks for s in statements(kernel) if isinstance(s, ir.ForChunks)), default=0)
