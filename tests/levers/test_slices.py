"""Consumer warpgroups that divide a tile's K blocks: results on the emulator, the pass, the proof, the order of sums, and faults
that must show."""

from __future__ import annotations

import importlib
from dataclasses import replace

import numpy as np
import pytest
from emulated import judged, machine, same_bits
from grouped import layout, problem
from kernels import DENSE, DENSE_F32, FP8, GROUPED, SLICED, VARIETY, W4A16, emitted

from gemmgen import emulator
from gemmgen.check import ProtocolViolation, check
from gemmgen.check.ops import Instance
from gemmgen.check.unroll import unroller
from gemmgen.config import Config
from gemmgen.epilogues import EPILOGUES
from gemmgen.errors import IllegalConfig
from gemmgen.families import build
from gemmgen.ir import nodes as ir
from gemmgen.ir.dtypes import E4M3, F32, S8, S32
from gemmgen.ir.groupings import GROUPINGS
from gemmgen.ir.rewrite import statements, walk
from gemmgen.passes.slice_k import slice_k
from gemmgen.pipeline import lower
from gemmgen.problem import Problem
from gemmgen.summation import summation
from gemmgen.target import H200
from gemmgen.verification.tensor_core import Slices
from gemmgen.verification.trial import share_of

from mutation import rows_slices  # isort: skip
from mutation.mutant import original  # isort: skip
from mutation.reasons import reason  # isort: skip

IN_SLICES = [name for name, (_, c) in VARIETY.items() if c.slice_k]
WHOLE = ((0, 1, 2, 3),)  # a warpgroup as one agent
BY_ROWS = tuple(g for g in GROUPED if not GROUPINGS[g].depths)
FAST = Problem(family="dense", a=E4M3, b=E4M3, d=F32)
INT8 = Problem(family="dense", a=S8, b=S8, d=S32)
DECODED = {"block_k_bytes": 256, "in_flight": 1}


def config(**changes) -> Config:
    return replace(SLICED, **changes)


# ---- results --------------------------------------------------------------------------------


@pytest.mark.nvrtc
@pytest.mark.parametrize(("consumers", "in_flight"), [(2, 0), (2, 1), (3, 1), (4, 0), (4, 1)])
@pytest.mark.parametrize("depth", (20, 200, 650))
def test_ring_and_slices_meet_at_every_stage(consumers, in_flight, depth):
    """Fewer K blocks than warpgroups, as many, more than two rounds of the ring; several tiles, each of which begins at another stage."""
    each = 2 if in_flight or depth == 200 else 1
    c = config(consumers=consumers, in_flight=in_flight, stages=each * consumers)
    assert judged(DENSE, c, (16, 150, depth), pad=1, sms=1).exact


@pytest.mark.nvrtc
@pytest.mark.parametrize("p", (DENSE_F32, FAST, INT8, replace(DENSE, layout="tn")), ids=str)
def test_operands(p):
    assert judged(p, config(), (20, 70, 500), pad=1, sms=1).exact


@pytest.mark.nvrtc
@pytest.mark.parametrize(
    "changes",
    (
        {"multicast": "a", "in_flight": 1},
        {"multicast": "b"},
        {"block_n": 128},
        {"block_m": 64},
        {"swap_ab": False, "block_m": 64, "block_n": 32},
        {"swap_ab": False, "block_m": 128, "block_n": 64, "consumers": 2, "in_flight": 1},
        {"swizzle_d": 0},
        {"watchdog": True, "pdl": True},
        {"unroll": 4},
        {"unroll": 3, "in_flight": 1},
    ),
    ids=str,
)
def test_with_other_ways(changes):
    assert judged(DENSE, config(**changes), (40, 100, 400), pad=1, sms=2).exact


@pytest.mark.nvrtc
@pytest.mark.parametrize("weights", ("int4_128_bf16", "int4_32_bf16_zeros", "e2m1_32_e8m0"))
@pytest.mark.parametrize("consumers", (2, 3, 4))
def test_weights_of_4_bits(weights, consumers):
    p = replace(W4A16, weights=weights)
    c = config(consumers=consumers, stages=2 * consumers, **DECODED)
    assert judged(p, c, (16, 128, 896), sms=1).exact


@pytest.mark.nvrtc
@pytest.mark.parametrize("grouping", BY_ROWS)
def test_groups(grouping):
    """Those without rows, and with D's rows ending inside tiles."""
    p = problem("bf16", grouping)
    shape, sizes = (128, 70, 300), (64, 0, 20)
    c = config(consumers=2)  # each row's group is asked of a bias: registers for two
    assert judged(p, c, shape, layout(p, shape, sizes), sms=1).exact


@pytest.mark.nvrtc
def test_rows_by_index():
    p = replace(DENSE, grouping="ends", indexed=True)
    assert judged(p, config(in_flight=1), (40, 70, 300), sms=1).exact


@pytest.mark.nvrtc
def test_epilogues():
    for name in ("bias", "gelu"):
        p = replace(DENSE, epilogue=EPILOGUES[name])
        assert judged(p, config(), (20, 100, 400), sms=1)
    assert judged(replace(DENSE_F32, accumulate=True), config(), (20, 100, 400), sms=1).exact


