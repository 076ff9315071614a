"""The cost model beside what few rows took on an H200, every tile that was timed, and by loads into registers on an H100."""

from __future__ import annotations

import csv
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from statistics import mean

import pytest
from kernels import DIRECT

from gemmgen.config import Config
from gemmgen.cost import cost
from gemmgen.heuristics import choose
from gemmgen.ir.dtypes import BF16, E4M3
from gemmgen.levers.direct import HELD
from gemmgen.problem import Problem
from gemmgen.target import H100, H200

# One H200, NVRTC 13.0.88, device time, cold L2, medians of 7 rounds, each result verified: the quickest number of stages of
# each tile. Microseconds.
TIMED = Path(__file__).parent.parent / "data/few_rows.csv"
PROBLEMS = {
    "fp8_block": Problem(family="fp8_block", a=E4M3, b=E4M3),
    "dense": Problem(family="dense", a=BF16, b=BF16),
}
ROWS = (1, 16, 32, 64, 128)


def timed(family: str, m: int):
    """By shape, of each config its seconds in the model and on the GPU."""
    with TIMED.open() as f:
        lines = [
            {k: v if k == "family" else float(v) for k, v in x.items()} for x in csv.DictReader(f)
        ]
    mine = [x for x in lines if (x["family"], x["m"]) == (family, m)]
    for shape, of in groupby(mine, lambda x: (m, int(x["n"]), int(x["k"]))):
        yield [(cost(PROBLEMS[family], config(x), shape, H200).seconds, x["us"] * 1e-6) for x in of]


def config(x) -> Config:
    sides = {
        name: int(x[name]) for name in ("block_m", "block_n", "consumers", "split_k", "stages")
    }
    return Config(**sides, swap_ab=bool(x["swap_ab"]))


@pytest.mark.parametrize("family", PROBLEMS)
@pytest.mark.parametrize("m", ROWS)
def test_what_the_model_likes_best_is_near_the_quickest(family, m):
    """Over twelve N and K, of which the database has half at most. The mean is at most 1.021, the worst 1.137; before the model had
    been fitted to these times they were 1.096 and 1.55."""
    lost = [min(of)[1] / min(us for _, us in of) for of in timed(family, m)]
    assert len(lost) == 12 and mean(lost) < 1.025 and max(lost) < 1.14


@pytest.mark.parametrize("family", PROBLEMS)
def test_it_is_right_within_a_tenth(family):
    """In the mean, of what is at most 30 % slower than the quickest."""
    errors = [
        abs(modelled / us - 1)
        for m in ROWS
        for of in timed(family, m)
        for modelled, us in of
        if us < 1.3 * min(x for _, x in of)
    ]
    assert mean(errors) < 0.1


# ---- loads into registers ------------------------------------------------------------------------

# One H100, NVRTC 13.0.88, device time, cold L2, medians of 7 rounds, each result verified, microseconds: BF16; and FP8 with block scales, with what
# the choice without such loads took in the same run.
LOADED = {
    "dense": Path(__file__).parent.parent / "data/direct.csv",
    "fp8_block": Path(__file__).parent.parent / "data/direct_fp8.csv",
}


def loaded(family: str):
    """By shape, of each config that a choice considers its seconds in the model and on the GPU, and those of the choice without."""
    with LOADED[family].open() as f:
        lines = [{k: float(v) for k, v in x.items()} for x in csv.DictReader(f)]
    mine = [x for x in lines if x["stages"] == HELD]
    for shape, of in groupby(mine, lambda x: tuple(int(x[side]) for side in "mnk")):
        found, default = [], 0.0
        for x in of:
            sides = {name: int(x[name]) for name in ("block_m", "split_k")}
            c = replace(
                DIRECT, stages=HELD, unroll=HELD, lane_scales=family == "fp8_block", **sides
            )
            found.append((cost(PROBLEMS[family], c, shape, H100).seconds, x["us"] * 1e-6))
            default = x.get("default", 0.0) * 1e-6
        yield shape, found, default


# By family: times, the mean and the most that the model is off by; shapes, the mean and the most that what it likes best takes of the quickest.
FOUND = {
    "dense": (340, 0.0225, 0.1, 85, 1.0065, 1.06),
    "fp8_block": (96, 0.036, 0.13, 24, 1.001, 1.005),
}


@pytest.mark.parametrize("family", LOADED)
def test_what_loads_take_is_modelled_within_an_eighth(family):
    """The figures of `cost_direct` come from these times: off by 2.2 % in the mean, 9.2 % at most; of FP8 by 3.5 % and 12.7 %."""
    times, mean_off, most_off = FOUND[family][:3]
    errors = [abs(modelled / us - 1) for _, of, _ in loaded(family) for modelled, us in of]
    assert len(errors) == times and mean(errors) < mean_off and max(errors) < most_off


@pytest.mark.parametrize("family", LOADED)
def test_of_loads_what_the_model_likes_best_is_near_the_quickest(family):
    """Over 85 shapes: 1.006 in the mean, 1.056 at worst; of FP8 over 24: 1.0002 and 1.0045."""
    shapes, mean_lost, most_lost = FOUND[family][3:]
    lost = [min(of)[1] / min(us for _, us in of) for _, of, _ in loaded(family)]
    assert len(lost) == shapes and mean(lost) < mean_lost and max(lost) < most_lost


def test_fp8_is_loaded_into_registers_where_that_is_quicker_than_the_ring():
    """At seven of 24 shapes, each at least 2 % quicker than the choice without was; 6.2 % in the mean."""
    gained = []
    for shape, of, default in loaded("fp8_block"):
        if choose(PROBLEMS["fp8_block"], shape, H100).direct:
            gained.append(min(of)[1] / default)
    assert len(gained) >= 7 and max(gained) < 0.98 and mean(gained) < 0.94
