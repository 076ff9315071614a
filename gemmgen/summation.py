"""In which order the products of one element of D are added up, and in which precision: all that its bits depend on
besides the operands and the epilogue. Two configs whose summations are equal give equal bits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .config import Config
from .ir.dealing import share
from .ir.groupings import GROUPINGS
from .levers import LEVERS
from .levers.shares import SHARES
from .levers.slice_k import SLICE_K
from .levers.split_k import SPLIT_K
from .levers.stream import STREAM
from .levers.tile import BLOCK_K_BYTES
from .problem import Problem
from .recipes import recipe
from .target import H200

READ = (
    SPLIT_K.name,
    SHARES.name,
    SLICE_K.name,
    BLOCK_K_BYTES.name,
)  # levers that the other fields say all of


@dataclass(frozen=True, kw_only=True)
class Summation:
    """How the K products of an element become one number.

    exact: integers that cannot overflow: any order gives the same, and the other fields say nothing.
    chain: products that one tensor-core instruction adds to the sum so far, in order of K; they commute, so it does
    not matter which operand is which.
    promoted: products after which that sum, by then from zero, is multiplied by its scales and added to another in
    FP32; 0 where it stays in the tensor core to the end.
    shares: of K, from and to: each added up so by itself, from zero, then all in this order in FP32.
    slices: (how many, products of a K block) where warpgroups divide K blocks: each adds up every so-many-th, from its own on, by itself,
    from zero, then all in this order in FP32; () where none do.
    others: levers that may change the order and have not their defaults, with their values.
    launch: None where nothing but the above decides; where M, N and the grid do as well, an object of its own, so that
    the description equals no other, not even one of the same config, which another launch may add up otherwise.
    """

    exact: bool = False
    chain: int = 0
    promoted: int = 0
    shares: tuple[tuple[int, int], ...] = ()
    slices: tuple[int, ...] = ()
    others: tuple[tuple[str, Any], ...] = ()
    launch: object = None


EXACT = Summation(exact=True)


def summation(p: Problem, c: Config, k: int) -> Summation:
    """Of every element of D, whose sum has `k` products (of its group, where groups split K; of all groups, where they are summed, each in
    whole K blocks): M, N, the element's place,
    the grouping and how many groups there are do not matter."""
    if is_exact(p):
        return EXACT
    block = c.block_k_bytes // p.a.bytes
    # A config has CTAs that divide K, or one that adds up as they do (rule `shares-alone`).
    most = max(c.split_k, c.shares)
    shares = [share(-(-k // block), rank, most) for rank in range(most)]
    return Summation(
        chain=H200.wgmma_k_bytes // p.a.bytes,
        promoted=block if recipe(p.family).promotes else 0,
        shares=tuple((min(k, s.start * block), min(k, s.stop * block)) for s in shares),
        slices=(c.slices, block) if c.slices > 1 else (),
        others=tuple((x.name, getattr(c, x.name)) for x in LEVERS if _matters(x, c)),
        # Stretches end where the grid says (`ir.dealing`).
        launch=None if STREAM.plain(c) else object(),
    )


def is_exact(p: Problem) -> bool:
    """Whether sums are integers to the end: they do not overflow (`problem.INT8_K`)."""
    return p.a.integer and not recipe(p.family).promotes


def splits(p: Problem) -> bool:
    """Whether CTAs may divide the K of a sum (rule `split-depths`)."""
    return not GROUPINGS[p.grouping].depths


def _matters(x: Any, c: Config) -> bool:
    return x.sums and x.name not in READ and not x.plain(c)
