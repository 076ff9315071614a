"""D whose columns have gaps: heads, of each of which columns between its left and its right ones are somebody else's."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..errors import ArgumentError
from .dtypes import DType

if TYPE_CHECKING:
    from .resources import TmaMap  # which have heads

LEAST_BOX = 32  # bytes of a row that a TMA store sends at least: the narrowest swizzle
PIECE = 16  # bytes: where in a row a box may begin
MOST = 4096  # columns of each: the proof walks over all of a head's
NAMES = ("left", "mid", "right")


@dataclass(frozen=True, kw_only=True)
class Heads:
    """Each `left + right` columns of the product are a head's. D has `mid` columns more in each, which no store writes: behind
    the left ones, before the right ones."""

    left: int
    mid: int
    right: int

    def __str__(self) -> str:
        return f"({self.left}, {self.mid}, {self.right})"

    @property
    def numbers(self) -> tuple[int, int, int]:
        return self.left, self.mid, self.right

    @property
    def side(self) -> int:
        """Columns of the product in a head."""
        return self.left + self.right

    def column(self, n: int) -> int:
        """Of D, where column n of the product lies."""
        return n + (n + self.right) // self.side * self.mid

    def columns(self, n: int) -> int:
        """Of D, of so many of the product, whole heads."""
        return n + n // self.side * self.mid

    def cut(self, columns: int) -> bool:
        """Whether a gap lies inside one of the boxes of so many neighbouring columns."""
        return bool(self.left % columns or self.right % columns)

    def stored(self, n: int) -> Iterator[range]:
        """D's columns that n of the product, whole heads, are stored in, in their order."""
        if not self.mid:
            yield range(n)
            return
        whole = self.side + self.mid
        for first in range(0, n // self.side * whole, whole):
            yield range(first, first + self.left)
            yield range(first + self.left + self.mid, first + whole)


NO_GAPS = Heads(left=0, mid=0, right=1)  # of a D that has the product's columns


def gaps_of(maps: Iterable[TmaMap]) -> Heads:
    """Of D, by a kernel's tensor maps."""
    return next((m.heads for m in maps if m.tensor == "d"), NO_GAPS)


def heads_of(value: object) -> Heads:
    """From (left, mid, right). Raises ArgumentError naming heads, or the number of them that is wrong."""
    if isinstance(value, Heads):
        return value
    if not isinstance(value, tuple | list) or len(value) != len(NAMES):
        raise ArgumentError("heads", value, "must be (left, mid, right), or None")
    for name, x, least in zip(NAMES, value, (0, 1, 0), strict=True):
        if type(x) is not int or not least <= x <= MOST:
            raise ArgumentError(f"heads {name}", x, f"must be an integer from {least} to {MOST}")
    left, mid, right = value
    if not left + right:
        raise ArgumentError("heads", (*value,), "must have left or right columns")
    return Heads(left=left, mid=mid, right=right)


def check_boxes(heads: Heads, d: DType) -> None:
    """Raise ArgumentError unless boxes of some swizzle end where gaps begin, and begin at whole pieces of a row of D."""
    steps = (LEAST_BOX, PIECE, LEAST_BOX)
    for name, x, step in zip(NAMES, heads.numbers, steps, strict=True):
        if x * d.bytes % step:
            allowed = f"must be a multiple of {step // d.bytes}, {step} bytes of D's {d}"
            raise ArgumentError(f"heads {name}", x, allowed)


def check_columns(heads: Heads, argument: str, n: int, most: int) -> None:
    """Raise ArgumentError unless n columns of the product are whole heads, and a kernel counts D's."""
    if n % heads.side:
        allowed = f"must be a multiple of {heads.side}: a head has {heads.left} + {heads.right}"
        raise ArgumentError(argument, n, allowed)
    if heads.columns(n) > most:
        allowed = f"must leave D at most {most} columns, {heads.mid} in each head among them"
        raise ArgumentError(argument, n, allowed)
