"""Config: how to multiply. Tiles, stages, roles, staging; never a shape."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from operator import index
from typing import TYPE_CHECKING, Any

from .errors import ArgumentError
from .levers import FIELDS as FIELDS
from .levers import LEVERS, MORE
from .notebook import table


@dataclass(frozen=True, kw_only=True)
class Config:
    """How one kernel runs, a field per lever (`gemmgen.levers`). What fits together is decided by the passes
    (`gemmgen rules`).

    block_m, block_n: output tile of a CTA, elements. block_k_bytes: K per pipeline stage, bytes.
    stages: depth of the TMA ring. consumers: warpgroups that multiply.
    multicast: the operand a cluster of two CTAs shares: "none", "a" or "b".
    raster: the axis an L2 panel spans, "m" or "n"; panel: its height in (cluster) tiles.
    unroll: K blocks per trip of the consumers' loop.
    in_flight: wgmma groups left running: where sums stay in the tensor core, while the next stage is waited
    for; where they are promoted, while the piece of a K block (an M sub-tile, a part) before is
    (docs/adr/0020-overlapped-promotion.md).
    swizzle_ab, swizzle_d: bytes (128, 64, 32, 0); None takes the widest that fits.
    swap_ab: compute D^T = B A^T, for few rows: the warpgroups share out block_n in blocks of 64, and
    block_m, from 8 on, is the N of wgmma (docs/adr/0009-swap-ab.md).
    parts: column parts of the tile that are multiplied and promoted one after the other, 1 or 2: the
    partial sum is a part's only (families that promote; docs/adr/0011-parts.md).
    split_k: the CTAs of a cluster that share a tile and divide its K, for few tiles: 1, 2, 4 or 8
    (docs/adr/0010-split-k.md).
    d_columns: columns of D that a consumer warpgroup stages at a time, double-buffered: shared
    memory holds two pieces of each warpgroup's part of D; None: all of it (docs/adr/0022-d-columns.md).
    ping_pong: each consumer warpgroup has a tile of its own, one stores while the other multiplies, rather
    than sharing each tile (docs/adr/0027-ping-pong.md).
    peek: consumers look whether the next stage is filled before they promote, and wait after that only if it
    was not (docs/adr/0028-peek.md).
    order: in which a grid's tiles come, one of `gemmgen.ir.orders.ORDERS`; raster and panel are read by "panels".
    stream: CTAs take equal stretches of all tiles' K blocks, for few rows: what a CTA has of a tile that began before its stretch
    goes through global memory to the CTA that stores it (docs/adr/0044-streams.md).
    lane_scales: consumers' lanes read A's scales of 1x128 blocks from global memory, in whichever layout they lie there, rather
    than from boxes that the producer loads (docs/adr/0046-lane-scales.md).
    registers: (producer, consumer) per thread after setmaxnreg; None lets split_registers choose.
    pdl: begin while the launch before it on the stream still ends (programmatic dependent launch): global
    memory is touched only after that is over (docs/adr/0012-dependent-launches.md).
    weights_ahead: with pdl, load B of the first tile's first stages before that: of a problem whose `weights_ready` promises that no
    launch before it still writes B (docs/adr/0048-weights-ahead.md).
    direct: of a swapped tile, warps load their operands from global memory into registers, where `stages` K blocks of them are held,
    and multiply them by mma.sync: no ring, no producer, several CTAs per SM (docs/adr/0050-direct-weights.md).
    slots: with direct, K blocks are copied by cp.async while those before them are multiplied, `stages` of them, and wait in shared memory,
    each thread's pieces in places of its own, rather than in registers (docs/adr/0050-direct-weights.md).
    shares: into which a CTA divides the K of its tiles, 1, 2, 4 or 8: it adds them up one after the other, in the order and with the bits of as many
    CTAs that divide K, and without a cluster (docs/adr/0056-shares-in-turn.md).
    outbox: of a reduce-scatter, sums for other GPUs are stored in this one's memory, and its copy engine sends them, parcels of several tiles
    (docs/adr/0058-outbox.md).
    slice_k: the consumer warpgroups share one tile and divide its K blocks, for few rows: each multiplies every second, third or fourth, and
    the first adds up what all have (sliced-K; docs/adr/0070-slices-of-k.md).
    one_block: K has at most block_k_bytes, and consumers no loop over it: of epilogues that sum rows, whose K is short
    (docs/adr/0094-one-block-of-k.md).
    watchdog: a wait that takes seconds reports where it stands and stops the kernel.
    more: values of levers that the program has added (`gemmgen.levers.add`), by name; each is an attribute too.
    """

    block_m: int = 128
    block_n: int = 128
    block_k_bytes: int = 128
    stages: int = 4
    consumers: int = 2
    multicast: str = "none"
    raster: str = "m"
    panel: int = 8
    unroll: int = 1
    in_flight: int = 0
    swizzle_ab: int | None = None
    swizzle_d: int | None = None
    registers: tuple[int, int] | None = None
    watchdog: bool = False
    swap_ab: bool = False
    parts: int = 1
    split_k: int = 1
    pdl: bool = False
    d_columns: int | None = None
    ping_pong: bool = False
    peek: bool = False
    order: str = "panels"
    stream: bool = False
    lane_scales: bool = False
    weights_ahead: bool = False
    direct: bool = False
    slots: bool = False
    shares: int = 1
    outbox: bool = False
    slice_k: bool = False
    one_block: bool = False
    more: Mapping[str, Any] | tuple[tuple[str, Any], ...] = ()

    def __post_init__(self) -> None:
        given = vars(self)
        for name, default in DEFAULTS:  # which are allowed; a search makes hundreds of configs
            value = given[name]
            if value is default or FIELDS[name].holds(value):
                continue
            number = _number(value)
            if number is value or not FIELDS[name].holds(number):
                raise ArgumentError(name, value, f"must be {FIELDS[name].says}")
            object.__setattr__(self, name, number)
        if not isinstance(self.more, tuple) or self.more:
            object.__setattr__(self, "more", _checked(self.more))

    if not TYPE_CHECKING:  # to a type checker the fields above are all there are

        def __getattr__(self, name: str) -> Any:
            if name not in MORE:
                raise AttributeError(f"a Config has no {name}")
            return dict(self.more).get(name, MORE[name].default)

    def having(self, **values: Any) -> Config:
        """`self` with other values of levers, those of the program's own among them."""
        own = {k: v for k, v in values.items() if k in MORE}
        fields = {k: v for k, v in values.items() if k not in MORE}
        return replace(self, **fields, more={**dict(self.more), **own})

    def values(self) -> dict[str, Any]:
        """Of every lever."""
        return {x.name: getattr(self, x.name) for x in LEVERS}

    @property
    def cluster_size(self) -> int:
        return self.split_k * (1 if self.multicast == "none" else 2)

    @property
    def wgmma_m(self) -> int:
        """The side of the tile that the consumer warpgroups share out in blocks of 64."""
        return self.block_n if self.swap_ab else self.block_m

    @property
    def wgmma_n(self) -> int:
        """The other side: N of wgmma, of all `parts` together."""
        return self.block_m if self.swap_ab else self.block_n

    @property
    def turns(self) -> int:
        """The consumer warpgroups that have tiles of their own and take them in turns (ping-pong)."""
        return self.consumers if self.ping_pong else 1

    @property
    def slices(self) -> int:
        """The consumer warpgroups that divide a tile's K blocks (sliced-K)."""
        return self.consumers if self.slice_k else 1

    @property
    def sharing(self) -> int:
        """The consumer warpgroups that share out a tile's rows."""
        return 1 if self.ping_pong or self.slice_k else self.consumers

    @property
    def waves(self) -> int:
        """How many M sub-tiles, of 64, each consumer warpgroup owns of a tile."""
        return max(1, self.wgmma_m // (64 * self.sharing))

    def to_json(self) -> dict[str, Any]:
        shown = {x.name: getattr(self, x.name) for x in LEVERS if not (x.added and x.plain(self))}
        return {k: list(v) if isinstance(v, tuple) else v for k, v in shown.items()}

    def _repr_html_(self) -> str:
        """In a notebook: the fields that differ from the defaults first."""
        changed = {x.name: getattr(self, x.name) for x in LEVERS if not x.plain(self)}
        rest = {n: f"{v} (default)" for n, v in self.values().items() if n not in changed}
        return table("Config", {**changed, **rest})

    @classmethod
    def from_json(cls, data: object) -> Config:
        """The inverse of `to_json`; missing fields take their defaults.

        Raises ArgumentError naming the field for an unknown field or a value out of range.
        """
        if not isinstance(data, dict):
            raise ArgumentError("config", data, "must be a JSON object")
        for name in data:
            if name not in FIELDS:
                raise ArgumentError(
                    str(name), data[name], f"unknown field; known are {', '.join(FIELDS)}"
                )
        values: dict[str, Any] = dict(data)
        if isinstance(values.get("registers"), list):
            values["registers"] = tuple(values["registers"])
        return cls().having(**values)


def _number(value: Any) -> Any:
    """Other libraries' integers, NumPy's for one, as Python's; what is none as it is."""
    if isinstance(value, tuple):
        return tuple(map(_number, value))
    if isinstance(value, int):
        return value
    try:
        return index(value)
    except TypeError:
        return value


def _checked(given: Any) -> tuple[tuple[str, Any], ...]:
    """Those that have not their default, in one order."""
    try:
        more = dict(given)
    except (TypeError, ValueError):
        raise ArgumentError("more", given, "must be a mapping of names to values") from None
    for name, value in more.items():
        if name not in MORE:
            known = ", ".join(MORE) or "none"
            raise ArgumentError(
                "more", name, f"must name levers that were added, of which there are {known}"
            )
        if not MORE[name].values.holds(value):
            raise ArgumentError(name, value, f"must be {MORE[name].values.says}")
    return tuple(sorted((k, v) for k, v in more.items() if v != MORE[k].default))


DEFAULTS: tuple[tuple[str, Any], ...] = tuple((x.name, x.default) for x in LEVERS)
