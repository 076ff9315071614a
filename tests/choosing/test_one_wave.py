"""The cost model beside what tiles took at shapes of one wave or two; of one H100."""

from __future__ import annotations

import csv
from collections import defaultdict
from pathlib import Path
from statistics import mean

import pytest

from gemmgen.config import Config
from gemmgen.cost import cost
from gemmgen.heuristics import choose
from gemmgen.ir.dtypes import BF16, E4M3
from gemmgen.problem import Problem
from gemmgen.target import H100

# NVRTC 13.0.88, device time, cold L2, each result verified, medians of 5 rounds (15 N and K, M from 128 to 1024) and of 7 (24 shapes that were
# drawn, and those N and K). Microseconds. Of each shape: the two quickest tiles without a shared operand, with A and with B shared, the quickest
# whose K is divided, and the two that the model likes best.
DATA = Path(__file__).parent.parent / "data" / "one_wave.csv"
FIELDS = ("block_m", "block_n", "consumers", "split_k", "stages", "unroll", "in_flight")
PROBLEMS = {
    "fp8_block": Problem(family="fp8_block", a=E4M3, b=E4M3),
    "dense": Problem(family="dense", a=BF16, b=BF16),
}


def config(x) -> Config:
    c = Config(**{name: int(x[name]) for name in FIELDS}, multicast=x["multicast"])
    return c.having(ping_pong=x["ping_pong"] == "1", d_columns=int(x["d_columns"]) or None)


def timed(family):
    """Of each shape, every config's microseconds."""
    found = defaultdict(dict)
    with DATA.open() as f:
        for x in csv.DictReader(f):
            if x["family"] == family:
                found[tuple(int(x[side]) for side in "mnk")][config(x)] = float(x["us"])
    return found


def favourite(p, shape, configs):
    return min(configs, key=lambda c: cost(p, c, shape, H100).seconds)


# The model's best of those timed over the quickest: in the mean, at most. Where it held that nothing is gained by sharing in one wave: 1.066 and
# 1.244, 1.039 and 1.179.
@pytest.mark.parametrize(
    ("family", "lost", "worst"), (("dense", 1.037, 1.25), ("fp8_block", 1.022, 1.16))
)
def test_the_model_knows_what_is_quick(family, lost, worst):
    p = PROBLEMS[family]
    found = [us[favourite(p, s, us)] / min(us.values()) for s, us in timed(family).items()]
    assert len(found) > 80 and mean(found) < lost and max(found) < worst


def test_an_operand_is_shared_in_one_wave_where_that_is_quicker():
    """At 4 of 5 shapes of BF16; the quickest take 0.954 of the time of the quickest that share none, of FP8 0.978."""
    found = timed("dense").values()
    gained = [
        min(us.values()) / min(v for c, v in us.items() if c.multicast == "none") for us in found
    ]
    assert sum(x < 1 for x in gained) > 0.79 * len(gained) and mean(gained) < 0.955
    assert choose(PROBLEMS["dense"], (512, 2112, 7168), H100).multicast == "b"
