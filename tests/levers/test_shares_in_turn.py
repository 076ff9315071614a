"""Shares of K that one CTA adds up: the bits of CTAs that divide K, and faults that must show."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from check_museum import is_one
from emulated import judged, machine, same_bits
from grouped import PROBLEMS, layout, problem
from kernels import (
    DENSE,
    DENSE_F32,
    DENSE_NN,
    DENSE_TN,
    FP8,
    GROUPED,
    INT8_BLOCK,
    QUANTISED,
    VECTOR,
    emitted,
)

from gemmgen.check import ProtocolViolation, check
from gemmgen.config import Config
from gemmgen.epilogues import EPILOGUES
from gemmgen.errors import GemmgenError
from gemmgen.ir import nodes as ir
from gemmgen.ir.blocks import is_if
from gemmgen.ir.dtypes import BF16, E4M3, E5M2, F32, S8
from gemmgen.ir.groupings import GROUPINGS
from gemmgen.ir.rewrite import map_stmts, statements
from gemmgen.pipeline import lower
from gemmgen.problem import Problem
from gemmgen.runtime.launch_record import record_of
from gemmgen.summation import summation

BY_ROWS = tuple(g for g in GROUPED if not GROUPINGS[g].depths)
FP8_SUMS = Problem(family="fp8", a=E4M3, b=E5M2, d=F32)
FAST = Problem(family="dense", a=E4M3, b=E4M3, d=F32)
SWAP = {"swap_ab": True, "block_m": 16, "block_n": 64}


def config(**changes) -> Config:
    return Config(
        **{"shares": 4, "block_m": 64, "block_n": 32, "consumers": 1, "stages": 2} | changes
    )


def divided(c: Config) -> Config:
    """A cluster that adds up so, whatever else `c` has."""
    return Config(block_m=64, block_n=64, consumers=1, stages=2, split_k=c.shares)


# Families and levers; K in fewer blocks than shares, in as many, in shares of which the last has less or none.
ALIKE = (
    (DENSE_F32, {}, (70, 40, 1100)),
    (DENSE_F32, {"in_flight": 1, "shares": 8, "stages": 3}, (30, 24, 300)),
    (DENSE_F32, {"in_flight": 1, "shares": 2, "unroll": 4}, (64, 32, 512)),
    (DENSE_F32, {"in_flight": 1, "block_m": 256, "consumers": 2, "multicast": "a"}, (270, 70, 640)),
    (DENSE_F32, {"in_flight": 1, "block_m": 128, "consumers": 2, "ping_pong": True, "shares": 2}, (130, 70, 600)),
    (DENSE_F32, {**SWAP, "in_flight": 1}, (33, 130, 700)),
    (DENSE_F32, {"pdl": True, "block_n": 64, "shares": 2}, (64, 72, 65)),
    (FAST, {"in_flight": 1}, (70, 40, 1100)),
    (FP8_SUMS, {}, (70, 40, 1100)),
    (FP8_SUMS, {"parts": 2, "in_flight": 1, "shares": 8}, (70, 40, 2100)),
    (replace(FP8, d=F32), {"unroll": 4}, (70, 40, 1100)),
    (replace(FP8, d=F32), {"block_n": 144, "shares": 2, "stages": 3}, (64, 150, 640)),
    (replace(FP8, d=F32), {"peek": True, "shares": 8}, (64, 32, 4500)),
    (replace(FP8, d=F32), {"lane_scales": True}, (70, 40, 1500)),
    (replace(FP8, d=F32), {**SWAP, "shares": 2}, (16, 200, 900)),
    (VECTOR, {}, (70, 40, 1100)),
    (VECTOR, {"block_m": 128, "in_flight": 1, "shares": 8}, (130, 40, 1300)),
    (INT8_BLOCK, {}, (70, 40, 1100)),
    (replace(INT8_BLOCK, d=F32), {"shares": 2}, (70, 40, 700)),
)  # fmt: skip


@pytest.mark.nvrtc
@pytest.mark.parametrize("case", range(len(ALIKE)))
def test_the_bits_are_those_of_ctas_that_divide_k(case):
    p, changes, shape = ALIKE[case]
    c = config(**changes)
    assert summation(p, c, shape[2]) == summation(p, divided(c), shape[2])
    assert same_bits(p, shape, (c, divided(c)), case)


@pytest.mark.nvrtc
@pytest.mark.parametrize("p", (DENSE_F32, FAST, VECTOR), ids=lambda p: f"{p.family}-{p.a}")
def test_they_are_others_than_of_one_sum(p):
    """So that equal bits say something."""
    assert not same_bits(p, (70, 40, 1100), (config(), config(shares=1)), 1)
    assert not same_bits(p, (70, 40, 1100), (config(), config(shares=2)), 1)


def tiny(p, shape):
    """Operands of which each K block's sum is too small for FP32 when it is scaled, of either sign, row by row."""
    from gemmgen.verification import random_normal

    x = random_normal(p, *shape, 1)
    a, b = (np.zeros_like(of) for of in (x.a, x.b))
    a[:, ::128], b[:, ::128] = 0x28, 0x38  # 1/4, 1
    a[::2, ::128] |= 0x80
    scales = {
        name: np.full_like(getattr(x, name), of)
        for name, of in (("scale_a", 2.0**-75), ("scale_b", 2.0**-74))
    }
    return replace(x, a=a, b=b, **scales)


