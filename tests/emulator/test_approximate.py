"""The emulator's approximate functions, against what an H200 returned and against the functions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from probe_approximate import emulated, random_bits

from gemmgen.emulator import approximate
from gemmgen.emulator.floats import MEASURED

DATA = Path(__file__).parents[1] / "data" / "approximate.npz"
FUNCTIONS = {"ex2": lambda x, y: np.exp2(x), "rcp": lambda x, y: 1 / x, "div": lambda x, y: x / y}


def measured():
    with np.load(DATA) as data:
        return {
            name.removesuffix("|x"): (data[name], data[f"{name[:-1]}y"])
            for name in data
            if name.endswith("|x")
        }


@pytest.mark.parametrize("opcode", measured())
def test_the_bits_are_those_of_an_h200(opcode):
    x, want = measured()[opcode]
    assert (emulated(opcode, x, x) == want).all()


@pytest.mark.parametrize("opcode", MEASURED)
def test_results_are_near_the_function(opcode):
    """2 units in the last place, and one for the product of a quotient (PTX ISA)."""
    x, y = (v.view(np.float32) for v in random_bits(3, 1 << 18))
    x, y = x[np.isfinite(x) & (np.abs(y) < 2.0**126)], y[np.isfinite(x) & (np.abs(y) < 2.0**126)]
    got = emulated(opcode, x.view(np.uint32), y.view(np.uint32)).view(np.float32).astype(float)
    with np.errstate(all="ignore"):
        want = FUNCTIONS[opcode[:3]](x.astype(float), y.astype(float))
        normal = (np.abs(want) >= 2.0**-126) & (np.abs(want) < 2.0**127) & np.isfinite(want)
        normal &= (np.abs(x) >= 2.0**-126) | ("ftz" not in opcode)
        unit = 2.0 ** (np.floor(np.log2(np.abs(want))) - 23)
        error = (np.abs(got - want) / unit)[normal]
    assert normal.sum() > 10_000 and error.max() <= 3


@pytest.mark.parametrize("name", ("ex2", "rcp"))
def test_tables_are_those_of_the_functions(name):
    """Every mantissa, within 2 units of the rounded value: no part of the table is missing."""
    x = 1 + np.arange(approximate.MANTISSAS) / approximate.MANTISSAS
    want = np.exp2(x) / 4 if name == "ex2" else 1 / x  # both in [0.5, 1]
    want = (want - 0.5) * 2.0**24
    assert np.abs(approximate.table(name) - want).max() <= 2
