"""Who executes a kernel's statements in what is proved of it."""

from __future__ import annotations

from dataclasses import dataclass

from ..ir.nodes import Smem


@dataclass(frozen=True, kw_only=True)
class Agent:
    """Warps of one warpgroup that walk together. Warp 0 holds the warpgroup's leader. turns: the role's warpgroups
    that take tiles in turns; slices: those that divide a tile's K blocks."""

    cta: int
    role: str
    warpgroup: int
    warps: tuple[int, ...]
    turns: int = 1
    slices: int = 1
    of_cluster: bool = False
    rank: int = 0  # of several GPUs'
    launch: int = 0  # there
    of_ranks: bool = False

    @property
    def leads(self) -> bool:
        return 0 in self.warps

    @property
    def threads(self) -> int:
        return 32 * len(self.warps)

    @property
    def share(self) -> int:
        """Its warpgroup among those that share out a tile's rows."""
        return 0 if max(self.turns, self.slices) > 1 else self.warpgroup

    @property
    def first(self) -> int:
        """The K block that it begins a tile with."""
        return self.warpgroup if self.slices > 1 else 0

    def copy(self, s: Smem) -> int:
        """Which of the buffer's copies is its own."""
        return self.warpgroup if s.copies > 1 else 0

    def __str__(self) -> str:
        warps = f"warp{'s' * (len(self.warps) > 1)} {', '.join(map(str, self.warps))}"
        where = f"CTA {self.cta} " if self.of_cluster else ""
        where = f"rank {self.rank} launch {self.launch} {where}" if self.of_ranks else where
        return f"{where}{self.role}, warpgroup {self.warpgroup}, {warps}"
