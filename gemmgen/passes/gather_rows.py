"""Where other ranks send their rows of A while the launch runs, let the producer wait for those that it loads."""

from __future__ import annotations

from dataclasses import replace

from ..errors import IllegalConfig, Rule
from ..ir.arrivals import ARRIVALS, SEEN, Arrivals
from ..ir.collectives import ALL_GATHER, COLLECTIVES, MOST_CHUNKS
from ..ir.dtypes import S32
from ..ir.nodes import (
    AwaitSignals,
    Fence,
    If,
    Kernel,
    LoadBlockScales,
    Param,
    Registers,
    Role,
    Stmt,
    TileBody,
    Zero,
)
from ..ir.promotion import OF_A
from ..ir.rewrite import map_body, map_role, statements
from ..target import Target

GATHER_ALONE = Rule(
    id="gather-alone",
    says="all_gather needs CTAs that sum all of a tile's K: split_k 1",
    because="The scheduler says of a tile which flag its rows have, and of no share of its K.",
)
GATHER_PRODUCER = Rule(
    id="gather-producer",
    says="all_gather needs a producer that loads A and its scales: lane_scales and direct false",
    because="It waits for other ranks' rows, and orders its loads, which go through the async proxy, after that. Lanes that read global "
    "memory themselves would not, and may read lines that the SM has cached before.",
)
RULES = (GATHER_ALONE, GATHER_PRODUCER)
SCHEDULER = COLLECTIVES[ALL_GATHER].scheduler


def gather_rows(kernel: Kernel, target: Target) -> Kernel:
    """Of a kernel whose A is of all ranks' rows: before the producer loads any of a tile, let it wait for the chunk that the
    tile's last row is in, once for each, and order its loads after that. Sets Kernel.arrivals; inserts the wait, the fence, the
    register that says what was seen, and the parameters that lead to the flags."""
    if kernel.scheduler.name != SCHEDULER:
        return kernel
    _check(kernel)
    tensors = tuple(m.tensor for m in kernel.maps if m.grouped and m.tensor != "d")
    kernel = replace(
        kernel,
        arrivals=Arrivals(tensors=tensors, chunks=MOST_CHUNKS),
        params=(
            *kernel.params,
            Param(name=ARRIVALS, ctype="const uint64_t*"),
            Param(name="epoch", ctype="uint64_t"),
        ),
    )
    return map_role(kernel, "producer", _waiting)


def _check(kernel: Kernel) -> None:
    if kernel.cluster.k > 1:
        raise IllegalConfig(GATHER_ALONE, {"split_k": kernel.cluster.k}, "Use split_k=1.")
    lanes = any(isinstance(s, LoadBlockScales) and s.of in OF_A for s in statements(kernel))
    direct = all(r.name != "producer" for r in kernel.roles)
    if lanes or direct:
        values = {"lane_scales": lanes, "direct": direct}
        raise IllegalConfig(GATHER_PRODUCER, values, "Use lane_scales=false and direct=false.")


def _waiting(role: Role) -> Role:
    wait = If(
        when="awaited", ahead=SEEN, body=(AwaitSignals(of="rows", seen=SEEN), Fence(of="arrivals"))
    )

    def visit(s: Stmt) -> Stmt:
        return replace(s, setup=(wait, *s.setup)) if isinstance(s, TileBody) else s

    seen = Registers(name=SEEN, dtype=S32, count=1)
    body = (Zero(dst=SEEN), *map_body(role.body, visit))
    return replace(role, locals=(*role.locals, seen), body=body)
