"""What the statements by which GPUs add their sums up, or wait for each other's rows, mean: see meaning.

The memory of the rank that stores a tile, in words of 32 bits: of each other rank, from the next one on, flags of 64 bits; then
buffers, which epochs take in turns, each of the slots of each other rank's tiles; then the rank's own: 64 bits, the epoch of its launch
before, and 32, CTAs of the running one.
"""

from __future__ import annotations

from collections.abc import Callable

from ..ir import nodes as ir
from ..ir.arrivals import ARRIVALS
from ..ir.dtypes import BF16, F16, DType
from ..ir.exchange import PARTIALS
from .parts import UNROLL, count

OWNER = f"{PARTIALS}[tile.owner]"


def flag(k: ir.Kernel, place: str, owner: str = OWNER, number: str = "tile.slot") -> str:
    """A warp's own of the tile, where those of the rank `place` begin."""
    warp = f"{number} * {k.peers.flags} + 4 * warpgroup + warp"
    return f"{owner} + 2 * ({place} * (long long)flag_stride + ({warp}))"


# The two sums of a word, in FP32.
HALVES = {
    BF16: ("__uint_as_float({0} << 16)", "__uint_as_float({0} & 0xFFFF0000)"),
    F16: ('"cvt.f32.f16"($f, uint16_t({0}))', '"cvt.f32.f16"($f, uint16_t({0} >> 16))'),
}


def slot(k: ir.Kernel, wave: int, acc: str, place: str, owner: str = OWNER) -> tuple[str, int, str]:
    """Where this thread's words of the wave begin, how many there are, and of what type. A thread has 16 bytes beside those of
    the next; of what is left at the end of an odd number of them, 8."""
    n = count(k, acc)
    (of,) = (r.dtype.ptx for role in k.roles for r in role.locals if r.name == acc)
    if k.peers.wire:
        n, of = n // 2, "b32"
    turn = f"int(epoch % {k.peers.buffers}) * slots_stride"
    buffer = f"2 * (ranks - 1) * (long long)flag_stride + {turn}"
    tile = f"({place} * (long long)tile.slots + tile.slot) * {k.peers.slot}"
    mine = f"({wave * k.consumers} + warpgroup) * {128 * n}"
    return f"{owner} + ({buffer}) + {tile} + {mine}", n, of


