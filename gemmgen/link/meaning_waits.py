"""What blocks and the statements that synchronise mean: see meaning."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..ir import nodes as ir
from ..ir.places import end
from .parts import UNROLL, end_of_rows, index

Meaning = Callable[[ir.Kernel, Any], str]
TRY_WAIT, CLUSTER_WAIT = (
    f"mbarrier.try_wait.parity.{scope}shared::cta.b64" for scope in ("", "acquire.cluster.")
)
MARK = 'asm volatile("// K block %0" ::"n"(__LINE__));'
TEST_WAIT = "mbarrier.test_wait.parity.shared::cta.b64"
ARRIVE, ARRIVE_REMOTE = (f"mbarrier.arrive.shared::{space}.b64" for space in ("cta", "cluster"))
EXPECT = "mbarrier.arrive.expect_tx.shared::cta.b64"


def block(head: str) -> Meaning:
    return lambda k, s: f"{head} {{ BODY; }}"


def just(opcode: str) -> Meaning:
    return lambda k, s: f'"{opcode}"();'


# ---- blocks ----------------------------------------------------------------------------------------


def for_turns(k: ir.Kernel, s: ir.ForTiles) -> str:
    """Every tile, counted down from this worker's number: at 0 it is its own, and `turns` to the next."""
    return (
        "Tile tile; for (int others = worker; scheduler.next(tile); --others) {"
        " if (others > 0) {"
        "  ring.phase ^= (ring.stage + tile.k_blocks) / STAGES & 1;"
        "  ring.stage = (ring.stage + tile.k_blocks) % STAGES;"
        "  continue;"
        f" }} others = {k.consumer.turns}; BODY; }}"
    )


def for_tiles(k: ir.Kernel, s: ir.ForTiles) -> str:
    after = f"{s.ahead}[0] = 0" if s.ahead else ""
    return f"for (Tile tile; scheduler.next(tile); {after}) {{ BODY; }}"


def for_runs(k: ir.Kernel, s: ir.ForTiles) -> str:
    return "for (Tile tile; scheduler.begin(tile);) { BODY; }"


def for_run(k: ir.Kernel, s: ir.ForTiles) -> str:
    return "scheduler.broadcast(); while (scheduler.step(tile)) { BODY; }"


def for_first(k: ir.Kernel, s: ir.ForTiles) -> str:
    """One, of a scheduler and a ring of its own."""
    own = "Scheduler ahead_of = scheduler; Ring ring; Tile tile;"
    return f"{{ {own} if (ahead_of.next(tile)) {{ BODY; }} }}"


def for_chunks(k: ir.Kernel, s: ir.ForChunks) -> str:
    step = f"chunk += {s.blocks}"
    inside = f"const int chunk_end = min(chunk + {s.blocks}, tile.k_blocks); BODY;"
    return f"for (int chunk = 0; chunk < tile.k_blocks; {step}) {{ {inside} }}"


def for_k(k: ir.Kernel, s: ir.ForK) -> str:
    """With the mark by which a build finds the body's copies in PTX (runtime/trips.py)."""
    if s.of == "slice":
        each = k.consumer.slices
        head = f"for (int k = worker; k < tile.k_blocks; k += {each}, ring.skip({each}))"
        return f"ring.skip(worker);\n#pragma unroll {s.unroll}\n{head} {{ {MARK} BODY; }}"
    if s.of == "only":
        return f"{{ const int k = 0; BODY; {'ring.advance();' * k.ring} }}"
    first, last = {
        "tile": ("0", "tile.k_blocks"),
        "chunk": ("chunk", "chunk_end"),
        "ahead": ("0", "min(STAGES, tile.k_blocks)"),
    }[s.of]
    steps = f"++k, ++{s.ahead}[0]" if s.ahead else "++k"
    steps += ", ring.advance()" * k.ring
    return f"\n#pragma unroll {s.unroll}\nfor (int k = {first}; k < {last}; {steps}) {{ {MARK} BODY; }}"


def per_split(k: ir.Kernel, s: ir.PerSplit) -> str:
    head = f"for (int split = {s.step}; split <= 128; split += {s.step})"
    return f"{UNROLL}{head} if (split == 128 - tile.b_row % 128) {{ BODY; }}"


def if_(k: ir.Kernel, s: ir.If) -> str:
    ends = f"{end(k, s)} {{}} {end_of_rows(k)}"
    asks = ASKS[s.when].format(s.ahead, more=s.more) if s.ahead else ""
    if k.consumer.slices > 1:
        asks = OF_SLICES.get(s.when, asks)
    return f"if ({asks or CONDITIONS.get(s.when) or ends.format(THAN[s.when])}) {{ BODY; }}"


