"""The tensor core's side of wgmma: accumulators in flight, operands, and the products themselves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import groupby
from typing import Any

import numpy as np

from .descriptor import Descriptor, addresses
from .errors import IllegalAccess, ProtocolError
from .fiber import LANES
from .group import Group
from .lanes import who
from .races import WORD
from .tensor_core import mma_block

ROWS = 64  # of A, and of D
POISON = 0xFFFFFFFF  # NaN, -1
CODES: Mapping[int, Any] = {8: np.uint8, 16: np.uint16}
BITS = {"e4m3": 8, "e5m2": 8, "s8": 8, "bf16": 16, "f16": 16}


@lru_cache
def fragment(count: int) -> tuple[Any, Any]:
    """Row and column of D that each lane's register holds: int [count, 128] each.

    PTX ISA, "Register Fragments and Shared Memory Matrix Layouts", matrix D.
    """
    register, thread = np.arange(count)[:, None], np.arange(LANES)[None, :]
    row = 16 * (thread // 32) + thread % 32 // 4 + 8 * (register % 4 // 2)
    column = 8 * (register // 4) + 2 * (thread % 4) + register % 2
    return row, column


@lru_cache
def words_of_a() -> tuple[Any, Any]:
    """Row and word of its 32 bytes of K that each lane's register of A holds: int [4, 128] each.

    PTX ISA, the same section, matrix A.
    """
    register, thread = np.arange(4)[:, None], np.arange(LANES)[None, :]
    row = 16 * (thread // 32) + thread % 32 // 4 + 8 * (register % 2)
    return row, thread % 4 + 4 * (register // 2)


@lru_cache(maxsize=1024)
def touched(
    descriptor: Descriptor, rows: int, transposed: bool, first: int = 0, count: int | None = None
) -> Any:
    """The words of the race detector that `count` rows of an operand tile lie in, from `first` on."""
    last = rows if count is None else first + count
    words = np.unique(addresses(descriptor, rows, transposed)[first:last] // WORD)
    if int(words[-1]) - int(words[0]) + 1 == words.size:
        return slice(int(words[0]), int(words[-1]) + 1)
    return words


@dataclass(eq=False)
class Accumulator:
    """D while it is in flight: registers by slot, its value once computed so far."""

    slots: tuple[int, ...]
    value: Any  # [64, N]
    users: int = 0


@dataclass(frozen=True, kw_only=True, eq=False)
class Source:
    """An operand: a tile in shared memory."""

    descriptor: Descriptor
    rows: int
    transposed: bool


@dataclass(frozen=True, kw_only=True, eq=False)
class Held:
    """A in registers, and what they held when the product was issued: [4, 128]."""

    slots: tuple[int, ...]
    words: Any


@dataclass(frozen=True, kw_only=True, eq=False)
class Mma:
    """One issued wgmma.mma_async."""

    d: Accumulator
    a: Source | Held
    b: Source
    types: tuple[str, str]
    accumulate: bool
    text: str


@dataclass(kw_only=True, eq=False)
class Pipeline:
    """A warpgroup's asynchronous products. Groups complete in order.

    agents: one per warp, since a warp's wait says nothing about what the others' parts still read.
    """

    agents: tuple[int, ...]
    current: list[Mma] = field(default_factory=list)
    committed: int = 0
    issued: list[list[int]] = field(default_factory=list)  # when, of each group: the warps' times
    retired: list[list[Mma]] = field(default_factory=list)  # computed
    waited: int = 0
    fenced: bool = False
    written: set[int] = field(
        default_factory=set
    )  # instructions that wrote D since: accumulators.py
    in_flight: dict[int, Accumulator] = field(default_factory=dict)  # by slot


def pipeline(g: Group) -> Pipeline:
    if g.wgmma is None:
        number = g.first // LANES
        tracker, rank = g.cta.cluster.tracker, g.cta.rank
        names = [f"wgmma of warp {g.first_warp + w} of CTA {g.cta.index}" for w in range(g.warps)]
        keys = [(rank, "wgmma", number, w) for w in range(g.warps)]
        g.wgmma = Pipeline(agents=tuple(map(tracker.agent, keys, names)))
    found: Pipeline = g.wgmma
    return found


def take(g: Group, p: Pipeline, slots: tuple[int, ...], n: int) -> Accumulator:
    """The accumulator in these registers, which become the tensor core's."""
    found = p.in_flight.get(slots[0])
    if found is not None and found.slots == slots:
        found.users += 1
        return found
    if any(x in p.in_flight for x in slots):
        raise ProtocolError(f"{who(g)}: D overlaps the registers of a product in flight")
    if not p.fenced:
        raise ProtocolError(f"{who(g)}: no wgmma.fence since registers of D were last waited for")
    row, column = fragment(len(slots))
    value = np.empty((ROWS, n), g.R[slots[0]].dtype)
    value[row, column] = np.stack([g.R[x] for x in slots])
    taken = Accumulator(slots, value, 1)
    for x in slots:
        g.R[x].view(np.uint32)[:] = POISON
        p.in_flight[x] = taken
    return taken


