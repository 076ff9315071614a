"""Row 97: consumer warpgroups that take tiles in turns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from gemmgen.ir import nodes as ir

from .mutant import Change, edit
from .rows_protocol import add, drop, row, visit

TURNS, THREE = "dense-ping-pong", "dense-ping-pong-three"
NEXT = "(worker + 1) % 2"
PARITY = "turn[0] ^ (worker == 0)"
STAGE = "ring.stage = (ring.stage + tile.k_blocks) % STAGES;"
PHASE = "ring.phase ^= (ring.stage + tile.k_blocks) / STAGES & 1;"


def passed(put: Callable[[ir.ForTiles, ir.Arrive], ir.ForTiles]) -> Change:
    """The turn passed elsewhere: `put` says where in the tile."""

    def change(s: ir.ForTiles) -> ir.ForTiles:
        (gone,) = (x for x in s.body if isinstance(x, ir.Arrive) and x.to == "next")
        return put(replace(s, body=tuple(x for x in s.body if x is not gone)), gone)

    return visit(ir.ForTiles, change, of="turn")


def at_once(s: ir.ForTiles, gone: ir.Arrive) -> ir.ForTiles:
    at = next(i for i, x in enumerate(s.body) if isinstance(x, ir.Wait) and x.per == "turn") + 1
    return replace(s, body=(*s.body[:at], gone, *s.body[at:]))


def late_wait(s: ir.ForTiles) -> ir.ForTiles:
    """The wait after the tile's products, right before its turn is passed on."""
    (wait,) = (x for x in s.body if isinstance(x, ir.Wait) and x.per == "turn")
    body = tuple(x for x in s.body if x is not wait)
    at = next(i for i, x in enumerate(body) if isinstance(x, ir.Arrive) and x.to == "next")
    return replace(s, body=(*body[:at], wait, *body[at:]))


def shared(k: ir.Kernel) -> ir.Kernel:
    """One copy of D."""
    return replace(k, smem=tuple(replace(s, copies=1) for s in k.smem))


ROWS = (
    row("97", TURNS, "nobody waits for a turn", "P", ir=visit(ir.Wait, drop, per="turn")),
    row("97b", TURNS, "the parity of turns never changes", "P", ir=visit(ir.NextTurn, drop)),
    row("97c", TURNS, "no turn is passed on", "P", ir=visit(ir.Arrive, drop, to="next")),
    row("97d", TURNS, "a turn is passed on before the tile is multiplied", "P", ir=passed(at_once)),
    row("97e", TURNS, "both stage their tiles in one place", "P", ir=shared),
    row("97f", TURNS, "both multiply every tile", "P", ir=visit(ir.ForTiles, lambda s: replace(s, of="cta"), of="turn")),
    row("97g", TURNS, "a turn is waited for after the products", "P", ir=visit(ir.ForTiles, late_wait, of="turn")),
    row("97h", TURNS, "one warp passes the turn on for four", "P",
        ir=visit(ir.Arrive, lambda s: ir.If(when="first_warp", body=(s,)), to="next")),
    row("97i", TURNS, "a stage is freed by both", "P", ir=visit(ir.InitBarrier, add("arrivals", 4), barrier="empty")),
    row("97j", THREE, "of three, nobody waits for a turn", "P", ir=visit(ir.Wait, drop, per="turn")),
    row("97k", THREE, "of three, the turn is passed on twice", "P", ir=visit(ir.Arrive, lambda s: (s, s), to="next")),
    row("97l", TURNS, "the first turn is waited for", "E", text=edit((PARITY, "turn[0]"))),
    row("97m", TURNS, "the first turn of each comes unasked", "E", text=edit((PARITY, "turn[0] ^ 1"))),
    row("97n", TURNS, "each passes the turn to itself", "E", text=edit((NEXT, "(worker + 0) % 2"))),
    row("97o", THREE, "of three, two pass turns to each other", "E", text=edit(("(worker + 1) % 3", "(worker + 1) % 2"))),
    row("97p", TURNS, "the ring does not pass over the other's stages", "E", text=edit((STAGE, ""))),
    row("97q", TURNS, "the ring does not pass over the other's phases", "E", text=edit((PHASE, ""))),
    row("97r", TURNS, "the phase is counted from the stage after", "E", text=edit((PHASE, ""), (STAGE, f"{STAGE} {PHASE}"))),
    row("97s", TURNS, "both begin with the first tile", "E", text=edit(("int others = worker", "int others = 0"))),
    row("97t", TURNS, "each takes every third tile", "E", text=edit(("others = 2;", "others = 3;"))),
    row("97u", TURNS, "both stage their tiles in one place, in the text", "E", text=edit((" + worker * 2 * Shared::D_STAGE_BYTES", ""))),
    row("97v", TURNS, "both meet at one named barrier", "E", text=edit(("named_barrier_sync<2, 128>", "named_barrier_sync<1, 128>"), count=0)),
    row("97w", TURNS, "nobody waits for a turn, in the text", "E", text=edit(("ptx::mbarrier_wait(turns", "(void)(turns"), ("worker, turn[0]", "worker + turn[0]"))),
    row("97x", TURNS, "a lane more passes the turn on", "E",
        text=edit(("if (lane == 0) ptx::mbarrier_arrive(turns", "if (lane < 2) ptx::mbarrier_arrive(turns"))),
)  # fmt: skip
