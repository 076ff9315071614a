"""Swap-AB: few rows of D as the columns of wgmma. Results on the emulator, and faults that must show."""

from __future__ import annotations

import re
from dataclasses import replace
from random import Random

import numpy as np
import pytest
from emulated import judged, machine, same_bits
from grouped import PROBLEMS, layout, problem
from kernels import DENSE, DENSE_F32, DENSE_NN, DENSE_TN, DENSE_TT, FP8, GROUPED, VECTOR, emitted

from gemmgen.check import ProtocolViolation, check
from gemmgen.config import Config
from gemmgen.epilogues import EPILOGUES, acc, silu
from gemmgen.errors import GemmgenError, IllegalConfig
from gemmgen.ir import nodes as ir
from gemmgen.ir.dtypes import F16, F32
from gemmgen.ir.expr import Call, PerColumn, PerElement, PerRow
from gemmgen.ir.groupings import GROUPINGS
from gemmgen.ir.rewrite import map_stmts
from gemmgen.pipeline import lower

BY_ROWS = tuple(g for g in GROUPED if not GROUPINGS[g].depths)


def config(**changes) -> Config:
    return Config(**{"swap_ab": True, "block_m": 16, "block_n": 128, "stages": 2} | changes)


# (config, shape, pad): few rows and many, tails in M, N and K, one K block and fewer than the stages,
# several tiles per CTA, every block of B's scales in one wave, all swizzles of D.
CASES = (
    (config(block_m=8), (1, 261, 300), 0),
    (config(block_m=8, block_n=64, consumers=1), (3, 520, 128), 1),
    (config(block_m=16, stages=3), (13, 129, 520), 0),
    (config(block_m=16, block_n=256, multicast="b"), (33, 300, 100), 2),
    (config(block_m=32, block_n=192, consumers=1, unroll=4), (16, 400, 300), 0),
    (config(block_m=64, multicast="a"), (64, 296, 200), 0),
    (config(block_m=48, raster="n", panel=4), (130, 264, 272), 3),
    (config(block_m=24, block_n=128, consumers=1, swizzle_d=0), (8, 100, 130), 0),
    (config(block_m=56, swizzle_d=64), (200, 136, 16), 0),
    (config(block_m=16, block_n=64, consumers=1, swizzle_d=32), (5, 7, 9), 0),
    (config(block_m=24, block_n=192, consumers=3), (30, 261, 140), 0),
)