@pytest.mark.nvrtc
@pytest.mark.parametrize("k", (512, 384))
def test_zeros_have_the_sign_that_ctas_give_them(k):
    """Four sums of -0 make -0, unless one of the CTAs has no K and sends 0."""
    gpu = machine()
    from gemmgen.runtime.emulated import prepare
    from gemmgen.verification.trial import output, pitches

    p, shape, found = replace(FP8, d=F32), (64, 32, k), []
    operands = tiny(p, shape)
    for c in (config(), divided(config())):
        a = emitted(p, c)
        strides = pitches(a.kernel, shape)
        d = output(p, operands, strides)
        found.append(
            d.extract(gpu.execute(prepare(a.kernel, a.source), operands, strides, d, 0xFF))
        )
    assert (found[0] == found[1]).all() and not np.asarray(found[0]).view(np.float32).any()
    signs = np.signbit(np.asarray(found[0]).view(np.float32))
    assert signs[::2].all() == (k == 512) and not signs[1::2].any()


CASES = (
    ({}, (64, 32, 512), 0),
    ({"shares": 2}, (13, 50, 1100), 1),
    ({"stages": 3}, (100, 40, 640), 0),
    ({"shares": 8}, (30, 24, 300), 0),
    ({"shares": 2}, (5, 7, 9), 2),
    ({"block_m": 128, "consumers": 2, "unroll": 4}, (130, 70, 1300), 0),
    ({"shares": 2, "block_m": 256, "consumers": 2, "raster": "n"}, (200, 30, 520), 0),
    (SWAP, (9, 200, 900), 0),
)


@pytest.mark.nvrtc
@pytest.mark.parametrize("name", PROBLEMS)
@pytest.mark.parametrize("case", range(len(CASES)))
def test_results(name, case):
    changes, shape, pad = CASES[case]
    assert judged(problem(name, "none"), config(**changes), shape, pad=pad).exact


@pytest.mark.nvrtc
@pytest.mark.parametrize("p", (DENSE_NN, DENSE_TN), ids=lambda p: p.layout)
def test_layouts(p):
    assert judged(p, config(block_n=64, in_flight=1), (70, 72, 600), pad=1).exact


@pytest.mark.nvrtc
@pytest.mark.parametrize("epilogue", ("bias_silu", "residual", "swiglu", "bias_gelu"))
def test_epilogues(epilogue):
    name = ("fp8_block", "f16_f32")[len(epilogue) % 2]
    p = replace(problem(name, "none"), epilogue=EPILOGUES[epilogue])
    judged(p, config(stages=3), (70, 72, 700), pad=1)


@pytest.mark.nvrtc
def test_other_outputs():
    judged(QUANTISED, config(block_n=128, shares=2), (70, 134, 300), pad=1)
    judged(
        replace(DENSE_F32, accumulate=True), config(block_n=64, d_columns=32), (70, 33, 600), pad=1
    )
    judged(FP8, config(watchdog=True), (64, 32, 600))


GROUPS = ((1, 0, 3, 17), (16, 5, 0, 33), (70, 1))


