"""Where asked, promote one piece of a K block while the tensor core multiplies the next."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..errors import IllegalConfig, Rule
from ..ir.nodes import (
    Fence,
    ForK,
    Kernel,
    LoadColumnScales,
    Mma,
    Registers,
    Role,
    Stmt,
    WgmmaCommit,
    WgmmaWait,
)
from ..ir.promotion import PROMOTION, Accumulate
from ..ir.rewrite import map_role, map_stmts, walk
from ..ir.syncs import is_fence
from ..target import Target

PROMOTION_OVERLAPS = Rule(
    id="promotion-overlaps",
    says="in_flight=1 in a family that promotes needs two pieces of a K block: parts or waves",
    because="One piece is promoted while the next is multiplied, and a stage is released when all are drained.",
)
OVERLAP_UNROLL = Rule(
    id="overlap-unroll",
    says="a K loop that adds one piece's sums while it multiplies the next is unrolled by at most 3 where no scales are "
    "multiplied",
    because="ptxas then serialises the wgmma of neighbouring K blocks (C7511), or spills: of 10 such kernels that were "
    "unrolled by 4 NVRTC 12.9, 13.0 and 13.5 built 2, unrolled by 3 all. Between scaled sums it finds no such "
    "neighbours.",
)
RULES = (PROMOTION_OVERLAPS, OVERLAP_UNROLL)

PARTIALS = 2
MOST_UNROLL = 3  # of Accumulate


@dataclass(frozen=True, kw_only=True)
class _Piece:
    """One group of wgmma and what belongs to it. loads: before its fence, but for its columns' scales, whose
    registers the piece before is promoted with. release: once all are drained."""

    loads: tuple[Stmt, ...]
    columns: tuple[Stmt, ...]
    mma: Mma
    release: tuple[Stmt, ...]
    promote: Stmt


def overlap_promotion(kernel: Kernel, target: Target) -> Kernel:
    """Give the pieces two partial sums in turn: a piece's wgmma are issued, then those before them are waited for
    and promoted. Sets WgmmaWait.pending, Mma.dst and the promotions' src; doubles the partial sum."""
    loop = next((s for r in kernel.roles for s in walk(r.body) if _asked(s)), None)
    if not isinstance(loop, ForK):
        return kernel
    pieces = _pieces(loop.body)
    if len(pieces) < PARTIALS:
        values = {"in_flight": 1, "pieces": len(pieces)}
        raise IllegalConfig(PROMOTION_OVERLAPS, values, "Use in_flight=0, or parts=2.")
    if loop.unroll > MOST_UNROLL and isinstance(pieces[0].promote, Accumulate):
        values = {"in_flight": 1, "unroll": loop.unroll}
        raise IllegalConfig(OVERLAP_UNROLL, values, f"Use unroll={MOST_UNROLL}, or in_flight=0.")
    body = _overlapped(pieces)
    kernel = map_stmts(kernel, lambda s: replace(loop, body=body) if s == loop else s)
    return map_role(kernel, "consumer", lambda r: _doubled(r, pieces[0].mma.dst))


def _asked(s: Stmt) -> bool:
    """Whether `s` is a loop that promotes, and leaves wgmma in flight."""
    pending = isinstance(s, ForK) and any(isinstance(x, WgmmaWait) and x.pending for x in s.body)
    return pending and any(isinstance(x, PROMOTION) for x in s.body)  # type: ignore[attr-defined]


def _pieces(body: tuple[Stmt, ...]) -> list[_Piece]:
    """A piece ends with its promotion; what comes first in the loop is the first one's."""
    ends = [i for i, s in enumerate(body) if isinstance(s, PROMOTION)]
    starts = [0, *(i + 1 for i in ends)]
    return [_piece(body[a:b], body[b]) for a, b in zip(starts, ends, strict=False)]


def _piece(stmts: tuple[Stmt, ...], promote: Stmt) -> _Piece:
    fence = next(i for i, s in enumerate(stmts) if is_fence(s, "wgmma"))
    wait = next(i for i, s in enumerate(stmts) if isinstance(s, WgmmaWait))
    return _Piece(
        loads=tuple(s for s in stmts[:fence] if not isinstance(s, LoadColumnScales)),
        columns=tuple(s for s in stmts[:fence] if isinstance(s, LoadColumnScales)),
        mma=next(s for s in stmts if isinstance(s, Mma)),
        release=stmts[wait + 1 :],
        promote=promote,
    )


def _overlapped(pieces: list[_Piece]) -> tuple[Stmt, ...]:
    out: list[Stmt] = []
    for i, piece in enumerate(pieces):
        mma = replace(piece.mma, dst=_turn(piece, i))
        out += (*piece.loads, Fence(of="wgmma"), mma, WgmmaCommit())
        if i:
            out += (WgmmaWait(pending=1), _promoted(pieces, i - 1))
        out += piece.columns
    return (*out, WgmmaWait(pending=0), *pieces[-1].release, _promoted(pieces, len(pieces) - 1))


def _promoted(pieces: list[_Piece], i: int) -> Stmt:
    return replace(pieces[i].promote, src=_turn(pieces[i], i))  # type: ignore[call-arg]


def _turn(piece: _Piece, i: int) -> str:
    return f"{piece.mma.dst}{i % PARTIALS}"


def _doubled(role: Role, partial: str) -> Role:
    def twice(r: Registers) -> tuple[Registers, ...]:
        if r.name != partial:
            return (r,)
        return tuple(replace(r, name=f"{partial}{i}") for i in range(PARTIALS))

    return replace(role, locals=tuple(x for r in role.locals for x in twice(r)))
