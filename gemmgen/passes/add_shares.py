"""Where asked, sum a tile's K in shares, as CTAs do that divide it, and add them up in one CTA."""

from __future__ import annotations

from dataclasses import replace

from ..errors import IllegalConfig, Rule
from ..ir.collectives import COLLECTIVES
from ..ir.dtypes import S32
from ..ir.nodes import (
    Copy,
    ForK,
    If,
    Kernel,
    Mma,
    Registers,
    Role,
    Stmt,
    SumSquares,
    TakeShare,
    TileBody,
    WgmmaWait,
    Zero,
)
from ..ir.rewrite import map_body, map_role, statements, walk
from ..target import Target
from .split_k import waves

SHARES_ALONE = Rule(
    id="shares-alone",
    says="shares needs CTAs that sum all of a tile's K, from a ring: split_k 1, stream false, direct false, no groups that split K, no "
    "windows, no collective",
    because="Shares are parts of the K that one CTA sums, of the same number of K blocks in every tile, as if CTAs divided it.",
)
SHARES_SQUARES = Rule(
    id="shares-squares",
    says="shares needs products without sums of squares of A's rows",
    because="Shares are for the bits that CTAs have that divide K, and squares are summed over all of it.",
)
RULES = (SHARES_ALONE, SHARES_SQUARES)
RANKS = {
    x.scheduler for x in COLLECTIVES.values() if x.scheduler
}  # that walk tiles of several GPUs

END = "share_end"


def add_shares(kernel: Kernel, target: Target, shares: int) -> Kernel:
    """Above 1, add the sum to a total and clear it where another share of the tile's K blocks begins, and the total to the last share's. Sets
    Kernel.shares and Mma.fresh; inserts what starts, notes, adds and clears; adds a total per accumulator, and where the running share ends."""
    if shares == 1:
        return kernel
    _check(kernel, shares)
    sums = {a: f"total{w}" for a, w in waves(kernel).items()}
    kernel = replace(kernel, shares=shares)
    return map_role(kernel, "consumer", lambda r: _adding(r, sums))


def _check(kernel: Kernel, shares: int) -> None:
    s = kernel.scheduler
    if (
        kernel.cluster.k > 1
        or s.streams
        or not kernel.ring
        or kernel.groups.depths
        or s.windowed
        or s.name in RANKS
    ):
        values = {
            "shares": shares,
            "split_k": kernel.cluster.k,
            "stream": s.streams,
            "direct": not kernel.ring,
            "scheduler": s.name,
        }
        raise IllegalConfig(SHARES_ALONE, values, "Use shares=1.")
    if any(isinstance(x, SumSquares) for x in statements(kernel)):
        raise IllegalConfig(SHARES_SQUARES, {"shares": shares}, "Use shares=1.")


def _adding(role: Role, totals: dict[str, str]) -> Role:
    clear = tuple(Zero(dst=a) for a in totals)
    first = TakeShare(of="first", dst=END)
    start = tuple(Zero(dst=t, of="total") for t in totals.values())
    last = tuple(Copy(dst=a, src=t, by="adding") for a, t in totals.items())
    flying = any(isinstance(s, WgmmaWait) and s.pending for s in walk(role.body))
    # Sums that stay in the tensor core are still being added to.
    over = (WgmmaWait(pending=0),) * (flying and _multiplied(role, totals))
    add = tuple(Copy(dst=t, src=a, by="adding") for a, t in totals.items())
    new = If(when="new_share", ahead=END, body=(*over, *add, *clear, replace(first, of="next")))

    def visit(s: Stmt) -> Stmt:
        match s:
            case Mma(fresh="tile"):
                return replace(s, fresh="never")
            case ForK():
                return replace(s, body=(new, *s.body))
            case TileBody():
                cleared = (x for x in clear if x not in s.setup)
                setup = (*s.setup, *cleared, *start, first)
                return replace(s, setup=setup, drain=(*s.drain, *last))
        return s

    more = (replace(r, name=totals[r.name]) for r in role.locals if r.name in totals)
    end = Registers(name=END, dtype=S32, count=1)
    return replace(role, locals=(*role.locals, *more, end), body=map_body(role.body, visit))


def _multiplied(role: Role, sums: dict[str, str]) -> bool:
    """Whether they are what the tensor core adds to."""
    return any(isinstance(s, Mma) and s.dst in sums for s in walk(role.body))
