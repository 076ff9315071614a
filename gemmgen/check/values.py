"""P10 in registers: what is stored is the sum over every K block of its own tile, each with its scales.

One consumer's statements are executed on names instead of numbers: a register array holds which
rows and which K blocks went into it. Whether the bytes it read were the right ones is for races.py
and placement.py to say; here a missing, doubled or misplaced statement shows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from ..ir import nodes as ir
from .finding import Finding
from .properties import CARRY_OVER


@dataclass(frozen=True, kw_only=True)
class Held:
    """A register array: `what` of a tile, from the rows of `wave`, over K blocks `ks`, in order."""

    what: str
    tile: int
    wave: int | None = None
    ks: tuple[int, ...] = ()

    def __str__(self) -> str:
        rows = "" if self.wave is None else f" of wave {self.wave}"
        return f"the {self.what}{rows} of tile {self.tile}, K blocks {list(self.ks)}"


@dataclass(kw_only=True)
class _Reader:
    counts: tuple[int, ...]  # K blocks of each tile
    staged: str  # what of a wave D's tile is filled from
    tile: int = 0
    k: int = 0
    registers: dict[str, Held] = field(default_factory=dict)
    found: list[Finding] = field(default_factory=list)

    @property
    def k_blocks(self) -> int:
        return self.counts[self.tile]

    def fail(self, s: ir.Stmt, name: str, wanted: Held) -> None:
        held = self.registers.get(name)
        text = (
            f"{type(s).__name__} in tile {self.tile} wants {wanted} in {name}, which holds {held}"
        )
        self.found.append(Finding(property=CARRY_OVER, message=text.replace("None", "nothing")))

    def want(self, s: ir.Stmt, name: str, wanted: Held) -> None:
        if self.registers.get(name) != wanted:
            self.fail(s, name, wanted)

    def whole(self, what: str, wave: int) -> Held:
        none = what == "sum" and not self.k_blocks  # it is zero, of whichever wave
        ks = tuple(range(self.k_blocks))
        return Held(what=what, tile=self.tile, wave=None if none else wave, ks=ks)

    def now(self, what: str, wave: int | None = None) -> Held:
        return Held(what=what, tile=self.tile, wave=wave, ks=(self.k,))

    def add(self, s: ir.Stmt, name: str, wave: int | None) -> None:
        """One more K block in the sum `name`; a zeroed sum takes its first wave."""
        held = self.registers.get(name)
        before = Held(what="sum", tile=self.tile, wave=wave, ks=tuple(range(self.k)))
        if held == replace(before, wave=None, ks=()):
            held = replace(held, wave=wave)
        if held != before:
            self.fail(s, name, before)
        self.registers[name] = replace(before, ks=(*before.ks, self.k))


def values(kernel: ir.Kernel) -> Iterator[Finding]:
    """Every role, over two tiles of one and of three K blocks; if some may have none, with such."""
    uneven = ((0, 3), (3, 0)) if kernel.groups.depths else ()
    for role in kernel.roles:
        for counts in ((1, 1), (3, 3), *uneven):
            reader = _Reader(counts=counts, staged=_staged(kernel))
            _run(reader, role.body)
            yield from reader.found


def _staged(kernel: ir.Kernel) -> str:
    if kernel.buffer("smem_d").dtype.bytes == 1:
        return "quotients"
    return "sum" if kernel.block.fold == 1 else "values"


def _run(r: _Reader, body: tuple[ir.Stmt, ...]) -> None:
    for s in body:
        match s:
            case ir.ForTiles():
                for tile in range(len(r.counts)):
                    r.tile = tile
                    _run(r, s.body)
            case ir.ForK():
                for k in range(r.k_blocks):
                    r.k = k
                    _run(r, s.body)
            case ir.AfterFirst():
                if r.k:
                    _run(r, s.body)
            case ir.IfBlocks():
                if r.k_blocks:
                    _run(r, s.body)
            case ir.WarpgroupLeader() | ir.CtaLeader() | ir.IfRows() | ir.FirstWarp():
                _run(r, s.body)
            case _:
                _step(r, s)


def _step(r: _Reader, s: Any) -> None:
    match s:
        case ir.Zero():
            r.registers[s.dst] = Held(what="sum", tile=r.tile)
        case ir.LoadRowScales():
            r.registers[s.dst] = r.now("row scales", s.wave)
        case ir.LoadColumnScales():
            r.registers[s.dst] = r.now("column scales")
        case ir.LoadBlockScales():  # LoadWaveScales too
            first = s.block.startswith("first")
            k = 0 if first else min(r.k + 1, r.k_blocks - 1)
            r.registers[s.dst] = Held(what="block scales", tile=r.tile, ks=(k,))
        case ir.Copy():
            r.registers[s.dst] = r.registers.get(s.src, Held(what="rubbish", tile=r.tile))
        case ir.Mma(fresh="block"):
            r.registers[s.dst] = r.now("product", s.wave)
        case ir.Mma():
            if r.k == 0 and s.fresh == "tile":
                r.registers[s.dst] = Held(what="sum", tile=r.tile, wave=s.wave)
            r.add(s, s.dst, s.wave)
        case ir.Accumulate():
            held = r.registers.get(s.src)
            wave = held.wave if held else None
            r.want(s, s.src, r.now("product", wave))
            r.add(s, s.dst, wave)
        case ir.Promote() | ir.PromoteSelect() | ir.PromoteSwitch():
            held = r.registers.get(s.src)
            wave = held.wave if held else None
            r.want(s, s.src, r.now("product", wave))
            r.want(s, s.row_scales, r.now("row scales", wave))
            r.want(s, s.block_scales, r.now("block scales"))
            r.add(s, s.dst, wave)
        case ir.PromoteColumns():
            held = r.registers.get(s.src)
            wave = held.wave if held else None
            r.want(s, s.src, r.now("product", wave))
            r.want(s, s.row_scales, r.now("row scales", wave))
            r.want(s, s.column_scales, r.now("column scales"))
            r.add(s, s.dst, wave)
        case ir.PromoteWave():
            r.want(s, s.src, r.now("product", s.wave))
            r.want(s, s.column_scales, r.now("column scales"))
            r.want(s, s.block_scales, r.now("block scales"))
            r.add(s, s.dst, s.wave)
        case ir.Evaluate():
            r.want(s, s.src, r.whole("sum", s.wave))
            r.registers[s.dst] = r.whole("values", s.wave)
        case ir.RowAmax() | ir.Normalise() | ir.StoreScales():
            _quantise(r, s)
        case ir.StageTile():
            r.want(s, s.src, r.whole(r.staged, s.wave))


def _quantise(r: _Reader, s: ir.RowAmax | ir.Normalise | ir.StoreScales) -> None:
    match s:
        case ir.RowAmax():
            held = r.registers.get(s.src)
            wave = held.wave if held and held.wave is not None else 0
            r.want(s, s.src, r.whole("values", wave))
            r.registers[s.dst] = r.whole("maxima", wave)
        case ir.StoreScales():
            r.want(s, s.src, r.whole("maxima", s.wave))
        case ir.Normalise():
            held = r.registers.get(s.dst)
            wave = held.wave if held and held.wave is not None else 0
            r.want(s, s.dst, r.whole("values", wave))
            r.want(s, s.amax, r.whole("maxima", wave))
            r.registers[s.dst] = r.whole("quotients", wave)
