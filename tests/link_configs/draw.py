"""Problems and configs at random, of all that the passes allow."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from random import Random

from gemmgen.config import Config
from gemmgen.epilogues import EPILOGUES
from gemmgen.errors import ArgumentError, IllegalConfig, UnsupportedProblem
from gemmgen.ir.dtypes import BF16, E4M3, E5M2, F16, F32, S8, S32
from gemmgen.ir.groupings import GROUPINGS
from gemmgen.ir.nodes import Kernel
from gemmgen.pipeline import lower
from gemmgen.problem import Problem
from gemmgen.recipes import recipe

FAMILIES = {
    "dense": ((BF16, BF16), (F16, F16), (E4M3, E4M3), (E4M3, E5M2), (S8, S8)),
    "fp8": ((E4M3, E4M3), (E5M2, E4M3)),
    "fp8_block": ((E4M3, E4M3), (S8, S8)),
    "fp8_1d1d": ((E4M3, E4M3),),
    "w4a16": ((BF16, BF16), (F16, F16)),
    "w4a8": ((E4M3, E4M3),),
    "w4a8_block": ((E4M3, E4M3),),
    "w8a16": ((BF16, BF16), (F16, F16)),
}


def problem(random: Random) -> Problem:
    family = random.choice(list(FAMILIES))
    (a, b), coded = random.choice(FAMILIES[family]), recipe(family).coded
    return Problem(
        family=family,
        a=a,
        b=b,
        d=random.choice((BF16, BF16, F16, F32, E4M3, S32)),
        grouping=random.choice(("none", "none", *GROUPINGS)),
        epilogue=random.choice((*[EPILOGUES["none"]] * 8, *EPILOGUES.values())),
        accumulate=random.random() < 0.2,
        layout=random.choice(("nt", "nt", "nt", "nn", "tn", "tt")) if not coded else "nt",
        weights=random.choice(recipe(family).weights(b)),
    )


def config(random: Random) -> Config:
    def sometimes(value: object, otherwise: object = False) -> object:
        return value if random.random() < 0.25 else otherwise

    consumers, swap = random.choice((1, 2, 2, 3)), random.random() < 0.2
    shared = 64 * consumers * random.choice((1, 1, 2))
    ping_pong = consumers > 1 and random.random() < 0.2
    shared = 64 if ping_pong else shared
    other = 8 * random.randint(1, 16 if swap else 32)
    drawn = Config(
        block_m=other if swap else shared,
        block_n=shared if swap else other,
        block_k_bytes=random.choice((32, 64, 128, 128, 128, 256)),
        stages=random.randint(2, 9),
        consumers=consumers,
        multicast=random.choice(("none", "none", "a", "b")),
        raster=random.choice("mn"),
        panel=random.choice((1, 4, 8, 16)),
        unroll=random.choice((1, 1, 2, 4)),
        in_flight=random.choice((0, 0, 1)),
        swizzle_ab=random.choice((None, None, None, 0, 32, 64, 128)),
        swizzle_d=random.choice((None, None, None, 0, 32, 64, 128)),
        swap_ab=swap,
        parts=sometimes(2, 1),
        split_k=sometimes(random.choice((2, 4, 8)), 1),
        d_columns=sometimes(random.choice((16, 32, 64, 128)), None),
        ping_pong=ping_pong,
        peek=sometimes(True),
        pdl=sometimes(True),
        lane_scales=sometimes(True),
        watchdog=sometimes(True),
        shares=sometimes(random.choice((2, 4, 8)), 1),
    )
    if swap and random.random() < 0.4:
        return direct(random, drawn)
    return sliced(random, drawn) if random.random() < 0.1 else drawn


def sliced(random: Random, c: Config) -> Config:
    """The same with warpgroups that divide K blocks: of one wave each, or two."""
    consumers = random.choice((2, 3, 4))
    side = "block_n" if c.swap_ab else "block_m"
    alone = {"split_k": 1, "shares": 1, "ping_pong": False, "peek": False, "d_columns": None}
    alone |= {"consumers": consumers, "stages": 2 * consumers, side: random.choice((64, 64, 128))}
    return replace(c, slice_k=True, **alone)


def direct(random: Random, c: Config) -> Config:
    """The same without a ring."""
    stages = random.randint(1, 4)
    alone = {"consumers": 1, "block_n": 64, "stages": stages, "unroll": stages}
    alone |= {"multicast": "none", "in_flight": 0, "swizzle_ab": None}
    alone |= {"ping_pong": False, "peek": False, "block_m": random.choice((8, 8, 16, 24))}
    return replace(c, direct=True, **alone)


def decoding(random: Random, c: Config) -> Config:
    """The same, of a B of weights of 4 bits."""
    consumers = c.consumers if c.ping_pong else random.choice((1, 2))
    return replace(
        c,
        swap_ab=True,
        direct=False,
        block_m=8 * random.randint(1, 16),
        block_n=64 if c.ping_pong else 64 * consumers,
        consumers=consumers,
        block_k_bytes=256,
        stages=random.randint(2, 5),
        multicast=random.choice(("none", "none", "a")),
        swizzle_ab=None,
        parts=1,
        lane_scales=False,
        stream=random.random() < 0.2 and c.split_k == 1,
    )


def kernels(count: int, seed: int) -> Iterator[tuple[Problem, Config, Kernel]]:
    """Lowered ones, all different; one in four has stamps."""
    random, seen = Random(f"link {seed}"), set()
    while len(seen) < count:
        try:
            p, c = problem(random), config(random)
            c = decoding(random, c) if p.weights else c
            stamps = random.choice((0, 0, 0, 64))
            if (key := (repr(p), repr(c), stamps)) in seen:
                continue
            kernel = lower(p, replace(c), stamps=stamps)
        except (IllegalConfig, UnsupportedProblem, ArgumentError):
            continue
        seen.add(key)
        yield p, c, kernel
