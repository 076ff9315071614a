"""Prove a lowered kernel's protocol: deadlock, races, bytes, phases, proxies, output, exit, ...

Every property is proved for all schedules of a set of instances (K blocks per tile, tiles per
CTA), and the order relation is shown to recur, so that longer instances add nothing new.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain, product
from time import perf_counter

from ..ir.blocks import is_if
from ..ir.nodes import CopyRows, Kernel
from ..ir.rewrite import statements
from .after import after
from .audit import agreement
from .canonical import run
from .certificate import Certificate, k_recurs, tiles_recur
from .clocks import Clocks, clocks
from .dependency import dependency
from .finding import Finding
from .fixed import fixed
from .gaps import gaps
from .groups import local
from .history import Run
from .maps import derived, maps
from .of_ranks import alike, gathered, parcelled, together
from .ops import Instance, Program
from .output import staged, stored
from .phases import barriers
from .placement import placed
from .properties import DEPENDENCY, PROPERTIES, TENSOR_MAP
from .races import order, races
from .trace import violation
from .unroll import PAIR, WARPS, Split, unroller
from .values import values


@dataclass(frozen=True, kw_only=True)
class Until:
    """How long instances must be until all recurs: rounds of the ring in one tile, and tiles. ending: of which the last is not like
    those before it."""

    rounds: int
    tiles: int
    ending: bool = False


MANY = 4  # ranks: of more, warps walk together that do the same
SOON = Until(rounds=4, tiles=3)


@dataclass(frozen=True, kw_only=True)
class Proof:
    """What was proved of a kernel, and on how much."""

    kernel: str
    properties: tuple[str, ...]
    instances: tuple[Instance, ...]
    operations: int
    seconds: float
    certificate: Certificate

    def __str__(self) -> str:
        ks = ", ".join(str(k) for k in sorted({k for i in self.instances for k in i.counts}))
        ts = ", ".join(str(t) for t in sorted({i.tiles for i in self.instances}))
        ranks = ", ".join(str(r) for r in sorted({i.ranks for i in self.instances}))
        by = f" of {ranks} ranks" * any(i.ranks > 1 for i in self.instances)
        return (
            f"{_spans(self.properties)} proved for {ks} K blocks and {ts} tiles{by} "
            f"({len(self.instances)} instances, {self.operations} operations); "
            f"the order recurs every {self.certificate.k_period} K blocks"
        )


def check(kernel: Kernel, *, thorough: bool = False, split: Split = WARPS) -> Proof:
    """Prove P1 to P13 of a lowered kernel, P14 of one that derives tensor maps, and P15 of one whose launch
    may overlap the one before.

    `thorough` takes every instance of `instances(stages, thorough=True)` instead of a sample;
    `split` says which warps of a warpgroup walk together: none by default; `unroll.PAIR` takes
    all but the leader's as one, which is faster.
    Raises ProtocolViolation with a counter-example, and IRError for a kernel that is not lowered.
    """
    start = perf_counter()
    _raise_first(chain(dependency(kernel), fixed(kernel)))
    unrolled = {split: unroller(kernel, split)}
    ranks, longest = kernel.cluster.k, _until(kernel)
    chosen = instances(kernel.stages, ranks, longest, thorough=thorough)
    if kernel.scheduler.streams:
        chosen += dealt(kernel.stages, thorough=thorough)
    if kernel.peers.every:
        chosen += alike(kernel.stages, thorough=thorough)
    elif kernel.peers.slot:
        ranked = parcelled if kernel.peers.parcels else together
        chosen += ranked(kernel.stages, thorough=thorough)
    if kernel.arrivals.chunks:
        chosen += gathered(kernel.stages, thorough=thorough)
    if kernel.slices > 1:
        chosen += idle(kernel.stages, kernel.slices)
    if kernel.groups.depths or kernel.scheduler.windowed:
        chosen += uneven(kernel.stages, thorough=thorough)
    if any(is_if(s, "cut", "whole") for s in statements(kernel)):
        chosen += tuple(i for whole in chosen for i in cut(whole))
    operations = waits = 0
    for instance in chosen:
        of = PAIR if instance.ranks > MANY else split
        if of not in unrolled:
            unrolled[of] = unroller(kernel, of)
        program = unrolled[of].program(instance)
        known = prove(program)
        operations += sum(map(len, program.ops))
        waits += _recurs(known, longest)
    _raise_first(chain(values(kernel), placed(kernel), staged(kernel), gaps(kernel)))
    _raise_first(chain(agreement(kernel), derived(kernel)))
    special = {TENSOR_MAP: bool(kernel.groups.depths), DEPENDENCY: kernel.pdl}
    applies = [p for p in PROPERTIES if special.get(p, True)]
    return Proof(
        kernel=kernel.name,
        properties=tuple(p.id for p in applies),
        instances=chosen,
        operations=operations,
        seconds=perf_counter() - start,
        certificate=Certificate(k_period=2 * kernel.stages, waits=waits),
    )


def prove(program: Program) -> Clocks:
    """Prove one instance; returns what every agent knows when. Raises ProtocolViolation."""
    r = run(program)
    if r.found:
        raise violation(r.found[0], program, None)
    first = after(r)
    known = clocks(r, first)
    for found in _findings(r, known):
        raise violation(found, program, known)
    return known


def _findings(r: Run, known: Clocks) -> Iterator[Finding]:
    """Cheap ones first; a stale read last, for a race explains it better."""
    mine = local(r.program)
    yield from mine.found
    yield from maps(r, known.after)
    yield from races(order(r, known.after, known, mine))
    yield from barriers(r, known.after, known)
    yield from r.stale
    yield from stored(r.program)


def instances(
    stages: int, ranks: int = 1, until: Until = SOON, *, thorough: bool = False
) -> tuple[Instance, ...]:
    """The smallest first: around one turn of the ring, two, four; up to three tiles; as much as it takes `until` all recurs.
    Where `ranks` CTAs divide K, so many K blocks for each of them, and numbers of which some get fewer or none."""
    s, most = stages, until.rounds * stages + 1
    if thorough:
        ks = (*range(1, 2 * s + 2), most)
        pairs = [(k, t) for k in ks for t in (1, 2, 3)]
    else:
        pairs = [(1, 1), (1, 2), (1, 3), (2, 2), (s - 1, 3), (s, 2), (s + 1, 3)]
        pairs += [(2 * s + 1, 2), (most, 1)]
    if ranks > 1:
        longest = {
            s + 1: until.tiles,
            2 * s + 1: 1,
        }  # tiles: until all recurs, else few of many agents
        pairs = [(ranks * k, longest.get(k, t)) for k, t in pairs]
        pairs += [(1, 3), (ranks + 1, 3), (ranks * s + 1, 2)]
    elif until.tiles > SOON.tiles:
        pairs += [(k, until.tiles) for k in (1, s, s + 1)]
    chosen = sorted({(k, t) for k, t in pairs if k > 0}, key=lambda p: (p[0] * p[1], p))
    return tuple(Instance(k_blocks=k, tiles=t) for k, t in chosen)


def dealt(stages: int, *, thorough: bool = False) -> tuple[Instance, ...]:
    """Tiles whose K blocks two and three CTAs take in equal stretches: a tile for all of them, whole tiles between parts, a stretch
    that ends one tile and begins the next."""
    s = stages
    chosen = [
        (2, 1, 2),
        (3, 1, 3),
        (2, 3, 2),
        (3, 4, 3),
        (2, 5, 3),
        (s + 1, 2, 3),
        (2 * s + 1, 1, 3),
    ]
    if thorough:
        chosen += [
            (k, t, c) for k in range(1, s + 2) for t in range(1, 6) for c in (2, 3) if k * t >= c
        ]
    return tuple(Instance(k_blocks=k, tiles=t, ctas=c) for k, t, c in dict.fromkeys(chosen))


def idle(stages: int, slices: int) -> tuple[Instance, ...]:
    """Tiles of which some warpgroups have no K block, so many that the ring goes round twice."""
    counts = dict.fromkeys((1, slices - 1))
    return tuple(Instance(k_blocks=k, tiles=2 * stages // k + 2) for k in counts)


def uneven(stages: int, *, thorough: bool = False) -> tuple[Instance, ...]:
    """Tiles with K blocks of their own, none among them: before, between and after others."""
    s = stages
    counts = [(0,), (0, 0), (0, 1), (1, 0), (0, 0, 1), (1, 0, 0, 1), (0, s, 0), (1, 2, 1)]
    counts += [(s - 1, 0, s + 1), (s + 1, 1, 1, s), (s, s, 0, 1)]
    if thorough:
        counts += product((0, 1, s - 1, s, s + 1), repeat=3)
    chosen = sorted(dict.fromkeys(counts), key=lambda c: (sum(c), len(c), c))
    return tuple(Instance(k_blocks=max(c), tiles=len(c), depths=c) for c in chosen)


def cut(whole: Instance) -> tuple[Instance, ...]:
    """The same where D's rows end in all tiles, in every second from the first on, or from the second."""
    tiles = [tuple(range(*r)) for r in ((whole.tiles,), (0, whole.tiles, 2), (1, whole.tiles, 2))]
    return tuple(replace(whole, cut=t) for t in dict.fromkeys(tiles) if t)


