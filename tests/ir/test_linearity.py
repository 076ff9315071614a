"""Which epilogues are sums, against float64: parts of what is added must add up to the whole."""

from __future__ import annotations

import numpy as np
import pytest

from gemmgen.epilogues import EPILOGUES, acc, gate, relu, up
from gemmgen.ir.expr import (
    Const,
    DeviceScalar,
    Expr,
    InGroup,
    PerColumn,
    PerElement,
    PerRow,
    Scalar,
    arguments,
)
from gemmgen.ir.linearity import homogeneous
from gemmgen.verification.engines import NumpyEngine
from gemmgen.verification.epilogue import evaluate

ENGINE = NumpyEngine()
M, N = 3, 8
X, Y, BIAS = PerRow("x"), PerColumn("y"), PerColumn("bias")


def drawn(x, random):
    sides = {PerRow: (M, 1), PerColumn: (1, N), PerElement: (M, N)}.get(type(x), (1, 1))
    return random.standard_normal(sides)


def adds_up(e: Expr, added) -> bool:
    """Of parts of the accumulators and of the arguments `added`, the others the same everywhere."""
    random = np.random.default_rng(0)
    same = {x.name: drawn(x, random) for x in arguments(e)}
    parts = [
        (random.standard_normal((M, N)), same | {x.name: drawn(x, random) for x in added})
        for _ in range(3)
    ]
    whole = same | {x.name: sum(given[x.name] for _, given in parts) for x in added}
    expected = evaluate(e, sum(a for a, _ in parts), whole, ENGINE)
    found = sum(evaluate(e, a, given, ENGINE) for a, given in parts)
    return np.allclose(found, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", EPILOGUES)
def test_named_epilogues(name):
    e = EPILOGUES[name]
    added = homogeneous(e)
    assert adds_up(e, added or ()) == (added is not None)


SUMS = {
    "scaled": (acc * X / Y, set()),
    "a bias that is scaled": ((acc + BIAS) * Scalar("alpha"), {BIAS}),
    "a product of two that are added": (acc + BIAS * X, {BIAS}),
    "what an even and an odd column add up to": (gate(acc) * Scalar("s") - up(acc + BIAS), {BIAS}),
    "its negative": (-acc, set()),
    "twice": (acc + acc, set()),
}
NONE = {
    "a number": acc + 1.0,
    "a scalar": acc + Scalar("beta"),
    "a scalar on the device": acc + DeviceScalar("beta"),
    "a square": acc * acc,
    "a reciprocal": X / acc,
    "a function": relu(acc + BIAS),
    "what is added also multiplies": (acc + BIAS) * BIAS,
    "nothing of the accumulator is a sum of none": Const(2.0),
}


@pytest.mark.parametrize("name", SUMS)
def test_sums(name):
    e, added = SUMS[name]
    assert homogeneous(e) == added and adds_up(e, added)


@pytest.mark.parametrize("name", NONE)
def test_no_sums(name):
    e = NONE[name]
    assert homogeneous(e) is None and not adds_up(e, ())


def test_rows_of_no_group_are_0_in_every_part():
    assert homogeneous(InGroup(acc + BIAS, "groups")) == {BIAS}
