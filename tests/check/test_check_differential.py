"""The prover against the explorer: on random faults, never a bug that the explorer sees and the prover not.

GEMMGEN_CHECK_MUTANTS sets how many faults of each kind are tried (10,000 take about ten minutes).
"""

from __future__ import annotations

import os
from collections import Counter
from random import Random

import pytest
from check_bases import BASES, verdict
from check_mutants import mutate_kernel, mutate_program
from check_oracle import explore
from draws import draws
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gemmgen.check import ProtocolViolation
from gemmgen.errors import IRError

MUTANTS = int(os.environ.get("GEMMGEN_CHECK_MUTANTS", draws(250)))
STATES = 60_000
CASES = settings(
    max_examples=MUTANTS,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)
KERNELS = {name: base.kernel for name, base in BASES.items()}
PROGRAMS = {name: BASES[name].program(kernel) for name, kernel in KERNELS.items()}


@pytest.mark.parametrize("name", BASES)
def test_both_find_nothing_wrong_with_what_is_right(name):
    assert verdict(PROGRAMS[name]) is None
    seen = explore(PROGRAMS[name])
    assert seen.complete and seen.bug is None
    assert seen.states > 100


def faults(mutate, of):
    """(base, faulty thing, what was done) for a random seed; Hypothesis shrinks to small ones."""

    def make(name: str, seed: int):
        random = Random(f"{name} {seed}")
        found = None
        while found is None:
            found = mutate(of[name], random)
        return name, *found

    return st.builds(make, st.sampled_from(sorted(BASES)), st.integers(0, 1 << 32))


def compare(program, what: str, tally: Counter) -> None:
    proved, seen = verdict(program), explore(program, STATES)
    unknown = "limit" if not seen.complete else "right"
    tally["wrong" if proved else "right", "wrong" if seen.bug else unknown] += 1
    assert proved or not seen.bug, f"{what}: {seen.bug}, but proved"


def test_faulty_programs():
    tally: Counter = Counter()

    @CASES
    @given(faults(mutate_program, PROGRAMS))
    def each(fault):
        name, program, what = fault
        compare(program, f"{name}: {what}", tally)

    each()
    told_apart(tally)


def test_faulty_kernels():
    tally: Counter = Counter()

    @CASES
    @given(faults(mutate_kernel, KERNELS))
    def each(fault):
        name, kernel, what = fault
        try:
            program = BASES[name].program(kernel)
        except (ProtocolViolation, IRError):
            tally["refused", ""] += 1
            return
        compare(program, f"{name}: {what}", tally)

    each()
    told_apart(tally)


def told_apart(tally: Counter) -> None:
    """The comparison said something: both verdicts came up, and rarely did the prover stand alone."""
    total = sum(tally.values())
    print(dict(tally))
    assert tally["wrong", "wrong"] > total / 4, tally
    assert tally["right", "right"] > total / 20, tally
    assert tally["wrong", "right"] < total / 20, tally
