"""A fixed part of the mutation table: planned and random faults, every one of which is found.

All of it, half an hour: `python -m tests.mutation --rows --random 600 --seed 1`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mutation import nets, survivors  # isort: skip
from mutation.mutant import Built, mutated_kernel, original  # isort: skip
from mutation.random_mutants import draw  # isort: skip
from mutation.rows import NOT_APPLICABLE, ROWS, number  # isort: skip
from mutation.score import score_all  # isort: skip

pytestmark = pytest.mark.nvrtc

EQUIVALENT = {"row 47a"}
# Found only by the bit model, by far rows of D or by a shape past whole tiles: slow.
SLOW = {"row 42", "row 64", "row 64b", "row 71f"}
# Every fault that the emulator is not needed for, and some of the others.
SUBSET = [
    m for m in ROWS if m.id not in EQUIVALENT | SLOW and (m.expected != "E" or number(m) % 4 == 1)
]
PLAIN = "fp8_block/base"


@pytest.fixture(autouse=True)
def nvrtc():
    pytest.importorskip("cuda.bindings.nvrtc", exc_type=ImportError)


def test_every_row_of_the_plan_is_here():
    """Rows 1 to 70: at least one mutant each, or the reason why there is none."""
    absent = {int(n.split()[0]) for n in NOT_APPLICABLE}
    assert {*map(number, ROWS), *absent} >= set(range(1, 71))
    assert len({m.id for m in ROWS}) == len(ROWS)


def test_the_rows_are_killed():
    """By the net that the table names first."""
    pairs = list(zip(SUBSET, score_all(SUBSET, jobs=2), strict=True))
    assert not {m.id: v.outcome for m, v in pairs if not v.killed}
    others = {m.id: v.killed for m, v in pairs if v.killed[0] not in m.expected}
    assert not others, "another net than the table says"


def test_random_mutants_are_killed():
    """A survivor is a hole in a net, or needs a rule, with its reason, in mutation/survivors.py."""
    mutants = draw(8, 1, (PLAIN,))
    pairs = zip(mutants, score_all(mutants, jobs=2), strict=True)
    assert not {m.id: m.says for m, v in pairs if v.outcome == "survived"}


def test_the_hosts_checks_find_nothing_in_right_code():
    """In a process of its own: they put a fake driver in place of the real one."""
    code = "from mutation import host; print(list(host.checks()))"
    path = os.pathsep.join(map(str, (Path(__file__).parents[1], Path(__file__).parent)))
    found = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout == "[]\n"


@pytest.mark.parametrize("m", ROWS, ids=lambda m: m.id)
def test_no_rule_excuses_a_row(m):
    if not m.family:  # those do not get through the passes
        assert bool(survivors.reason(m)) == (m.id in EQUIVALENT)


def test_no_rule_excuses_what_the_proof_finds():
    found = 0
    for m in draw(100, 2):
        if m.ir:
            b = original(m.kernel)
            kernel = mutated_kernel(m)
            built = Built(problem=b.problem, meant=b.meant, kernel=kernel, source="")
            if nets.static(built) or nets.proof(built):
                found += 1
                assert not survivors.reason(m), (m.kernel, m.says)
    assert found > 20


@pytest.mark.parametrize(
    "name", [PLAIN, "fp8_block/split_k", "fp8/row_scaled", "dense/s8", "dense/s8_scaled"]
)
def test_the_bit_model_finds_nothing_in_a_right_kernel(name):
    assert nets.bit_model(original(name)) is None


@pytest.mark.parametrize("name", [PLAIN, "fp8_block/split_k", "dense/n176_multicast_b"])
def test_the_walk_finds_nothing_in_a_right_kernel(name):
    b = original(name)
    assert nets.walks(b, nets.walker(b.source)) is None
