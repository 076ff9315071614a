"""The protocol proof: what it proves, what it refuses, and how it says so."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from exhibits import EXHIBITS
from kernels import VARIETY

from gemmgen.check import PROPERTIES, ProtocolViolation, check, instances
from gemmgen.check.fixed import FILE
from gemmgen.check.meaning import MEANING
from gemmgen.check.ops import Instance
from gemmgen.check.unroll import PAIR, unroller
from gemmgen.config import Config
from gemmgen.errors import IllegalConfig, IRError
from gemmgen.families import build
from gemmgen.gallery import FP8
from gemmgen.ir import nodes as ir
from gemmgen.ir.dtypes import BF16, E4M3, F16, F32
from gemmgen.ir.rewrite import map_stmts, statements
from gemmgen.ir.syncs import is_fence
from gemmgen.passes.check_complete import LOWERED
from gemmgen.pipeline import lower
from gemmgen.problem import Problem
from gemmgen.target import H200

KERNELS = {name: (e.problem, e.config) for name, e in EXHIBITS.items()} | VARIETY
GENERATED = int(os.environ.get("GEMMGEN_CHECK_CONFIGS", "120"))  # 1000 takes about a minute


@pytest.mark.parametrize("name", KERNELS)
def test_every_kernel_is_proved(name):
    kernel = lower(*KERNELS[name])
    proof = check(kernel)
    special = {"P14": any(m.derived for m in kernel.maps), "P15": kernel.pdl}
    assert proof.properties == tuple(p.id for p in PROPERTIES if special.get(p.id, True))
    least = 20 if kernel.ring else 4  # without a ring only D is waited for
    assert proof.certificate.waits > least, "the certificate compared something"
    assert proof.operations < 150_000, (
        "a proof takes seconds"
    )  # most where threads copy rows by index


@pytest.mark.parametrize("name", ("fp8_block/two_wave_multicast_a", "dense/two_wave_in_flight"))
def test_every_instance_up_to_two_rings(name):
    kernel = lower(*KERNELS[name])
    proof = check(kernel, thorough=True, split=PAIR)
    assert {i.k_blocks for i in proof.instances} == {*range(1, 2 * kernel.stages + 2), 13}
    assert {i.tiles for i in proof.instances} == {1, 2, 3}


PROBLEMS = (
    Problem(family="dense", a=BF16, b=BF16),
    Problem(family="dense", a=F16, b=F16, d=F32),
    Problem(family="dense", a=BF16, b=BF16, layout="nn"),
    Problem(family="dense", a=BF16, b=BF16, layout="tn"),
    Problem(family="dense", a=F16, b=F16, layout="tt"),
    Problem(family="fp8_block", a=E4M3, b=E4M3),
    Problem(family="fp8_block", a=E4M3, b=E4M3, d=F32),
    Problem(family="fp8_block", a=E4M3, b=E4M3, d=F16),
)


def legal_kernels(count: int, seed: int):
    """Lowered kernels of random configurations, of every family."""
    random = Random(seed)
    while count:
        problem = random.choice(PROBLEMS)
        consumers = random.choice((1, 2, 3))
        waves = random.choice((1, 1, 2)) if consumers < 3 else 1
        dense = problem.family == "dense"
        config = Config(
            block_m=64 * consumers * waves,
            block_n=8 * random.randint(1, 32),
            block_k_bytes=random.choice((32, 64, 128, 256)) if dense else 128,
            stages=random.randint(2, 12),
            consumers=consumers,
            multicast=random.choice(("none", "a", "b")),
            raster=random.choice("mn"),
            panel=random.choice((1, 4, 8, 16)),
            in_flight=random.choice((0, 1)) if dense else 0,
            swizzle_ab=random.choice((None, None, 0, 32, 64, 128)),
            swizzle_d=random.choice((None, None, 0, 32, 64, 128)),
        )
        try:
            kernel = lower(problem, config)
        except IllegalConfig:
            continue
        count -= 1
        yield config, kernel


@pytest.mark.parametrize("seed", range(4))
def test_what_the_passes_allow_is_proved(seed):
    """No false alarm, and no rule missing from the passes."""
    for config, kernel in legal_kernels(GENERATED // 4, seed):
        try:
            check(kernel)
        except ProtocolViolation as violation:
            pytest.fail(f"{kernel.name}, {config}: {violation}")


def test_instances_surround_one_and_two_turns_of_the_ring():
    for stages in range(1, 13):
        chosen = instances(stages)
        ks = {i.k_blocks for i in chosen}
        assert {1, stages, stages + 1, 2 * stages + 1, 4 * stages + 1} <= ks
        assert {i.tiles for i in chosen} == {1, 2, 3}
        sizes = [i.k_blocks * i.tiles for i in chosen]
        assert sizes == sorted(sizes), "the smallest counter-example is found first"
        assert set(chosen) <= set(instances(stages, thorough=True)) | {
            Instance(k_blocks=k, tiles=3) for k in (1, 2)
        }


def test_every_statement_has_a_meaning():
    classes = {getattr(ir, name) for name in ir.__all__}
    concrete = {c for c in classes if isinstance(c, type) and issubclass(c, ir.Stmt)} - {ir.Stmt}
    assert set(MEANING) == concrete - set(LOWERED)


def test_a_statement_without_meaning_is_an_error():
    class Mystery(ir.Stmt):
        pass

    kernel = lower(*KERNELS["dense"])
    with pytest.raises(IRError, match="Mystery"):
        check(replace(kernel, prologue=(*kernel.prologue, Mystery())))


def test_a_kernel_that_is_not_lowered_is_an_error():
    with pytest.raises(IRError, match="lowered"):
        check(build(*KERNELS["dense"]))


def test_the_register_file_is_the_target_s():
    assert (FILE.per_sm, FILE.per_thread) == (H200.registers_per_sm, H200.registers_per_thread)
    assert (FILE.least, FILE.most, FILE.step) == (
        H200.setmaxnreg_min,
        H200.setmaxnreg_max,
        H200.setmaxnreg_step,
    )


def test_the_same_kernel_gives_the_same_proof():
    kernel = lower(*KERNELS["fp8-multicast-a"])
    one, other = check(kernel), check(kernel)
    assert replace(one, seconds=0) == replace(other, seconds=0)


def test_a_proof_says_what_was_proved():
    text = str(check(lower(*KERNELS["fp8"])))
    assert text.startswith("P1 to P13 proved for 1, 2, ")
    assert "recurs every 8 K blocks" in text


def test_ring_position_carries_over():
    """The second tile's first wait is for the stage and the phase after the first tile's last."""
    kernel = lower(*KERNELS["dense"])  # four stages
    program = unroller(kernel, PAIR).program(Instance(k_blocks=6, tiles=2))
    producer = next(i for i, a in enumerate(program.agents) if a.role == "producer")
    waits = [op for op in program.ops[producer] if type(op).__name__ == "Wait"]
    assert [(w.bar[2], w.phase) for w in waits] == [(i % 4, i // 4 - 1) for i in range(12)]
    assert (waits[6].tile, waits[6].k) == (1, 0)


# ---- counter-examples --------------------------------------------------------------------------


def unfenced(kernel: ir.Kernel) -> ir.Kernel:
    return map_stmts(kernel, lambda s: () if is_fence(s, "async") else s)


def violation_of(kernel: ir.Kernel) -> ProtocolViolation:
    with pytest.raises(ProtocolViolation) as caught:
        check(kernel)
    return caught.value


def test_a_counter_example_reads_like_this(golden):
    config = Config(block_n=64, stages=3, multicast="a", in_flight=0)
    kernel = lower(FP8, config)
    early = map_stmts(
        kernel,
        lambda s: (
            ir.Arrive(barrier=s.barrier)
            if isinstance(s, ir.Arrive) and s.to == "cluster"
            else replace(s, arrivals=s.arrivals // 2)
            if isinstance(s, ir.InitBarrier) and s.barrier == "empty"
            else s
        ),
    )
    golden(f"{violation_of(early)}\n")


def test_a_counter_example_is_the_smallest_and_least():
    violation = violation_of(unfenced(lower(*KERNELS["fp8"])))
    assert violation.property.id == "P7"
    assert violation.trace.instance == "1 K block per tile, 1 tile per CTA"
    assert {lane.agent.split(",")[0] for lane in violation.trace.lanes} == {"consumer", "producer"}
    assert [lane.stands for lane in violation.trace.lanes if lane.marked and lane.stands]


def test_a_deadlock_names_everyone_who_waits():
    kernel = lower(*KERNELS["dense"])
    lost = map_stmts(kernel, lambda s: () if isinstance(s, ir.Arrive) else s)
    violation = violation_of(lost)
    assert violation.property.id == "P1"
    assert "producer" in violation.message and "empty[0]" in violation.message
    standing = [lane for lane in violation.trace.lanes if lane.marked]
    assert standing and all(lane.stands for lane in standing)


# ---- what is decided without an instance -----------------------------------------------------------


FIRST_COLUMN = (ir.Coord(base="tile.d_col"), ir.Coord(base="tile.d_row"))


def changed(name: str, kind: type[ir.Stmt], **fields: object) -> ir.Kernel:
    kernel = lower(*KERNELS[name])
    assert any(isinstance(s, kind) for s in statements(kernel))
    return map_stmts(kernel, lambda s: replace(s, **fields) if isinstance(s, kind) else s)


WRONG = (
    ("dense", ir.SetRegisters, {"count": 236}, "P12", "multiples of 8"),
    ("dense", ir.SetRegisters, {"direction": "inc"}, "P12", "inc to 40"),
    ("dense", ir.SetRegisters, {"direction": "dec"}, "P12", "dec to 232"),
    ("dense", ir.Sync, {"first_id": 0}, "P8", "named barrier 0"),
    ("dense", ir.Sync, {"first_id": 15}, "P8", "named barrier 16"),
    ("dense", ir.Mma, {"warpgroup_bytes": 0}, "P10", "do not start"),
    ("dense", ir.Mma, {"steps": ((0, 0), (32, 32))}, "P10", "walk along all of K"),
    ("dense-in-flight-multicast", ir.TmaLoad, {"rank_bytes": 0}, "P2", "loaded into"),
    ("dense-wide-k", ir.TmaLoad, {"offset": 0}, "P2", "loads into it"),
    ("dense", ir.TmaStore, {"offset": 0}, "P9", "columns 64 on lie"),
    ("dense", ir.TmaStore, {"coords": FIRST_COLUMN}, "P9", "more than once"),
    ("dense-waves", ir.StoreTail, {"wave": 0}, "P9", "threads"),
    ("fp8", ir.LoadRowScales, {"wave": 1}, "P2", "outside smem_scale_a"),
    ("fp8-waves", ir.LoadRowScales, {"wave": 0}, "P10", "row scales of wave 1"),
    ("fp8", ir.LoadBlockScales, {"block": "first"}, "P10", "block scales"),
    ("fp8", ir.LoadBlockScales, {"block": "next"}, "P10", "block scales"),
    ("fp8", ir.ForChunks, {"blocks": 33}, "P10", "block scales"),
    ("fp8", ir.ForChunks, {"blocks": 64}, "P10", "block scales"),
    ("fp8", ir.ShareScales, {"src": "next_scales"}, "P10", "block scales"),
    ("fp8", ir.Copy, {"src": "block_scales"}, "P10", "block scales"),
)


@pytest.mark.parametrize(
    ("name", "kind", "fields", "property", "says"),
    WRONG,
    ids=[
        f"{name}-{kind.__name__}-{''.join(fields)}-{i}"
        for i, (name, kind, fields, *_) in enumerate(WRONG)
    ],
)
def test_a_wrong_number_is_found(name, kind, fields, property, says):
    violation = violation_of(changed(name, kind, **fields))
    assert (violation.property.id, says in violation.message) == (property, True), violation


def test_overlapping_buffers_are_a_race():
    kernel = lower(*KERNELS["dense"])
    smem = tuple(replace(s, offset=0) if s.name == "smem_d" else s for s in kernel.smem)
    assert violation_of(replace(kernel, smem=smem)).property.id == "P2"


def test_a_swizzled_buffer_off_its_pattern():
    """Everything 512 bytes on: nothing overlaps, but swizzles mix the bits of the address."""
    kernel = lower(*KERNELS["dense"])
    smem = tuple(replace(s, offset=s.offset + 512) for s in kernel.smem)
    barriers = tuple(replace(b, offset=b.offset + 512) for b in kernel.barriers)
    moved = replace(kernel, smem=smem, barriers=barriers, smem_bytes=kernel.smem_bytes + 512)
    violation = violation_of(moved)
    assert (violation.property.id, "1024 of its swizzle" in violation.message) == ("P10", True)


def test_a_warp_s_instruction_left_to_one_thread():
    kernel = lower(*KERNELS["dense"])
    alone = map_stmts(
        kernel, lambda s: ir.If(when="leader", body=(s,)) if isinstance(s, ir.WgmmaWait) else s
    )
    assert violation_of(alone).property.id == "P8"


def test_importing_the_proof_is_cheap():
    code = (
        "import sys, gemmgen.check; print(*sorted({'numpy', 'torch', 'cuda'} & set(sys.modules)))"
    )
    root = Path(__file__).parents[2]
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True
    )
    assert run.stdout.split() == []


def test_a_watched_kernel_is_proved():
    problem, config = KERNELS["fp8-multicast-a"]
    kernel = lower(problem, replace(config, watchdog=True))
    assert any(isinstance(s, ir.Wait) and s.watch for s in statements(kernel))
    check(kernel)
