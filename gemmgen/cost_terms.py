"""What a modelled launch costs, and what for: a tile per resource, a wave, the launch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Modelled cost of one launch. `seconds` is what is minimised; the parts below it are seconds
    each resource alone would take, so they overlap and do not add up.

    tiles: CTA tiles, those that only complete a cluster included, once per CTA that divides K.
    last_wave_use: share of the SMs busy in the last wave. l2_bytes: from L2 to the SMs and back. dram_bytes: every operand once.
    hbm: HBM, or what L2 takes to add to D. smem_cycles: shared-memory port, per tile. link: to other GPUs, 0 for a launch of one.
    """

    tiles: int
    waves: int
    last_wave_use: float
    l2_bytes: float
    dram_bytes: float
    smem_cycles: float
    seconds: float
    tensor: float
    l2: float
    shared: float
    promotion: float
    epilogue: float
    hbm: float
    launch: float
    link: float = 0.0

    @property
    def parts(self) -> dict[str, float]:
        """Seconds by resource, longest first."""
        names = ["tensor", "l2", "shared", "promotion", "epilogue", "hbm", "launch"]
        names += ["link"] * bool(self.link)
        return dict(sorted(((n, getattr(self, n)) for n in names), key=lambda p: -p[1]))


@dataclass(frozen=True, kw_only=True)
class Work:
    """One tile of `steps` K blocks, in SM cycles per resource; `chain` is what one warpgroup does in
    sequence. scales: what `shared` and `chain` both have of loads of column scales. decoding: of a
    warpgroup in which codes become numbers, half of them while the others are multiplied. exchange: what `epilogue` has of sums that meet."""

    steps: int
    tensor: float
    shared: float
    promotion: float
    scales: float
    chain: float
    cluster: float
    epilogue: float
    l2_bytes: float
    d_bytes: float
    decoding: float = 0.0
    exchange: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Wave:
    """SM cycles of one wave of `busy` SMs, a tile on each.

    tensor, shared, l2, chain: what the main loop needs of each resource; it takes as long as the slowest.
    l2_exposed, promotion: the shares of L2's time and of promotion that show although hidden. zeros: rows that TMA
    fills. cluster: lockstep with the peer. epilogue: per tile, with nothing to multiply.
    """

    busy: int
    tensor: float
    shared: float
    l2: float
    chain: float
    l2_exposed: float
    zeros: float
    cluster: float
    epilogue: float
    promotion: float

    @property
    def main(self) -> float:
        return max(self.tensor, self.shared, self.l2, self.chain)

    @property
    def bound(self) -> str:
        """The resource that the main loop waits for."""
        return max(("tensor", "shared", "l2", "chain"), key=lambda name: float(getattr(self, name)))

    @property
    def total(self) -> float:
        beside = self.l2_exposed + self.zeros + self.cluster
        return self.main + beside + self.epilogue + self.promotion


@dataclass(frozen=True, kw_only=True)
class Link:
    """What other GPUs add to one's launch, where they make something together.

    bytes: that it sends. seconds: what the link alone takes for them. shown: of those, what nothing hides. beside: seconds
    that the launch takes longer besides.
    """

    bytes: float
    seconds: float
    shown: float
    beside: float

    @property
    def added(self) -> dict[str, float]:
        return {"link": self.shown, "ranks": self.beside}


ADDED = ("main", "l2_exposed", "zeros", "cluster", "epilogue", "promotion")  # terms of every wave


@dataclass(frozen=True, kw_only=True)
class Terms:
    """What one launch's modelled seconds add up from.

    full: each wave but the last. last: that one. tail: SM cycles of the last store, which hides under
    nothing, as the last epilogue. hbm: seconds that HBM alone would take, or L2, to add to D: `adding`. again: what HBM takes of them for bytes of B that
    it gives more than once. link: of a launch of several ranks. SM and HBM time until the last load overlap as the norm of order
    `overlap`. launch: seconds of ramp and tail.
    """

    work: Work
    full: Wave
    last: Wave
    waves: int
    tail: float
    clock_hz: float
    hbm: float
    again: float
    adding: float
    overlap: float
    launch: float
    link: Link | None = None

    @property
    def sm(self) -> float:
        """Seconds that the SMs alone would take."""
        cycles = (self.waves - 1) * self.full.total + self.last.total + self.tail
        return cycles / self.clock_hz

    @property
    def loading(self) -> float:
        """Seconds that the SMs alone would take until the last load."""
        return self.sm - self.after

    @property
    def after(self) -> float:
        """Seconds after the last load, which HBM's time cannot hide."""
        return (self.last.epilogue + self.tail) / self.clock_hz

    @property
    def alone(self) -> float:
        """Seconds of the launch without other ranks."""
        order = self.overlap
        norm: float = (self.loading**order + self.hbm**order) ** (1 / order)
        return self.launch + norm + self.after

    @property
    def seconds(self) -> float:
        return self.alone + sum(self.of_link.values())

    @property
    def of_link(self) -> dict[str, float]:
        """Seconds by term that other ranks add."""
        return self.link.added if self.link else {}

    @property
    def added(self) -> dict[str, float]:
        """Seconds by term, which add up to `seconds` but for rounding. hbm: what it adds to the SMs'."""
        full, last = (self.waves - 1) / self.clock_hz, 1 / self.clock_hz
        of_waves = {n: full * getattr(self.full, n) + last * getattr(self.last, n) for n in ADDED}
        hbm = self.alone - self.launch - self.sm
        of_launch = {"tail": last * self.tail, "hbm": hbm, "launch": self.launch}
        return {**of_waves, **of_launch, **self.of_link}
