"""The cost model beside what tiles took that reach past A's or B's last row, and what others took than the choice; of one H100."""

from __future__ import annotations

import csv
from collections import defaultdict
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from statistics import mean

import pytest

from gemmgen.config import Config
from gemmgen.cost import cost, terms
from gemmgen.cost_fit import FIT
from gemmgen.ir.dtypes import BF16, E4M3
from gemmgen.problem import Problem
from gemmgen.target import H100

# NVRTC 13.0.88, device time, cold L2, each result verified. Microseconds. edges: what was chosen at M = 65 to 512 before the
# model knew of edges, at three N and K, medians of 15 rounds. others: the choice then and the model's best of each kind of tile, at
# shapes of DeepGEMM's benchmarks with groups of its sizes (M is their mean), and at eight M between whole tiles; medians of 9.
DATA = Path(__file__).parent.parent / "data"
PROBLEMS = {
    "fp8_block": Problem(family="fp8_block", a=E4M3, b=E4M3),
    "dense": Problem(family="dense", a=BF16, b=BF16),
}
SIDES = ("block_m", "block_n", "consumers", "split_k", "stages")


def lines(name: str):
    with (DATA / name).open() as f:
        return [
            {k: float(v) if v[:1].isdigit() else v for k, v in x.items()} for x in csv.DictReader(f)
        ]


