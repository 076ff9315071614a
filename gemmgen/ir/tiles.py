"""Kernel IR resources: the tile of a CTA, and the CTAs that run together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """CTAs that run together. `shared` is the operand all of them multiplex; if it is None they have the
    same tile and divide its K."""

    size: int = 1
    shared: Literal["a", "b"] | None = None

    @property
    def m(self) -> int:
        """Tiles of M that one cluster spans (they share B)."""
        return self.size if self.shared == "b" else 1

    @property
    def n(self) -> int:
        """Tiles of N that one cluster spans (they share A)."""
        return self.size if self.shared == "a" else 1

    @property
    def k(self) -> int:
        """CTAs that divide a tile's K."""
        return 1 if self.shared else self.size


@dataclass(frozen=True, kw_only=True)
class Block:
    """The product's tile of one CTA and the K it consumes per pipeline stage, in elements."""

    m: int
    n: int
    k: int
    fold: int = 1  # columns of the product per column of D
    fold_rows: int = 1  # rows of the product per row of D
    one_block: bool = False  # K is at most `k`

    @property
    def d_m(self) -> int:
        """Rows of D's tile."""
        return self.m // self.fold_rows

    @property
    def d_n(self) -> int:
        """Columns of D's tile."""
        return self.n // self.fold
