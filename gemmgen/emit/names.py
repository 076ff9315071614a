"""What templates may name: a kernel's tables, and how the parts of its statements are spelled."""

from __future__ import annotations

from functools import partial
from typing import Any

from ..ir import orders, places
from ..ir.nodes import (
    Arrive,
    Barrier,
    ExpectTx,
    If,
    InitBarrier,
    Kernel,
    Mma,
    Smem,
    StoreWait,
    TmaStore,
    Wait,
)
from ..ir.places import end, first, flag, held, numbered, piece, plus, rows_of_d, shift, total
from ..ir.reasons import REASONS
from ..ir.spelling import READS, epilogue_value, of_group
from ..ir.stores import slot
from .coordinates import all_k, coordinate, depth
from .decoding import SPELLED as DECODED
from .descriptors import HIGH, LOW, descriptors, part, word
from .fragments import fragments, products, rows_of_a
from .indices import filled, minus, pieces, together
from .k_blocks import counting, first_block
from .mailboxes import mailboxes
from .numbers import Number, each, rounded_up
from .of_d import column_of_tail, numbers_of_d
from .wire import wire

RANKS = {2: "", 3: "_3d"}  # what a PTX function's name ends in, by its number of coordinates

VERBS, ASSIGNS = {False: "store", True: "add"}, {False: "=", True: "+="}

# What a warpgroup is called by its number in the CTA: where each has a tile of its own, or all its rows, it shares those with none.
INDEX = {False: "warpgroup", True: "worker"}
ALONE = {
    "turns": "constexpr int warpgroup = 0;  // of those that share a tile: each worker has its own",
    "slices": "constexpr int warpgroup = 0;  // of those that share out a tile's rows: each worker has all of them",
}

# How shared memory's address is had.
ADDRESS = {False: "shared_address", True: "kept_shared_address"}

# A stamp's tile and K block, by where it stands; -1 outside of them.
NUMBERS = {"role": "-1, -1", "tile": "stamps.tile, -1", "block": "stamps.tile, k"}


def vocabulary(kernel: Kernel) -> dict[str, Any]:
    """What templates may name: the kernel's tables, and how the parts of a statement are spelled."""
    known = descriptors(kernel)
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
        **{f.__name__: f for f in PLAIN},
        "place_of": lambda x: f"Shared::{part(x.name)}",
        "landing": lambda s: landing(kernel, s),
        "first": lambda s: first(kernel, s),
        "held": lambda s: held(kernel, s),
        "of_group": lambda tensor: of_group(kernel, tensor),
        **places.of_values(kernel.block.fold),
        "shift": lambda s: shift(kernel, s),
        "end_of_rows": end_of_rows(kernel),
        "rows_of_a": rows_of_a(kernel),
        "map_at": lambda name: map_at(kernel, name),
        "mbarriers": lambda s: mbarriers(kernel, s),
        "flag": lambda s, at: flag(kernel, s, at),
        "stages": lambda s: stages(kernel, s),
        "cluster_k": f", CLUSTER_K = {kernel.cluster.k}" * (kernel.cluster.k > 1),
        "ctas": "CLUSTER_M * CLUSTER_N" + " * CLUSTER_K" * (kernel.cluster.k > 1),
        "low": lambda operand, bits: word(known, operand, bits, LOW),
        "high": lambda operand, bits: word(known, operand, bits, HIGH),
        "of_columns": lambda s, i: of_columns(kernel.buffer(s.smem), i),
        "exchanged": lambda s, row="row": exchanged(kernel.buffer(s.smem), row),
        **{f"read_{of}": function for of, function in READS[kernel.pdl].items()},
        "epilogue_value": lambda s: epilogue_value(kernel, s),
        **numbers_of_d(kernel),
        "verb": lambda s: VERBS[s.add],
        "assign": lambda s: ASSIGNS[s.add],
        **counting(kernel),
        **{f.__name__: partial(f, kernel) for f in OF_KERNEL},
        **mailboxes(kernel),
        "reset": lambda s: f" {s.ahead}[0] = 0" * bool(s.ahead),
        "numbers": lambda s: NUMBERS[s.place],
        "reason": REASONS,
        "condition": lambda s: condition(kernel, s),
        "but": lambda s: " Unless the peek has seen that." * bool(s.seen),
        "unless": lambda s: f"if ({s.seen}[0] == 0) " * bool(s.seen),
        "watching": lambda s, plain, watched: watched if s.watch else plain,
        "all_k": all_k(kernel),
        "depth": depth(kernel),
        "order": orders.comment(kernel.scheduler),
        "placed": lambda index: orders.device(kernel.scheduler, index),
        "index": INDEX[kernel.consumer.numbered],
        "turns": kernel.consumer.turns,
        "slices": kernel.consumer.slices,
    }


