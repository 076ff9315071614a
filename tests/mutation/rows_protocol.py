"""Rows 1 to 35: the pipeline's protocol."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import check_museum as museum
from check_museum import wait_flipped, without

from gemmgen.ir import nodes as ir
from gemmgen.ir.rewrite import map_role, map_stmts, statements
from gemmgen.ir.syncs import is_sync

from .mutant import Change, Mutant, edit

BASE = "fp8_block/base"
SHARED_A = "fp8_block/two_wave_multicast_a"
SHARED_B = "fp8_block/n192_multicast_b"
DENSE = "dense/n256"
IN_FLIGHT = "dense/two_wave_in_flight"
PADDED = "dense/padded_d"
PRODUCER, CONSUMER = "// producer", "// consumer"
TILES = "for (Tile tile; scheduler.next(tile);) {"
K_LOOP = "for (int k = 0; k < tile.k_blocks; ++k, ring.advance())"

Visit = Callable[[Any], Any]


def visit(kind: type[ir.Stmt], change: Visit, role: str = "", **fields: object) -> Change:
    """Apply `change` to the statements of a kind (and role) whose fields have these values."""

    def fn(s: ir.Stmt) -> Any:
        return change(s) if museum.is_one(s, kind, fields) else s

    def whole(k: ir.Kernel) -> ir.Kernel:
        if not role:
            return map_stmts(k, fn)
        only = next(r for r in k.roles if r.name == role)
        done = map_stmts(replace(k, roles=(only,), prologue=()), fn).roles[0]
        return map_role(k, role, lambda _: done)

    return whole


def counted(change: Change) -> Change:
    """`change` of what is announced, with barriers that count the same: the IR is well formed, and the bytes are wrong."""

    def whole(k: ir.Kernel) -> ir.Kernel:
        made = change(k)
        said = {s.barrier: s.tx_bytes for s in statements(made) if isinstance(s, ir.ExpectTx)}
        barriers = (replace(b, tx_bytes=said.get(b.name, b.tx_bytes)) for b in made.barriers)
        return replace(made, barriers=tuple(barriers))

    return whole


def drop(_: ir.Stmt) -> tuple[()]:
    return ()


def twice(s: ir.Stmt) -> tuple[ir.Stmt, ...]:
    return s, s


def not_first(s: ir.Stmt) -> ir.Stmt:
    """Left out in the first K block of each tile only."""
    return ir.If(when="after_first", body=(s,))


def add(field: str, amount: int) -> Visit:
    return lambda s: replace(s, **{field: getattr(s, field) + amount})


def barrier_lower(name: str, amount: int) -> Change:
    return lambda k: replace(
        k,
        barriers=tuple(
            replace(b, offset=(b.offset or 0) - amount) if b.name == name else b for b in k.barriers
        ),
    )


def second_sync_dropped(k: ir.Kernel) -> ir.Kernel:
    def tile(s: ir.ForTiles) -> ir.Stmt:
        at = [i for i, x in enumerate(s.body) if is_sync(x, "warpgroup")]
        return replace(s, body=tuple(x for i, x in enumerate(s.body) if i not in at[1:2]))

    return visit(ir.ForTiles, tile, "consumer")(k)


def registers(role: str, count: int) -> Change:
    def change(k: ir.Kernel) -> ir.Kernel:
        k = visit(ir.SetRegisters, lambda s: replace(s, count=count), role)(k)
        return map_role(k, role, lambda r: replace(r, registers=count))

    return change


def row(id: str, kernel: str, says: str, expected: str, **change: Any) -> Mutant:
    return Mutant(id=id, kernel=kernel, says=says, expected=expected, **change)


ROWS = (
    row("1", BASE, "producer does not wait for empty", "P", ir=visit(ir.Wait, drop, "producer")),
    row("2", BASE, "consumer does not wait for full, ever", "P", ir=visit(ir.Wait, drop, "consumer")),
    row("2b", BASE, "consumer does not wait in one K block", "P", ir=visit(ir.Wait, not_first, "consumer")),
    row("3", BASE, "producer's parity flipped", "P", ir=wait_flipped("empty")),
    row("4", BASE, "consumer's parity flipped", "P", ir=wait_flipped("full")),
    row("5", BASE, "producer's phase restarts at each tile", "E",
        text=edit((TILES, TILES + " ring.phase = 0;"), after=PRODUCER)),
    row("5b", DENSE, "consumer's phase restarts at each tile", "E",
        text=edit((TILES, TILES + " ring.phase = 0;"), after=CONSUMER)),
    row("6", BASE, "producer's stage is one off in one tile", "E",
        text=edit((TILES, TILES + " if (tile.d_col != 0) ring.advance();"), after=PRODUCER)),
    row("7", BASE, "expect_tx without the bytes of A's scales", "P",
        ir=counted(museum.scales_unannounced)),
    row("8", BASE, "expect_tx + 16", "P",
        ir=counted(visit(ir.ExpectTx, add("tx_bytes", 16)))),
    row("9", BASE, "plain arrive instead of expect_tx", "P",
        ir=visit(ir.ExpectTx, lambda s: ir.Arrive(barrier=s.barrier))),
    row("10", BASE, "armed twice", "P", ir=visit(ir.ExpectTx, twice)),
    row("11", BASE, "TMA of A issued twice", "P", ir=visit(ir.TmaLoad, twice, tensor_map="map_a")),
    row("12", BASE, "TMA of B dropped in one K block", "P",
        ir=visit(ir.TmaLoad, not_first, tensor_map="map_b")),
    row("13", BASE, "TMA of B signals the next stage's barrier", "E",
        text=edit(("full + 8 * ring.stage, k * 128, tile.b_row", "full + 8 * ((ring.stage + 1) % STAGES), k * 128, tile.b_row"))),
    row("14", DENSE, "released before the wgmma wait", "P", ir=museum.early_release),
    row("15", BASE, "no wgmma wait", "P", ir=without(ir.WgmmaWait)),
    row("15b", DENSE, "no wgmma wait (dense)", "P", ir=without(ir.WgmmaWait)),
    row("16", DENSE, "one group in flight, but the current stage is released", "P",
        ir=museum.one_left_in_flight),
    row("16b", IN_FLIGHT, "the lagging release does not lag", "P",
        ir=visit(ir.Arrive, lambda s: replace(s, lag=0), to="cluster")),
    row("17", BASE, "one release dropped", "P", ir=visit(ir.Arrive, not_first)),
    row("18", BASE, "A's scales read after the release", "P", ir=museum.late_scales),
    row("19", SHARED_A, "empty counts this CTA's arrivals only", "P",
        ir=visit(ir.InitBarrier, lambda s: replace(s, arrivals=s.arrivals // 2), barrier="empty")),
    row("20", BASE, "empty count + 1", "P", ir=visit(ir.InitBarrier, add("arrivals", 1), barrier="empty")),
    row("21", SHARED_A, "released to this CTA only", "P",
        ir=visit(ir.Arrive, lambda s: replace(s, to="own"), to="cluster")),
    row("21b", SHARED_A, "released and counted in this CTA only", "P", ir=museum.local_release),
    row("22", SHARED_A, "released to the other CTA twice", "E",
        text=edit(("if (lane < 2) ptx::mbarrier_arrive_remote(empty + 8 * ring.stage, lane);",
                   "if (lane < 3) ptx::mbarrier_arrive_remote(empty + 8 * ring.stage, lane ? cta_rank ^ 1 : cta_rank);"))),
    row("22b", SHARED_A, "every release twice", "P", ir=visit(ir.Arrive, twice, to="cluster")),
    row("23", SHARED_A, "multicast to the other CTA only", "E",
        text=edit(("tile.a_row + cta_rank * 128, 3);", "tile.a_row + cta_rank * 128, 2 >> cta_rank);"))),
    row("23b", SHARED_A, "multicast mask 1", "P", ir=visit(ir.TmaLoad, lambda s: replace(s, mask=1), to="cluster")),
    row("24", SHARED_A, "only the leader CTA announces bytes (a multicast cannot name the leader's barrier alone)", "E",
        text=edit(("ptx::mbarrier_arrive_expect_tx(full + 8 * ring.stage, ",
                   "ptx::mbarrier_arrive_expect_tx(full + 8 * ring.stage, (1 - cta_rank) * "), after=PRODUCER)),
    row("25", SHARED_A, "no producer tail at exit", "P", ir=without(ir.Drain)),
    row("26", SHARED_A, "CTA sync instead of cluster sync", "P", ir=museum.cta_start),
    row("27", BASE, "no fence.mbarrier_init", "P", ir=without(ir.Fence, of="barriers")),
    row("28", BASE, "no proxy fence before the store", "P", ir=without(ir.Fence, of="async")),
    row("28b", PADDED, "no proxy fence before the row stores", "P", ir=without(ir.Fence, of="async")),
    row("29", BASE, "proxy fence after the barrier", "P", ir=museum.fence_after_sync),
    row("30a", BASE, "no first epilogue barrier", "P", ir=museum.first_sync_dropped),
    row("30b", BASE, "no second epilogue barrier", "P", ir=second_sync_dropped),
    row("31", BASE, "epilogue barrier counts 96 threads", "E",
        text=edit(("named_barrier_sync<1, 128>", "named_barrier_sync<1, 96>"), count=0)),
    row("31b", BASE, "epilogue barrier counts both warpgroups, one comes", "E",
        text=edit(("named_barrier_sync<1, 128>", "named_barrier_sync<1, 256>"), count=0)),
    row("32", BASE, "no wait for the tile before's store", "P", ir=visit(ir.StoreWait, drop, reads=True)),
    row("32b", PADDED, "no wait for the tile before's row stores", "P", ir=visit(ir.StoreWait, drop, reads=True)),
    row("33", BASE, "no drain at exit", "P", ir=visit(ir.StoreWait, drop, reads=False)),
    row("35a", BASE, "setmaxnreg over the pool", "P", ir=registers("consumer", 240)),
    row("35b", BASE, "tile stored twice", "P", ir=museum.stored_twice),
)  # fmt: skip

NOT_APPLICABLE = {
    "34": "no barrier for B's scales exists: they are read into registers, 32 K blocks at a time (docs/adr/0004)",
}
