"""Weights that are loaded before the launch before is over (docs/adr/0048-weights-ahead.md): the kernel, the proof, the emulator."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
from kernels import DENSE, FP8, VECTOR, emitted
from test_emulator import run as run_ptx

from gemmgen.check import ProtocolViolation, check
from gemmgen.config import Config
from gemmgen.emulator import Eager, Late, Race, Random
from gemmgen.emulator.spaces import HEAP
from gemmgen.errors import ArgumentError, IllegalConfig
from gemmgen.ir import nodes as ir
from gemmgen.ir.blocks import is_if
from gemmgen.ir.groupings import GROUPINGS, Layout
from gemmgen.ir.rewrite import map_role, map_stmts, statements, walk
from gemmgen.pipeline import lower
from gemmgen.problem import Problem
from gemmgen.verification.trial import judge

AHEAD_OF = {"pdl": True, "weights_ahead": True}
FEW = Config(swap_ab=True, block_m=8, block_n=64, consumers=1, stages=4, unroll=4, **AHEAD_OF)
READY = replace(FP8, weights_ready=True)
KINDS = {
    "few rows": (READY, FEW),
    "bf16": (replace(DENSE, weights_ready=True), replace(FEW, block_n=128, consumers=2)),
    "vectors": (replace(VECTOR, weights_ready=True), Config(block_n=64, stages=3, **AHEAD_OF)),
    "batched": (replace(READY, grouping="batched"), FEW),
    "multicast a": (READY, Config(block_n=64, stages=3, multicast="a", **AHEAD_OF)),
    "multicast b": (READY, Config(block_n=64, stages=3, multicast="b", **AHEAD_OF)),
    "split": (READY, replace(FEW, split_k=2)),
    "stream": (READY, replace(FEW, stream=True)),
    "lane scales": (READY, replace(FEW, lane_scales=True)),
    "turns": (
        replace(DENSE, weights_ready=True),
        Config(block_m=64, block_n=32, stages=3, ping_pong=True, **AHEAD_OF),
    ),
    "watched": (READY, replace(FEW, watchdog=True)),
}


# ---- the kernel ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", KINDS)
def test_b_alone_is_loaded_before_the_wait(name):
    kernel = lower(*KINDS[name])
    assert not [s for s in kernel.prologue if isinstance(s, ir.WaitForGrids)]
    for role in kernel.roles:
        at = next(i for i, s in enumerate(role.body) if isinstance(s, ir.WaitForGrids))
        early = [s for s in walk(role.body[:at]) if isinstance(s, ir.TmaLoad)]
        late = [s for s in walk(role.body[at:]) if isinstance(s, ir.TmaLoad)]
        loads = {kernel.map(s.tensor_map).tensor for s in early}
        assert loads <= {"b", "scale_b"} and bool(loads) == (role.name == "producer")
        assert set(early) <= {*late}, "what is loaded ahead is loaded later too, of other K blocks"


def test_scales_of_b_that_come_by_tensor_map_are_ahead_too():
    kernel = lower(*KINDS["vectors"])
    assert kernel.ready == ("b", "scale_b")
    first = next(s for s in statements(kernel) if isinstance(s, ir.ForTiles) and s.of == "first")
    maps = {s.tensor_map for s in walk(first.body) if isinstance(s, ir.TmaLoad)}
    assert maps == {"map_b", "map_scale_b"}


@pytest.mark.parametrize("pdl", (False, True))
def test_a_promise_alone_makes_the_same_kernel(pdl):
    """Which is compiled once for both."""
    plain, promised = (emitted(p, Config(pdl=pdl)) for p in (FP8, READY))
    assert promised.kernel == plain.kernel and promised.source == plain.source


def test_its_name_tells_it_apart():
    assert lower(READY, FEW).name.endswith("_swap_pdl_ahead")


@pytest.mark.parametrize(
    "problem, config, rule",
    (
        (READY, {"weights_ahead": True}, "ahead-pdl"),
        (FP8, AHEAD_OF, "ahead-promise"),
        *(
            (replace(READY, grouping=g), AHEAD_OF, "ahead-table")
            for g in ("masked", "rows", "ends")
        ),
    ),
)
def test_what_is_refused(problem, config, rule):
    with pytest.raises(IllegalConfig, match="weights_ahead") as e:
        lower(problem, Config(**config))
    assert e.value.rule.id == rule


@pytest.mark.parametrize("grouping", [g for g, x in GROUPINGS.items() if x.depths])
def test_groups_along_k_have_no_weights(grouping):
    with pytest.raises(ArgumentError, match="weights_ready=True"):
        Problem(family="dense", a="bf16", b="bf16", grouping=grouping, weights_ready=True)
    with pytest.raises(ArgumentError, match="weights_ready=1"):
        Problem(family="dense", a="bf16", b="bf16", weights_ready=1)


def test_stamps_begin_after_the_wait():
    kernel = lower(READY, FEW, stamps=64)
    for role in kernel.roles:
        kinds = [type(s) for s in role.body]
        assert kinds.index(ir.WaitForGrids) + 1 == kinds.index(ir.OpenStamps)
    check(kernel)


# ---- the proof -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", KINDS)
def test_the_proof(name):
    assert check(lower(*KINDS[name])).properties[-1] == "P15"


def before_the_wait(role: str, *stmts: ir.Stmt):
    """`stmts`, as the first of a role."""
    return lambda k: map_role(k, role, lambda r: replace(r, body=(*stmts, *r.body)))


def loaded_ahead(tensor: str):
    """What is loaded of `tensor` in the loop, ahead too, and there no more for those K blocks."""

    def change(k: ir.Kernel) -> ir.Kernel:
        (load, *_) = [
            s
            for s in statements(k)
            if isinstance(s, ir.TmaLoad) and s.tensor_map == f"map_{tensor}"
        ]

        def visit(s: ir.Stmt):
            match s:
                case ir.ForK(of="ahead") | ir.If(when="behind"):
                    return replace(s, body=(*s.body, load))
                case ir.ForK() if load in s.body:
                    return replace(s, body=tuple(x for x in s.body if x != load))
            return s

        return map_stmts(k, visit)

    return change


def waits_late(k: ir.Kernel) -> ir.Kernel:
    """Consumers wait in each tile, not before the first."""

    def late(r: ir.Role) -> ir.Role:
        *_, tiles, end = (s for s in r.body if not isinstance(s, ir.WaitForGrids))
        return replace(r, body=(replace(tiles, body=(ir.WaitForGrids(), *tiles.body)), end))

    return map_role(k, "consumer", late)


def reads_a_table(k: ir.Kernel) -> ir.Kernel:
    table = ir.Param(name="group_rows", ctype="const int*")
    scheduler = replace(k.scheduler, params=("group_rows",))
    return replace(k, params=(*k.params, table), scheduler=scheduler)


def one_waits(k: ir.Kernel) -> ir.Kernel:
    def visit(s: ir.Stmt):
        return ir.If(when="leader", body=(s,)) if isinstance(s, ir.WaitForGrids) else s

    return map_stmts(k, visit)


STORE = ir.StoreTail(tensor="d", smem="smem_d", wave=0)
SCALES = ir.LoadBlockScales(dst="next_scales", tensor="scale_b", count=1, block="first", of="waves")
REFUSED = {
    "A": (loaded_ahead("a"), "TmaLoad of a stands before"),
    "A's scales": (loaded_ahead("scale_a"), "TmaLoad of scale_a stands before"),
    "a store": (before_the_wait("consumer", STORE), "StoreTail of d stands before"),
    "a plain load": (
        before_the_wait("consumer", SCALES),
        "LoadBlockScales of scale_b stands before",
    ),
    "a table": (reads_a_table, "the scheduler reads group_rows before"),
    "in a tile": (waits_late, "neither the prologue nor the consumer waits"),
    "one thread": (one_waits, "neither the prologue nor the consumer waits"),
    "no promise": (lambda k: replace(k, ready=()), "TmaLoad of b stands before"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_the_proof_refuses(name):
    change, text = REFUSED[name]
    with pytest.raises(ProtocolViolation, match=f"P15.*{text}"):
        check(change(lower(READY, FEW)))


def test_what_is_ahead_is_counted():
    """A stage that is announced twice, or waited for although nobody releases it, breaks what was proved before."""
    kernel = lower(READY, FEW)
    forgotten = map_stmts(kernel, lambda s: s.body if is_if(s, "behind") else s)
    uncounted = map_stmts(
        kernel, lambda s: replace(s, ahead="") if isinstance(s, ir.ForTiles) else s
    )
    for broken in (forgotten, uncounted):
        with pytest.raises(ProtocolViolation):
            check(broken)


# ---- the emulator ----------------------------------------------------------------------------

OUT = ((HEAP, 16 * 64),)
LOAD, WAIT = "ld.global.u32 %r1, [%d31];", "griddepcontrol.wait;"


def test_what_is_ready_may_be_read_before_the_wait():
    with pytest.raises(Race, match="the launch before may still write"):
        run_ptx(LOAD + WAIT, threads=64, overlaps=True)
    run_ptx(LOAD + WAIT, threads=64, overlaps=True, ready=OUT)
    with pytest.raises(Race, match="griddepcontrol"):
        run_ptx("st.global.u32 [%d31], %r60;" + WAIT, threads=64, overlaps=True, ready=OUT)


@cache
def prepared(name, *edits):
    pytest.importorskip("cuda.bindings.nvrtc", exc_type=ImportError)
    from gemmgen.runtime.emulated import prepare

    a = emitted(*KINDS[name])
    source = a.source
    for old, new in edits:
        assert source.count(old) == 1, f"{source.count(old)} of {old}"
        source = source.replace(old, new)
    return a.kernel, prepare(a.kernel, source)


def trial(name, *edits, sms=3, schedule=None, k_blocks=7, tiles=5):
    from gemmgen.runtime.emulated import EmulatedGpu

    problem, config = KINDS[name]
    kernel, program = prepared(name, *edits)
    k = config.block_k_bytes // problem.a.bytes
    shape = config.block_m - 3, tiles * config.block_n - 8, k_blocks * k - 16
    layout = Layout(groups=2) if problem.grouping == "batched" else Layout()
    judge(
        EmulatedGpu(sms=sms, schedule=schedule),
        program,
        kernel,
        problem,
        shape,
        pad=1,
        layout=layout,
    )


@pytest.mark.nvrtc
@pytest.mark.parametrize("k_blocks", (1, 3, 7))
@pytest.mark.parametrize("name", KINDS)
def test_the_result(name, k_blocks):
    """Fewer K blocks than stages, as many, and more; tiles besides the first of each CTA."""
    trial(name, k_blocks=k_blocks)


@pytest.mark.nvrtc
@pytest.mark.parametrize(
    "schedule", (Eager(), Late(), Random(seed=1)), ids=("eager", "late", "random")
)
def test_whatever_the_schedule(schedule):
    trial("few rows", schedule=schedule)


EARLY_B = "ptx::tma_load(smem_b + ring.stage * Shared::B_STAGE_BYTES, &map_b"
EDITS = {
    "A is loaded in B's place": (
        (
            "if (ahead_of.next(tile)) {",
            "if (ahead_of.next(tile)) { ptx::tma_load(smem_a, &map_a, full, 0, tile.a_row);",
        ),
    ),
    "D is read": (
        (
            "if (ahead_of.next(tile)) {",
            "if (ahead_of.next(tile)) { if (d[0] == 1) tile.k_blocks += STAGES;",
        ),
    ),
    "scales are read": (
        (
            "if (ahead_of.next(tile)) {",
            "if (ahead_of.next(tile)) { if (*(volatile const float*)scale_b == 7) return;",
        ),
    ),
}


@pytest.mark.nvrtc
@pytest.mark.parametrize("name", EDITS)
def test_an_access_that_is_too_early_is_a_race(name):
    with pytest.raises(
        Race, match=r"griddepcontrol\.wait, which the launch before may still write"
    ):
        trial("few rows", *EDITS[name])


@pytest.mark.nvrtc
def test_b_that_is_not_said_to_be_ready_is_read_too_early():
    """So the loads of B do stand before the wait in what the compiler makes."""
    from gemmgen.runtime.emulated import EmulatedGpu

    problem, config = KINDS["few rows"]
    kernel, program = prepared("few rows")
    broken = replace(program, kernel=replace(kernel, ready=()))
    shape = config.block_m, config.block_n, 512
    with pytest.raises(Race, match=r"cp\.async\.bulk\.tensor.*griddepcontrol\.wait"):
        judge(EmulatedGpu(sms=1), broken, kernel, problem, shape)
