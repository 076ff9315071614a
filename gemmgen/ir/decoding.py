"""Kernel IR statements of weights of 4 and 8 bits, which are decoded into the registers of wgmma's A (docs/adr/0065-weights-of-4-bits.md)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

from .blocks import Stmt
from .packed import By, Form
from .resources import UNUSUAL, Coord
from .stmts import Mma

Beside = Literal["records", "scales", "nothing"]
HALVES = 2  # of a K block, each of which is decoded while the other is multiplied


@dataclass(frozen=True, kw_only=True)
class LoadBlocks(Stmt):
    """The blocks of packed weights that the tile's rows of `tensor` lie in, of one K block, into `smem[stage]`, each as one copy whose bytes
    complete on `barrier[stage]`. In place of blocks past the tensor's last rows comes the last one. k: which block along K."""

    tensor: str
    smem: str
    barrier: str
    k: Coord


@dataclass(frozen=True, kw_only=True)
class ReadCodes(Stmt):
    """Of the warpgroup's block of `wave` in `smem[stage]`: dst = this thread's codes of the K block, eight to a word: of 16-bit numbers a step of
    wgmma's, of 8-bit numbers one of its two rows' of a step. Of codes of 8 bits a word is half a step. beside records: records = what its two rows' groups
    are scaled by, the first row's before the second's; beside scales: records = FP32 scales of its two rows' sums; beside nothing: blocks have none."""

    spelled_by: ClassVar[str] = "beside"

    dst: str
    beside: Beside = field(default="records", metadata=UNUSUAL)
    records: str = field(default="", metadata=UNUSUAL)
    smem: str
    wave: int
    form: Form
    wave_bytes: int | None = None  # to this wave's blocks; plan_descriptors
    warpgroup_bytes: int | None = None  # between two warpgroups' blocks; plan_descriptors


@dataclass(frozen=True, kw_only=True)
class Decode(Stmt):
    """dst = the numbers that half of a K block's codes stand for, of each step the four registers of wgmma's A.

    by scale: (code - 8) * scale; zeros: (code - zero) * scale; exponent: value * 2^exponent; shift: value * 2^(shift + LEAST_SHIFT). Each is
    rounded once. By whole: 2^-9 of the code - 8, exactly, of which sums are scaled. Of 8 bits, exactly, INT8 by sign: seven bits less the eighth; offset: code - 128. E4M3 by power: bits * 2^120; bits: as they
    lie, 2^-8 of the value."""

    spelled_by: ClassVar[str] = "by"

    dst: str
    codes: str
    records: str = field(default="", metadata=UNUSUAL)
    half: int
    form: Form
    by: By


@dataclass(frozen=True, kw_only=True)
class MmaDecoded(Mma):
    """The same of half a K block, with A's rows in the registers `decoded`, which Decode made of what lay in `a`."""

    decoded: str
    half: int
