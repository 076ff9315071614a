"""An FP8 output and its scales: what they should be bit for bit, and how far a kernel may be off.

Per row and 128 columns of D, in FP32, every operation rounded once (gemmgen.ir.stores):
amax = max(greatest |value|, LEAST_AMAX); scale = amax / 448; code = e4m3(value * (448 / amax)).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..codes import Codes, decode, encode
from ..errors import ArgumentError, UnsupportedProblem, VerificationError
from ..ir.dtypes import E4M3, F32
from ..ir.stores import E4M3_MAX, LEAST_AMAX, OUTPUT_SCALE_BLOCK
from ..problem import Problem
from . import check
from .check import BoundReport, Shown, fail
from .engines import Array, Engine
from .epilogue import transcendental
from .inputs import Operands
from .reference import Enclosure, enclosure, product
from .tensor_core import Share

LEAST = float(np.float32(LEAST_AMAX))
RELATIVE = 2.0**-21  # of 448 / amax, a product and amax / 448: three roundings of 2^-24, with room


@dataclass(frozen=True, kw_only=True, eq=False)
class Result:
    """codes [M, N] of D and scales, float32 [M, ceil(N / 128)] or None, on the engine or in NumPy."""

    codes: Array
    scales: Array = None

    def rows(self, rows: slice) -> Result:
        scales = None if self.scales is None else self.scales[rows]
        return Result(codes=self.codes[rows], scales=scales)


def blocks(columns: int) -> Iterator[slice]:
    """The columns of D that share a scale."""
    for first in range(0, columns, OUTPUT_SCALE_BLOCK):
        yield slice(first, min(first + OUTPUT_SCALE_BLOCK, columns))


def quantise(values: Array, engine: Engine) -> Result:
    """The codes and (codes of the) scales of `values`, float64 [M, N] on the engine, as FP32; in NumPy."""
    values = _fp32(values, engine)
    codes, scales = [], []
    for columns in blocks(values.shape[1]):
        x = values[:, columns]
        amax = _at_least(engine.amax(abs(x), 1).reshape(-1, 1), engine)
        inverse = _fp32(E4M3_MAX / amax, engine)
        codes.append(engine.lower(_e4m3(x * inverse, engine)))
        scales.append(engine.lower(engine.round_to(amax / E4M3_MAX, F32)))
    return Result(codes=np.concatenate(codes, 1), scales=np.concatenate(scales, 1))


def check_exact(problem: Problem, operands: Operands, result: Result, engine: Engine) -> None:
    """D and its scales have exactly the bits of the reference; as gemmgen.verification.check_exact."""
    if transcendental(problem.epilogue):
        raise UnsupportedProblem("the epilogue is not exact in FP32: use check_bound")
    judge_exact(product(problem, operands, engine), result, engine)


def judge_exact(values: Array, result: Result, engine: Engine) -> None:
    """Codes and scales are those of the values."""
    _check_shape(values.shape, result)
    want = quantise(values, engine)
    for what, dtype, got, wanted in (
        ("of the scales differ", F32, result.scales, want.scales),
        ("differ", E4M3, result.codes, want.codes),
    ):
        codes = engine.lower(got)
        wrong = codes != wanted
        if wrong.any():
            shown = Shown(dtype=dtype, got=codes, want=wanted)
            fail(f"{what} from the exact result", wrong, shown)


def check_bound(
    problem: Problem, operands: Operands, result: Result, engine: Engine, share: Share = 0
) -> BoundReport:
    """Each scale is one that some values within their bounds have, and each element one that such a
    value has with the scale that was stored."""
    return judge_bounds(enclosure(problem, operands, engine, share), result, engine)


def judge_bounds(x: Enclosure, result: Result, engine: Engine) -> BoundReport:
    """Codes and scales are those of something in `x`."""
    _check_shape(x.want.shape, result)
    scales = decode(engine.lower(result.scales), F32)
    for block, columns in enumerate(blocks(x.want.shape[1])):
        _check_scales(x, columns, block, scales, engine)
    each = np.repeat(scales, OUTPUT_SCALE_BLOCK, 1)[:, : x.want.shape[1]]
    return check.judge_bounds(E4M3, _divided(x, engine.lift(each), engine), result.codes, engine)


def _check_scales(
    x: Enclosure, columns: slice, block: int, scales: npt.NDArray[np.float64], engine: Engine
) -> None:
    low, high = x.low[:, columns], x.high[:, columns]
    size = engine.maximum(abs(low), abs(high))
    least = engine.maximum(low, -high)  # of |value|, where the interval has one sign
    ends = []
    for extreme in (least, size):
        amax = _at_least(engine.amax(extreme, 1).reshape(-1, 1), engine)
        ends.append(decode(engine.lower(engine.round_to(amax / E4M3_MAX, F32)), F32)[:, 0])
    got = scales[:, block]
    wrong = ~((ends[0] <= got) & (got <= ends[1]))
    if wrong.any():
        row = int(wrong.argmax())
        shown = [float(x[row]) for x in (got, *ends)]
        raise VerificationError(
            f"{int(wrong.sum())} of {wrong.size} scales of block {block} are out of bounds\n"
            f"first in row {row}: got {shown[0]!r}, allowed [{shown[1]!r}, {shown[2]!r}]"
        )


def _divided(x: Enclosure, scales: Array, engine: Engine) -> Enclosure:
    """What E4M3 rounds, within what FP32's roundings allow."""
    low, high = x.low / scales, x.high / scales
    low, high = low - abs(low) * RELATIVE, high + abs(high) * RELATIVE
    return Enclosure(
        want=x.want / scales, low=_saturated(low, engine), high=_saturated(high, engine)
    )


def unwritten(
    scales: Codes, mine: npt.NDArray[np.bool_], cleared: npt.NDArray[np.bool_], fill: int
) -> None:
    """Of the rows that no group has, `cleared` ones have the scale of zeros, and those of the others
    are still the byte `fill`. scales: codes [rows, blocks]."""
    nothing = encode(np.array(np.float32(LEAST) / np.float32(E4M3_MAX)), F32)
    untouched = np.array(fill * 0x01010101, np.uint32)
    for rows, code in ((cleared, nothing), (~mine & ~cleared, untouched)):
        wrong = (scales != code) & rows[:, None]
        if wrong.any():
            row, block = np.argwhere(wrong)[0]
            raise VerificationError(
                f"{int(wrong.sum())} scales of rows in no group are not {int(code):#x}; first in "
                f"row {row}, block {block}"
            )


def _at_least(amax: Array, engine: Engine) -> Array:
    return engine.where(amax < LEAST, LEAST, amax)


def _fp32(x: Array, engine: Engine) -> Array:
    return engine.decode(engine.round_to(x, F32), F32)


def _saturated(x: Array, engine: Engine) -> Array:
    x = engine.where(x > E4M3_MAX, E4M3_MAX, x)
    return engine.where(x < -E4M3_MAX, -E4M3_MAX, x)


def _e4m3(x: Array, engine: Engine) -> Array:
    return engine.round_to(_saturated(_fp32(x, engine), engine), E4M3)


def _check_shape(shape: Any, result: Result) -> None:
    m, n = shape
    wanted = (m, n), (m, -(-n // OUTPUT_SCALE_BLOCK))
    got = tuple(result.codes.shape), tuple(result.scales.shape)
    if got != wanted:
        raise ArgumentError("result", got, f"must have the shapes {wanted}")
