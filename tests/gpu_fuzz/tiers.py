"""What is tried: by tier, how many cases there are and what the i-th of them does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from .cases import Case, grouped, random_case
from .concurrent import bound, chain, graph, repeats, same_bits, streams, threads
from .exact import Flags, exact
from .kinds import CODED_GROUPED, GROUPED, KINDS, SAME_BITS
from .refused import refused
from .score_kinds import PAGED
from .special import TABLE, special

Run = Callable[[Any, int, int, Flags], int]  # machine, index, seed of the case, flags: launches

SHAPES_AGREED = 50  # of each problem, for all of its configs
LAUNCHES = 1000  # that are compared with the first, on each stream
NAMES = tuple(KINDS)
GROUP_NAMES = (*GROUPED, *CODED_GROUPED, *PAGED)
COUNTED = ("bf16 swapped", "int8", "fp8 vector", "block", "block split 4", "wgrad added", "bf16 early",
           "bf16 masked", "block rows", "fp8 ends", "int8 batched", "bf16 along k", "fp8 along k, flat", "int4", "mxfp4 masked", "int4 ends, zeros",
           "scores", "scores in turns", "scores in pages", "scores in pages early")  # fmt: skip
CORNERS: tuple[tuple[int, ...], ...] = (
    (0,), (1,), (0, 0, 0), (1, 0, 0), (0, 0, 1), (257,), (0, 300, 0), (128,) * 3, (1,) * 9,
    (129, 384, 128), (64, 0, 129, 1), (130,) * 5, (7,) * 300, tuple(i % 5 // 4 * 40 for i in range(200)),
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Tier:
    """says: for the table. chunk: cases that one worker takes at a time. alone: no other worker meanwhile."""

    says: str
    run: Run
    chunk: int
    alone: bool = False


def first_calls(machine: Any, index: int, seed: int, flags: Flags) -> int:
    """Those with the most kernels before the others: each of them takes longest."""
    if index < len(SAME_BITS):
        name = tuple(SAME_BITS)[index]
        return same_bits(machine, name, shape_of(name, 0), flags)
    return exact(machine, middle(NAMES[index - len(SAME_BITS)], seed), flags, 2)


def middle(name: str, seed: int) -> Case:
    """One of a few tiles, some in part."""
    return grouped(name, (200, 264, 300), (200, 0, 77), seed)


def shapes(machine: Any, index: int, seed: int, flags: Flags) -> int:
    return exact(machine, random_case(NAMES[index % len(NAMES)], seed), flags, 4)


def shape_of(name: str, seed: int) -> Case:
    kind = {"bf16": "bf16 to f32", "block": "block unrolled", "int4": "int4 early"}[name]
    return replace(random_case(kind, seed), m=Random(seed).randint(1, 400))


def configs(machine: Any, index: int, seed: int, flags: Flags) -> int:
    name = tuple(SAME_BITS)[index // SHAPES_AGREED]
    return same_bits(machine, name, shape_of(name, seed), flags)


def strides(machine: Any, index: int, seed: int, flags: Flags) -> int:
    return refused(machine, grouped(NAMES[index % len(NAMES)], (65, 72, 136), (65, 9), seed), flags)


def groups(machine: Any, index: int, seed: int, flags: Flags) -> int:
    name = GROUP_NAMES[index % len(GROUP_NAMES)]
    which = index // len(GROUP_NAMES)
    if which >= len(CORNERS):
        return exact(machine, random_case(name, seed), flags, 4)
    shape = (1, Random(seed).choice((8, 72, 129, 264)), Random(seed).choice((64, 100, 264)))
    return exact(machine, grouped(name, shape, CORNERS[which], seed), flags, 4)


def again(machine: Any, index: int, seed: int, flags: Flags) -> int:
    name = NAMES[index % len(NAMES)]
    large = grouped(name, (520, 1032, 1024), (200, 0, 130, 190), seed)
    case = middle(name, seed) if index < len(NAMES) else large
    return repeats(machine, case, flags, LAUNCHES)


def together(machine: Any, index: int, seed: int, flags: Flags) -> int:
    """Streams, graphs, bound launches, threads, chains."""
    way, which = index % 5, index // 5 % len(COUNTED)
    case = middle(COUNTED[which], seed)
    match way:
        case 0:
            return streams(machine, case, flags, LAUNCHES)
        case 1:
            return graph(machine, case, flags, LAUNCHES // 5)
        case 2:
            return bound(machine, case, flags, LAUNCHES)
        case 3:
            return threads(machine, case, flags, LAUNCHES // 2)
        case _:
            return chain(machine, seed, flags)


def many_threads(machine: Any, index: int, seed: int, flags: Flags) -> int:
    return threads(machine, middle(COUNTED[index % len(COUNTED)], seed), flags, 10_000)


def soak(machine: Any, index: int, seed: int, flags: Flags) -> int:
    return exact(machine, random_case(NAMES[Random(seed).randrange(len(NAMES))], seed), flags, 20)


def steady(machine: Any, index: int, seed: int, flags: Flags) -> int:
    """Of every kind the same case each time, so that after a first round nothing new is needed."""
    return exact(machine, middle(NAMES[index % len(NAMES)], 1), flags, 20)


TIERS = {
    "F0": Tier(says="every kernel, for the first time", run=first_calls, chunk=1),
    "F5": Tier(says="special values", run=special, chunk=20),
    "F3": Tier(says="strides, offsets, refusals", run=strides, chunk=6),
    "F7": Tier(says="streams, graphs, threads, bound and early launches", run=together, chunk=1),
    "F6": Tier(says="determinism", run=again, chunk=2),
    "F2": Tier(says="configs that agree", run=configs, chunk=SHAPES_AGREED),
    "F4": Tier(says="groups", run=groups, chunk=50),
    "F1": Tier(says="shapes", run=shapes, chunk=100),
    "F12": Tier(says="soak", run=soak, chunk=50),
    "F12 steady": Tier(
        says="soak, memory of the device", run=steady, chunk=3 * len(NAMES), alone=True
    ),
    "F7 threads": Tier(says="4 threads x 4 streams", run=many_threads, chunk=1, alone=True),
}
LEAKS = ("F12", "F12 steady")  # tiers whose memory is compared before and after


def counts(number: int, launches: int) -> dict[str, int]:
    """Cases by tier, for `number` shapes. F12 goes on until there are `launches` of all tiers."""
    return {
        "F0": len(NAMES) + len(SAME_BITS),
        "F5": len(TABLE),
        "F3": 2 * len(NAMES),
        "F7": 5 * len(COUNTED),
        "F6": 2 * len(NAMES),
        "F2": SHAPES_AGREED * len(SAME_BITS),
        "F4": max(number // 4, len(CORNERS) * len(GROUP_NAMES)),
        "F1": number,
        "F12": max(50, launches // 50),
        "F12 steady": 3 * len(NAMES),
    }
