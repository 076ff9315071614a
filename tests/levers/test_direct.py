"""Operands that go straight into registers: results on the emulator, the pass, the proof, the host, and faults that must show."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from direct_cases import GROUPED, PLAIN, WAYS, in_groups, in_one_way
from emulated import judged
from kernels import DENSE, DIRECT, FP8, VARIETY, emitted

from gemmgen import cli, emulator
from gemmgen.check import ProtocolViolation, check
from gemmgen.errors import ArgumentError, IllegalConfig, VerificationError
from gemmgen.ir import nodes as ir
from gemmgen.ir.counts import REACH
from gemmgen.ir.dtypes import E4M3
from gemmgen.ir.rewrite import map_stmts, statements
from gemmgen.pipeline import lower
from gemmgen.runtime.launch import check_launch, grid
from gemmgen.runtime.launch_record import from_json, record_of, to_json
from gemmgen.summation import summation

READING = [name for name, (_, c) in VARIETY.items() if c.direct]


def config(**changes):
    return replace(DIRECT, **changes)


# ---- results --------------------------------------------------------------------------------


@pytest.mark.nvrtc
@pytest.mark.parametrize("stages", (1, 2, 3, 4))
@pytest.mark.parametrize("k", (8, 64, 72, 136, 248, 320))
def test_every_number_of_k_blocks(stages, k):
    """As many as registers hold, fewer and more, the last one whole and not; rows beyond M; several tiles of a CTA."""
    assert judged(DENSE, config(stages=stages, unroll=stages), (5, 75, k), pad=1, sms=1).exact


@pytest.mark.nvrtc
@pytest.mark.parametrize(
    ("p", "changes"),
    (
        *WAYS,
        (DENSE, {"block_k_bytes": 256, "stages": 1}),
        (DENSE, {"unroll": 4}),
        (DENSE, {"pdl": True}),
        (FP8, {"lane_scales": True, "block_m": 16, "split_k": 2, "pdl": True}),
        (FP8, {"lane_scales": True, "stages": 4, "unroll": 4, "watchdog": True}),
    ),
    ids=str,
)
def test_with_other_ways(p, changes):
    in_one_way(p, config(**changes))


@pytest.mark.nvrtc
@pytest.mark.parametrize("grouping", GROUPED)
@pytest.mark.parametrize("of", ("bf16", "fp8_block"))
def test_groups(grouping, of):
    in_groups(of, grouping, config)


@pytest.mark.nvrtc
def test_under_every_schedule():
    for schedule in (emulator.Eager(), emulator.Late(), emulator.Random(seed=3)):
        assert judged(DENSE, config(split_k=2), (8, 70, 448), sms=2, schedule=schedule).exact


# ---- faults in the text ----------------------------------------------------------------------

FAULTS = {
    "the next row's": ({}, "warp * 16 + lane / 4, kk", "warp * 16 + (lane / 4 ^ 1), kk"),
    "another warp's": ({}, "warp * 16 + lane / 4, kk", "(warp ^ 1) * 16 + lane / 4, kk"),
    "the first eight rows twice": ({}, "min(row + 8 * i, shape_n", "min(row, shape_n"),
    "another quarter of K, of A alone": (
        {},
        "tile.a_row + lane / 4, kk = k + 2, at = kk * 64 + lane % 4 * 8",
        "tile.a_row + lane / 4, kk = k + 2, at = kk * 64 + (lane % 4 ^ 1) * 8",
    ),
    "the K block before": ({}, "kk = k + 2", "kk = k + 1"),
    "past K": ({}, "tile.k_blocks ? shape_k : 0", "tile.k_blocks ? 1 << 30 : 0"),
    "the upper rows' K in the lower's place": ({}, "b_0[0], b_0[8]", "b_0[8], b_0[0]"),
    "half of K exchanged, of A alone": ({}, "a_0[0], a_0[1]);", "a_0[1], a_0[0]);"),
    "words of a piece not moved on": ({}, "b_0[i] = b_1[i]", "b_0[i] = b_1[i & 14]"),
    "the share of the CTA before": ({"split_k": 2}, "at = tile.k_first + kk", "at = kk"),
}


@pytest.mark.nvrtc
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_shows(fault):
    changes, right, wrong = FAULTS[fault]
    with pytest.raises((VerificationError, emulator.ProtocolError, emulator.IllegalAccess)):
        judged(
            DENSE, config(**changes), (8, 70, 456), broken=lambda t: t.replace(right, wrong), sms=1
        )


@pytest.mark.nvrtc
def test_a_wrong_half_shows():
    def broken(text):
        return text.replace("ptx::high_e4m3(a_0[0])", "ptx::low_e4m3(a_0[0])")

    with pytest.raises(VerificationError):
        judged(PLAIN, config(), (8, 64, 512), broken=broken, sms=1)


# ---- the pass -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", READING)
def test_nothing_is_left_of_the_ring(name):
    k = emitted(*VARIETY[name]).kernel
    assert not k.ring and [r.name for r in k.roles] == ["consumer"]
    assert not any(s.ring for s in k.smem) and {m.tensor for m in k.maps} <= {"d"}
    gone = (ir.Mma, ir.WgmmaWait, ir.TmaLoad, ir.SetRegisters, ir.Peek)
    assert not any(isinstance(s, gone) for s in statements(k))
    source = emitted(*VARIETY[name]).source
    assert "Ring" not in source and "STAGES" not in source and "wgmma" not in source.split("//")[-1]


@pytest.mark.parametrize("stages", (1, 2, 3, 4))
def test_a_block_is_loaded_when_the_one_before_it_in_its_registers_is_used(stages):
    k = emitted(DENSE, config(stages=stages, unroll=stages)).kernel
    loads = [s for s in statements(k) if isinstance(s, ir.LoadFragments)]
    first = [s.distance for s in loads if s.block == "first" and s.tensor == "b"]
    assert first == [*range(stages)]
    assert {s.distance for s in loads if s.block == "next"} == {stages}
    moves = [s for s in statements(k) if isinstance(s, ir.Copy)]
    assert len(moves) == 2 * stages
    loop = [type(s) for s in statements(k) if isinstance(s, ir.MultiplyFragments) or s in loads]
    assert loop.index(ir.MultiplyFragments) == 2 * stages  # behind the tile's first


@pytest.mark.parametrize("name", READING)
def test_as_many_share_an_sm_as_their_registers_and_memory_take(name):
    k = emitted(*VARIETY[name]).kernel
    assert k.per_sm * k.threads * k.consumer.registers <= 65536
    assert k.per_sm * (k.smem_bytes + 1024) <= 233472
    assert f"__launch_bounds__({k.threads}, {k.per_sm})" in emitted(*VARIETY[name]).source


@pytest.mark.parametrize(
    "changes",
    (
        {"in_flight": 1},
        {"swizzle_ab": 64},
        {"registers": (40, 232)},
        {"stream": True},
        {"peek": True, "stages": 1, "unroll": 1},
        {"pdl": True, "weights_ahead": True},
    ),
    ids=str,
)
def test_what_is_of_a_ring_is_refused(changes):
    """By name, with the value."""
    with pytest.raises(IllegalConfig) as e:
        lower(replace(DENSE, weights_ready=True), config(**changes))
    assert e.value.rule.id == "direct-alone"
    assert [*e.value.values] == ["weights_ahead" if "pdl" in changes else next(iter(changes))]


@pytest.mark.parametrize(
    ("p", "changes", "rule"),
    (
        (DENSE, {"swap_ab": False, "block_m": 64, "block_n": 8}, "direct-tile"),
        (DENSE, {"block_n": 128}, "direct-tile"),
        (replace(DENSE, layout="nn"), {}, "direct-operands"),
        (DENSE, {"block_k_bytes": 32}, "direct-operands"),
        (replace(FP8, family="fp8_1d1d"), {"lane_scales": False}, "direct-scales"),
        (replace(DENSE, grouping="k_columns"), {}, "direct-alone"),
    ),
    ids=lambda x: getattr(x, "layout", str(x)),
)
def test_what_it_needs(p, changes, rule):
    with pytest.raises(IllegalConfig) as e:
        lower(p, config(**changes))
    assert e.value.rule.id == rule


# ---- the proof ------------------------------------------------------------------------------


def altered(change, p=DENSE, **changes):
    return map_stmts(emitted(p, config(**changes)).kernel, change)


def dropping(kind, **having):
    def change(s):
        asked = isinstance(s, kind) and all(getattr(s, k) == v for k, v in having.items())
        return () if asked else s

    return change


def changing(kind, having, **to):
    def change(s):
        asked = isinstance(s, kind) and all(getattr(s, k) == v for k, v in having.items())
        return replace(s, **to) if asked else s

    return change


WRONG = {
    "a K block is not loaded": dropping(ir.LoadFragments, block="next", tensor="b"),
    "the first is not": dropping(ir.LoadFragments, block="first", tensor="a"),
    "one too far ahead": changing(ir.LoadFragments, {"block": "next", "tensor": "a"}, distance=3),
    "fragments are not moved on": dropping(ir.Copy, dst="b_0"),
    "those of B are multiplied as A's": changing(
        ir.MultiplyFragments, {}, row_fragments="a_0", column_fragments="b_0"
    ),
    "sums do not begin at zero": dropping(ir.Zero, dst="acc0"),
    "the other operand's rows": changing(ir.LoadFragments, {"tensor": "b"}, of="columns"),
    "words are taken for halves": changing(ir.MultiplyFragments, {}, by="halves"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_the_proof_sees(wrong):
    with pytest.raises(ProtocolViolation):
        check(altered(WRONG[wrong]))


def test_the_proof_sees_a_partial_sum_that_is_not_zeroed():
    with pytest.raises(ProtocolViolation):
        check(altered(dropping(ir.Zero, dst="part"), PLAIN))


@pytest.mark.parametrize("name", READING)
def test_it_is_proved(name):
    assert check(emitted(*VARIETY[name]).kernel)


# ---- the host -------------------------------------------------------------------------------


def test_k_must_be_whole_pieces():
    for p, step in ((DENSE, 8), (PLAIN, 16)):
        kernel = emitted(p, config()).kernel
        check_launch(kernel, (4, 64, 5 * step))
        with pytest.raises(ArgumentError) as e:
            check_launch(kernel, (4, 64, 5 * step + 4))
        assert e.value.argument == "k" and str(step) in e.value.allowed


@pytest.mark.parametrize("k_bytes", (64, 128, 256))
@pytest.mark.parametrize("rows", (8, 16))
def test_what_is_counted_ahead_of_k_is_an_int(rows, k_bytes):
    """Of FP8, of as many K blocks as there are registers for."""
    for stages in range(1, 9):  # an unroll has no more
        c = config(block_m=rows, block_k_bytes=k_bytes, stages=stages, unroll=stages)
        try:
            kernel = lower(PLAIN, c)
        except IllegalConfig as e:
            assert e.rule.id == "register-budget" and stages > 1
            return
        assert (stages + 1) * kernel.block.k <= REACH


def test_the_grid_has_several_ctas_for_an_sm():
    kernel = emitted(DENSE, config()).kernel
    assert kernel.per_sm > 1
    assert grid(kernel, (8, 64 * 300, 512), 132) == 300
    assert grid(kernel, (8, 64 * 4000, 512), 132) <= 132 * kernel.per_sm


def test_a_record_has_what_a_launch_needs():
    kernel = emitted(FP8, config(lane_scales=True)).kernel
    record = from_json(json.loads(json.dumps(to_json(record_of(kernel)))))
    assert record.pointed == kernel.pointed and record.per_sm == kernel.per_sm
    assert [x.tensor for x in record.pointed] == ["b", "a"]
    assert {x.dtype for x in record.pointed} == {E4M3}


def test_its_bits_are_its_own():
    """Products are added up otherwise: batch-invariant calls must not exchange it for another."""
    plain = replace(DIRECT, direct=False)
    assert summation(DENSE, DIRECT, 512) != summation(DENSE, plain, 512)
    assert summation(DENSE, DIRECT, 512) == summation(DENSE, replace(DIRECT, block_m=16), 512)


def test_an_explanation_counts_ctas_that_share_an_sm(capsys):
    assert cli.main(["explain", "dense", "-m", "8", "-n", "5376", "-k", "5120"]) == 0
    said = capsys.readouterr().out
    assert "direct" in said
    assert "336 CTAs compute 1 tile each" in said
    assert "4 share an SM" in said
    assert "mma.sync" in said


def test_a_timeline_is_of_what_is_simulated(capsys):
    assert cli.main(["timeline", "dense", "-m", "8", "-n", "5376", "-k", "5120"]) == 0
    assert "the choice is direct" in " ".join(capsys.readouterr().out.split())
    asked = '{"swap_ab": true, "block_m": 8, "block_n": 64, "consumers": 1, "stages": 2, "unroll": 2, "direct": true}'
    assert cli.main(["timeline", "dense", "-m", "8", "--config", asked]) == 2
    assert "direct=True: must be false where times are simulated" in capsys.readouterr().err