CONDITIONS = {
    "cta_leader": "threadIdx.x == 0",
    "leader": "threadIdx.x % 128 == 0",
    "first_warp": "warp == 0",
    "after_first": "k != 0",
    "new_group": "tile.opens_group",
    "has_blocks": "tile.k_blocks != 0",
    "no_blocks": "tile.k_blocks == 0",
    "sends": "cta_rank != 0",
    "finishes": "cta_rank == 0",
    "inside": "tile.k_first != 0",
    "head": "tile.k_first == 0",
    "theirs": "tile.place >= 0",
    "ours": "tile.place < 0",
}
# Where warpgroups divide K blocks.
OF_SLICES = {
    "after_first": "k != worker",
    "has_blocks": "worker < tile.k_blocks",
    "first_slice": "worker == 0",
    "other_slice": "worker != 0",
    "idle": "worker >= tile.k_blocks",
}
# Of a register.
ASKS = {
    "behind": "k >= {}[0]",
    "new_share": "k == {}[0]",
    "awaited": "tile.flag >= {}[0]",
    "owes": "{}[0] != 0",
    "begun": "{}[0] > {more}",
}
THAN = {"whole": "<=", "cut": ">"}


# ---- barriers --------------------------------------------------------------------------------------


def init_barrier(k: ir.Kernel, s: ir.InitBarrier) -> str:
    (barrier,) = (b for b in k.barriers if b.name == s.barrier)
    count = {"stage": k.stages, "tile": 1, "turn": barrier.stages}[barrier.per]
    init = f'"mbarrier.init.shared::cta.b64"([{s.barrier} + 8 * i], {s.arrivals})'
    return f"for (int i = 0; i < {count}; ++i) {init};"


def until(barrier: str, parity: str, opcode: str = TRY_WAIT) -> str:
    return f'$until("{opcode}"($pred, [{barrier}], {parity}));'


def of_ring(s: Any) -> tuple[str, str]:
    """This stage's barrier, and the parity that `s` waits for."""
    return f"{s.barrier} + 8 * ring.stage", "ring.phase ^ 1" if s.flip else "ring.phase"


def of_turn(s: ir.Wait) -> tuple[str, str]:
    """The first worker's first turn is there at once."""
    return f"{s.barrier} + 8 * worker", f"{s.turn}[0] ^ (worker == 0)"


def of_tile(s: ir.Wait) -> tuple[str, str]:
    return s.barrier, f"{s.turn}[0] ^ 1" if s.flip else f"{s.turn}[0]"


def watched(s: Any, barrier: str, parity: str, told: str) -> str:
    """A wait, and what it reports where it is watched."""
    if not s.watch:
        return until(barrier, parity)
    report = f"{{int(blockIdx.x), {s.watch.role}, {s.watch.barrier}, {told}}}"
    return f"watchdog_wait(watchdog, {barrier}, {parity}, {report});"


def wait_for_stage(k: ir.Kernel, s: ir.Wait) -> str:
    barrier, parity = of_ring(s)
    unless = f"if ({s.seen}[0] == 0) " * bool(s.seen)
    told = f"ring.stage, int({parity}), tile.d_row, tile.d_col, k"
    return unless + watched(s, barrier, parity, told)


def drain(k: ir.Kernel, s: ir.Drain) -> str:
    at, parity = f"{s.barrier} + 8 * ring.stage", "ring.phase ^ 1"
    each = watched(s, at, parity, f"ring.stage, int({parity}), -1, -1, -1")
    return f"for (int i = 0; i < STAGES; ++i, ring.advance()) {each}"


def wait_for_turn(k: ir.Kernel, s: ir.Wait) -> str:
    barrier, parity = of_turn(s)
    return watched(s, barrier, parity, f"worker, {parity}, tile.d_row, tile.d_col, -1")


def wait_for_tile(k: ir.Kernel, s: ir.Wait) -> str:
    """What is watched has the CTA's scope: it is waited for again, with the cluster's."""
    barrier, parity = of_tile(s)
    told = watched(s, barrier, parity, f"0, {parity}, -1, -1, -1") if s.watch else ""
    return told + until(barrier, parity, CLUSTER_WAIT)


def peek(k: ir.Kernel, s: ir.Peek) -> str:
    test = f'"{TEST_WAIT}"($pred, [{s.barrier} + 8 * next.stage], next.phase)'
    return f'Ring next = ring; next.advance(); {s.dst}[0] = bool("selp.u32"($r, 1, 0, {test}));'


def stage(s: ir.Arrive) -> str:
    before = {0: "ring.stage", 1: "ring.previous()"}
    return before.get(s.lag, f"ring.before({s.lag})")


