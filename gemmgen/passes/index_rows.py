"""Where A's rows come by index, let the producer's threads copy them into the stages."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeGuard

from ..errors import IllegalConfig, Rule
from ..ir.dtypes import S32
from ..ir.indices import SPAN, held
from ..ir.nodes import (
    Arrive,
    Coord,
    CopyRows,
    Drain,
    Fence,
    ForK,
    ForTiles,
    If,
    Kernel,
    LoadIndices,
    Pointed,
    PrefetchMap,
    Registers,
    Role,
    Smem,
    Stmt,
    Sync,
    TileBody,
    TmaLoad,
    TmaMap,
    Wait,
    WaitCopies,
    Zero,
)
from ..ir.rewrite import map_body, map_role, map_stmts, statements
from ..ir.stmts import multicasts, releases
from ..target import Target

INDEXED_SHARED = Rule(
    id="indexed-shared",
    says="rows by index are loaded by the CTA that multiplies them: multicast none or b",
    because="cp.async writes the shared memory of the thread's own CTA only.",
)
INDEXED_SPAN = Rule(
    id="indexed-span",
    says="rows by index need a K block of 128 bytes, swizzled by 128",
    because="Eight threads copy a row, 16 bytes each, to where the swizzle of 128 bytes has them.",
)
RULES = (INDEXED_SHARED, INDEXED_SPAN)
INDICES, BEGUN = "indices", "begun"
ON_THEIR_WAY = (
    2  # K blocks behind the newest, if the ring has room: copies take longer than a K block
)


def index_rows(kernel: Kernel, target: Target) -> Kernel:
    """Of an operand whose rows come by index no box is loaded: all threads of the producer walk tiles and K blocks, know which rows their share
    of a tile's are, and copy those; when a K block's copies have come, each warp says so. The leader does the rest. Drops the tensor map,
    its loads and its prefetch; adds what points to the operand, LoadIndices, CopyRows, WaitCopies, arrivals and their registers."""
    found = [m for m in kernel.maps if m.indices]
    if not found:
        return kernel
    (indexed,) = found
    smem = kernel.buffer(indexed.smem)
    loads = [s for s in statements(kernel) if _is_of(s, indexed)]
    _check(smem, loads)
    pointed = Pointed(tensor=indexed.tensor, dtype=smem.dtype, outer=indexed.outer, clipped=True)
    copies = _Copies(indexed=indexed, smem=smem, k=loads[0].coords[0], lag=_lag(kernel))
    kernel = replace(
        kernel,
        maps=tuple(m for m in kernel.maps if m != indexed),
        params=(*kernel.params, *pointed.params),
        pointed=(*kernel.pointed, pointed),
    )
    fetched = PrefetchMap(tensor_map=indexed.name)
    kernel = map_stmts(kernel, lambda s: () if s == fetched else s)
    return map_role(kernel, "producer", copies.role)


def _check(smem: Smem, loads: list[TmaLoad]) -> None:
    if any(map(multicasts, loads)):
        raise IllegalConfig(INDEXED_SHARED, {"multicast": "a"}, "Use multicast=none or b.")
    if smem.swizzle != SPAN or smem.row_bytes != SPAN:
        values = {"swizzle": smem.swizzle, "row_bytes": smem.row_bytes}
        raise IllegalConfig(INDEXED_SPAN, values, "Use block_k_bytes=128 and swizzle_ab=null.")


def _is_of(s: Stmt, indexed: TmaMap) -> TypeGuard[TmaLoad]:
    return isinstance(s, TmaLoad) and s.tensor_map == indexed.name


def _lag(kernel: Kernel) -> int:
    """A stage must be announced before its next turn is waited for, and so the one after it where that releases it."""
    late = max(s.lag for s in statements(kernel) if releases(s))
    return min(ON_THEIR_WAY, kernel.stages - 1 - late)


@dataclass(frozen=True, kw_only=True)
class _Copies:
    """What takes the place of loads. lag: K blocks whose copies may be on their way when the next one's are begun."""

    indexed: TmaMap
    smem: Smem
    k: Coord
    lag: int

    def role(self, r: Role) -> Role:
        """Its threads together; what one of them does, in the leader's turn."""
        registers = (
            Registers(name=INDICES, dtype=S32, count=held(self.smem.rows)),
            Registers(name=BEGUN, dtype=S32, count=1),
        )
        body = (Zero(dst=BEGUN), *map_body(r.body, self._visit))
        return replace(r, locals=(*r.locals, *registers), body=body)

    def _visit(self, s: Stmt) -> Stmt | tuple[Stmt, ...]:
        match s:
            case TileBody():
                known = LoadIndices(dst=INDICES, tensor=self.indexed.indices, count=self.smem.rows)
                return replace(s, setup=(known, *s.setup))
            case ForK():
                return replace(s, body=self._block(s.body))
            case ForTiles():
                return (s, *self._rest())
            case Drain():
                return _alone(s)
            case If(when="leader"):
                return s.body
        return s

    def _block(self, block: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        """All wait for a stage; the leader announces the bytes of what it loads; all copy, and announce what came before."""
        waits = tuple(s for s in block if isinstance(s, Wait))
        loads = tuple(s for s in block if not isinstance(s, Wait) and not _is_of(s, self.indexed))
        copy = CopyRows(
            tensor=self.indexed.tensor,
            smem=self.smem.name,
            indices=INDICES,
            k=self.k,
            begun=BEGUN,
            most=self.lag + 1,
        )
        return (*waits, _alone(*loads), copy, self._begun(*_come(self.lag), self._told(self.lag)))

    def _rest(self) -> tuple[Stmt, ...]:
        """After all tiles, of copies that are still on their way: the oldest first, from the stage after the last on."""
        told = (
            replace(self._begun(self._told(back)), more=back - 1) for back in range(self.lag, 0, -1)
        )
        return (*_come(0), *told) if self.lag else ()

    def _begun(self, *body: Stmt) -> If:
        return If(when="begun", ahead=BEGUN, more=self.lag, body=body)

    def _told(self, lag: int) -> Arrive:
        return Arrive(barrier="full", to="copied", lag=lag)


def _come(pending: int) -> tuple[Stmt, ...]:
    """Each thread waits for its own copies and orders them before what wgmma reads, through another proxy; then the lanes meet, for one
    speaks for all."""
    return WaitCopies(pending=pending), Fence(of="async"), Sync(of="warp")


def _alone(*body: Stmt) -> If:
    return If(when="leader", body=body)
