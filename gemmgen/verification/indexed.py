"""Operands whose rows of A come by index: which they are, and what a launch finds stored."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ..codes import Codes

X = Any  # an `Operands`
Indices = npt.NDArray[np.int32]
NAN_BYTE = 0xFF  # NaN in FP8, BF16 and FP16
TOP = 3  # indices that stand for a row


def by_index(x: X, lost: npt.NDArray[np.bool_], seed: int) -> X:
    """Rows drawn out of fewer, so that some come several times and some never. lost: of no group."""
    rng = np.random.Generator(np.random.PCG64(seed))
    m = x.shape[0]
    which = rng.integers(0, max(1, 2 * m // 3), m)
    first = np.zeros(m, np.int64)
    first[which[::-1][~lost[::-1]]] = np.arange(m)[::-1][~lost[::-1]]
    a = np.where(lost[:, None], x.a, x.a[first[which]])
    indices = np.where(lost, -1, which * TOP + rng.integers(0, TOP, m)).astype(np.int32)
    return replace(x, a=a, indices=indices, top=TOP)


def stored_a(x: X) -> Codes:
    """A as a launch finds it: the rows that indices name, and NaN in others."""
    a: Codes = x.a
    if x.indices is None:
        return a
    rows, there = x.indices // x.top, x.indices >= 0
    found = np.empty((max(rows.max(initial=0) + 1, 1), a.shape[1]), a.dtype)
    found.view(np.uint8)[:] = NAN_BYTE
    found[rows[there]] = a[there]
    return found