def legal(p, c: Config) -> Config:
    """As `c`, but with an N that wgmma has for integers, and without a multicast that cannot be cut."""
    if p.a.integer and c.block_m > 32:
        c = replace(c, block_m=c.block_m // 16 * 16)
    return c


@pytest.mark.nvrtc
@pytest.mark.parametrize("case", range(len(CASES)))
@pytest.mark.parametrize("name", PROBLEMS)
def test_results(name, case):
    c, shape, pad = CASES[case]
    p = problem(name, "none")
    assert judged(p, legal(p, c), shape, pad=pad).exact


EPILOGUED = {
    "rows and columns": EPILOGUES["scaled"],
    "elements": EPILOGUES["residual"],
    "elements in fp16": acc * 0.5 + PerElement("c", F16),
    "elements in fp32, rows": acc * PerRow("r") - PerElement("c", F32) * PerColumn("x"),
    "approximate": silu(acc + PerColumn("bias")),
    "clamped": Call("max", (acc + PerRow("r"), PerColumn("low"))),
}


@pytest.mark.nvrtc
@pytest.mark.parametrize("d", ("bf16", "f32"))
@pytest.mark.parametrize("name", EPILOGUED)
def test_epilogues(name, d):
    p = replace((DENSE, DENSE_F32)[d == "f32"], epilogue=EPILOGUED[name])
    judged(p, config(stages=3), (13, 129, 130), pad=1)
    q = replace(FP8, d=p.d, epilogue=p.epilogue)
    judged(q, config(block_n=256, multicast="b"), (33, 270, 100))


@pytest.mark.nvrtc
@pytest.mark.parametrize("p", (DENSE_NN, DENSE_TN, DENSE_TT), ids=lambda p: p.layout)
def test_layouts(p):
    for i, c in enumerate(
        (
            config(block_m=8, in_flight=1),
            config(block_m=16, block_n=64, consumers=1, multicast="b"),
            config(block_m=64, multicast="a", swizzle_ab=64),
            config(block_m=24, swizzle_ab=0, block_k_bytes=32),
            config(block_m=40, block_n=256, block_k_bytes=256, in_flight=1),
        )
    ):
        shape = ((1, 130, 70), (37, 200, 130), (130, 72, 300))[i % 3]
        q = replace(p, a=F16, b=F16, d=F32) if i % 2 else p
        assert judged(q, c, shape, pad=i).exact


GROUPS = ((1, 0, 3, 17), (16, 5, 0, 33), (70, 1))  # rows of each, few and more than a tile


@pytest.mark.nvrtc
@pytest.mark.parametrize("grouping", BY_ROWS)
@pytest.mark.parametrize("name", PROBLEMS)
def test_groups(name, grouping):
    p = problem(name, grouping)
    number = [*PROBLEMS].index(name) + BY_ROWS.index(grouping)
    sizes, kind = GROUPS[number % 3], number // 3 % 3
    rows = max(sizes) if GROUPINGS[grouping].rows else sum(-(-s // 128) * 128 for s in sizes)
    c = config(
        block_m=(16, 8, 64)[kind],
        block_n=(64, 128, 256)[kind],
        consumers=(1, 2, 2)[kind],
        multicast=("none", "b", "a")[kind],
    )
    shape = rows, (72, 100, 133)[number % 3], (130, 200, 90)[kind]
    assert judged(p, c, shape, layout(p, shape, sizes), pad=number % 2).exact


@pytest.mark.nvrtc
@pytest.mark.parametrize("epilogue", ("scaled", "residual", "bias_silu"))
@pytest.mark.parametrize("grouping", BY_ROWS)
def test_epilogues_of_groups(grouping, epilogue):
    p = replace(FP8, grouping=grouping, epilogue=EPILOGUES[epilogue])
    rows = 40 if GROUPINGS[grouping].rows else 384
    judged(p, config(), (rows, 131, 160), layout(p, (rows, 131, 160), (40, 3, 0)), pad=1)


@pytest.mark.nvrtc
@pytest.mark.parametrize("grouping", ("none", "masked"))
@pytest.mark.parametrize("p", (DENSE_F32, VECTOR), ids=lambda p: p.family)
def test_adding_to_d(p, grouping):
    p = replace(p, accumulate=True, grouping=grouping)
    judged(p, config(block_m=24), (30, 133, 160), layout(p, (30, 133, 160), (9, 30)), pad=1)


@pytest.mark.nvrtc
@pytest.mark.parametrize("grouping", [g for g in GROUPED if GROUPINGS[g].depths])
@pytest.mark.parametrize("name", ("fp8_1d1d", "bf16", "f16_f32", "s8_block"))
def test_groups_that_split_k(name, grouping):
    p, shape = problem(name, grouping), (30, 133, 640)
    groups = layout(p, shape, (200, 0, 130))
    assert judged(p, config(block_m=24, multicast="b", stages=3), shape, groups).exact


@pytest.mark.nvrtc
@pytest.mark.parametrize("p", (DENSE, FP8, VECTOR), ids=lambda p: p.family)
def test_the_exchange_changes_no_bit(p):
    """On random data: the same products, in the same order, with the same scales."""
    assert same_bits(p, (50, 200, 700), (Config(stages=2), config()), 4)


@pytest.mark.nvrtc
@pytest.mark.parametrize("seed", range(10))
def test_random_configs(seed):
    """Whatever is legal is proved and right."""
    random = Random(seed)
    tried = 0
    while tried < 2:
        p = problem(random.choice([*PROBLEMS]), random.choice(("none", "none", *BY_ROWS)))
        block_n, consumers = random.choice(((64, 1), (128, 1), (128, 2), (192, 1), (256, 2)))
        c = config(
            block_m=random.randrange(8, 72, 8),
            block_n=block_n,
            consumers=consumers,
            stages=random.randint(2, 4),
            multicast=random.choice(("none", "none", "a", "b")),
            raster=random.choice("mn"),
            swizzle_d=random.choice((None, None, 0, 32, 128)),
            unroll=random.choice((1, 4)),
        )
        try:
            lower(p, c)
        except IllegalConfig as e:
            assert e.rule.id in LEGAL_REFUSALS, e
            continue
        tried += 1
        sizes = tuple(random.choice((0, 1, 7, 16, 30)) for _ in range(random.randint(1, 4)))
        rows = random.randint(1, 70)
        if not GROUPINGS[p.grouping].rows and p.grouping != "none":
            rows = sum(-(-s // 128) * 128 for s in sizes) or 1
        shape = rows, random.randint(1, 400), random.randint(1, 400)
        judged(p, c, shape, layout(p, shape, sizes), pad=random.randint(0, 2), seed=seed)


LEGAL_REFUSALS = ("wgmma-n", "multicast-slice")


# ---- faults the proof must find --------------------------------------------------------------------


def each(kind, change):
    return lambda k: map_stmts(k, lambda s: change(s) if isinstance(s, kind) else s)


def of_d(**fields):
    return lambda k: replace(
        k, smem=tuple(replace(s, **fields) if s.use == "output" else s for s in k.smem)
    )


def by(spelling):
    return lambda s: replace(s, by=spelling)


UPRIGHT_MMA = each(ir.Mma, lambda s: replace(s, a=s.b, b=s.a))
FAULTS = {
    "operands not exchanged": (DENSE, {}, UPRIGHT_MMA),
    "operands not exchanged, square": (DENSE, {"block_m": 64, "block_n": 64, "consumers": 1}, UPRIGHT_MMA),
    "layouts not exchanged": (DENSE_NN, {}, each(ir.Mma, lambda s: replace(s, instr=replace(s.instr, a_major="k", b_major="mn")))),
    "stored as it lies": (DENSE, {}, each(ir.StageTile, by("matrix"))),
    "stored as it lies, square": (DENSE, {"block_m": 64, "block_n": 64, "consumers": 1}, each(ir.StageTile, by("matrix"))),
    "FP32 stored as it lies": (DENSE_F32, {}, each(ir.StageTile, by("pairs"))),
    "pieces below each other": (DENSE, {}, of_d(along="m")),
    "pieces below each other, square": (DENSE, {"block_m": 64, "block_n": 64, "consumers": 1}, of_d(along="m")),
    "scales of rows not exchanged": (VECTOR, {}, each(ir.LoadRowScales, lambda s: replace(s, smem="smem_scale_a"))),
    "scales of columns not exchanged": (VECTOR, {}, each(ir.LoadColumnScales, lambda s: replace(s, smem="smem_scale_b"))),
    "scales of rows not exchanged, square": (VECTOR, {"block_m": 64, "block_n": 64, "consumers": 1}, each(ir.LoadRowScales, lambda s: replace(s, smem="smem_scale_a"))),
    "scales of columns not exchanged, square": (VECTOR, {"block_m": 64, "block_n": 64, "consumers": 1}, each(ir.LoadColumnScales, lambda s: replace(s, smem="smem_scale_b"))),
    "one block's scale for all": (FP8, {}, each(ir.LoadBlockScales, lambda s: replace(s, of="columns"))),
    "another wave's scale": (FP8, {"block_n": 256}, each(ir.Promote, lambda s: replace(s, wave=1 - s.wave))),
    "another wave's piece": (DENSE, {"block_n": 256}, each(ir.TmaStore, lambda s: replace(s, wave=0))),
    "half the columns": (DENSE, {}, of_d(cols=32)),
    "no tail": (DENSE, {}, lambda k: map_stmts(k, lambda s: () if isinstance(s, ir.StoreTail) else s)),
    "fewer rows staged": (DENSE, {"swizzle_d": 0}, of_d(rows=8)),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_the_proof_refuses(fault):
    p, changes, change = FAULTS[fault]
    kernel = lower(p, config(**changes))
    check(kernel)
    wrong = change(kernel)
    assert wrong != kernel
    with pytest.raises(ProtocolViolation):
        check(wrong)


def test_the_proof_refuses_transposing_stores_in_other_kernels():
    for p, kind in ((DENSE, "matrix_transposed"), (DENSE_F32, "elements_transposed")):
        wrong = each(ir.StageTile, by(kind))(lower(p, Config(block_n=64, stages=2)))
        with pytest.raises(ProtocolViolation):
            check(wrong)


def test_what_the_pass_leaves_alone():
    for p in (DENSE, FP8, VECTOR):
        kernel = lower(p, Config(stages=2))
        assert kernel.buffer("smem_d").along == "m"
        swapped = lower(p, config())
        assert swapped.buffer("smem_d").along == "n"
        assert (swapped.block.m, swapped.block.n) == (16, 128)
        assert swapped.buffer("smem_a").rows == 16 and swapped.buffer("smem_b").rows == 128


# ---- faults in the text that the emulator must find -------------------------------------------------


def swap(pattern, new):
    return lambda source: re.sub(pattern, new, source, count=1)


TEXT_FAULTS = {
    "not transposed": (DENSE, {}, swap(r"x4\.trans\.", "x4.")),
    "a warp's columns": (DENSE, {}, swap(r"col = warp \* 16 \+ lane / 8 % 2", "col = warp * 16 + lane / 16 % 2")),
    "a row of FP32 off": (DENSE_F32, {}, swap(r"row = lane % 4 \* 2;", "row = lane % 4;")),
    "a column of FP32 off": (DENSE_F32, {}, swap(r"half \* 8 \+ lane / 4", "half * 8 + lane % 8")),
    "the tile's first block for all": (FP8, {}, swap(r"\(2 \* i \+ warpgroup\) \* 64\) / 128", "i * 0) / 128")),
    "scales of the row before": (FP8, {}, swap(r"8 \* \(lane % 4\)", "8 * (lane / 4 % 4)")),
    "scales exchanged in pairs": (FP8, {}, swap(r"scale_0 = column_scales\[i / 2\]", "scale_0 = column_scales[i / 2 + 1]")),
    "rows and columns of arguments": (replace(DENSE, epilogue=EPILOGUES["scaled"]), {}, swap(r"at_row_scale \+ min\(tile\.d_row \+ lane % 4 \* 2", "at_row_scale + min(tile.d_row + lane / 4")),
    "every second column of a residual": (replace(DENSE, epilogue=EPILOGUES["residual"]), {}, swap(r"lane / 4 % 2\)", "i % 2)")),
    "pieces in one place": (DENSE, {}, swap(r"tile\.d_col \+ (128 \* wave \+ )?warpgroup \* 64, tile", "tile.d_col, tile")),
    "a tail of another piece": (DENSE, {}, swap(r"first = whole - \(tile\.d_col \+ .*warpgroup\)? \* 64\)", "first = whole - tile.d_col")),
    "no end of a group": (replace(DENSE, grouping="masked"), {}, swap(r"min\(16, tile\.d_end", "min(16, shape_m")),
    "rows of the piece before": (replace(DENSE, grouping="masked"), {}, swap(r"min\(16, tile", "min(8, tile")),
}  # fmt: skip


@pytest.mark.nvrtc
@pytest.mark.parametrize("fault", TEXT_FAULTS)
def test_the_emulator_finds(fault):
    p, changes, broken = TEXT_FAULTS[fault]
    groups = layout(p, (30, 325, 300), (9, 30)) if p.grouping == "masked" else None
    c = config(**{"block_n": 256} | changes)
    judged(p, c, (30, 325, 300), groups)
    with pytest.raises(GemmgenError):
        judged(p, c, (30, 325, 300), groups, broken=broken)


@pytest.mark.nvrtc
@pytest.mark.parametrize("p", (DENSE, DENSE_F32, FP8, VECTOR), ids=lambda p: f"{p.family}-{p.d}")
def test_no_bank_conflicts(p):
    gpu = machine()
    from gemmgen.runtime.emulated import prepare
    from gemmgen.verification.trial import judge

    a = emitted(p, config(block_m=64))
    judge(gpu, prepare(a.kernel, a.source), a.kernel, p, (64, 256, 256))
    assert [s.conflicts for s in gpu.stats] == [0] * 3


def test_names_say_so():
    assert lower(DENSE, config()).name.endswith("16x128x64_s2c2_swap")
    assert np.unique([lower(DENSE, config(block_m=m)).name for m in (8, 16)]).size == 2
