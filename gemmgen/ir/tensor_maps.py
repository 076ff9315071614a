"""Kernel IR statements that derive a group's tensor maps on the device; all are derive_maps'.

A map is copied to shared memory once. For each group its fields are replaced there, and it is
published in a slot of global memory that no other group or CTA has: written once, so nothing can
rewrite it while loads still use it (docs/adr/0008-derived-maps.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .blocks import Stmt


@dataclass(frozen=True, kw_only=True)
class CopyMap(Stmt):
    """The map as the host encoded it, into `smem`. Whole warps, as all of these."""

    tensor_map: str
    smem: str


@dataclass(frozen=True, kw_only=True)
class ReplaceExtent(Stmt):
    """The group ends at `end`, in elements along dimension `dim`: TMA fills the rest with zeros."""

    tensor_map: str
    smem: str
    dim: Literal[0, 1]
    end: Literal["tile.k_end", "tile.k_end - tile.k_first"]


@dataclass(frozen=True, kw_only=True)
class ReplaceAddress(Stmt):
    """The group's matrix begins where `rows` rows times the K before it end."""

    tensor_map: str
    smem: str
    tensor: str
    rows: Literal["shape_m", "shape_n"]


@dataclass(frozen=True, kw_only=True)
class ReplaceStride(Stmt):
    """The group's rows follow each other: each has its K, of `bytes` bytes an element."""

    tensor_map: str
    smem: str
    bytes: int


@dataclass(frozen=True, kw_only=True)
class PublishMap(Stmt):
    """Copy the map from `smem` to the slot of this CTA and the tile's group, and release it there."""

    tensor_map: str
    smem: str


@dataclass(frozen=True, kw_only=True)
class AcquireMap(Stmt):
    """Make the slot's contents visible to this CTA's TMA loads."""

    tensor_map: str
