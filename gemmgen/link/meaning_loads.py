"""What tensor maps, loads and products mean: see meaning."""

from __future__ import annotations

from ..ir import nodes as ir
from .meaning_waits import Meaning, just
from .parts import UNROLL, coord, each_share, first_block

LOAD = "cp.async.bulk.tensor.{}d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
REPLACE = "tensormap.replace.tile.global_{}.shared::cta.b1024.b{}"
PUBLISH = "tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned"


def map_at(k: ir.Kernel, name: str) -> str:
    """A parameter's address, or the place of the tile's group among this CTA's."""
    derived = [m.name for m in k.maps if m.derived]
    if name not in derived:
        return f"&{name}"
    return f"group_maps + tile.slot * {len(derived)} + {derived.index(name)}"


def tma_load(k: ir.Kernel, s: ir.TmaLoad) -> str:
    to = f"{s.smem} + ring.stage * {k.buffer(s.smem).stage_bytes} + {s.offset}"
    opcode, mask = LOAD.format(len(s.coords)), ""
    if s.to == "cluster":
        to += f" + cta_rank * {s.rank_bytes}"
        opcode, mask = f"{opcode}.multicast::cluster", f", {s.mask}"
    box = f"[{map_at(k, s.tensor_map)}, {{{', '.join(map(coord, s.coords))}}}]"
    return f'"{opcode}"([{to}], {box}, [{s.barrier} + 8 * ring.stage]{mask});'


def low(smem: str, stage_bytes: int, way: str, bits: int) -> str:
    """A descriptor's low word; the rank of a CTA, in the bits above the address, goes."""
    return f"((({smem} + ring.stage * {stage_bytes} + {way}) & 0x3ffff) >> 4 | {bits & 0xFFFFFFFF})"


def mma(k: ir.Kernel, s: ir.Mma) -> str:
    way = f"{s.wave_bytes} + warpgroup * {s.warpgroup_bytes}"
    a = low(s.a, k.buffer(s.a).stage_bytes, way, s.a_bits or 0)
    b = low(s.b, k.buffer(s.b).stage_bytes, str(s.part_bytes), s.b_bits or 0)
    first = {"block": "0", "tile": f"k != {first_block(k)}", "never": "1"}[s.fresh]
    out = [f"const uint32_t a_low = {a}, b_low = {b};"]
    for i, (x, y) in enumerate(s.steps or ()):
        of_a = f'"mov.b64"($l, {{a_low + {x // 16}, {(s.a_bits or 0) >> 32}}})'
        of_b = f'"mov.b64"($l, {{b_low + {y // 16}, {(s.b_bits or 0) >> 32}}})'
        adds = f'"setp.ne.b32"($pred, {1 if i else first}, 0)'
        to = f"$all({s.dst}, {s.instr.num_regs})"
        out.append(f'"{s.instr.mnemonic}"({to}, {of_a}, {of_b}, {adds}{s.instr.immediates});')
    return " ".join(out)


def copy_map(k: ir.Kernel, s: ir.CopyMap) -> str:
    return f'"st.shared.u32"([{s.smem} + 4 * lane], reinterpret_cast<const uint32_t*>(&{s.tensor_map})[lane]);'


def replace_extent(k: ir.Kernel, s: ir.ReplaceExtent) -> str:
    return f'if (lane == 0) "{REPLACE.format("dim", 32)}"([{s.smem}], {s.dim}, {s.end});'


def replace_address(k: ir.Kernel, s: ir.ReplaceAddress) -> str:
    at = f"{s.tensor} + (long long)tile.k_first * {s.rows}"
    return f'if (lane == 0) "{REPLACE.format("address", 64)}"([{s.smem}], {at});'


def replace_stride(k: ir.Kernel, s: ir.ReplaceStride) -> str:
    of = f"(long long)(tile.k_end - tile.k_first) * {s.bytes}"
    return f'if (lane == 0) "{REPLACE.format("stride", 64)}"([{s.smem}], 0, {of});'


def acquire_map(k: ir.Kernel, s: ir.AcquireMap) -> str:
    return f'"fence.proxy.tensormap::generic.acquire.gpu"([{map_at(k, s.tensor_map)}], 128);'


def zero(k: ir.Kernel, s: ir.Zero) -> str:
    """Of a total -0, unless the last share has no K blocks."""
    (of,) = (r.dtype for role in k.roles for r in role.locals if r.name == s.dst)
    full = f"{each_share(k)} * {k.shares - 1} < tile.k_blocks"
    x = "0" if s.of == "array" or of.integer else f"{full} ? -0.0f : 0.0f"
    return f"{UNROLL}for (auto& r : {s.dst}) r = {x};"


LOADS: dict[type[ir.Stmt], Meaning] = {
    ir.PrefetchMap: lambda k, s: f'"prefetch.tensormap"([&{s.tensor_map}]);',
    ir.TmaLoad: tma_load,
    ir.Zero: zero,
    ir.WgmmaCommit: just("wgmma.commit_group.sync.aligned"),
    ir.WgmmaWait: lambda k, s: f'"wgmma.wait_group.sync.aligned"({s.pending});',
    ir.Mma: mma,
    ir.CopyMap: copy_map,
    ir.ReplaceExtent: replace_extent,
    ir.ReplaceAddress: replace_address,
    ir.ReplaceStride: replace_stride,
    ir.PublishMap: lambda k, s: f'"{PUBLISH}"([{map_at(k, s.tensor_map)}], [{s.smem}], 128);',
    ir.AcquireMap: acquire_map,
}
