"""The bits a right kernel gives on any data, worked out tile by nothing: the whole of D at once.

The tensor core's arithmetic is the measured model; the loop, the scales, the promotion, the epilogue
and the rounding are written here once more, from the problem's definition.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gemmgen.emulator.floats import fma32
from gemmgen.emulator.tensor_core import mma_block
from gemmgen.ir.expr import Acc, Argument, BinOp, Expr, PerRow
from gemmgen.problem import Problem
from gemmgen.verification.codes import code_type, encode
from gemmgen.verification.epilogue import transcendental
from gemmgen.verification.inputs import PROMOTED, SCALE_BLOCK, Operands

STEP_BYTES = 32  # of K per wgmma


def wanted(problem: Problem, operands: Operands, share: int = 0) -> Any:
    """The codes of D [M, N], or None where hardware only approximates the epilogue. `share`: of K, which
    is summed by itself."""
    if transcendental(problem.epilogue):
        return None
    k = operands.shape[2]
    shares = [slice(start, start + (share or k)) for start in range(0, k, share or k)]
    one = _promoted if problem.family in PROMOTED else _plain
    acc, *others = (one(problem, operands, ks) for ks in shares)
    for other in others:
        acc = acc + other
    if problem.d.integer:
        assert problem.epilogue == Problem.epilogue, "an epilogue of integers"
        return acc.view(code_type(problem.d))
    value = _epilogue(problem.epilogue, acc.astype(np.float32), operands)
    return encode(value.astype(np.float64), problem.d)


def _epilogue(e: Expr, acc: Any, operands: Operands) -> Any:
    """One FP32 rounding per operation: the compiler contracts products with sums only."""
    match e:
        case Acc():
            return acc
        case Argument(name):
            values = np.asarray(operands.arguments[name], np.float32)
            return values.reshape((-1, 1) if isinstance(e, PerRow) else (1, -1))
        case BinOp("*", lhs, rhs):
            return _epilogue(lhs, acc, operands) * _epilogue(rhs, acc, operands)
    raise AssertionError(f"no bits are known of {e!r}")


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
        part = _chain(problem, operands.a[:, ks], operands.b[:, ks], STEP_BYTES)
        if operands.scale_a is None or operands.scale_b is None:
            acc = acc + part
            continue
        columns = operands.scale_b[:, block].repeat(SCALE_BLOCK)[:n]
        scale = (operands.scale_a[:, block][:, None] * columns[None, :]).astype(np.float32)
        acc = fma32(scale, part, acc)
    return acc
