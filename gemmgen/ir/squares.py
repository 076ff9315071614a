"""Kernel IR statements that sum the squares of A's rows, beside its product."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import ArgumentError
from .blocks import Stmt

PIECE = 4  # elements of FP32 that a bulk store writes at least

ROWS = 2  # of A, whose squares a thread sums: r and r + 8, as its accumulator's
SQUARES = "squares"  # the parameter that points to where they go, D's last column


def check_columns(columns: int) -> None:
    """Raise ArgumentError unless D, `columns` besides that of the squares, ends with whole 16 bytes of a row: it alone is left then."""
    if columns % PIECE:
        allowed = f"must be a multiple of {PIECE} and one more, for the sums of squares"
        raise ArgumentError("columns", columns + 1, allowed)


def check_pairs(rows: int) -> None:
    """Raise ArgumentError unless so many rows of B are pairs of columns, a multiple of four, and a pair of zeros."""
    if rows % (2 * PIECE) != 2:
        allowed = f"must be {2 * PIECE} times any number and 2: pairs of rows, and one of zeros"
        raise ArgumentError("pairs rows", rows, allowed)


@dataclass(frozen=True, kw_only=True)
class SumSquares(Stmt):
    """dst[0..1] += the squares of a K block of A's rows r and r + 8, those of the accumulator's in `wave`, from shared memory: a quarter of
    the columns in each lane of a quad, in order of K. Products of two 16-bit numbers have no rounding in FP32, sums have one each."""

    dst: str
    smem: str
    wave: int


@dataclass(frozen=True, kw_only=True)
class AddSquares(Stmt):
    """dst += the sums of squares, a quad's four of src added up, in the product's last column, or of its last pair the first."""

    dst: str
    src: str
