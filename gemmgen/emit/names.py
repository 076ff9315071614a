"""What templates may name: a kernel's tables, and how the parts of its statements are spelled."""

from __future__ import annotations

from typing import Any

from ..ir import orders
from ..ir.nodes import (
    Arrive,
    ArriveCluster,
    Coord,
    InitBarrier,
    Kernel,
    Mma,
    StageTile,
    StoreTail,
    StoreWait,
    Wait,
    WaitForTurn,
    WaitTurn,
)
from ..ir.places import end, first, held, piece, shift
from ..ir.promotion import LANES
from ..ir.reasons import REASONS
from ..ir.spelling import epilogue_value, folded, of_group
from ..ir.stores import E4M3_MAX, LEAST_AMAX, slot

RANKS = {2: "", 3: "_3d"}  # what a PTX function's name ends in, by its number of coordinates

VERBS, ASSIGNS = {False: "store", True: "add"}, {False: "=", True: "+="}

# Of 128 of K, a lane's. A group without any, after all others, has none of its own to read.
K_BLOCKS = {
    "first": "min(lane, tile.k_blocks - 1)",
    "next": f"min(chunk + {LANES} + lane, tile.k_blocks - 1)",
    "first of group": "min(tile.k_first / 128 + lane, (shape_k - 1) / 128)",
    "next of group": f"min(tile.k_first / 128 + chunk + {LANES} + lane, (shape_k - 1) / 128)",
}

# The K blocks of a ForK.
SPANS = {
    "tile": {"first": "0", "end": "tile.k_blocks"},
    "chunk": {"first": "chunk", "end": "chunk_end"},
}

# What a warpgroup is called by its number in the CTA: where each has a tile of its own, it shares it with none.
INDEX = {False: "warpgroup", True: "worker"}
ALONE = "constexpr int warpgroup = 0;  // of those that share a tile: each worker has its own"

# How shared memory's address is had.
ADDRESS = {False: "shared_address", True: "kept_shared_address"}

# A stamp's tile and K block, by where it stands; -1 outside of them.
NUMBERS = {"role": "-1, -1", "tile": "stamps.tile, -1", "block": "stamps.tile, k"}


def vocabulary(kernel: Kernel) -> dict[str, Any]:
    """What templates may name: the kernel's tables, and how the parts of a statement are spelled."""
    return {
        "kernel": kernel,
        "instr": kernel.instr,
        "maps": {m.name: m for m in kernel.maps},
        "smem": {s.name: s for s in kernel.smem},
        "registers": {r.name: r for role in kernel.roles for r in role.locals},
        "coord": coordinate,
        "coords": lambda coords: ", ".join(map(coordinate, coords)),
        "more": lambda coords: "".join(f", {coordinate(c)}" for c in coords[2:]),
        "rank": lambda s: RANKS[len(s.coords)],
        **{f.__name__: f for f in (phase, parity, turn_parity, stage, scale_d)},
        **{f.__name__: f for f in (wait_kind, plus, slot)},
        "first": lambda s: first(kernel, s),
        "held": lambda s: held(kernel, s),
        "of_group": lambda tensor: of_group(kernel, tensor),
        "e4m3_max": E4M3_MAX,
        "least_amax": LEAST_AMAX,
        "d_columns": folded(kernel, "shape_n"),
        "d_col": folded(kernel, "col"),
        "piece": lambda s: piece(kernel, s),
        "shift": lambda s: shift(kernel, s),
        "end": lambda s: end(kernel, s),
        "end_of_rows": "tile.d_end" if kernel.groups.ragged else "shape_m",
        "map_at": lambda name: map_at(kernel, name),
        "stages": lambda s: stages(kernel, s),
        "cluster_k": f", CLUSTER_K = {kernel.cluster.k}" * (kernel.cluster.k > 1),
        "ctas": "CLUSTER_M * CLUSTER_N" + " * CLUSTER_K" * (kernel.cluster.k > 1),
        "low": lambda bits: bits & 0xFFFFFFFF,
        "high": lambda bits: hex(bits >> 32),
        "chunk_mask": lambda s: _chunk_mask(kernel, s),
        "epilogue_value": lambda s: epilogue_value(kernel, s),
        "verb": lambda s: VERBS[s.add],
        "assign": lambda s: ASSIGNS[s.add],
        "k_block": lambda s: K_BLOCKS[s.block],
        "span": lambda s: SPANS[s.of],
        "numbers": lambda s: NUMBERS[s.place],
        "reason": REASONS,
        "order": orders.comment(kernel.scheduler),
        "placed": lambda index: orders.device(kernel.scheduler, index),
        "index": INDEX[kernel.consumer.turns > 1],
        "turns": kernel.consumer.turns,
    }


def coordinate(c: Coord) -> str:
    text = c.base if c.scale == 1 else f"{c.base} * {c.scale}"
    text = f"{c.start} + {text}" if c.start else text
    text += f" + {c.offset}" if c.offset else ""
    return text + (f" + cta_rank * {c.rank_step}" if c.rank_step else "")


def plus(number: int) -> str:
    """What adds `number`: nothing for 0."""
    return f" + {number}" if number else ""


def phase(s: Wait) -> str:
    return ("ring.phase", "ring.phase ^ 1")[s.flip]


def parity(s: WaitTurn) -> str:
    return f"{s.turn}[0]" + ("", " ^ 1")[s.flip]


def turn_parity(s: WaitForTurn) -> str:
    """The first worker's first turn is there; afterwards it waits for what the last passed before."""
    return f"{s.turn}[0] ^ ({INDEX[True]} == 0)"


def stages(kernel: Kernel, s: InitBarrier) -> str:
    """How many mbarriers `s` initialises."""
    (barrier,) = (b for b in kernel.barriers if b.name == s.barrier)
    return {"stage": "STAGES", "tile": "1", "turn": f"{barrier.stages}"}[barrier.per]


def stage(s: Arrive | ArriveCluster) -> str:
    return ("ring.stage", "ring.previous()")[s.lag]


def scale_d(s: Mma, step: int) -> str:
    """The scale-d operand of step `step`: 0 overwrites the accumulator."""
    first = {"block": "0", "tile": "k != 0", "never": "1"}[s.fresh]
    return "1" if step else first


def map_at(kernel: Kernel, name: str) -> str:
    """The address of a tensor map: a kernel parameter, or this CTA's own for the tile's group."""
    derived = [m.name for m in kernel.maps if m.derived]
    if name not in derived:
        return f"&{name}"
    return f"group_maps + tile.slot * {len(derived)} + {derived.index(name)}"


def wait_kind(s: StoreWait) -> str:
    return "read" if s.reads else "all"


def _chunk_mask(kernel: Kernel, s: StageTile | StoreTail) -> int:
    """Which address bits a buffer's swizzle mixes: its span in 16-byte chunks, less one."""
    swizzle = kernel.buffer(s.smem).swizzle or 0
    return swizzle // 16 - 1 if swizzle else 0
