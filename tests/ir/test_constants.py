"""Numbers in an epilogue: the FP32 that the source holds, and those that FP32 has no room for."""

from __future__ import annotations

import re
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest

from gemmgen.config import Config
from gemmgen.emit import emit
from gemmgen.epilogues import from_json, to_json
from gemmgen.errors import ArgumentError
from gemmgen.ir.dtypes import BF16
from gemmgen.ir.expr import ACC, BinOp, Call, Const
from gemmgen.ir.spelling import c_number
from gemmgen.pipeline import lower
from gemmgen.problem import Problem

DENSE = Problem(family="dense", a=BF16, b=BF16)
LARGEST = 2.0**128 - 2.0**104  # of FP32
KEPT = (
    *(0, 2, -3, 2**70, 0.0, -0.0, 0.1, 1.702, 1e22, 0.5**126, 1e-40, 0.5**149, 1e-45, 7.1e-46),
    *(LARGEST, 3.4028235e38, -3.4028235e38, np.float32(0.1), np.float64(0.1), np.int8(-7)),
    *(Fraction(1, 3), Decimal("0.1")),
)
TIES = (  # halfway between two FP32: as text of 17 digits they are not
    *(1 + 0.5**24, 1 + 3 * 0.5**24, 0.1 + 0.5**28, 3 * 0.5**150, 5 * 0.5**150),
    *(1.0000000596046448, 1.0000001788139343, 16777217.0, 16777219.0, 33554434.0),
)
REFUSED = (
    *(True, False, np.True_, "1", b"1", None, [], 1j, np.array(2.0)),
    *(float("nan"), float("inf"), -float("inf"), Decimal("sNaN"), 10**400, 1e39, -1e39, 3.5e38),
    *(LARGEST + 2.0**103, 1e-46, -1e-50, 0.5**150, 5e-324),
)


def text_of(constant):
    source = emit(lower(replace(DENSE, epilogue=ACC * constant), Config()))
    return re.search(r"return \(acc0\[i\] \* (.*)\); \};", source)[1]


def nearest(text):
    """The FP32 that a compiler makes of decimal `text`: rounded once, ties to even."""
    exact, near = Fraction(text), np.float32(float(text))
    with np.errstate(over="ignore"):
        around = (near, *(np.nextafter(near, np.float32(end)) for end in ("inf", "-inf")))
    finite = [x for x in around if np.isfinite(x)]
    return min(finite, key=lambda x: (abs(Fraction(float(x)) - exact), int(x.view(np.uint32)) & 1))


@pytest.mark.parametrize("value", (*KEPT, *TIES), ids=repr)
def test_the_source_holds_the_fp32_of_the_number(value):
    text = c_number(Const(value).value)
    assert re.fullmatch(r"-?\d+(\.\d+)?([.e][-+]?\d+)?f", text) and re.search(r"[.e]", text)
    held, wanted = nearest(text.removesuffix("f")), np.float32(float(value))
    assert abs(held) == abs(wanted) and text.startswith("-") == bool(np.signbit(wanted))


@pytest.mark.parametrize(
    "value", (2, True + 1, np.float32(2), np.float64(2), Fraction(2)), ids=repr
)
def test_however_two_is_written_it_is_the_same_constant(value):
    assert Const(value) == Const(2.0) and repr(Const(value)) == repr(Const(2.0))
    assert text_of(Const(value)) == text_of(value) == "2.0f"
    assert type(Const(value).value) is float and to_json(ACC * value) == ["*", "acc", 2.0]


@pytest.mark.parametrize("value", REFUSED, ids=repr)
@pytest.mark.parametrize("made", (Const, lambda x: ACC + x, lambda x: x * ACC))
def test_what_fp32_does_not_hold_is_refused_by_name(made, value):
    if made is not Const and isinstance(value, np.ndarray | np.generic):
        made = ACC.__add__  # numpy's own operators take the array apart
    with pytest.raises(ArgumentError, match="magnitude, as FP32 holds it") as caught:
        made(value)
    assert caught.value.argument in ("Const", "epilogue")
    assert caught.value.value is value


@pytest.mark.parametrize("value", (1e39, -3.5e38, 1e-46))
def test_json_is_no_way_around(value):
    with pytest.raises(ArgumentError, match="Const="):
        from_json(["*", "acc", value])


@pytest.mark.parametrize("name", ("sin", "Max", "", None, ["max"]), ids=repr)
def test_functions_and_operators_that_there_are_not(name):
    with pytest.raises(ArgumentError, match=r"function=.*must be one of exp, tanh"):
        Call(name, (ACC,))
    with pytest.raises(ArgumentError, match=r"operator=.*must be one of \+, -"):
        BinOp(name, ACC, ACC)


@pytest.mark.nvrtc
def test_nvrtc_reads_the_bits():
    nvrtc = pytest.importorskip("gemmgen.runtime.nvrtc")
    values = [x for x in (*KEPT, *TIES) if x]
    lines = "".join(f"  to[{i}] = {c_number(Const(x).value)};\n" for i, x in enumerate(values))
    ptx = nvrtc.compile_ptx(f'extern "C" __global__ void k(float *to) {{\n{lines}}}\n', "k")
    bits = [int(np.float32(float(x)).view(np.int32)) for x in values]
    found = {int(x) for x in re.findall(r"mov\.[ub]32\s+%r\d+, (-?\d+);", ptx)}
    assert set(bits) <= found
