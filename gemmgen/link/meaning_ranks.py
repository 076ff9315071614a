"""What the statements by which GPUs add their sums up, or wait for each other's rows, mean: see meaning.

The memory of the rank that stores a tile, in words of 32 bits: of each other rank, from the next one on, flags of 64 bits; then
buffers, which epochs take in turns, each of the slots of each other rank's tiles.
"""

from __future__ import annotations

from ..ir import nodes as ir
from ..ir.arrivals import ARRIVALS
from ..ir.exchange import PARTIALS
from .parts import UNROLL, count

OWNER = f"{PARTIALS}[tile.owner]"


def flag(k: ir.Kernel, place: str) -> str:
    """A warp's own of the tile, where those of the rank `place` begin."""
    warp = f"tile.slot * {k.peers.flags} + 4 * warpgroup + warp"
    return f"{OWNER} + 2 * ({place} * (long long)flag_stride + ({warp}))"


def slot(k: ir.Kernel, wave: int, acc: str, place: str) -> tuple[str, int, str]:
    """This thread's first register of the wave, how many there are, and of what type."""
    n = count(k, acc)
    (of,) = (r.dtype.ptx for role in k.roles for r in role.locals if r.name == acc)
    turn = f"int(epoch % {k.peers.buffers}) * slots_stride"
    buffer = f"2 * (ranks - 1) * (long long)flag_stride + {turn}"
    tile = f"({place} * (long long)tile.slots + tile.slot) * {k.peers.slot}"
    mine = f"({wave * k.consumers} + warpgroup) * {128 * n} + threadIdx.x % 128 * 4"
    return f"{OWNER} + ({buffer}) + {tile} + {mine}", n, of


def send_to_rank(k: ir.Kernel, s: ir.SendPartials) -> str:
    at, n, of = slot(k, s.wave, s.src, "tile.place")
    sent = ", ".join(f"{s.src}[i + {j}]" for j in range(4))
    store = f'"st.global.v4.{of}"([{at} + 128 * i], {{{sent}}});'
    return f"{UNROLL}for (int i = 0; i < {n}; i += 4) {store}"


def signal(k: ir.Kernel, s: ir.Signal) -> str:
    reached = f'"st.release.sys.global.u64"([{flag(k, "tile.place")}], epoch);'
    return f'"bar.warp.sync"(0xFFFFFFFF); if (lane == 0) {reached}'


def await_sums(k: ir.Kernel, s: ir.AwaitSignals) -> str:
    at = flag(k, "other")
    seen = f'while (uint64_t("ld.acquire.sys.global.u64"($l, [{at}])) < epoch) {{}}'
    if s.watch:
        whose = "(tile.owner + 1 + other) % ranks"
        told = f"{s.watch.role}, {s.watch.barrier}, {whose}, -1, tile.d_row, tile.d_col, -1"
        seen = f"watchdog_wait_epoch(watchdog, {at}, epoch, {{int(blockIdx.x), {told}}});"
    return (
        f"for (int other = lane; other < ranks - 1; other += 32) {{ {seen} }}"
        ' "bar.warp.sync"(0xFFFFFFFF);'
    )


def add_of_ranks(k: ir.Kernel, s: ir.AddPartials) -> str:
    at, n, of = slot(k, s.wave, s.dst, "other")
    out, kind = ("$r", "int") if of == "s32" else ("$f", "float")
    adds = " ".join(f"{s.dst}[i + {j}] += {kind}($nth(x, {j}));" for j in range(4))
    outs = ", ".join([out] * 4)
    read = f'const auto x = "ld.global.v4.{of}"({{{outs}}}, [{at} + 128 * i]);'
    return (
        f"\n#pragma unroll {s.unroll}\nfor (int other = 0; other < ranks - 1; ++other) {{"
        f"{UNROLL}for (int i = 0; i < {n}; i += 4) {{ {read} {adds} }} }}"
    )


def await_rows(k: ir.Kernel, s: ir.AwaitSignals) -> str:
    """The flags of the rank behind this one come first; of each there are as many."""
    at = f"{ARRIVALS} + tile.flag"
    seen = f'while (uint64_t("ld.acquire.sys.global.u64"($l, [{at}])) < epoch) {{}}'
    if s.watch:
        chunk = f"tile.flag % {k.arrivals.chunks}"
        told = f"{s.watch.role}, {s.watch.barrier}, tile.group, {chunk}, tile.d_row, tile.d_col, -1"
        seen = f"watchdog_wait_epoch(watchdog, {at}, epoch, {{int(blockIdx.x), {told}}});"
    return f"{seen} {s.seen}[0] = tile.flag + 1;"