def against_whole():
    """Of each M, beside the most that the same tiles cover and were timed at: rows past A's last, and the time in the model and on the
    GPU."""

    def tile(x):
        return (*(x[k] for k in ("family", "n", "k", *SIDES)), -(-x["m"] // x["block_m"]))

    for (family, n, k, *sides, _), of in groupby(lines("edges.csv"), tile):
        c = Config(**{name: int(x) for name, x in zip(SIDES, sides, strict=True)})
        found = [(int(x["m"]), x["us"]) for x in of]
        (most, whole), p = found[-1], PROBLEMS[family]
        if -most % c.block_m > FIT.zeros_free:
            continue
        modelled = {m: cost(p, c, (m, int(n), int(k)), H100).seconds for m, _ in found}
        for m, us in found[:-1]:
            yield -m % c.block_m, modelled[m] / modelled[most], us / whole


def test_rows_past_the_last_are_priced():
    """Of 207 times, 1.55 of a whole tile's at most, the model is off by 3.6 % in the mean, 13 % at most; by 6.6 % and 36 % if nothing of
    it were priced."""
    found = [*against_whole()]
    errors = [abs(modelled / us - 1) for _, modelled, us in found]
    unpriced = [abs(1 / us - 1) for *_, us in found]
    assert len(found) == 207 and mean(errors) < 0.037 and max(errors) < 0.135
    assert mean(unpriced) > 0.066 and max(unpriced) > 0.35


def config(x) -> Config:
    named_ = (*SIDES, "unroll", "in_flight")
    c = Config(**{name: int(x[name]) for name in named_}, multicast=x["multicast"])
    flags = {name: bool(x[name]) for name in ("swap_ab", "ping_pong", "peek")}
    return c.having(**flags, d_columns=int(x["d_columns"]) or None)


def problem(x) -> Problem:
    plain = PROBLEMS[x["family"]].to_json()
    said = {name: x[name] for name in ("d", "layout", "grouping")}
    epilogue = "residual" if x["residual"] else "none"
    return Problem.from_json(
        plain | said | {"accumulate": bool(x["accumulate"]), "epilogue": epilogue}
    )


def others():
    """By what it is of: of each call, every config's seconds in the model and on the GPU."""
    found = defaultdict(list)

    def call(x):
        return tuple(
            x[k]
            for k in (
                "of",
                "family",
                "layout",
                "grouping",
                "d",
                "accumulate",
                "residual",
                "groups",
                "m",
                "n",
                "k",
            )
        )

    for (of, *_), each in groupby(lines("others.csv"), call):
        timed = []
        for x in each:
            shape = tuple(int(x[side]) for side in "mnk")
            timed.append(
                (cost(problem(x), config(x), shape, H100, int(x["groups"])).seconds, x["us"] * 1e-6)
            )
        of = "residual" if x["residual"] else f"{of} {x['family']}"
        found[of].append(timed)
    return found


# The model's best of those timed over the quickest: in the mean, at most. Before, where it was otherwise: masked 1.101 and 1.144, rows 1.034
# and 1.069, ends 1.069 and 1.081, residual 1.115 and 1.251, sweep 1.097 and 1.273, 1.088 and 1.228, normal 1.222 and 1.473.
LOST = {
    "masked fp8_block": (1.007, 1.05),
    "masked dense": (1.038, 1.08),
    "rows dense": (1.004, 1.02),
    "ends dense": (1.041, 1.07),
    "residual": (1.039, 1.08),
    "sweep fp8_block": (1.043, 1.22),
    "sweep dense": (1.07, 1.27),
    "few fp8_block": (1.026, 1.06),
    "wgrad dense": (1.03, 1.06),
    "normal dense": (1.026, 1.11),
}


@pytest.mark.parametrize("of", LOST)
def test_what_the_model_likes_best_is_near_the_quickest(of):
    lost = [min(each)[1] / min(us for _, us in each) for each in others()[of]]
    assert mean(lost) < LOST[of][0] and max(lost) < LOST[of][1]


def test_every_call_is_compared():
    found = others()
    assert found.keys() == LOST.keys()
    assert sum(map(len, found.values())) == 84 and all(
        len(each) > 9 for of in found.values() for each in of
    )


FP8 = PROBLEMS["fp8_block"]


def zeros(c: Config, shape, p=FP8, groups=1) -> float:
    t = terms(p, c, shape, H100, groups)
    return t.last.zeros / t.work.steps


def test_rows_past_either_operands_last_show_in_a_tile_that_waits():
    c = Config(block_n=64)
    whole, below, beside, both = (
        zeros(c, (m, n, 4096)) for m, n in ((256, 2048), (129, 2048), (256, 1985), (129, 1985))
    )
    assert whole == 0 < beside < below < both
    few = FIT.zeros_free
    assert zeros(c, (256 - few, 2048, 4096)) == 0, "few rows cost nothing"
    assert zeros(c, (2177, 2048, 4096)) < below, "of many waves few tiles reach past"


def test_below_a_groups_last_row_lies_anothers():
    for grouping in ("masked", "rows", "ends"):
        assert zeros(Config(block_n=64), (129, 2048, 4096), replace(FP8, grouping=grouping), 2) == 0
    assert zeros(Config(block_n=64), (129, 2048, 4096), replace(FP8, grouping="batched"), 2) > 0


def test_what_an_epilogue_reads_like_d_is_read_from_memory_and_waited_for():
    shape, c = (4096, 4096, 512), Config(in_flight=1)
    dense = PROBLEMS["dense"]
    plain, read = (terms(p, c, shape, H100) for p in (dense, replace(dense, epilogue="residual")))
    assert read.hbm > plain.hbm
    assert read.full.epilogue - plain.full.epilogue == 128 * 128 * 2 / (2 * FIT.reading)
    cut = replace(c, d_columns=64)
    waits = [
        terms(replace(dense, epilogue=e), cut, shape, H100).full.epilogue
        for e in ("none", "residual")
    ]
    more = read.full.epilogue - plain.full.epilogue
    assert waits[1] - waits[0] == more + 2 * FIT.reading_piece, "each piece waits for its own"


def test_narrow_rows_of_b_are_dear():
    """An MN-major B whose tile is no whole lines wide."""
    shape = (4096, 512, 4096)
    turned = replace(PROBLEMS["dense"], layout="nn")
    wide, narrow = (terms(turned, Config(block_n=n), shape, H100).work.l2_bytes for n in (128, 96))
    plain = terms(PROBLEMS["dense"], Config(block_n=96), shape, H100).work.l2_bytes
    assert narrow > wide and narrow - plain == pytest.approx((FIT.narrow - 1) * 96 * 4096 * 2)