@pytest.mark.nvrtc
@pytest.mark.parametrize("grouping", BY_ROWS)
@pytest.mark.parametrize("which", range(2))
def test_groups(which, grouping):
    number = which * len(BY_ROWS) + BY_ROWS.index(grouping)
    p = problem([*PROBLEMS][number % len(PROBLEMS)], grouping)
    sizes = GROUPS[number % 3]
    rows = max(sizes) if GROUPINGS[grouping].rows else sum(-(-s // 128) * 128 for s in sizes)
    changes = ({}, SWAP, {"block_m": 128, "consumers": 2})[number // 3 % 3]
    shape = rows, (72, 33)[number % 2], (300, 640, 130)[number % 3]
    c = config(**changes, shares=(2, 4)[number % 2])
    assert judged(p, c, shape, layout(p, shape, sizes), pad=number % 2).exact


# Of each family the largest that the rules leave, of what a choice takes.
LARGEST = (
    (DENSE, {"block_m": 128, "block_n": 208, "consumers": 2, "in_flight": 1}),
    (DENSE, {"block_m": 256, "block_n": 104, "consumers": 2, "in_flight": 1}),
    (replace(DENSE, epilogue=EPILOGUES["residual"]), {"block_m": 256, "block_n": 96, "consumers": 2, "unroll": 4}),
    (replace(DENSE, epilogue=EPILOGUES["residual"]), {"block_m": 128, "block_n": 104, "unroll": 4}),
    (replace(DENSE, epilogue=EPILOGUES["bias_gelu"]), {"block_m": 128, "block_n": 200, "consumers": 2, "in_flight": 1}),
    (FAST, {"block_m": 128, "block_n": 192, "consumers": 2, "in_flight": 1}),
    (FP8, {"block_m": 128, "block_n": 128, "consumers": 2, "unroll": 4}),
    (FP8, {"block_m": 128, "block_n": 136, "consumers": 2, "unroll": 4}),
    (FP8, {"block_m": 256, "block_n": 80, "consumers": 2}),
    (FP8, {"block_m": 192, "block_n": 80, "consumers": 3, "unroll": 4}),
    (replace(FP8, grouping="masked", epilogue=EPILOGUES["swiglu"]), {"block_n": 128, "parts": 2, "unroll": 4}),
    (VECTOR, {"block_m": 128, "block_n": 112, "consumers": 2, "unroll": 4}),
)  # fmt: skip


@pytest.mark.nvrtc
@pytest.mark.parametrize("case", range(len(LARGEST)))
def test_large_tiles_do_not_spill(case):
    machine()
    from gemmgen.runtime.nvrtc import compile_cubin

    p, changes = LARGEST[case]
    a = emitted(p, config(**changes))
    assert compile_cubin(a.source, a.name).spill_bytes == 0


# ---- faults the proof must find ---------------------------------------------------------------------


def each(kind, change, **fields):
    def fn(s):
        return change(s) if is_one(s, kind, fields) else s

    return lambda k: map_stmts(k, fn)


def drop(_):
    return ()


def twice(s):
    return s, s


def inside(change):
    """What stands where a share begins, changed."""
    return each(ir.If, lambda s: replace(s, body=change(s.body)), when="new_share")


def without(kind):
    return inside(lambda body: tuple(s for s in body if not isinstance(s, kind)))


def alike(wanted):
    return each(ir.Copy, lambda s: replace(s, src=wanted[s.src]), by="adding")


LATE = {"in_flight": 1}
WAVES = {"block_m": 128}
FAULTS = {
    "a share is not added": ({}, "P10", without(ir.Copy)),
    "a share is added twice": ({}, "P10", inside(lambda body: (body[0], *body))),
    "a share is not cleared": ({}, "P10", without(ir.Zero)),
    "it is cleared, then added": ({}, "P10", inside(lambda body: (*body[1:], body[0]))),
    "where the next one ends is not noted": ({}, "P10", without(ir.TakeShare)),
    "nor where the first one does": ({}, "P10", each(ir.TakeShare, drop, of="first")),
    "that of the first again": ({}, "P10", each(ir.TakeShare, lambda s: replace(s, of="first"))),
    "the total is not added to the last": ({}, "P10", each(ir.Copy, drop, dst="acc0")),
    "the total is added twice": ({}, "P10", each(ir.Copy, twice, dst="acc0")),
    "the total is that of the tile before": ({}, "P10", each(ir.Zero, drop, of="total")),
    "the sum is that of the tile before": ({}, "P10", each(ir.ForTiles, lambda s: replace(s, body=tuple(x for x in s.body if not (isinstance(x, ir.Zero) and x.of == "array"))))),
    "another wave's sum is added": (WAVES, "P10", alike({"acc0": "acc1", "acc1": "acc0", "total0": "total0", "total1": "total1"})),
    "another wave's total is added": (WAVES, "P10", alike({"acc0": "acc0", "acc1": "acc1", "total0": "total1", "total1": "total0"})),
    "a share is added while it is summed": (LATE, "P2", without(ir.WgmmaWait)),
    "the last share is added while it is summed": (LATE, "P2", each(ir.WgmmaWait, drop, pending=0)),
    "one share of all": ({}, None, each(ir.If, drop, when="new_share")),
    "a share per K block": ({}, "P10", each(ir.If, lambda s: s.body, when="new_share")),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_the_proof_refuses(fault):
    changes, property, change = FAULTS[fault]
    kernel = lower(DENSE if changes is LATE else FP8, config(**changes))
    check(kernel)
    wrong = change(kernel)
    assert wrong != kernel
    with pytest.raises(ProtocolViolation) as e:
        check(wrong)
    if property:
        assert e.value.property.id == property, e.value


def test_what_the_pass_leaves_alone():
    for p in (DENSE, FP8, VECTOR):
        kernel = lower(p, Config(stages=2))
        asked = (s for s in statements(kernel) if isinstance(s, ir.TakeShare | ir.Zero | ir.Copy))
        assert {getattr(s, s.spelled_by) for s in asked} <= {"array", "setting"}
        assert not any(is_if(s, "new_share") for s in statements(kernel)) and kernel.shares == 1


def test_only_consumers_know_of_shares():
    """The producer loads the same K blocks in the same order."""
    for p in (DENSE, FP8, VECTOR):
        one, several = (lower(p, config(shares=n)) for n in (1, 4))
        assert one.roles[1].body == several.roles[1].body and one.smem == several.smem
        asked = [s for s in statements(several) if is_if(s, "new_share")]
        assert len(asked) == 1 and several.shares == record_of(several).shares == 4


def test_a_total_takes_the_registers_of_a_sum():
    one, several = (
        lower(FP8, config(block_m=128, block_n=64, shares=n)).consumer.locals for n in (1, 2)
    )
    added = [r for r in several if r not in one]
    assert [(r.name, r.count) for r in added] == [("total0", 32), ("total1", 32), ("share_end", 1)]


# ---- faults in the text that the emulator must find -------------------------------------------------


def swap(pattern, new, count=1):
    return lambda source: re.sub(pattern, new, source, count=count)


TEXT_FAULTS = {
    "shares begin one K block late": swap(r"k == share_end\[0\]", "k == share_end[0] + 1"),
    "the sum stays": swap(r"(total0\[i\] \+= acc0\[i\];\s+#pragma unroll\s+for \(auto& r : acc0\)) r = 0;", r"\1 r = r;"),
    "a register is left out": swap(r"total0\[i\] \+= acc0\[i\];", "total0[i] += i != 3 ? acc0[i] : 0;"),
    "the total starts from 1": swap(r"-0\.0f : 0\.0f", "1.0f : 1.0f"),
    "the total is not added": swap(r"acc0\[i\] \+= total0\[i\];", "acc0[i] += 0 * total0[i];"),
    "the next share is as long as the tile": swap(r"share_end\[0\] \+= .*;", "share_end[0] += tile.k_blocks;", 0),
}  # fmt: skip


@pytest.mark.nvrtc
@pytest.mark.parametrize("fault", TEXT_FAULTS)
def test_the_emulator_finds(fault):
    p = replace(VECTOR, d=F32)  # whose sums tell their order
    broken, shape = TEXT_FAULTS[fault], (130, 96, 1300)
    try:
        judged(p, config(), shape, broken=broken)
    except GemmgenError:
        return
    assert not bits_as_before(p, shape, broken)


def bits_as_before(p, shape, broken):
    gpu = machine()
    from gemmgen.runtime.emulated import prepare
    from gemmgen.verification import random_normal
    from gemmgen.verification.trial import output, pitches

    a, found = emitted(p, config()), []
    operands, strides = random_normal(p, *shape, 1), pitches(a.kernel, shape)
    for source in (a.source, broken(a.source)):
        d = output(p, operands, strides)
        found.append(d.extract(gpu.execute(prepare(a.kernel, source), operands, strides, d, 0xFF)))
    return (found[0] == found[1]).all()


def test_names_say_so():
    assert lower(DENSE, config()).name.endswith("64x32x64_s2c1_sh4")
    assert len({lower(DENSE, config(shares=n)).name for n in (1, 2, 4, 8)}) == 4


def test_sums_of_integers_start_from_zero():
    text = emitted(Problem(family="dense", a=S8, b=S8, d=BF16), config()).source
    assert "const int start = 0;" in text and "0.0f : " not in text
