"""Arithmetic of two 16-bit numbers in a register: of FP16 and BF16, to the bit, against fractions rounded once."""

from __future__ import annotations

from bisect import bisect_left
from fractions import Fraction
from functools import cache

import numpy as np
import pytest
from test_emulator import run

from gemmgen import emulator
from gemmgen.emulator import UnsupportedInstruction

KINDS = ("f16x2", "bf16x2")
CODES = np.arange(1 << 16, dtype=np.uint16)
INFINITE = {"f16x2": 0x7C00, "bf16x2": 0x7F80}


@cache
def values(kind):
    """Every code's number, as NumPy reads its bits."""
    if kind == "f16x2":
        return CODES.view(np.float16).astype(np.float64)
    with np.errstate(invalid="ignore"):
        return (CODES.astype(np.uint32) << 16).view(np.float32).astype(np.float64)


@cache
def sizes(kind):
    """Of the codes from 0 on, and where infinity stands to round."""
    found = [Fraction(x) for x in values(kind)[: INFINITE[kind]].tolist()]
    return [*found, 2 * found[-1] - found[-2]]


def nearest(kind, exact, minus):
    """The code of a fraction, ties to even; beyond the last step it is infinite."""
    of = sizes(kind)
    size = min(abs(exact), of[-1])
    above = bisect_left(of, size)
    if above and (size - of[above - 1], (above - 1) % 2) < (of[above] - size, above % 2):
        above -= 1
    return above | (0x8000 if exact < 0 or (exact == 0 and minus) else 0)


def computed(name, kind, *operands):
    """The lower halves of results, of 32-bit operands whose halves are alike or not."""
    loads = "".join(
        f"ld.param.u64 %d{j}, [x{j}];\nmad.wide.u32 %d{j}, %r60, 4, %d{j};\nld.global.b32 %r{j}, [%d{j}];\n"
        for j in range(len(operands))
    )
    memory = emulator.GlobalMemory()
    at = [memory.allocate(x.view(np.uint8)) for x in operands]
    given = ", ".join(f"%r{j}" for j in range(len(operands)))
    body = f"{loads}{name}.rn.{kind} %r9, {given};\nst.global.b32 [%d31], %r9;"
    params = tuple(f".param .u64 x{j}" for j in range(len(operands)))
    return run(body, *at, params=params, threads=operands[0].size, memory=memory)[:, 0].copy()


def drawn(kind, count, seed):
    """Codes of finite numbers, half of them close in size, and zeros, the least and the greatest."""
    rng = np.random.default_rng(seed)
    far = rng.integers(0, INFINITE[kind], count)
    near = rng.integers(INFINITE[kind] // 2 - 600, INFINITE[kind] // 2 + 600, count)
    codes = np.where(rng.random(count) < 0.5, far, near)
    codes[:6] = [0, 1, 2, INFINITE[kind] - 1, INFINITE[kind] - 2, 0]
    rng.shuffle(codes)
    return (codes | rng.integers(0, 2, count) << 15).astype(np.uint16)


EXACT = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "fma": lambda a, b, c: a * b + c,
}
# Whether a result of 0 is -0, by the signs of the operands.
MINUS = {
    "add": lambda a, b: a and b,
    "sub": lambda a, b: a and not b,
    "mul": lambda a, b: a != b,
    "fma": lambda a, b, c: (a != b) and c,
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", EXACT)
def test_each_half_is_rounded_once(name, kind):
    count = 3 if name == "fma" else 2
    halves = [drawn(kind, 512, seed) for seed in range(count)]
    got = computed(name, kind, *(h.view(np.uint32) for h in halves)).view(np.uint16)
    number = values(kind)
    for i, code in enumerate(got.tolist()):
        of = [int(h[i]) for h in halves]
        exact = EXACT[name](*(Fraction(number[x]) for x in of))
        minus = MINUS[name](*(x >> 15 == 1 for x in of))
        assert code == nearest(kind, exact, minus), (name, [hex(x) for x in of])


@pytest.mark.parametrize("kind", KINDS)
def test_nan_and_infinity(kind):
    top = INFINITE[kind]
    a = np.array([top, top, 0x7FFF, 0], np.uint16)
    b = np.array([top, 0, 0, top], np.uint16)
    assert computed("sub", kind, a.view(np.uint32), b.view(np.uint32)).view(np.uint16).tolist() == [
        *(0x7FFF, top, 0x7FFF, top | 0x8000)
    ]
    got = computed("mul", kind, a.view(np.uint32), b.view(np.uint32)).view(np.uint16)
    assert got.tolist() == [top, 0x7FFF, 0x7FFF, 0x7FFF]


@pytest.mark.parametrize("form", ["mul.rn.ftz.f16x2", "add.rn.sat.f16x2", "fma.rn.relu.bf16x2", "max.bf16x2"])  # fmt: skip
def test_other_forms_are_not_taken(form):
    with pytest.raises(UnsupportedInstruction):
        run(f"{form} %r1, %r2, %r3{', %r4' * form.startswith('fma')};")
