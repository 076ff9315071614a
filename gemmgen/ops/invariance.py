"""A setting of the whole process, and of each call: whether bits depend on the batch."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from .. import environment
from ..config import Config
from ..errors import ArgumentError
from ..heuristics import ANY, invariant
from ..heuristics.tuned import adds_up
from ..problem import Problem
from ..summation import summation

VARIABLE = environment.INVARIANT
SAYS = {"": False, "0": False, "1": True}


def from_environment() -> bool | str:
    """What the variable says; its text if that is nothing it may say."""
    text = os.environ.get(VARIABLE, "")
    return SAYS.get(text, text)


# What `set_invariant` was last given, at first what the variable said. Read as `invariance.asked`: a name imported from
# here stays as it was.
asked: bool | str = from_environment()


def set_invariant(on: bool) -> None:
    """Let the bits of a row depend on that row alone, or, with False, on the launch as well: of every GEMM that any thread
    asks for from now on without `invariant`, whatever the environment variable GEMMGEN_INVARIANT says.

    Then the order in which the products of an element are added up is a function of N, K, the operands' dtypes and
    the family alone: not of M, of the row's place, of other rows, of groups or of the GPU. What a CUDA graph has
    captured, or `bind` has bound, keeps its own. Raises ArgumentError.
    """
    global asked
    asked = _flag("on", on)


def is_invariant() -> bool:
    """Whether GEMMs are, that do not say. Raises ArgumentError if GEMMGEN_INVARIANT is neither 0 nor 1."""
    if isinstance(asked, str):
        raise ArgumentError(VARIABLE, asked, "must be 0 or 1")
    return asked


def split_of(p: Problem, n: int, k: int, on: bool | None = None) -> int:
    """CTAs that must divide the K of each sum, ANY if that is left to the choice. on: what the caller says, None to do as
    the process is told. Raises ArgumentError."""
    if is_invariant() if on is None else _flag("invariant", on):
        return invariant.split_of(p, n, k)
    return ANY


def check(p: Problem, config: Config, k: int, split_k: int) -> None:
    """Raise ArgumentError if a `config` that was given adds up otherwise."""
    if split_k != ANY and not adds_up(p, config, k, split_k):
        allowed = f"must add up as split_k={split_k} does, which is what invariant GEMMs of this N and K have"
        decides = (("split_k", config.split_k), *summation(p, config, k).others)
        raise ArgumentError("config", ", ".join(f"{x}={value}" for x, value in decides), allowed)


@contextmanager
def asking(on: bool | None) -> Iterator[None]:
    """As `set_invariant`, for a while; None changes nothing."""
    global asked
    before = asked
    asked = before if on is None else on
    try:
        yield
    finally:
        asked = before


def _flag(name: str, on: object) -> bool:
    if not isinstance(on, bool):
        raise ArgumentError(name, on, "must be True or False")
    return on
