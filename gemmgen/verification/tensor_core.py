"""How far Hopper's wgmma may be from the exact sum, element by element.

One wgmma adds k products to the accumulator: all k + 1 terms are aligned to the largest exponent and
cut off `aligned` bits below it, added exactly, and the sum is cut to `kept` bits after its leading one.

Where nothing lies below those bits nothing is cut. An element's products are all multiples of some
q = 2^i. If no term reaches q * 2^(aligned + 1) and no sum q * 2^(kept + 1), the sum is exact, and its
error 0. A running sum, in whatever order, lies between that of the negative products and that of the
positive ones: with v the whole sum and s that of the absolute values, within (s + |v|) / 2 of 0.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ..codes import Codes, exponents, grains, table
from ..ir.dtypes import BF16, E4M3, E5M2, F16, S8, DType
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
    codes: Array
    dtype: DType

    def grain(self, ks: slice, e: Engine) -> Array:
        """[rows]: the least power of two that makes integers of a row's elements; 0 if all are 0."""
        return e.amax(e.lookup(grains(self.dtype), self.codes[:, ks]), 1)

    def columns(self, ks: list[int]) -> Operand:
        """Those of K, in this order."""
        values, powers, codes = self.values[:, ks], self.powers[:, ks], self.codes[:, ks]
        return Operand(values=values, powers=powers, codes=codes, dtype=self.dtype)


@dataclass(frozen=True, kw_only=True)
class Slices:
    """Of K, where so many warpgroups sum every so-many-th block of so many each."""

    count: int
    block: int

    def of(self, k: int) -> Iterator[list[int]]:
        """Each one's, in order."""
        blocks = [range(start, min(start + self.block, k)) for start in range(0, k, self.block)]
        for first in range(self.count):
            yield [x for ks in blocks[first :: self.count] for x in ks]


Share = int | Slices  # of K, summed by itself: so much at a time, 0 for all of it; or slices


@dataclass(frozen=True, kw_only=True, eq=False)
class Approximate:
    """float64 [M, N]: the exact value, and a bound on how far the kernel's may be from it.

    grain: value * grain is an integer wherever the error is 0. None: it is 0 nowhere, or nobody knows.
    """

    value: Array
    error: Array
    grain: Array | None = None


def operand(codes: Codes, dtype: DType, engine: Engine) -> Operand:
    lifted = engine.lift(codes)
    return Operand(
        values=engine.lookup(table(dtype), lifted),
        powers=engine.lookup(exponents(dtype), lifted),
        codes=lifted,
        dtype=dtype,
    )


def chain(
    a: Operand, b: Operand, start: int, stop: int, core: TensorCore, e: Engine
) -> Approximate:
    """The wgmmas over K in [start, stop), from a zero accumulator.

    Steps that only zero padding feeds are left out: they cut nothing, since a sum of earlier steps
    already is a multiple of what they keep.
    """
    zeros = e.lift(np.zeros((a.values.shape[0], b.values.shape[0])))
    if start == stop:
        return Approximate(value=zeros, error=zeros, grain=zeros)
    grain = _outer(*(x.grain(slice(start, stop), e) for x in (a, b)))
    whole, exact = _uncut(a, b, slice(start, stop), grain, core, e)
    if exact is not None and not bool((~exact).any()):
        return Approximate(value=whole, error=zeros, grain=grain)
    acc = Approximate(value=zeros, error=zeros)
    for k in range(start, stop, core.k):
        acc = _step(acc, a, b, slice(k, min(k + core.k, stop)), core, e)
    if exact is None:
        return acc
    return Approximate(value=acc.value, error=e.where(exact, 0.0, acc.error), grain=grain)


def _uncut(
    a: Operand, b: Operand, ks: slice, grain: Array, core: TensorCore, e: Engine
) -> tuple[Array, Array | None]:
    """The sum over `ks`, and bool [M, N]: where no step of it cuts anything; None: nowhere."""
    terms = _outer(*(e.amax(x.powers[:, ks], 1) for x in (a, b)))
    few = terms * grain <= 2.0**core.aligned
    if not bool(few.any()):
        return None, None
    x, y = a.values[:, ks], b.values[:, ks]
    value = x @ y.T
    running = (abs(x) @ abs(y).T + abs(value)) / 2
    return value, few & (running * grain < 2.0 ** (min(core.aligned, core.kept) + 1))


def _outer(rows: Array, columns: Array) -> Array:
    return rows.reshape(-1, 1) * columns.reshape(1, -1)


def _step(
    acc: Approximate, a: Operand, b: Operand, ks: slice, core: TensorCore, e: Engine
) -> Approximate:
    rows, columns = e.amax(a.powers[:, ks], 1), e.amax(b.powers[:, ks], 1)
    products = _outer(rows, columns)
    # The kernel aligns to its own accumulator, which is off by up to acc.error.
    largest = e.maximum(products, abs(acc.value) + acc.error)
    aligned = acc.error + core.alignment * largest
    value = acc.value + a.values[:, ks] @ b.values[:, ks].T
    return Approximate(value=value, error=aligned + core.truncation * (abs(value) + aligned))
