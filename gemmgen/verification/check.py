"""Judge a kernel's result. Every check passes silently or raises VerificationError saying where."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..codes import Floats, decode
from ..errors import ArgumentError, UnsupportedProblem, VerificationError
from ..ir.dtypes import DType
from ..problem import Problem
from .diagnosis import TILE, describe, first_of
from .engines import Array, Engine
from .epilogue import transcendental
from .inputs import Operands
from .reference import Enclosure, enclosure, product
from .tensor_core import Share


@dataclass(frozen=True, kw_only=True, eq=False)
class BoundReport:
    """|kernel - wanted| as a fraction of what the bound and output rounding allow; at most 1.

    rows: the worst of each row, float64 [M]. tiles: of each 128 x 128 tile, float64
    [ceil(M/128), ceil(N/128)].
    """

    rows: Floats
    tiles: Floats

    @property
    def worst(self) -> float:
        return float(self.rows.max(initial=0.0))


def check_exact(problem: Problem, operands: Operands, result: Array, engine: Engine) -> None:
    """`result` (codes [M, N] on the engine) has exactly the bits of the rounded reference.

    For operands whose FP32 sums are exact (`exact_integers`); others may fail a correct kernel,
    never pass a wrong one. Raises UnsupportedProblem for epilogues that FP32 only approximates.
    """
    if transcendental(problem.value):
        raise UnsupportedProblem("the epilogue is not exact in FP32: use check_bound")
    _check_shape(operands, result)
    judge_exact(problem.d, product(problem, operands, engine), result, engine)


def judge_exact(dtype: DType, values: Array, result: Array, engine: Engine) -> None:
    """Every code of `result` is that of the rounded value."""
    want = engine.round_to(values, dtype)
    wrong = result != want
    if bool(wrong.any()):
        shown = Shown(dtype=dtype, got=engine.lower(result), want=engine.lower(want))
        fail("differ from the exact result", engine.lower(wrong), shown)


def check_bound(
    problem: Problem, operands: Operands, result: Array, engine: Engine, share: Share = 0
) -> BoundReport:
    """Every element of `result` (codes [M, N] on the engine) is one a correct kernel could give.

    Rounding is monotonic: a kernel that holds x in [low, high] stores a value between the rounded
    low and the rounded high. NaN is in no interval, so it never passes. `share`: of K, summed by itself.
    """
    _check_shape(operands, result)
    return judge_bounds(problem.d, enclosure(problem, operands, engine, share), result, engine)


def judge_bounds(dtype: DType, x: Enclosure, result: Array, engine: Engine) -> BoundReport:
    """Every code of `result` is the rounded value of something in `x`."""
    held = _rounded(x, dtype, engine)
    got = engine.decode(result, dtype)
    wrong = ~((held.low <= got) & (got <= held.high))
    if bool(wrong.any()):
        _fail_bound(dtype, held, result, wrong, engine)
    return _report(held, got, engine)


def check_repeat(first: Array, second: Array, engine: Engine) -> None:
    """Two runs on the same inputs gave the same bits (codes [M, N] on the engine).

    Run over outputs poisoned with two different patterns, this also finds every unwritten element.
    """
    if tuple(first.shape) != tuple(second.shape):
        raise ArgumentError("second", tuple(second.shape), f"must be {tuple(first.shape)}")
    wrong = first != second
    if bool(wrong.any()):
        x, y, mask = engine.lower(first), engine.lower(second), engine.lower(wrong)
        at = first_of(mask)
        _raise("differ between two runs", mask, f"first {x[at]:#x}, then {y[at]:#x}")


def check_rest(
    codes: npt.NDArray[Any],
    owned: npt.NDArray[np.bool_],
    cleared: npt.NDArray[np.bool_],
    fill: int,
) -> None:
    """Of D's rows (codes [rows, N]) that no group has, `cleared` ones are zeros, and the others still
    hold the byte `fill`."""
    bytes_ = np.ascontiguousarray(codes).view(np.uint8)
    for what, rows, byte in (
        ("of rows in no group are not 0", cleared, 0),
        ("of rows in no group were overwritten", ~owned & ~cleared, fill),
    ):
        wrong = (bytes_ != byte) & rows[:, None]
        if wrong.any():
            row, at = first_of(wrong)
            raise VerificationError(
                f"{int(wrong.sum())} bytes {what}; first in row {row}, byte {at}"
            )


def merge(reports: list[BoundReport]) -> BoundReport:
    """Of the parts of one result, one below the other."""
    if len(reports) == 1:
        return reports[0]
    rows = np.concatenate([np.zeros(0), *(r.rows for r in reports)])
    columns = max((r.tiles.shape[1] for r in reports), default=0)
    tiles = np.concatenate([np.zeros((0, columns)), *(r.tiles for r in reports)])
    return BoundReport(rows=rows, tiles=tiles)


@dataclass(frozen=True, kw_only=True, eq=False)
class Shown:
    """NumPy codes [M, N] that a message quotes from."""

    dtype: DType
    got: npt.NDArray[Any]
    want: npt.NDArray[Any]


def _check_shape(operands: Operands, result: Array) -> None:
    n = operands.shape[1]
    wanted = operands.d_m, n // operands.fold
    if tuple(result.shape) != wanted:
        raise ArgumentError("result", tuple(result.shape), f"must have the shape {wanted}")


def _rounded(x: Enclosure, dtype: DType, engine: Engine) -> Enclosure:
    """The interval of stored values. A kernel's own FP32 step in between changes nothing: `low` and
    `high` take it too, and it is monotonic."""
    if bool((x.low != x.low).any()) or bool((x.high != x.high).any()):
        raise VerificationError("the reference has elements that no interval bounds (NaN)")
    low = engine.decode(engine.round_to(x.low, dtype), dtype)
    high = engine.decode(engine.round_to(x.high, dtype), dtype)
    return Enclosure(want=x.want, low=low, high=high)


def _report(held: Enclosure, got: Array, engine: Engine) -> BoundReport:
    with np.errstate(all="ignore"):
        allowed = engine.maximum(held.high - held.want, held.want - held.low)
        ratio = abs(got - held.want) / allowed
        # 0 / 0: exact where nothing else is allowed. inf / inf: an overflow that is allowed.
        ratio = engine.where(ratio == ratio, ratio, 0.0)
    m, n = ratio.shape
    if m * n == 0:
        return BoundReport(rows=np.zeros(m), tiles=np.zeros((-(-m // TILE), -(-n // TILE))))
    strips = [engine.lower(engine.amax(ratio[r : r + TILE], 0)) for r in range(0, m, TILE)]
    tiles = np.maximum.reduceat(np.stack(strips), np.arange(0, n, TILE), 1)
    return BoundReport(rows=engine.lower(engine.amax(ratio, 1)), tiles=np.asarray(tiles))


def fail(what: str, wrong: npt.NDArray[np.bool_], shown: Shown) -> None:
    at = first_of(wrong)
    got, want = shown.got[at], shown.want[at]
    _raise(
        what,
        wrong,
        f"got {decode(got, shown.dtype)!s} ({got:#x}), want {decode(want, shown.dtype)!s} ({want:#x})",
    )


def _fail_bound(dtype: DType, held: Enclosure, result: Array, wrong: Array, engine: Engine) -> None:
    mask = engine.lower(wrong)
    at = first_of(mask)
    code = engine.lower(result)[at]
    want, low, high = (float(engine.lower(x)[at]) for x in (held.want, held.low, held.high))
    text = f"got {decode(code, dtype)!s} ({code:#x}), want {want!r}, allowed [{low!r}, {high!r}]"
    _raise("are out of bounds", mask, text)


def _raise(what: str, wrong: npt.NDArray[np.bool_], first: str) -> None:
    count = f"{int(wrong.sum())} of {wrong.size} elements {what}"
    raise VerificationError(f"{count}\nfirst at {first_of(wrong)}: {first}\n{describe(wrong)}")
