"""What the statements by which CTAs divide K mean, and those that note times: see meaning."""

from __future__ import annotations

from ..ir import nodes as ir
from .meaning_waits import Meaning
from .parts import UNROLL, count, index

SEND = "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.{}"


def take_share(k: ir.Kernel, s: ir.TakeShare) -> str:
    each = "(tile.k_blocks + CLUSTER_K - 1) / CLUSTER_K"
    first = f"min(cta_rank * ({each}), tile.k_blocks)"
    left = f"min({each}, tile.k_blocks - {first})"
    return f"tile.k_first = {first} * BLOCK_K; tile.k_blocks = $opaque({left});"


def slot(k: ir.Kernel, smem: str, wave: int, acc: str, rank: str) -> tuple[str, str]:
    """This thread's 16 bytes of register 0 in the slot of `rank`, and what is sent of `acc`: how many."""
    n, size = count(k, acc), k.buffer(smem).stage_bytes
    mine = f"({wave * k.consumers} + warpgroup) * {16 * 128 * (n // 4)} + threadIdx.x % 128 * 16"
    return f"{smem} + ({rank} - 1) * {size} + {mine}", str(n)


def send_partials(k: ir.Kernel, s: ir.SendPartials) -> str:
    place, n = slot(k, s.smem, s.wave, s.src, "cta_rank")
    (of,) = (r.dtype.ptx for role in k.roles for r in role.locals if r.name == s.src)
    sent = ", ".join(f"{s.src}[i + {j}]" for j in range(4))
    send = f'"{SEND.format(of)}"([slot + 512 * i], {{{sent}}}, [bar]);'
    return (
        f'const uint32_t slot = "mapa.shared::cluster.u32"($r, {place}, 0),'
        f' bar = "mapa.shared::cluster.u32"($r, {s.barrier}, 0);'
        f"{UNROLL}for (int i = 0; i < {n}; i += 4) {send}"
    )


def add_partials(k: ir.Kernel, s: ir.AddPartials) -> str:
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


def open_stamps(k: ir.Kernel, s: ir.OpenStamps) -> str:
    return f"Stamps stamps(stamp_rings, {index(k)});"


def stamp(k: ir.Kernel, s: ir.Stamp) -> str:
    at = {"role": "-1, -1", "tile": "stamps.tile, -1", "block": "stamps.tile, k"}[s.place]
    return f"stamps.add({s.event}, {at});"


EXCHANGE: dict[type[ir.Stmt], Meaning] = {
    ir.TakeShare: take_share,
    ir.SendPartials: send_partials,
    ir.AddPartials: add_partials,
    ir.OpenStamps: open_stamps,
    ir.StampTile: lambda k, s: "++stamps.tile;",
    ir.Stamp: stamp,
    ir.CloseStamps: lambda k, s: "stamps.close();",
}