def _recurs(known: Clocks, until: Until) -> int:
    """The certificate's part in this instance: how many waits were compared."""
    instance, kernel, waits = known.run.program.instance, known.run.program.kernel, 0
    stages, ranks = kernel.stages, kernel.cluster.k
    if len(instance.cut) in (0, instance.tiles):  # its tiles are alike
        instance = replace(instance, cut=())
    if instance == Instance(k_blocks=ranks * (until.rounds * stages + 1), tiles=1):
        waits, found = k_recurs(known, stages, until.rounds, until.ending)
        _raise_first(found)
    elif instance == Instance(k_blocks=ranks * (stages + 1), tiles=until.tiles):
        waits, found = tiles_recur(known, kernel.consumer.turns, until.ending)
        _raise_first(found)
    return waits


def _until(kernel: Kernel) -> Until:
    """From the ring's second round on all are alike, and from the second tile on. Where CTAs divide K, a sender's consumers
    learn what rank 0 knew in the tile before, and its producer learns of that another tile on: so from the fourth. Where
    warpgroups take tiles in turns, alike are those of one warpgroup, from its second on. Where the first round of the first
    tile is loaded ahead, peers that learn of it in the second count otherwise: so from the next on. Where copies are announced
    with those of later K blocks, the last ones are announced by themselves: so up to the last tile and round. Where
    warpgroups divide K blocks, each learns of another's first ones in the ring's third round: so from that on."""
    ahead = any(is_if(s, "behind") for s in statements(kernel))
    ending = any(isinstance(s, CopyRows) for s in statements(kernel))
    tiles = (SOON.tiles if kernel.cluster.k == 1 else 5) + ahead + ending
    rounds = SOON.rounds + ahead + ending + (kernel.consumer.slices > 1)
    return Until(rounds=rounds, tiles=tiles * kernel.consumer.turns, ending=ending)


def _spans(ids: tuple[str, ...]) -> str:
    """As in: P1 to P13, P15."""
    together = next((i for i, x in enumerate(ids) if x != PROPERTIES[i].id), len(ids))
    return ", ".join([f"{ids[0]} to {ids[together - 1]}", *ids[together:]])


def _raise_first(found: Iterator[Finding] | list[Finding]) -> None:
    for first in found:
        raise violation(first, None, None)
