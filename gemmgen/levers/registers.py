"""Registers per thread of the producer and the consumers, after setmaxnreg."""

from __future__ import annotations

from typing import Any

from .lever import Lever, Values

MOST = 1 << 16  # what a pair may hold; what it must, the rules say


def _holds(v: Any) -> bool:
    whole = isinstance(v, tuple) and len(v) == 2 and all(type(x) is int for x in v)
    return v is None or (whole and all(0 <= x < MOST for x in v))


REGISTERS = Lever(
    name="registers",
    values=Values(
        says="a pair (producer, consumer) of integers from 0 to 65535, or null",
        holds=_holds,
        null=True,
    ),
    default=None,
    tag="r{0[0]}_{0[1]}",
    word="registers {0[0]}/{0[1]}",
    reads="registers per thread are named, not chosen",
    sums=False,
)