@pytest.mark.nvrtc
@pytest.mark.parametrize(
    "schedule",
    (emulator.Eager, emulator.Late, lambda: emulator.Random(seed=3)),
    ids=("eager", "late", "random"),
)
@pytest.mark.parametrize("in_flight", (0, 1))
def test_whoever_is_late(schedule, in_flight):
    c = config(in_flight=in_flight)
    assert judged(DENSE, c, (16, 150, 500), sms=1, schedule=schedule()).exact


# ---- the order of sums ----------------------------------------------------------------------


def sliced_by_hand(p, c, shape, seed):
    """The bits that plain kernels leave, one for each slice's K, whose sums are added in order in FP32."""
    from gemmgen.runtime.emulated import prepare
    from gemmgen.verification import random_normal
    from gemmgen.verification.trial import output, pitches

    x, gpu = random_normal(p, *shape, seed), machine()
    plain = emitted(p, replace(c, slice_k=False, consumers=1, stages=2))
    total = np.zeros(shape[:2], np.float32)
    for ks in Slices(count=c.consumers, block=c.block_k_bytes // p.a.bytes).of(shape[2]):
        part = replace(x, a=np.ascontiguousarray(x.a[:, ks]), b=np.ascontiguousarray(x.b[:, ks]))
        strides = pitches(plain.kernel, part.shape)
        d = output(p, part, strides)
        program = prepare(plain.kernel, plain.source)
        found = d.extract(gpu.execute(program, part, strides, d, 0xFF))
        total = total + np.asarray(found).view(np.float32)
    return total


def bits_of(p, c, shape, seed):
    from gemmgen.runtime.emulated import prepare
    from gemmgen.verification import random_normal
    from gemmgen.verification.trial import output, pitches

    x, gpu, a = random_normal(p, *shape, seed), machine(), emitted(p, c)
    strides = pitches(a.kernel, shape)
    d = output(p, x, strides)
    return np.asarray(
        d.extract(gpu.execute(prepare(a.kernel, a.source), x, strides, d, 0xFF))
    ).view(np.float32)


@pytest.mark.nvrtc
@pytest.mark.parametrize("p", (DENSE_F32, FAST), ids=lambda p: p.a.name)
@pytest.mark.parametrize("consumers", (2, 3, 4))
def test_the_bits_are_those_of_the_slices_one_after_the_other(p, consumers):
    c = config(consumers=consumers, stages=2 * consumers)
    shape = (16, 72, 656)
    got, want = bits_of(p, c, shape, 5), sliced_by_hand(p, c, shape, 5)
    assert got.tobytes() == want.tobytes()


@pytest.mark.nvrtc
def test_what_else_differs_changes_no_bit():
    """Equal descriptions of the sum; another number of warpgroups has another one."""
    first = config(in_flight=1)
    ways = (
        config(stages=3),
        config(block_m=32, unroll=2),
        config(swap_ab=False, block_m=64, block_n=32),
    )
    for c in ways:
        assert summation(DENSE_F32, c, 900) == summation(DENSE_F32, first, 900)
    assert same_bits(DENSE_F32, (16, 72, 600), (first, *ways), 2)
    two = config(consumers=2)
    assert summation(DENSE_F32, two, 900) != summation(DENSE_F32, first, 900)
    assert not same_bits(DENSE_F32, (16, 72, 600), (first, two), 2)
    assert summation(INT8, two, 900) == summation(INT8, Config(), 900)


def test_what_verification_is_told():
    kernel = lower(*VARIETY["dense-slices"])
    assert share_of(kernel, 200) == Slices(count=3, block=64)
    found = list(Slices(count=3, block=64).of(200))
    assert found[0] == [*range(64), *range(192, 200)]
    assert found[1:] == [[*range(64, 128)], [*range(128, 192)]]
    assert list(Slices(count=2, block=64).of(64)) == [[*range(64)], []]


# ---- the pass -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", IN_SLICES)
def test_what_the_pass_does(name):
    """K loops of slices; sums of all but the first in shared memory, between two meetings; the epilogue for the first only."""
    kernel, c = lower(*VARIETY[name]), VARIETY[name][1]
    (loop,) = (s for s in walk(kernel.consumer.body) if isinstance(s, ir.ForK))
    assert loop.of == "slice" and kernel.consumers == 1 and kernel.slices == c.consumers
    (tiles,) = (s for s in kernel.consumer.body if isinstance(s, ir.ForTiles))
    rejoin = next(i for i, s in enumerate(tiles.body) if isinstance(s, ir.RejoinRing))
    send, meet, add, again, epilogue = tiles.body[rejoin + 1 :]
    assert (send.when, add.when, epilogue.when) == ("other_slice", "first_slice", "first_slice")
    assert all(isinstance(s, ir.SendPartials) for s in send.body)
    assert all(isinstance(s, ir.AddPartials) for s in add.body)
    assert len(send.body) == len(add.body) == c.waves
    assert meet == again == ir.Sync(of="consumers", first_id=2, warpgroups=c.consumers)
    assert any(isinstance(s, ir.StageTile) for s in walk(epilogue.body))
    partials = kernel.buffer("smem_partials")
    each = sum(r.count for r in kernel.consumer.locals if r.name.startswith("acc"))
    assert (partials.stages, partials.stage_bytes) == (c.consumers - 1, 512 * each)
    arrivals = {b.name: b.arrivals for b in kernel.barriers}
    assert arrivals == {"full": 1, "empty": 4 * kernel.cluster.size}
    assert next(s for s in walk(kernel.roles[1].body) if isinstance(s, ir.ForK)).of == "tile"


@pytest.mark.parametrize("name", [name for name in VARIETY if name not in IN_SLICES])
def test_without_slices_the_pass_does_nothing(name):
    kernel = build(*VARIETY[name])
    assert slice_k(kernel, H200, False) is kernel and kernel.consumer.slices == 1
    of_slices = (ir.RejoinRing,)
    assert not [s for s in statements(lower(*VARIETY[name])) if isinstance(s, of_slices)]


@pytest.mark.parametrize(
    ("rule", "p", "changes"),
    (
        ("slice-consumers", DENSE, {"consumers": 1}),
        ("slice-consumers", DENSE, {"slice_k": False, "consumers": 4, "block_n": 256, "stages": 4}),
        ("slice-alone", DENSE, {"ping_pong": True}),
        ("slice-alone", DENSE, {"split_k": 2}),
        ("slice-alone", DENSE, {"stream": True}),
        ("slice-alone", DENSE, {"shares": 2}),
        ("slice-alone", replace(DENSE, grouping="k_columns"), {}),
        ("slice-alone", replace(DENSE, collective="reduce_scatter"), {}),
        ("slice-alone", replace(DENSE, collective="all_reduce"), {}),
        ("slice-alone", replace(DENSE, collective="all_gather"), {}),
        ("slice-sums", FP8, {}),
        ("slice-sums", Problem(family="fp8", a=E4M3, b=E4M3), {}),
        ("slice-ring", DENSE, {"stages": 4}),
        ("slice-ring", DENSE, {"stages": 3, "in_flight": 1}),
        ("peek", DENSE, {"peek": True}),
        ("column-stores", DENSE, {"swap_ab": False, "block_m": 64, "d_columns": 32}),
    ),
)
def test_what_is_refused(rule, p, changes):
    with pytest.raises(IllegalConfig) as e:
        lower(p, config(**changes))
    assert e.value.rule.id == rule


@pytest.mark.parametrize(("stages", "in_flight", "fix"), ((4, 0, 3), (8, 1, 6), (3, 1, 6)))
def test_the_fix_that_a_refusal_names_is_legal(stages, in_flight, fix):
    with pytest.raises(IllegalConfig, match=f"Use stages={fix}"):
        lower(DENSE, config(stages=stages, in_flight=in_flight))
    lower(DENSE, config(stages=fix, in_flight=in_flight))


# ---- the proof ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", IN_SLICES)
def test_waits_are_those_of_the_warpgroup_s_own_k_blocks(name):
    kernel = lower(*VARIETY[name])
    slices, stages, k, tiles = kernel.slices, kernel.stages, kernel.stages + 1, 3
    program = unroller(kernel, WHOLE).program(Instance(k_blocks=k, tiles=tiles))
    seen = []
    for agent, ops in zip(program.agents, program.ops, strict=True):
        waits = [op for op in ops if type(op).__name__ == "Wait" and op.bar[0] == "full"]
        if agent.role == "consumer" and agent.cta == 0:
            mine = [t * k + i for t in range(tiles) for i in range(agent.warpgroup, k, slices)]
            found = [(w.bar[2], w.phase) for w in waits]
            assert found == [(b % stages, b // stages) for b in mine]
            seen += mine
    assert sorted(seen) == [*range(tiles * k)]


@pytest.mark.parametrize("name", IN_SLICES)
def test_the_proof_of_every_instance(name):
    proof = check(lower(*VARIETY[name]), thorough=True, split=WHOLE)
    assert {i.tiles for i in proof.instances} >= {1, 2, 3}
    assert proof.certificate.waits > 20


@pytest.mark.parametrize(("consumers", "stages"), ((2, 3), (3, 4), (3, 5), (4, 6)))
def test_other_numbers_of_stages_would_be_wrong(monkeypatch, consumers, stages):
    """What `slice-ring` says of phases is so."""
    module = importlib.import_module("gemmgen.passes.slice_k")
    monkeypatch.setattr(module, "_check", lambda kernel: None)
    with pytest.raises(ProtocolViolation) as e:
        check(lower(DENSE, config(consumers=consumers, stages=stages)))
    assert e.value.property.id == "P5"


@pytest.mark.parametrize("row", [m for m in rows_slices.ROWS if m.ir], ids=lambda m: m.id)
def test_a_fault_is_refused(row):
    with pytest.raises(ProtocolViolation, match=reason(row).pattern.replace(r"\A", "^")):
        check(row.ir(original(row.kernel).kernel))
