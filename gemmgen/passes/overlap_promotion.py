"""Where asked, promote one piece of a K block while the tensor core multiplies the next."""

from __future__ import annotations

from dataclasses import replace

from ..errors import IllegalConfig, Rule
from ..ir.nodes import (
    ForK,
    Kernel,
    LoadColumnScales,
    Mma,
    Piece,
    Promote,
    Registers,
    Role,
    ShareScales,
    Stmt,
    WgmmaWait,
)
from ..ir.promotion import Accumulate
from ..ir.rewrite import map_body, map_role, map_stmts, walk
from ..target import Target

PROMOTION_OVERLAPS = Rule(
    id="promotion-overlaps",
    says="in_flight=1 in a family that promotes needs two sums of a K block: parts or M sub-tiles",
    because="One is promoted while the next is multiplied, and a stage is released when all are drained.",
)
OVERLAP_UNROLL = Rule(
    id="overlap-unroll",
    says="a K loop that adds one piece's sums while it multiplies the next is unrolled by at most 3 where no scales are "
    "multiplied",
    because="ptxas then serialises the wgmma of neighbouring K blocks (C7511), or spills: of 10 such kernels that were "
    "unrolled by 4 NVRTC 12.9, 13.0 and 13.5 built 2, unrolled by 3 all. Between scaled sums it finds no such "
    "neighbours.",
)
OVERLAP_COLUMNS = Rule(
    id="overlap-columns",
    says="where CTAs share an operand, parts of a K block with column scales of their own are not promoted beside products",
    because="The last part's are loaded behind all products. Nothing waits for them before the stage is released in the other "
    "CTA, whose next load of what both share may come first (docs/adr/0003-release-scope.md). Where that is not the "
    "operand with these scales it could not, but is refused alike.",
)
RULES = (PROMOTION_OVERLAPS, OVERLAP_UNROLL, OVERLAP_COLUMNS)

PARTIALS = 2
NOTHING = Piece()  # before the first, and after the last
MOST_UNROLL = 3  # of Accumulate


def overlap_promotion(kernel: Kernel, target: Target) -> Kernel:
    """Give the pieces two partial sums in turn: a piece's wgmma are issued, then those before them are waited for
    and promoted. Pieces up to one that promotes share a sum. Sets WgmmaWait.pending, Mma.dst and the promotions' src; doubles the partial sum."""
    loop = next((s for r in kernel.roles for s in walk(r.body) if _asked(s)), None)
    if not isinstance(loop, ForK):
        return kernel
    pieces = _pieces(loop)
    sums = sum(bool(p.promote) for p in pieces)
    if sums < PARTIALS:
        values = {"in_flight": 1, "pieces": sums}
        raise IllegalConfig(PROMOTION_OVERLAPS, values, "Use in_flight=0, or parts=2.")
    if loop.unroll > MOST_UNROLL and any(isinstance(s, Accumulate) for s in pieces[0].promote):
        values = {"in_flight": 1, "unroll": loop.unroll}
        raise IllegalConfig(OVERLAP_UNROLL, values, f"Use unroll={MOST_UNROLL}, or in_flight=0.")
    _check_columns(kernel, pieces)
    before = tuple(s for s in loop.body if not isinstance(s, Piece))
    body = (*before, *_overlapped(pieces))
    kernel = map_stmts(kernel, lambda s: replace(loop, body=body) if s == loop else s)
    partial = {s.dst for s in walk(loop.body) if isinstance(s, Mma)}
    return map_role(kernel, "consumer", lambda r: _doubled(r, partial))


def _pieces(loop: ForK) -> list[Piece]:
    return [s for s in loop.body if isinstance(s, Piece)]


def _check_columns(kernel: Kernel, pieces: list[Piece]) -> None:
    if kernel.cluster.shared and any(isinstance(s, LoadColumnScales) for s in pieces[-1].loads):
        values = {"in_flight": 1, "cluster": kernel.cluster.size, "pieces": len(pieces)}
        raise IllegalConfig(OVERLAP_COLUMNS, values, "Use multicast=none, or in_flight=0.")


def _asked(s: Stmt) -> bool:
    """Whether `s` is a loop that promotes, and leaves wgmma in flight."""
    if not isinstance(s, ForK):
        return False
    waits = (x for p in _pieces(s) if p.promote for x in p.wait)
    return any(isinstance(x, WgmmaWait) and x.pending for x in waits)


def _overlapped(pieces: list[Piece]) -> tuple[Piece, ...]:
    """Each beside the promotion of the one before it, the last promotion alone. Registers of column scales are the next
    piece's once that is done."""
    turned = [_turned(p, sum(bool(x.promote) for x in pieces[:i])) for i, p in enumerate(pieces)]
    return tuple(
        Piece(
            loads=(*_loads(before, columns=True), *_loads(piece, columns=False)),
            products=piece.products,
            wait=(WgmmaWait(pending=int(piece != NOTHING)),) * (before != NOTHING),
            release=before.release,
            promote=before.promote,
        )
        for before, piece in zip((NOTHING, *turned), (*turned, NOTHING), strict=True)
    )


def _loads(piece: Piece, *, columns: bool) -> tuple[Stmt, ...]:
    return tuple(s for s in piece.loads if _of_columns(s) == columns)


def _of_columns(s: Stmt) -> bool:
    shared = isinstance(s, ShareScales) and s.of == "columns"
    return shared or isinstance(s, LoadColumnScales)


def _turned(piece: Piece, i: int) -> Piece:
    """`piece` with the partial sum whose turn it is."""

    def visit(s: Stmt) -> Stmt:
        match s:
            case Mma():
                return replace(s, dst=f"{s.dst}{i % PARTIALS}")
            case Promote() | Accumulate():
                return replace(s, src=f"{s.src}{i % PARTIALS}")
        return s

    return replace(
        piece,
        products=map_body(piece.products, visit),
        promote=map_body(piece.promote, visit),
    )


def _doubled(role: Role, partial: set[str]) -> Role:
    def twice(r: Registers) -> tuple[Registers, ...]:
        if r.name not in partial:
            return (r,)
        return tuple(replace(r, name=f"{r.name}{i}") for i in range(PARTIALS))

    return replace(role, locals=tuple(x for r in role.locals for x in twice(r)))