def column_of_d(kernel: Kernel, s: TmaStore) -> str:
    """Where in D the product's column is that `s` stores from: after as many gaps as heads had their left columns before it."""
    column, heads = f"{coordinate(s.coords[0])}{shift(kernel, s)[0]}", s.coords[0].heads
    if not heads.mid:
        return column
    return f"{column} + ({column}{plus(heads.right)}) / {heads.side} * {heads.mid}"


def phase(s: Wait) -> str:
    return ("ring.phase", "ring.phase ^ 1")[s.flip]


def parity(s: Wait) -> str:
    return f"{s.turn}[0]" + ("", " ^ 1")[s.flip]


def turn_parity(s: Wait) -> str:
    """The first worker's first turn is there; afterwards it waits for what the last passed before."""
    return f"{s.turn}[0] ^ ({INDEX[True]} == 0)"


def mbarriers(kernel: Kernel, s: InitBarrier) -> int:
    """How many `s` initialises."""
    (barrier,) = (b for b in kernel.barriers if b.name == s.barrier)
    return {"stage": kernel.stages, "tile": 1, "turn": barrier.stages}[barrier.per]


def stages(kernel: Kernel, s: InitBarrier) -> str:
    """The same, by name if it has one."""
    (barrier,) = (b for b in kernel.barriers if b.name == s.barrier)
    return "STAGES" if barrier.per == "stage" else str(mbarriers(kernel, s))


def stage(kernel: Kernel, s: Arrive) -> str:
    before = {0: "ring.stage", 1: "ring.previous()"}
    return before.get(s.lag, f"ring.before({s.lag})")


def scale_d(kernel: Kernel, s: Mma, step: int) -> str:
    """The scale-d operand of step `step`: 0 overwrites the accumulator."""
    first = {"block": "0", "tile": f"k != {first_block(kernel)}", "never": "1"}[s.fresh]
    return "1" if step else first


OF_KERNEL = (
    column_of_tail,
    column_of_d,
    fragments,
    products,
    piece,
    wire,
    pieces,
    filled,
    stage,
    scale_d,
)

CONDITIONS = {
    "cta_leader": "threadIdx.x == 0",
    "leader": "threadIdx.x % 128 == 0",
    "first_warp": "warp == 0",
    "after_first": "k != {first}",
    "behind": "k >= {ahead}[0]",
    "new_share": "k == {ahead}[0]",
    "new_group": "tile.opens_group",
    "has_blocks": "tile.k_blocks != 0",
    "no_blocks": "tile.k_blocks == 0",
    "sends": "cta_rank != 0",
    "finishes": "cta_rank == 0",
    "inside": "tile.k_first != 0",
    "head": "tile.k_first == 0",
    "theirs": "tile.place >= 0",
    "ours": "tile.place < 0",
    "awaited": "tile.flag >= {ahead}[0]",
    "owes": "{ahead}[0] != 0",
    "begun": "{ahead}[0] > {more}",
    "first_slice": "worker == 0",
    "other_slice": "worker != 0",
    "idle": "worker >= tile.k_blocks",
    "whole": "{end} <= {rows}",
    "cut": "{end} > {rows}",
}


# The same of a warpgroup's own K blocks.
OF_SLICES = {"has_blocks": "worker < tile.k_blocks"}


def condition(kernel: Kernel, s: If) -> str:
    rows, of_block = end_of_rows(kernel), first_block(kernel)
    asks = {**CONDITIONS, **OF_SLICES} if kernel.consumer.slices > 1 else CONDITIONS
    return asks[s.when].format(
        end=end(kernel, s), rows=rows, ahead=s.ahead, more=s.more, first=of_block
    )