def complete(g: Group, p: Pipeline, mmas: list[Mma]) -> None:
    """A committed group: products that follow one another on one accumulator are taken together."""
    chain = 0
    chains: list[tuple[int, Mma]] = []
    for k, m in enumerate(mmas):
        if k and (m.d is not mmas[k - 1].d or not m.accumulate or m.types != mmas[k - 1].types):
            chain += 1
        chains.append((chain, m))
    for _, members in groupby(chains, key=lambda x: x[0]):
        _multiply(g, [m for _, m in members])
    p.retired.append(mmas)


def release(g: Group, p: Pipeline, need: int) -> None:
    """The warpgroup has waited for the first `need` groups: their registers are its own again."""
    while p.waited < need:
        mmas, p.retired[p.waited] = p.retired[p.waited], []
        for m in mmas:
            m.d.users -= 1
            if m.d.users == 0:
                _give_back(g, p, m.d)
        p.waited += 1


def _multiply(g: Group, mmas: list[Mma]) -> None:
    first = mmas[0]
    a, b = (
        _operand(g, [getattr(m, x) for m in mmas], first.types[k], first.text)
        for k, x in enumerate("ab")
    )
    c = first.d.value if first.accumulate else None
    first.d.value = mma_block(a, b, c, first.types[0], first.types[1], len(mmas))


def _operand(g: Group, sources: list[Source | Held], kind: str, text: str) -> Any:
    """Codes [rows, K of all the sources]."""
    tiles = [_held(g, x, text) if isinstance(x, Held) else _tile(g, x, text) for x in sources]
    return np.ascontiguousarray(np.concatenate(tiles, 1)).view(CODES[BITS[kind]])


def _tile(g: Group, x: Source, text: str) -> Any:
    where, shared = addresses(x.descriptor, x.rows, x.transposed), g.cta.shared
    if int(where.max()) >= shared.end:
        raise IllegalAccess(f"{text}: {x.descriptor} reads past shared memory")
    shared.check_known(shared.known[where], text)
    return shared.data[where]


def held(g: Group, slots: tuple[int, ...]) -> Held:
    return Held(slots=slots, words=np.stack([g.R[x].view(np.uint32) for x in slots]))


def _held(g: Group, x: Held, text: str) -> Any:
    if not np.array_equal(held(g, x.slots).words, x.words):
        raise ProtocolError(f"{text}: the registers of its A are written before it is waited for")
    words = np.empty((ROWS, 8), np.uint32)
    words[words_of_a()] = x.words
    return words.view(np.uint8)


def _give_back(g: Group, p: Pipeline, d: Accumulator) -> None:
    row, column = fragment(len(d.slots))
    values = d.value[row, column]
    for k, slot in enumerate(d.slots):
        g.R[slot][:] = values[k]
        del p.in_flight[slot]
