"""A layer of experts, launch by launch: what each reads and writes, how long the models say that it takes, what memory is held."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..target import Target


@dataclass(frozen=True, kw_only=True)
class Launched:
    """reads, writes: bytes by tensor, of what has copies. seconds: modelled, L2 cold. source: by what. config: of a GEMM, and where it comes
    from; else empty."""

    does: str
    kernel: str
    ctas: int
    threads: int
    reads: Mapping[str, int]
    writes: Mapping[str, int]
    seconds: float
    source: str
    config: Mapping[str, str]

    @property
    def bytes(self) -> int:
        return sum(self.reads.values()) + sum(self.writes.values())


@dataclass(frozen=True, kw_only=True)
class Held:
    """A tensor that the layer allocates, with room for any choice. first: number of the launch that writes it. read: of the last that
    reads it. last: of the last while which it is held."""

    name: str
    bytes: int
    first: int
    read: int
    last: int


@dataclass(frozen=True, kw_only=True)
class Layer:
    """tokens: that it is of. rows: that copies have room for. expected_rows, expected_groups: of experts, what configs were chosen for.
    sizes: by name, as the command is given them."""

    name: str
    tokens: int
    sizes: Mapping[str, int]
    target: Target
    rows: int
    expected_rows: int
    expected_groups: int
    weights: int  # bytes of all experts, with scales
    output: int
    launches: tuple[Launched, ...]
    held: tuple[Held, ...]
    least: int  # bytes that must be held at once: of rows without gaps, each tensor free once it was read

    @property
    def seconds(self) -> float:
        return sum(x.seconds for x in self.launches)

    @property
    def peak(self) -> int:
        """Bytes that are held at once at most, besides arguments and result."""
        return max(self.during(i) for i in range(len(self.launches)))

    def during(self, launch: int) -> int:
        """Bytes that are held while that one runs."""
        return sum(x.bytes for x in self.held if x.first <= launch <= x.last)