def remote(barrier: str, cta: str) -> str:
    """An arrival on `barrier` of another CTA of the cluster."""
    return f'"{ARRIVE_REMOTE}"(_, ["mapa.shared::cluster.u32"($b32, {barrier}, {cta})]);'


def arrive(k: ir.Kernel, s: ir.Arrive) -> str:
    if s.to == "cluster":
        return f"if (lane < {k.cluster.size}) {remote(f'{s.barrier} + 8 * {stage(s)}', 'lane')}"
    if s.to == "others":
        return f"if (lane > 0 && lane < CLUSTER_K) {remote(s.barrier, 'lane')}"
    if s.to == "copied":
        return f'if (lane == 0) "{ARRIVE}"(_, [{s.barrier} + 8 * ((ring.stage + STAGES - {s.lag}) % STAGES)]);'
    at = f"({f'(worker + 1) % {k.consumer.turns}'})" if s.to == "next" else stage(s)
    return f'if (lane == 0) "{ARRIVE}"(_, [{s.barrier} + 8 * {at}]);'


def expect(k: ir.Kernel, s: ir.ExpectTx) -> str:
    at = s.barrier if s.per == "tile" else f"{s.barrier} + 8 * ring.stage"
    return f'"{EXPECT}"(_, [{at}], {s.tx_bytes});'


def sync_warpgroup(k: ir.Kernel, s: ir.Sync) -> str:
    each = (
        f'if ({index(k)} == {w}) "bar.sync"({s.first_id + w}, 128);' for w in range(s.warpgroups)
    )
    return " ".join(each)


def sync_consumers(k: ir.Kernel, s: ir.Sync) -> str:
    return f'"bar.sync"({s.first_id}, {128 * s.warpgroups});'


def rejoin(k: ir.Kernel, s: ir.RejoinRing) -> str:
    """From the K block that would have been this warpgroup's next to that behind the tile's last: the remainder of worker - k_blocks."""
    n = k.consumer.slices
    return f"ring.back((worker + {n - 1} * tile.k_blocks) % {n});"


FOR_TILES_OF = {
    "cta": for_tiles,
    "turn": for_turns,
    "first": for_first,
    "runs": for_runs,
    "run": for_run,
}
WAIT_PER = {"stage": wait_for_stage, "tile": wait_for_tile, "turn": wait_for_turn}
FENCE_OF: dict[str, Meaning] = {
    "barriers": just("fence.mbarrier_init.release.cluster"),
    "wgmma": just("wgmma.fence.sync.aligned"),
    "async": just("fence.proxy.async.shared::cta"),
    "arrivals": just("fence.proxy.async.global"),
}
CLUSTER_ARRIVES = "barrier.cluster.arrive.relaxed.aligned"
CLUSTER_WAITS = "barrier.cluster.wait.acquire.aligned"
SYNC_OF: dict[str, Meaning] = {
    "warp": lambda k, s: '"bar.warp.sync"(0xFFFFFFFF);',
    "warpgroup": sync_warpgroup,
    "consumers": sync_consumers,
    "cta": lambda k, s: "__syncthreads();",
    "cluster": lambda k, s: f'"{CLUSTER_ARRIVES}"(); "{CLUSTER_WAITS}"();',
    "cluster_arrive": just(CLUSTER_ARRIVES),
    "cluster_await": lambda k, s: f'if ({s.met}[0] == 0) "{CLUSTER_WAITS}"(); {s.met}[0] = 1;',
}
WAITS: dict[type[ir.Stmt], Meaning] = {
    ir.ForTiles: lambda k, s: FOR_TILES_OF[s.of](k, s),
    ir.ForChunks: for_chunks,
    ir.ForK: for_k,
    ir.PerSplit: per_split,
    ir.If: if_,
    ir.InitBarrier: init_barrier,
    ir.Fence: lambda k, s: FENCE_OF[s.of](k, s),
    ir.Sync: lambda k, s: SYNC_OF[s.of](k, s),
    ir.LaunchDependents: just("griddepcontrol.launch_dependents"),
    ir.WaitForGrids: just("griddepcontrol.wait"),
    ir.SetRegisters: lambda k, s: f'"setmaxnreg.{s.direction}.sync.aligned.u32"({s.count});',
    ir.Wait: lambda k, s: WAIT_PER[s.per](k, s),
    ir.Peek: peek,
    ir.Drain: drain,
    ir.RejoinRing: rejoin,
    ir.NextTurn: lambda k, s: f"{s.turn}[0] ^= 1;",
    ir.Arrive: arrive,
    ir.ExpectTx: expect,
}
