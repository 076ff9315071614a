"""How far Hopper's wgmma may be from the exact sum, element by element.

One wgmma adds k products to the accumulator: all k + 1 terms are aligned to the largest exponent and
cut off `aligned` bits below it, added exactly, and the sum is cut to `kept` bits after its leading one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..ir.dtypes import BF16, E4M3, E5M2, F16, S8, DType
from .codes import Codes, exponents, table
from .engines import Array, Engine

# Covers float64's own rounding: at most 17 * 65 units of 2^-53 of the step's largest term, which is
# under 2^-20 of the error of a step.
FLOAT64 = 1 + 2.0**-20


@dataclass(frozen=True, kw_only=True)
class TensorCore:
    """The arithmetic of one operand dtype."""

    k: int
    aligned: int
    kept: int

    @property
    def alignment(self) -> float:
        """Bound on a step's alignment error, relative to its largest term."""
        return (self.k + 1) * 2.0**-self.aligned * FLOAT64

    @property
    def truncation(self) -> float:
        """Bound on a step's final error, relative to its sum."""
        return 2.0**-self.kept * FLOAT64


EXACT = 200  # bits: more than float64 can tell from none lost

TENSOR_CORES = {
    E4M3: TensorCore(k=32, aligned=13, kept=13),
    E5M2: TensorCore(k=32, aligned=13, kept=13),
    BF16: TensorCore(k=16, aligned=25, kept=23),
    F16: TensorCore(k=16, aligned=25, kept=23),
    S8: TensorCore(k=32, aligned=EXACT, kept=EXACT),
}


@dataclass(frozen=True, kw_only=True, eq=False)
class Operand:
    """One operand on the engine, float64 [rows, K]: its values, and 2^exponent of each."""

    values: Array
    powers: Array


@dataclass(frozen=True, kw_only=True, eq=False)
class Approximate:
    """float64 [M, N]: the exact value, and a bound on how far the kernel's may be from it."""

    value: Array
    error: Array


def operand(codes: Codes, dtype: DType, engine: Engine) -> Operand:
    lifted = engine.lift(codes)
    return Operand(
        values=engine.lookup(table(dtype), lifted), powers=engine.lookup(exponents(dtype), lifted)
    )


def chain(
    a: Operand, b: Operand, start: int, stop: int, core: TensorCore, e: Engine
) -> Approximate:
    """The wgmmas over K in [start, stop), from a zero accumulator.

    Steps that only zero padding feeds are left out: they cut nothing, since a sum of earlier steps
    already is a multiple of what they keep.
    """
    zeros = e.lift(np.zeros((a.values.shape[0], b.values.shape[0])))
    acc = Approximate(value=zeros, error=zeros)
    for k in range(start, stop, core.k):
        acc = _step(acc, a, b, slice(k, min(k + core.k, stop)), core, e)
    return acc


def _step(
    acc: Approximate, a: Operand, b: Operand, ks: slice, core: TensorCore, e: Engine
) -> Approximate:
    rows, columns = e.amax(a.powers[:, ks], 1), e.amax(b.powers[:, ks], 1)
    products = rows.reshape(-1, 1) * columns.reshape(1, -1)
    # The kernel aligns to its own accumulator, which is off by up to acc.error.
    largest = e.maximum(products, abs(acc.value) + acc.error)
    aligned = acc.error + core.alignment * largest
    value = acc.value + a.values[:, ks] @ b.values[:, ks].T
    return Approximate(value=value, error=aligned + core.truncation * (abs(value) + aligned))
