"""The museum: published bugs of warp-specialised GEMMs, each built into a kernel of this generator.

An exhibit is the faulty kernel (or schedule), the property that must catch it, and what a person
would see on a GPU. Its fix is the kernel that the generator makes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from kernels import DENSE, FP8, VECTOR

from gemmgen.check import Instance, ops
from gemmgen.check.ops import Op, Program
from gemmgen.check.unroll import PAIR, unroller
from gemmgen.config import Config
from gemmgen.ir import nodes as ir
from gemmgen.ir.blocks import is_if
from gemmgen.ir.rewrite import map_role, map_stmts
from gemmgen.ir.stmts import multicasts
from gemmgen.ir.syncs import is_fence, is_sync
from gemmgen.pipeline import lower
from gemmgen.problem import Problem

PLAIN = Config()
K_GROUPED = replace(VECTOR, grouping="k_flat")
SEVERAL = Instance(k_blocks=5, tiles=3)


@dataclass(frozen=True, kw_only=True)
class Exhibit:
    """`broken` takes the right kernel to the wrong one; `unrolled` does so to a program."""

    name: str
    source: str
    says: str
    caught_by: str
    problem: Problem = FP8
    config: Config = PLAIN
    broken: Callable[[ir.Kernel], ir.Kernel] | None = None
    instance: Instance = SEVERAL
    unrolled: Callable[[Program], Program] | None = None

    @property
    def kernel(self) -> ir.Kernel:
        return lower(self.problem, self.config)

    def program(self, kernel: ir.Kernel) -> Program:
        return unroller(kernel, PAIR).program(self.instance)


def is_one(
    s: ir.Stmt, kinds: type[ir.Stmt] | tuple[type[ir.Stmt], ...], fields: Mapping[str, object]
) -> bool:
    """Whether `s` is of one of these kinds, and its fields have these values."""
    return isinstance(s, kinds) and all(getattr(s, f) == v for f, v in fields.items())


def without(*kinds: type[ir.Stmt], **fields: object) -> Callable[[ir.Kernel], ir.Kernel]:
    """Drop every statement of these kinds whose fields have these values."""
    return lambda kernel: map_stmts(kernel, lambda s: () if is_one(s, kinds, fields) else s)


def with_fields(kind: type[ir.Stmt], **fields: object) -> Callable[[ir.Kernel], ir.Kernel]:
    return lambda kernel: map_stmts(
        kernel, lambda s: replace(s, **fields) if isinstance(s, kind) else s
    )


def local_release(kernel: ir.Kernel) -> ir.Kernel:
    """Consumers release a stage to their own CTA only, and nobody counts the others' releases."""

    def visit(s: ir.Stmt) -> ir.Stmt:
        match s:
            case ir.Arrive(to="cluster"):
                return replace(s, to="own")
            case ir.InitBarrier(barrier="empty"):
                return replace(s, arrivals=(s.arrivals or 0) // kernel.cluster.size)
        return s

    return map_stmts(kernel, visit)


def wait_flipped(barrier: str) -> Callable[[ir.Kernel], ir.Kernel]:
    def visit(s: ir.Stmt) -> ir.Stmt:
        if isinstance(s, ir.Wait) and s.barrier == barrier:
            return replace(s, flip=1 - s.flip)  # type: ignore[arg-type]
        return s

    return lambda kernel: map_stmts(kernel, visit)


def first_sync_dropped(kernel: ir.Kernel) -> ir.Kernel:
    """Without the rendezvous between the drain of the last tile's stores and this tile's writes."""

    def tile(body: tuple[ir.Stmt, ...]) -> tuple[ir.Stmt, ...]:
        first = next(i for i, s in enumerate(body) if is_sync(s, "warpgroup"))
        return (*body[:first], *body[first + 1 :])

    return map_stmts(
        kernel,
        lambda s: (
            replace(s, body=tile(s.body))
            if isinstance(s, ir.ForTiles) and any(is_sync(x, "warpgroup") for x in s.body)
            else s
        ),
    )


def last_release_dropped(kernel: ir.Kernel) -> ir.Kernel:
    """The stage whose release lags is never released after the last K block."""

    def visit(s: ir.Stmt) -> ir.Stmt:
        if not isinstance(s, ir.ForTiles):
            return s
        rest = (x for x in s.body if not isinstance(x, ir.Arrive))
        return replace(s, body=tuple(rest))

    return map_stmts(kernel, visit)


def guard_dropped(kernel: ir.Kernel) -> ir.Kernel:
    """The lagging release also runs in the first K block, where there is nothing to release."""
    return map_stmts(kernel, lambda s: s.body if is_if(s, "after_first") else s)


def early_release(kernel: ir.Kernel) -> ir.Kernel:
    """Release each stage before the wgmmas that read it are waited for."""

    def step(body: tuple[ir.Stmt, ...]) -> tuple[ir.Stmt, ...]:
        out = list(body)
        at = next(i for i, s in enumerate(out) if isinstance(s, ir.Arrive))
        out.insert(at - 1, out.pop(at))
        return tuple(out)

    return map_stmts(
        kernel,
        lambda s: (
            replace(s, body=step(s.body))
            if isinstance(s, ir.ForK) and any(isinstance(x, ir.Arrive) for x in s.body)
            else s
        ),
    )


def one_left_in_flight(kernel: ir.Kernel) -> ir.Kernel:
    """Leave one group in flight across K blocks, but release the stage it reads."""

    def visit(s: ir.Stmt) -> ir.Stmt | tuple[ir.Stmt, ...]:
        match s:
            case ir.WgmmaWait():
                return replace(s, pending=1)
            case ir.ForK() if any(isinstance(x, ir.Arrive) for x in s.body):
                return (s, ir.WgmmaWait(pending=0))
        return s

    return map_stmts(kernel, visit)


def greedy(kernel: ir.Kernel) -> ir.Kernel:
    """The consumers take registers that the producer keeps."""

    def role(r: ir.Role) -> ir.Role:
        return replace(r, body=tuple(s for s in r.body if not isinstance(s, ir.SetRegisters)))

    return map_role(kernel, "producer", role)


def late_scales(kernel: ir.Kernel) -> ir.Kernel:
    """Read A's scales after the stage is released."""

    def step(body: tuple[ir.Stmt, ...]) -> tuple[ir.Stmt, ...]:
        rows = tuple(s for s in body if isinstance(s, ir.LoadRowScales))
        rest = [s for s in body if s not in rows]
        at = next(i for i, s in enumerate(rest) if isinstance(s, ir.Arrive))
        return (*rest[: at + 1], *rows, *rest[at + 1 :])

    return map_stmts(
        kernel,
        lambda s: (
            replace(s, body=step(s.body))
            if isinstance(s, ir.ForK) and any(isinstance(x, ir.Arrive) for x in s.body)
            else s
        ),
    )


def fence_after_sync(kernel: ir.Kernel) -> ir.Kernel:
    """The proxy fence behind the rendezvous instead of before it."""

    def tile(body: tuple[ir.Stmt, ...]) -> tuple[ir.Stmt, ...]:
        out = list(body)
        at = next(i for i, s in enumerate(out) if is_fence(s, "async"))
        out[at : at + 2] = out[at : at + 2][::-1]
        return tuple(out)

    return map_stmts(
        kernel,
        lambda s: (
            replace(s, body=tile(s.body))
            if isinstance(s, ir.ForTiles) and any(is_fence(x, "async") for x in s.body)
            else s
        ),
    )


def scales_unannounced(kernel: ir.Kernel) -> ir.Kernel:
    size = kernel.buffer("smem_scale_a").stage_bytes

    def visit(s: ir.Stmt) -> ir.Stmt:
        return replace(s, tx_bytes=(s.tx_bytes or 0) - size) if isinstance(s, ir.ExpectTx) else s

    return map_stmts(kernel, visit)


def stored_twice(kernel: ir.Kernel) -> ir.Kernel:
    return map_stmts(kernel, lambda s: (s, s) if isinstance(s, ir.TmaStore) else s)


def cta_start(kernel: ir.Kernel) -> ir.Kernel:
    return map_stmts(kernel, lambda s: ir.Sync(of="cta") if is_sync(s, "cluster") else s)


def one_stage(kernel: ir.Kernel) -> ir.Kernel:
    """The ring cut to one stage, past the rule that forbids it."""
    smem = tuple(replace(s, stages=1) if s.use != "output" else s for s in kernel.smem)
    barriers = tuple(replace(b, stages=1) for b in kernel.barriers)
    return replace(kernel, smem=smem, barriers=barriers)


def rewalked(program: Program, change: Callable[[Op, int], Op], role: str) -> Program:
    """Change the waits of a role, each given its number within the tile."""
    out = []
    for agent, mine in zip(program.agents, program.ops, strict=True):
        if agent.role == role:
            mine = tuple(change(op, op.k) if isinstance(op, ops.Wait) else op for op in mine)
        out.append(mine)
    return replace(program, ops=tuple(out))


def phase_restarts(program: Program) -> Program:
    """The producer's phase bit starts over in every tile, while the stage walks on."""
    stages = program.kernel.stages

    def change(op: Op, k: int) -> Op:
        assert isinstance(op, ops.Wait)
        return replace(op, phase=k // stages - 1) if k >= 0 else op

    return rewalked(program, change, "producer")


def peers_differ(program: Program) -> Program:
    """In the second tile, CTA 1 runs two K blocks fewer than its peer."""
    last = program.instance.k_blocks - 2
    mine = []
    for agent, todo in zip(program.agents, program.ops, strict=True):
        if agent.cta == 1:
            todo = tuple(op for op in todo if not (op.tile == 1 and op.k >= last))
        mine.append(todo)
    return replace(program, ops=tuple(mine))


def one_slot(program: Program) -> Program:
    """Every group's map in the same place of global memory."""

    def visit(op: Op) -> Op:
        match op:
            case ops.MapPublish() | ops.MapAcquire():
                return replace(op, slot=(*op.slot[:2], 0))
            case ops.Load():
                places = [c.slot and (*c.slot[:2], 0) for c in op.copies]
                copies = zip(op.copies, places, strict=True)
                return replace(op, copies=tuple(replace(c, slot=x) for c, x in copies))
        return op

    return replace(program, ops=tuple(tuple(map(visit, todo)) for todo in program.ops))


def unacquired(program: Program) -> Program:
    kept = (tuple(op for op in x if not isinstance(op, ops.MapAcquire)) for x in program.ops)
    return replace(program, ops=tuple(kept))


MULTICAST = Config(multicast="a", block_n=64)
IN_FLIGHT = Config(in_flight=1)

MUSEUM: tuple[Exhibit, ...] = (
    Exhibit(
        name="peers-run-different-k-blocks",
        source="DeepGEMM #429",
        says="hang: a CTA waits for slices that its peer, with a shorter K, never sends",
        caught_by="P3",
        config=MULTICAST,
        unrolled=peers_differ,
    ),
    Exhibit(
        name="multicast-before-receivers-release",
        source="humming #54",
        says="wrong elements and NaNs: a slice lands in a stage the peer still reads",
        caught_by="P2",
        config=MULTICAST,
        broken=local_release,
    ),
    Exhibit(
        name="store-without-proxy-fence",
        source="FlashKDA #24",
        says="stale output: the TMA store reads shared memory before the writes get there",
        caught_by="P7",
        broken=without(ir.Fence, of="async"),
    ),
    Exhibit(
        name="proxy-fence-after-the-barrier",
        source="FlashKDA #24, the tempting half fix",
        says="stale output: a fence orders only its own thread's writes",
        caught_by="P7",
        broken=fence_after_sync,
    ),
    Exhibit(
        name="init-without-fence",
        source="FlashKDA #24",
        says="undefined: the TMA unit may meet a barrier that is not initialised",
        caught_by="P6",
        broken=without(ir.Fence, of="barriers"),
    ),
    Exhibit(
        name="cta-sync-at-cluster-start",
        source="CUTLASS #3324 (scope)",
        says="undefined: a peer's slice or release reaches a barrier not yet initialised",
        caught_by="P6",
        config=MULTICAST,
        broken=cta_start,
    ),
    Exhibit(
        name="phase-not-carried-over",
        source="TileLang #2674",
        says="hang or wrong data from the second tile on, unless K is a whole number of turns of the ring",
        caught_by="P2",
        unrolled=phase_restarts,
    ),
    Exhibit(
        name="consumer-waits-on-the-other-parity",
        source="TileLang #3087, #2927",
        says="wrong data: the wait passes at once, before the stage is filled",
        caught_by="P2",
        broken=wait_flipped("full"),
    ),
    Exhibit(
        name="producer-waits-on-the-other-parity",
        source="TileLang #3087, #2927",
        says="hang: the first wait is for a release that cannot come",
        caught_by="P1",
        broken=wait_flipped("empty"),
    ),
    Exhibit(
        name="buffer-reused-without-barrier",
        source="TileLang #2613",
        says="wrong output: the next tile is staged over one that is still being stored",
        caught_by="P2",
        broken=first_sync_dropped,
    ),
    Exhibit(
        name="hang-at-short-k",
        source="TileLang #2566, #2567",
        says="hang once the ring wraps around: the last K block of a tile is never released",
        caught_by="P1",
        problem=DENSE,
        config=IN_FLIGHT,
        broken=last_release_dropped,
    ),
    Exhibit(
        name="release-of-nothing",
        source="TileLang #2566, #2567",
        says="wrong data: the first K block releases a stage before it was ever filled",
        caught_by="P5",
        problem=DENSE,
        config=IN_FLIGHT,
        broken=guard_dropped,
    ),
    Exhibit(
        name="one-stage-in-flight",
        source="found by review of this project",
        says="hang: a stage is released one K block late, but there is no other stage to fill",
        caught_by="P1",
        problem=DENSE,
        config=IN_FLIGHT,
        broken=one_stage,
    ),
    Exhibit(
        name="accumulator-read-in-flight",
        source="DeepGEMM #448, #449",
        says="wrong sums: registers are read while a wgmma still writes them",
        caught_by="P2",
        broken=with_fields(ir.WgmmaWait, pending=1),
    ),
    Exhibit(
        name="accumulator-unfenced",
        source="DeepGEMM #448, #449",
        says="wrong sums: a wgmma starts before the registers' last use is over",
        caught_by="P2",
        broken=without(ir.Fence, of="wgmma"),
    ),
    Exhibit(
        name="release-before-wgmma-is-done",
        source="a classic",
        says="wrong data: the next load overwrites operands that are still being read",
        caught_by="P2",
        problem=DENSE,
        broken=early_release,
    ),
    Exhibit(
        name="in-flight-releases-the-current-stage",
        source="a classic",
        says="wrong data: one group is still in flight, and its stage is the one released",
        caught_by="P2",
        problem=DENSE,
        broken=one_left_in_flight,
    ),
    Exhibit(
        name="scales-read-after-release",
        source="a classic",
        says="wrong scales: they are read from a stage that was already released",
        caught_by="P2",
        broken=late_scales,
    ),
    Exhibit(
        name="scales-not-announced",
        source="a classic",
        says="hang, or a phase that ends before its scales are there",
        caught_by="P3",
        broken=scales_unannounced,
    ),
    Exhibit(
        name="multicast-to-one",
        source="a classic",
        says="hang: the peer waits for bytes that are never sent to it",
        caught_by="P3",
        config=MULTICAST,
        broken=lambda kernel: map_stmts(
            kernel, lambda s: replace(s, mask=1) if multicasts(s) else s
        ),
    ),
    Exhibit(
        name="cluster-exit-without-drain",
        source="CUTLASS producer tail",
        says="fault: a release arrives in the shared memory of a CTA that has exited",
        caught_by="P11",
        config=MULTICAST,
        broken=without(ir.Drain),
    ),
    Exhibit(
        name="exit-with-stores-in-flight",
        source="DeepGEMM sm90 1d2d kernel",
        says="lost output: the CTA exits while a bulk store still reads its shared memory",
        caught_by="P11",
        broken=with_fields(ir.StoreWait, pending=1),
        instance=Instance(k_blocks=1, tiles=1),
    ),
    Exhibit(
        name="tile-stored-twice",
        source="a classic",
        says="a race on global memory, and twice the traffic",
        caught_by="P9",
        broken=stored_twice,
    ),
    Exhibit(
        name="tail-columns-left-out",
        source="found on the GPU by this project",
        says="wrong columns at the right edge: TMA stores clip at 16 bytes, not at the element",
        caught_by="P9",
        broken=without(ir.StoreTail),
    ),
    Exhibit(
        name="map-rewritten-under-a-load",
        source="DeepGEMM #365",
        says="results that differ from call to call: a load reads through the next group's tensor map",
        caught_by="P14",
        problem=K_GROUPED,
        instance=Instance(k_blocks=3, tiles=3, depths=(2, 3, 1)),
        unrolled=one_slot,
    ),
    Exhibit(
        name="map-without-acquire",
        source="a classic",
        says="a load through the tensor map that another launch left there, or a fault",
        caught_by="P14",
        problem=K_GROUPED,
        instance=Instance(k_blocks=3, tiles=3, depths=(2, 3, 1)),
        unrolled=unacquired,
    ),
    Exhibit(
        name="peers-in-different-groups",
        source="DeepGEMM #415, #429",
        says="hang: an odd number of tiles per group puts a cluster's CTAs into groups of other K",
        caught_by="P3",
        problem=K_GROUPED,
        config=MULTICAST,
        instance=Instance(k_blocks=4, tiles=3, depths=(2, 4, 1)),
        unrolled=peers_differ,
    ),
    Exhibit(
        name="setmaxnreg-beyond-the-pool",
        source="a classic",
        says="hang: consumers wait for registers that no warp gives back",
        caught_by="P12",
        broken=greedy,
    ),
)
