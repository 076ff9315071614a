"""What the statements by which CTAs divide K mean, and those that note times: see meaning."""

from __future__ import annotations

from ..ir import nodes as ir
from ..ir.exchange import PARTIALS
from .meaning_every_rank import add_of_all, send_to_all, tell_all
from .meaning_ranks import (
    add_of_ranks,
    await_parcels,
    await_rows,
    await_sums,
    count_in_parcel,
    note_flag,
    pass_epoch,
    raise_flag,
    read_epoch,
    send_to_rank,
)
from .meaning_waits import Meaning
from .parts import UNROLL, count, each_share, index

SEND = "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.{}"


def take_share(k: ir.Kernel, s: ir.TakeShare) -> str:
    if s.of != "cluster":
        return f"{s.dst}[0] {'+=' if s.of == 'next' else '='} {each_share(k)};"
    each = "(tile.k_blocks + CLUSTER_K - 1) / CLUSTER_K"
    first = f"min(cta_rank * ({each}), tile.k_blocks)"
    left = f"min({each}, tile.k_blocks - {first})"
    return f"tile.k_first = {first} * BLOCK_K; tile.k_blocks = $opaque({left});"


def slot(k: ir.Kernel, smem: str, wave: int, acc: str, rank: str) -> tuple[str, str]:
    """This thread's 16 bytes of register 0 in the slot of `rank`, and what is sent of `acc`: how many."""
    n, size = count(k, acc), k.buffer(smem).stage_bytes
    mine = f"({wave * k.consumers} + warpgroup) * {16 * 128 * (n // 4)} + threadIdx.x % 128 * 16"
    return f"{smem} + ({rank} - 1) * {size} + {mine}", str(n)


def send_to_cluster(k: ir.Kernel, s: ir.SendPartials) -> str:
    place, n = slot(k, s.smem, s.wave, s.src, "cta_rank")
    (of,) = (r.dtype.ptx for role in k.roles for r in role.locals if r.name == s.src)
    sent = ", ".join(f"{s.src}[i + {j}]" for j in range(4))
    send = f'"{SEND.format(of)}"([slot + 512 * i], {{{sent}}}, [bar]);'
    return (
        f'const uint32_t slot = "mapa.shared::cluster.u32"($r, {place}, 0),'
        f' bar = "mapa.shared::cluster.u32"($r, {s.barrier}, 0);'
        f"{UNROLL}for (int i = 0; i < {n}; i += 4) {send}"
    )


def add_of_cluster(k: ir.Kernel, s: ir.AddPartials) -> str:
    place, n = slot(k, s.smem, s.wave, s.dst, "rank")
    (of,) = (r.dtype.ptx for role in k.roles for r in role.locals if r.name == s.dst)
    out = "$r" if of == "s32" else "$f"
    adds = " ".join(
        f"{s.dst}[i + {j}] += {'int' if of == 's32' else 'float'}($nth(x, {j}));" for j in range(4)
    )
    read = (
        f'const auto x = "ld.shared.v4.{of}"({{{out}, {out}, {out}, {out}}}, [{place} + 512 * i]);'
    )
    return (
        "\n#pragma unroll 1\nfor (int rank = 1; rank < CLUSTER_K; ++rank) {"
        f"{UNROLL}for (int i = 0; i < {n}; i += 4) {{ {read} {adds} }} }}"
    )


def behind(k: ir.Kernel, slot: str, word: str) -> str:
    """So many words behind where the slot of a CTA begins."""
    return f"{PARTIALS} + ({slot}) * {k.workspace.words} + {word}"


def in_slot(k: ir.Kernel, s: ir.SendPartials | ir.AddPartials, acc: str) -> tuple[str, int, str]:
    """Words to this thread's first register, how many registers there are, and of what type."""
    n = count(k, acc)
    (of,) = (r.dtype.ptx for role in k.roles for r in role.locals if r.name == acc)
    first = f"({s.wave * k.consumers} + warpgroup) * {128 * n} + threadIdx.x % 128 * 4"
    return first, n, of


def flag(k: ir.Kernel, s: ir.SendPartials | ir.AddPartials, slot: str) -> str:
    """A warp's own: those of a wave's warps follow each other, behind all registers."""
    return behind(k, slot, f"{k.workspace.slot + 4 * s.wave * k.consumers} + threadIdx.x / 32")


def send_to_memory(k: ir.Kernel, s: ir.SendPartials) -> str:
    first, n, of = in_slot(k, s, s.src)
    sent = ", ".join(f"{s.src}[i + {j}]" for j in range(4))
    store = f'"st.global.v4.{of}"([{behind(k, "tile.slot", first)} + 128 * i], {{{sent}}});'
    up = f'"st.release.gpu.global.u32"([{flag(k, s, "tile.slot")}], 1);'
    each = f"{UNROLL}for (int i = 0; i < {n}; i += 4) {store}"
    return f'{each} "bar.warp.sync"(0xFFFFFFFF); if (lane == 0) {up}'