def pieces(n: int) -> tuple[tuple[int, int, int], ...]:
    """Loops over n words: first, end, and words that a thread accesses at once."""
    return (0, n // 4 * 4, 4), (n // 4 * 4, n, 2)


def looped(n: int, body: Callable[[int, str], str]) -> str:
    """Over n words: `body` of how many at once, and where they are."""
    return "".join(
        f"{UNROLL}for (int i = {first}; i < {end}; i += {step})"
        f" {{ {body(step, f'threadIdx.x % 128 * {step} + 128 * i')} }}"
        for first, end, step in pieces(n)
    )


def sent(wire: DType | None, acc: str, j: int) -> str:
    """Word i + j of the registers."""
    if wire is None:
        return f"{acc}[i + {j}]"
    return f"ptx::pair_{wire.ptx}({acc}[2 * (i + {j})], {acc}[2 * (i + {j}) + 1])"


def added(wire: DType | None, acc: str, of: str, j: int) -> str:
    """Word i + j, the j-th that was read, to the registers."""
    if wire is None:
        return f"{acc}[i + {j}] += {'int' if of == 's32' else 'float'}($nth(x, {j}));"
    word = f"uint32_t($nth(x, {j}))"
    return " ".join(
        f"{acc}[2 * (i + {j}) + {half}] += float({value.format(word)});"
        for half, value in enumerate(HALVES[wire])
    )


def own(k: ir.Kernel) -> str:
    """Behind the flags and the buffers."""
    flags = "2 * (ranks - 1) * (long long)flag_stride"
    return f"{PARTIALS}[rank] + ({flags} + {k.peers.buffers} * slots_stride)"


def read_epoch(k: ir.Kernel, s: ir.Epoch) -> str:
    """A name from here on."""
    return f'const uint64_t epoch = uint64_t("ld.global.u64"($l, [{own(k)}])) + 1;'


def pass_epoch(k: ir.Kernel, s: ir.Epoch) -> str:
    count = f'"atom.acq_rel.gpu.global.inc.u32"($r, [{own(k)} + 2], gridDim.x - 1)'
    return f'if (uint32_t({count}) == gridDim.x - 1) "st.global.u64"([{own(k)}], epoch);'


def send_to_rank(k: ir.Kernel, s: ir.SendPartials) -> str:
    return stored(k, s, slot(k, s.wave, s.src, "tile.place"))


def stored(k: ir.Kernel, s: ir.SendPartials, into: tuple[str, int, str]) -> str:
    at, n, of = into

    def stores(step: int, mine: str) -> str:
        data = ", ".join(sent(k.peers.wire, s.src, j) for j in range(step))
        return f'"st.global.v{step}.{of}"([{at} + {mine}], {{{data}}});'

    return looped(n, stores)


def note_flag(k: ir.Kernel, s: ir.Signal) -> str:
    """0: none is noted."""
    return f"{s.owed}[0] = tile.place + 1; {s.owed}[1] = tile.slot;"


def raise_flag(k: ir.Kernel, s: ir.Signal) -> str:
    owner = f"{PARTIALS}[(rank + ranks - {s.owed}[0]) % ranks]"
    at = flag(k, f"({s.owed}[0] - 1)", owner, f"{s.owed}[1]")
    reached = f'"st.release.sys.global.u64"([{at}], epoch);'
    return f'"bar.warp.sync"(0xFFFFFFFF); if (lane == 0) {reached} {s.owed}[0] = 0;'


def await_sums(k: ir.Kernel, s: ir.AwaitSignals) -> str:
    return _await_of_others(s, flag(k, "other"))


def _await_of_others(s: ir.AwaitSignals, at: str) -> str:
    """One lane for each of them."""
    seen = f'while (uint64_t("ld.acquire.sys.global.u64"($l, [{at}])) < epoch) {{}}'
    if s.watch:
        whose = "(tile.owner + 1 + other) % ranks"
        told = f"{s.watch.role}, {s.watch.barrier}, {whose}, -1, tile.d_row, tile.d_col, -1"
        seen = f"watchdog_wait_epoch(watchdog, {at}, epoch, {{int(blockIdx.x), {told}}});"
    return (
        f"for (int other = lane; other < ranks - 1; other += 32) {{ {seen} }}"
        ' "bar.warp.sync"(0xFFFFFFFF);'
    )


def parcel(place: str, owner: str = OWNER, number: str = "tile.slot") -> str:
    """The flag of the one that the tile is in: of the rank `place` the last 64 are parcels', and counts of warps."""
    first = f"({place} + 1) * (long long)flag_stride - 64"
    return f"{owner} + 2 * ({first} + {number} / parcel_tiles)"


def count_in_parcel(k: ir.Kernel, s: ir.Signal) -> str:
    """Of warps of its tiles; the last parcel has fewer."""
    owner, tile = f"{PARTIALS}[(rank + ranks - {s.owed}[0]) % ranks]", f"{s.owed}[1]"
    at = parcel(f"({s.owed}[0] - 1)", owner, tile)
    tiles = f"min(parcel_tiles, rank_tiles - {tile} / parcel_tiles * parcel_tiles)"
    count = f'"atom.acq_rel.gpu.global.inc.u32"($r, [{at} + {2 * k.peers.parcels}], last)'
    return (
        f'"bar.warp.sync"(0xFFFFFFFF); const uint32_t last = {tiles} * {k.peers.flags} - 1;'
        f" if (lane == 0 && uint32_t({count}) == last)"
        f' "st.release.sys.global.u64"([{at}], epoch); {s.owed}[0] = 0;'
    )


def await_parcels(k: ir.Kernel, s: ir.AwaitSignals) -> str:
    return _await_of_others(s, parcel("other"))


def add_of_ranks(k: ir.Kernel, s: ir.AddPartials) -> str:
    over = f"\n#pragma unroll {s.unroll}\nfor (int other = 0; other < ranks - 1; ++other)"
    return f"{over} {{ {summed(k, s, slot(k, s.wave, s.dst, 'other'))} }}"


def summed(k: ir.Kernel, s: ir.AddPartials, of_rank: tuple[str, int, str]) -> str:
    at, n, of = of_rank

    def adds(step: int, mine: str) -> str:
        outs = ", ".join(["$f" if of == "f32" else "$r"] * step)
        read = f'const auto x = "ld.global.v{step}.{of}"({{{outs}}}, [{at} + {mine}]);'
        return " ".join((read, *(added(k.peers.wire, s.dst, of, j) for j in range(step))))

    return looped(n, adds)


def await_rows(k: ir.Kernel, s: ir.AwaitSignals) -> str:
    """The flags of the rank behind this one come first; of each there are as many."""
    at = f"{ARRIVALS} + tile.flag"
    seen = f'while (uint64_t("ld.acquire.sys.global.u64"($l, [{at}])) < epoch) {{}}'
    if s.watch:
        chunk = f"tile.flag % {k.arrivals.chunks}"
        told = f"{s.watch.role}, {s.watch.barrier}, tile.group, {chunk}, tile.d_row, tile.d_col, -1"
        seen = f"watchdog_wait_epoch(watchdog, {at}, epoch, {{int(blockIdx.x), {told}}});"
    return f"{seen} {s.seen}[0] = tile.flag + 1;"
