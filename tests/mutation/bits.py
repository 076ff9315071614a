"""The bits a right kernel gives on any data, worked out tile by nothing: each GEMM's D at once.

The tensor core's arithmetic, and what the hardware approximates, is the measured model; the loop, the
scales, the promotion, the epilogue and the rounding are written here once more, from the problem's
definition. A grouped launch is the GEMMs it stands for.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gemmgen.codes import code_type, decode, encode
from gemmgen.emulator import approximate
from gemmgen.emulator.floats import fma32
from gemmgen.emulator.tensor_core import mma_block
from gemmgen.ir.expr import (
    Acc,
    Argument,
    BinOp,
    Call,
    Const,
    Expr,
    OfPair,
    PerElement,
    PerRow,
    functions,
)
from gemmgen.problem import Problem
from gemmgen.recipes import SCALE_BLOCK, recipe
from gemmgen.verification.inputs import Operands
from gemmgen.verification.quantised import Result

STEP_BYTES = 32  # of K per wgmma
UNKNOWN = {"tanh", "erf"}  # the compiler's own code
LOG2_E = np.float32(1.4426950408889634)
ONE = np.float32(1)
LARGEST, LEAST, COLUMNS = np.float32(448), np.float32(1e-4), 128  # of an FP8 D: amax and its scales


def known(problem: Problem) -> bool:
    """Whether the bits of its epilogue are: not where either of two products may be fused with their sum."""
    return UNKNOWN.isdisjoint(functions(problem.value)) and not _ambiguous(problem.value)


def wanted(problem: Problem, operands: Operands, share: int = 0) -> Result:
    """D of one GEMM, a `known` one, in codes [M, N], and its scales if it is FP8. `share`: of K, which is
    summed by itself."""
    m, n, k = operands.shape
    one = _promoted if recipe(problem.family).promotes else _plain
    shares = [slice(start, start + (share or k)) for start in range(0, k, share or max(k, 1))]
    sums = [one(problem, operands, ks) for ks in shares] or [np.zeros((m, n), np.float32)]
    acc = sums[0]
    for other in sums[1:]:
        acc = acc + other
    if problem.d.integer:
        assert problem.epilogue == Problem.epilogue, "an epilogue of integers"
        return Result(codes=acc.view(code_type(problem.d)))
    with np.errstate(over="ignore"):  # of exp
        value = np.asarray(_epilogue(problem.value, acc.astype(np.float32), operands))
    assert value.dtype == np.float32
    if problem.quantised:
        return _quantised(problem, value)
    return Result(codes=encode(value.astype(np.float64), problem.d))


def _ambiguous(e: Expr) -> bool:
    match e:
        case BinOp(op, lhs, rhs):
            both = op in "+-" and _product(lhs) and _product(rhs)
            return both or _ambiguous(lhs) or _ambiguous(rhs)
        case Call(_, args):
            return any(map(_ambiguous, args))
        case OfPair(value, _):
            return _ambiguous(value)
    return False


def _product(e: Expr) -> bool:
    return isinstance(e, BinOp) and e.op == "*"


def _epilogue(e: Expr, acc: Any, operands: Operands) -> Any:
    """One FP32 rounding per operation: the compiler contracts products with sums only."""

    def value(x: Expr) -> Any:
        return _epilogue(x, acc, operands)

    match e:
        case Acc():
            return acc
        case Const(number):
            return np.float32(number)
        case PerElement(name, dtype):
            return decode(np.asarray(operands.arguments[name]), dtype).astype(np.float32)
        case Argument(name):
            values = np.asarray(operands.arguments[name], np.float32)
            return values.reshape((-1, 1) if isinstance(e, PerRow) else (1, -1))
        case OfPair(x, which):
            whole = value(x)
            return whole if whole.shape[1] == 1 else whole[:, which::2]
        case BinOp("*", lhs, rhs):
            return value(lhs) * value(rhs)
        case BinOp("+", BinOp("*", x, y), z) | BinOp("+", z, BinOp("*", x, y)):
            return fma32(value(x), value(y), value(z))
        case BinOp("-", BinOp("*", x, y), z):
            return fma32(value(x), value(y), -value(z))
        case BinOp("-", z, BinOp("*", x, y)):
            return fma32(-value(x), value(y), value(z))
        case BinOp("+", lhs, rhs):
            return value(lhs) + value(rhs)
        case BinOp("-", lhs, rhs):
            return value(lhs) - value(rhs)
        case BinOp("/", lhs, rhs):
            return value(lhs) / value(rhs)
        case Call("max", xs):
            return np.maximum.reduce(np.broadcast_arrays(*map(value, xs)))
        case Call("min", xs):
            return np.minimum.reduce(np.broadcast_arrays(*map(value, xs)))
        case Call("exp", (x,)):
            return _exp(x, value)
        case Call("divide", (x, y)):
            return approximate.div(value(x), value(y))
    raise AssertionError(f"no bits are known of {e!r}")


def _exp(x: Expr, value: Any) -> Any:
    """2^(x * log2(e)); the compiler multiplies constants with each other first."""
    match x:
        case BinOp("*", y, Const(number)) | BinOp("*", Const(number), y):
            return approximate.ex2(value(y) * (np.float32(number) * LOG2_E))
    return approximate.ex2(value(x) * LOG2_E)


def _quantised(problem: Problem, value: Any) -> Result:
    """Per row and 128 columns."""
    codes, scales = [], []
    for first in range(0, value.shape[1], COLUMNS):
        x = value[:, first : first + COLUMNS]
        amax = np.maximum(abs(x).max(1, keepdims=True), LEAST)
        scaled = np.clip(x * (LARGEST / amax), -LARGEST, LARGEST)
        codes.append(encode(scaled.astype(np.float64), problem.d))
        scales.append((amax / LARGEST).view(np.uint32))
    return Result(codes=np.concatenate(codes, 1), scales=np.concatenate(scales, 1))


def _plain(problem: Problem, operands: Operands, ks: slice) -> Any:
    return _chain(problem, operands.a[:, ks], operands.b[:, ks], STEP_BYTES // problem.a.bytes)


def _chain(problem: Problem, a: Any, b: Any, step: int) -> Any:
    """wgmmas over all of K, zeros after its end, from an overwritten accumulator."""
    steps = -(-a.shape[1] // step)
    pad = ((0, 0), (0, steps * step - a.shape[1]))
    return mma_block(np.pad(a, pad), np.pad(b, pad), None, problem.a.ptx, problem.b.ptx, steps)


def _promoted(problem: Problem, operands: Operands, share: slice) -> Any:
    m, n, k = operands.shape
    acc = np.zeros((m, n), np.float32)
    for start in range(share.start, min(share.stop, k), SCALE_BLOCK):
        block, ks = start // SCALE_BLOCK, slice(start, start + SCALE_BLOCK)
        part = _chain(problem, operands.a[:, ks], operands.b[:, ks], STEP_BYTES).astype(np.float32)
        if operands.scale_a is None or operands.scale_b is None:
            acc = acc + part
            continue
        columns = operands.scale_b[:, block].repeat(operands.rows_per_scale)[:n]
        scale = (operands.scale_a[:, block][:, None] * columns[None, :]).astype(np.float32)
        acc = fma32(scale, part, acc)
    return acc