def add_of_memory(k: ir.Kernel, s: ir.AddPartials) -> str:
    first, n, of = in_slot(k, s, s.dst)
    out, kind = ("$r", "int") if of == "s32" else ("$f", "float")
    at = flag(k, s, "tile.slot + other")
    seen = f'while (uint32_t("ld.acquire.gpu.global.u32"($r, [{at}])) == 0) {{}}'
    if s.watch:
        told = (
            f"{s.watch.role}, {s.watch.barrier}, tile.slot + other, -1, tile.d_row, tile.d_col, -1"
        )
        seen = f"watchdog_wait_flag(watchdog, {at}, {{int(blockIdx.x), {told}}});"
    adds = " ".join(f"{s.dst}[i + {j}] += {kind}($nth(x, {j}));" for j in range(4))
    outs = ", ".join([out] * 4)
    place = f"{behind(k, 'tile.slot + other', first)} + 128 * i"
    read = f'const auto x = "ld.global.v4.{of}"({{{outs}}}, [{place}]);'
    return (
        f"for (int other = 1 + lane; other <= tile.others; other += 32) {{ {seen}"
        f' "st.global.u32"([{at}], 0); }} "bar.warp.sync"(0xFFFFFFFF);'
        f"\n#pragma unroll {s.unroll}\nfor (int other = 1; other <= tile.others; ++other) {{"
        f"{UNROLL}for (int i = 0; i < {n}; i += 4) {{ {read} {adds} }} }}"
    )


def of_worker(k: ir.Kernel, s: ir.SendPartials | ir.AddPartials, acc: str, at: str) -> str:
    """This thread's 16 bytes of registers i on in the `at`-th slot."""
    n, size = count(k, acc), k.buffer(s.smem).stage_bytes
    return f"{s.smem} + ({at}) * {size} + {512 * n * s.wave} + threadIdx.x % 128 * 16 + 512 * i"


def send_to_worker(k: ir.Kernel, s: ir.SendPartials) -> str:
    (acc,) = (r for role in k.roles for r in role.locals if r.name == s.src)
    sent = ", ".join(f"{s.src}[i + {j}]" for j in range(4))
    place = of_worker(k, s, s.src, "worker - 1")
    store = f'"st.shared.v4.{acc.dtype.ptx}"([{place}], {{{sent}}});'
    return f"{UNROLL}for (int i = 0; i < {acc.count}; i += 4) {store}"


def add_of_workers(k: ir.Kernel, s: ir.AddPartials) -> str:
    (acc,) = (r for role in k.roles for r in role.locals if r.name == s.dst)
    out, kind = ("$r", "int") if acc.dtype.ptx == "s32" else ("$f", "float")
    adds = " ".join(f"{s.dst}[i + {j}] += {kind}($nth(x, {j}));" for j in range(4))
    place, outs = of_worker(k, s, s.dst, "other"), ", ".join([out] * 4)
    read = f'const auto x = "ld.shared.v4.{acc.dtype.ptx}"({{{outs}}}, [{place}]);'
    return (
        f"\n#pragma unroll 1\nfor (int other = 0; other < {k.consumer.slices - 1}; ++other) {{"
        f"{UNROLL}for (int i = 0; i < {acc.count}; i += 4) {{ {read} {adds} }} }}"
    )


SENDS: dict[str, Meaning] = {
    "cta": send_to_worker,
    "cluster": send_to_cluster,
    "memory": send_to_memory,
    "ranks": send_to_rank,
    "every_rank": send_to_all,
}
ADDS: dict[str, Meaning] = {
    "cta": add_of_workers,
    "cluster": add_of_cluster,
    "memory": add_of_memory,
    "ranks": add_of_ranks,
    "every_rank": add_of_all,
}


SIGNALS: dict[str, Meaning] = {
    "noting": note_flag,
    "raising": raise_flag,
    "telling": tell_all,
    "counting": count_in_parcel,
}
EPOCHS: dict[str, Meaning] = {"reading": read_epoch, "passing": pass_epoch}
AWAITS: dict[str, Meaning] = {
    "sums": await_sums,
    "parcels": await_parcels,
    "rows": await_rows,
}


def open_stamps(k: ir.Kernel, s: ir.OpenStamps) -> str:
    return f"Stamps stamps(stamp_rings, {index(k)});"


def stamp(k: ir.Kernel, s: ir.Stamp) -> str:
    at = {"role": "-1, -1", "tile": "stamps.tile, -1", "block": "stamps.tile, k"}[s.place]
    return f"stamps.add({s.event}, {at});"


EXCHANGE: dict[type[ir.Stmt], Meaning] = {
    ir.TakeShare: take_share,
    ir.SendPartials: lambda k, s: SENDS[s.through](k, s),
    ir.AddPartials: lambda k, s: ADDS[s.through](k, s),
    ir.Signal: lambda k, s: SIGNALS[s.by](k, s),
    ir.Epoch: lambda k, s: EPOCHS[s.by](k, s),
    ir.AwaitSignals: lambda k, s: AWAITS[s.of](k, s),
    ir.OpenStamps: open_stamps,
    ir.StampTile: lambda k, s: "++stamps.tile;",
    ir.Stamp: stamp,
    ir.CloseStamps: lambda k, s: "stamps.close();",
}
