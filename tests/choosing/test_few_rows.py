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

# BF16, one H100, NVRTC 13.0.88, device time, cold L2, medians of 7 rounds, each result verified. Microseconds.
LOADED = Path(__file__).parent.parent / "data/direct.csv"


def loaded():
    """By shape, of each config that a choice considers its seconds in the model and on the GPU."""
    with LOADED.open() as f:
        lines = [{k: float(v) for k, v in x.items()} for x in csv.DictReader(f)]
    mine = [x for x in lines if x["stages"] == HELD]
    for shape, of in groupby(mine, lambda x: tuple(int(x[side]) for side in "mnk")):
        found = []
        for x in of:
            sides = {name: int(x[name]) for name in ("block_m", "split_k")}
            c = replace(DIRECT, stages=HELD, unroll=HELD, **sides)
            found.append((cost(PROBLEMS["dense"], c, shape, H100).seconds, x["us"] * 1e-6))
        yield found


def test_what_loads_take_is_modelled_within_a_tenth():
    """The figures of `cost_direct` come from these 340 times: off by 2.2 % in the mean, 9.2 % at most."""
    errors = [abs(modelled / us - 1) for of in loaded() for modelled, us in of]
    assert len(errors) == 340 and mean(errors) < 0.0225 and max(errors) < 0.1


def test_of_loads_what_the_model_likes_best_is_near_the_quickest():
    """Over 85 shapes: 1.006 in the mean, 1.056 at worst."""
    lost = [min(of)[1] / min(us for _, us in of) for of in loaded()]
    assert len(lost) == 85 and mean(lost) < 1.0065 and max(lost) < 1.06
