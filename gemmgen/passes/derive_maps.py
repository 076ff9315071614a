"""Where groups split K, give every group tensor maps of its own, derived on the device."""

from __future__ import annotations

from dataclasses import replace

from ..ir.dtypes import S8
from ..ir.nodes import (
    AcquireMap,
    Coord,
    CopyMap,
    Drain,
    If,
    Kernel,
    LoadBlocks,
    LoadBlockScales,
    Param,
    PrefetchMap,
    PublishMap,
    ReplaceAddress,
    ReplaceExtent,
    ReplaceStride,
    Role,
    Smem,
    Stmt,
    Sync,
    TileBody,
    TmaLoad,
    TmaMap,
)
from ..ir.rewrite import map_body, map_role, map_stmts
from ..target import Target

MAP_BYTES = 128
GROUP_MAPS = Param(name="group_maps", ctype="TensorMap*")
BLOCKS_OF_GROUP = {"first": "first of group", "next": "next of group"}


def derive_maps(kernel: Kernel, target: Target) -> Kernel:
    """A tensor map of A or B ends where the tile's group does, so that TMA fills its last K block with
    zeros. Sets TmaMap.derived, what derives the maps, Coord.start and LoadBlockScales.block; adds
    shared memory for the copies and the parameters that the maps and their addresses need."""
    if not kernel.groups.depths:
        return kernel
    derived = tuple(m for m in kernel.maps if kernel.buffer(m.smem).use == "operand")
    names = {m.name for m in derived}
    flat = tuple(m for m in derived if kernel.groups.own(m))

    def visit(stmt: Stmt) -> Stmt | tuple[Stmt, ...]:
        if isinstance(stmt, PrefetchMap) and stmt.tensor_map in names:
            return ()  # what TMA reads are the groups'
        return stmt

    kernel = replace(
        map_stmts(from_k_first(kernel), visit),
        maps=tuple(replace(m, derived=m.name in names) for m in kernel.maps),
        params=(*kernel.params, GROUP_MAPS, *(_pointer(kernel, m) for m in flat)),
        smem=(*kernel.smem, *map(_copy, derived)),
    )
    edits = tuple(s for m in derived for s in _edits(kernel, m))
    return map_role(kernel, "producer", lambda r: _deriving(r, derived, edits))


def from_k_first(kernel: Kernel) -> Kernel:
    """Count what is loaded along K from the tile's first, not from the matrix's. Sets Coord.start and LoadBlockScales.block."""

    def visit(s: Stmt) -> Stmt:
        match s:
            case TmaLoad():
                return replace(s, coords=_started(kernel, s))
            case LoadBlocks():
                return replace(s, k=replace(s.k, start="tile.k_first / 128"))
            case LoadBlockScales():
                return replace(s, block=BLOCKS_OF_GROUP[s.block])  # type: ignore[arg-type]
        return s

    return map_stmts(kernel, visit)


def _started(kernel: Kernel, load: TmaLoad) -> tuple[Coord, ...]:
    """In blocks where it is of scales; a matrix that is a group's own begins with the group."""
    m, scales = kernel.map(load.tensor_map), kernel.buffer(load.smem).use == "scales"
    if kernel.groups.own(m) and not scales:
        return load.coords
    start = "tile.k_first / 128" if scales else "tile.k_first"
    return tuple(replace(c, start=start) if c.base == "k" else c for c in load.coords)  # type: ignore[arg-type]


def _copy(m: TmaMap) -> Smem:
    return Smem(
        name=f"smem_{m.name}", dtype=S8, rows=1, cols=MAP_BYTES, stages=1, use="map", swizzle=0
    )


def _pointer(kernel: Kernel, m: TmaMap) -> Param:
    """Its elements are only counted."""
    bits = kernel.buffer(m.smem).dtype.bits
    return Param(name=m.tensor, ctype=f"const uint{bits}_t*")


def _edits(kernel: Kernel, m: TmaMap) -> tuple[Stmt, ...]:
    """What differs from group to group."""
    smem, dim = f"smem_{m.name}", (m.inner, m.outer).index("k")
    extent = ReplaceExtent(tensor_map=m.name, smem=smem, dim=dim, end="tile.k_end")  # type: ignore[arg-type]
    if not kernel.groups.own(m):
        return (extent,)
    rows = f"shape_{m.outer}"
    return (
        ReplaceAddress(tensor_map=m.name, smem=smem, tensor=m.tensor, rows=rows),  # type: ignore[arg-type]
        replace(extent, end="tile.k_end - tile.k_first"),
        ReplaceStride(tensor_map=m.name, smem=smem, bytes=kernel.buffer(m.smem).dtype.bytes),
    )


def _deriving(role: Role, derived: tuple[TmaMap, ...], edits: tuple[Stmt, ...]) -> Role:
    """A whole warp walks the tiles, for it takes one to publish a map; its leader still loads alone."""
    names = [(m.name, f"smem_{m.name}") for m in derived]
    copies = tuple(CopyMap(tensor_map=m, smem=smem) for m, smem in names)
    publish = tuple(PublishMap(tensor_map=m, smem=smem) for m, smem in names)
    acquire = tuple(AcquireMap(tensor_map=m) for m, _ in names)
    opening = If(
        when="new_group", body=(*edits, Sync(of="warp"), *publish, Sync(of="warp"), *acquire)
    )

    def visit(s: Stmt) -> Stmt:
        match s:
            case TileBody():
                return replace(s, setup=(opening, *s.setup), main=(_alone(*s.main),))
            case Drain():
                return _alone(s)
            case If(when="leader"):
                return If(when="first_warp", body=(*copies, Sync(of="warp"), *s.body))
        return s

    return replace(role, body=map_body(role.body, visit))


def _alone(*body: Stmt) -> If:
    return If(when="leader", body=body)