def end_of_rows(kernel: Kernel) -> str:
    """The row of D where the tile's group ends."""
    return "tile.d_end" if kernel.groups.ragged else rows_of_d(kernel)


def map_at(kernel: Kernel, name: str) -> str:
    """The address of a tensor map: a kernel parameter, or this CTA's own for the tile's group."""
    derived = [m.name for m in kernel.maps if m.derived]
    if name not in derived:
        return f"&{name}"
    return f"group_maps + tile.slot * {len(derived)}{plus(derived.index(name))}"


def wait_kind(s: StoreWait) -> str:
    return "read" if s.reads else "all"


def exchanged(b: Smem, row: str) -> str:
    """By which a row's number moves its chunks of 16 bytes: nothing where it does not."""
    mask = (b.swizzle or 0) // 16 - 1
    return f" ^ ({row} * {b.slab_bytes} >> 7 & {mask}) << 4" if mask > 0 else ""


def of_columns(b: Smem, i: Number) -> str:
    """What leads from a row's beginning to register i's columns, of which this lane's lie in chunk `lane_chunk`."""
    slab, inside = 2 * i // b.slab_cols * b.slab_stride, 2 * i % b.slab_cols * b.dtype.bytes
    return f"{plus(slab)} + ({inside} ^ lane_chunk)" if inside else f"{plus(slab)} + lane_chunk"


# ---- named numbers ---------------------------------------------------------------------------------


def stage_bytes(smem: str) -> str:
    return f"Shared::{part(smem)}_STAGE_BYTES"


def tx_name(b: Barrier) -> str:
    """full -> TX_BYTES, partials_full -> PARTIALS_TX_BYTES."""
    return "_".join(x for x in (b.name.removesuffix("full").strip("_").upper(), "TX_BYTES") if x)


def landing(kernel: Kernel, s: ExpectTx) -> str:
    """The bytes that `s` announces, by the name that their number has if it is its barrier's."""
    (barrier,) = (b for b in kernel.barriers if b.name == s.barrier)
    return f"Shared::{tx_name(barrier)}" if s.tx_bytes == barrier.tx_bytes else f"{s.tx_bytes}"


def shared(kernel: Kernel) -> list[str]:
    """The lines of the struct Shared: each part begins where the one before it ends."""
    lines, before, end = [], "", 0
    buffers = [(s.offset or 0, s) for s in kernel.smem]
    parts: list[tuple[int, Smem | Barrier]] = [
        *buffers,
        *((b.offset or 0, b) for b in kernel.barriers),
    ]
    for at, x in sorted(parts, key=lambda p: p[0]):
        begins = total(before, at - end) if before else str(at)
        lines.append(f"static constexpr int {part(x.name)} = {begins}{own(x)}")
        before, end = f"{part(x.name)} + {taken(x)}", at + size(x)
    return lines


def own(x: Smem | Barrier) -> str:
    """What else is said of a part, and of what."""
    if isinstance(x, Barrier):
        return f", {tx_name(x)} = {x.tx_bytes};" if x.tx_bytes else ";"
    name = f"{part(x.name)}_STAGE_BYTES"
    how = f", swizzled by {x.swizzle}" if x.swizzle else ""
    return f", {name} = {x.stage_bytes};  // {x.rows} x {x.cols} {x.dtype}{how}"


def taken(x: Smem | Barrier) -> str:
    """Its bytes, an expression."""
    if isinstance(x, Barrier):
        return f"8 * {'STAGES' if x.per == 'stage' else x.stages}"
    copies = f"{x.copies} * " if x.copies > 1 else ""
    return f"{copies}{'STAGES' if x.ring else x.stages} * {part(x.name)}_STAGE_BYTES"


def size(x: Smem | Barrier) -> int:
    return 8 * x.stages if isinstance(x, Barrier) else x.bytes


# Functions that templates call by their names.
PLAIN = (
    *DECODED,
    *(phase, parity, turn_parity, minus, stage_bytes),
    *(wait_kind, slot, plus, total, each, numbered, together, rounded_up),
)
