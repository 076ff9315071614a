"""Swap-AB with columns that are paired, and outputs that have scales: results on the emulator, and faults that must show."""

from __future__ import annotations

from dataclasses import replace

import pytest
from emulated import judged, same_bits
from grouped import layout
from kernels import FP8, PAIRED, QUANTISED

from gemmgen.check import ProtocolViolation, check
from gemmgen.config import Config
from gemmgen.epilogues import EPILOGUES
from gemmgen.errors import GemmgenError, IllegalConfig
from gemmgen.heuristics import choose
from gemmgen.ir import nodes as ir
from gemmgen.ir.dtypes import E4M3, F16, F32, S8
from gemmgen.ir.expr import ACC, Call, Const, OfPair
from gemmgen.ir.rewrite import map_stmts, statements
from gemmgen.pipeline import lower
from gemmgen.target import H200


def config(**changes) -> Config:
    return Config(
        **{"swap_ab": True, "block_m": 16, "block_n": 256, "consumers": 1, "stages": 2} | changes
    )


MOE = replace(FP8, d=E4M3, epilogue=EPILOGUES["swiglu"])
EXPERTS = replace(MOE, grouping="ends")
INTEGERS = replace(QUANTISED, a=S8, b=S8, epilogue=EPILOGUES["scaled"])
# (problem, config, shape): tails in M, N and K, tiles of several waves, several tiles per CTA, all swizzles of D.
CASES = {
    "swiglu": (replace(FP8, epilogue=EPILOGUES["swiglu"]), config(block_m=8, block_n=128, consumers=2), (5, 400, 300)),
    "swiglu of rows of two": (PAIRED, config(block_m=24, block_n=64), (50, 176, 100)),
    "reglu in fp32": (replace(PAIRED, d=F32), config(block_n=192, swizzle_d=0), (20, 520, 136)),
    "geglu in fp16": (replace(PAIRED, a=F16, b=F16, d=F16, epilogue=EPILOGUES["geglu"]), config(block_m=40, block_n=64), (50, 272, 72)),
    "a bias of pairs": (replace(PAIRED, epilogue=EPILOGUES["bias_swiglu"]), config(block_n=128), (17, 300, 72)),
    "integers": (replace(PAIRED, a=S8, b=S8), config(block_n=256, consumers=2), (33, 336, 144)),
    "integers that become sums in fp32": (replace(FP8, a=S8, b=S8, d=F32, epilogue=EPILOGUES["reglu"]), config(block_m=8), (3, 262, 272)),
    "scales": (QUANTISED, config(block_n=128), (21, 336, 200)),
    "scales of integers": (INTEGERS, config(block_m=8, block_n=128), (9, 260, 144)),
    "scales of blocks": (replace(FP8, d=E4M3), config(block_m=64, block_n=128, swizzle_d=0), (70, 200, 264)),
    "experts": (MOE, config(), (21, 640, 384)),
    "experts of few": (MOE, config(block_m=8, split_k=2, unroll=2), (3, 320, 520)),
    "experts that stream": (MOE, config(block_m=8, stream=True), (11, 640, 520)),
    "experts by lanes": (MOE, config(block_m=8, lane_scales=True, peek=True), (11, 320, 384)),
    "experts that overlap": (MOE, config(pdl=True, raster="n"), (40, 600, 128)),
}  # fmt: skip


@pytest.mark.nvrtc
@pytest.mark.parametrize("name", CASES)
def test_results(name):
    p, c, shape = CASES[name]
    judged(p, c, shape, pad=1)


@pytest.mark.nvrtc
@pytest.mark.parametrize("indexed", (False, True))
def test_experts(indexed):
    """Groups that end inside tiles, and one without rows."""
    p = replace(EXPERTS, indexed=indexed)
    shape = (384, 320, 256)
    judged(p, config(block_m=8), shape, layout(p, shape, (3, 0, 9)))


@pytest.mark.nvrtc
@pytest.mark.parametrize("p", (MOE, replace(FP8, d=E4M3), QUANTISED, PAIRED), ids=str)
def test_the_bits_are_those_of_other_tiles(p):
    columns = 256 if p.epilogue in (MOE.epilogue, PAIRED.epilogue) else 128
    plain = Config(block_m=64, block_n=columns, consumers=1, stages=2, parts=2 if p is MOE else 1)
    assert same_bits(p, (30, 520, 264), (config(block_m=24, block_n=columns), plain), 1)


# ---- faults that the proof must refuse --------------------------------------------------------------


def each(kind, change):
    return lambda kernel: map_stmts(kernel, lambda s: change(s) if isinstance(s, kind) else s)


def without(*kinds):
    return each(kinds, lambda s: ())


def met(kernel):
    """Without the meeting between the maxima of warps and who reads them."""
    body = [s for s in statements(kernel) if isinstance(s, ir.ShareAmax | ir.Sync | ir.TakeAmax)]
    assert [type(s) for s in body[-4:]] == [ir.ShareAmax, ir.Sync, ir.TakeAmax, ir.Sync]
    seen = []

    def visit(s):
        seen.append(s)
        return () if isinstance(s, ir.Sync) and isinstance(seen[-2], ir.ShareAmax) else s

    return map_stmts(kernel, visit)


FAULTS = {
    "no meeting": met,
    "maxima of warps alone": without(ir.TakeAmax),
    "maxima that nobody shares": without(ir.ShareAmax),
    "scales never stored": without(ir.StoreScales),
    "values that are not scaled": without(ir.Normalise),
    "a wave that no maximum knows": each(ir.RowAmax, lambda s: () if s.wave == 2 else s),
    "a wave's values twice": each(ir.RowAmax, lambda s: replace(s, src="values1") if s.wave == 2 else s),
    "another wave's accumulator": each(ir.Evaluate, lambda s: replace(s, src="acc0") if s.wave else s),
    "another wave's values staged": each(ir.StageTile, lambda s: replace(s, src="values0")),
    "maxima of the tile before": each(ir.Zero, lambda s: () if s.dst == "amax" else s),
    "stored by columns": each(ir.StageTile, lambda s: replace(s, by="byte_pairs")),
    "scaled before all are known": each(ir.RowAmax, lambda s: (s, ir.Normalise(dst=s.src, amax="amax", of="columns"))),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_the_proof_refuses(fault):
    kernel = lower(MOE, config())
    check(kernel)
    wrong = FAULTS[fault](kernel)
    assert wrong != kernel
    with pytest.raises(ProtocolViolation):
        check(wrong)


# ---- faults in the text that the emulator must find -------------------------------------------------

TEXT_FAULTS = {
    "lanes of one row exchange": ("given, 4)", "given, 1)"),
    "what is kept is given": ("odd ? low : high", "odd ? high : low"),
    "gate and up exchanged": ("pairs[i] = odd ? other : low;", "pairs[i] = odd ? low : other;"),
    "a column of D in another lane": ("col = warp * 8 + lane / 8 + lane / 4 % 2 * 4", "col = warp * 8 + lane / 4"),
    "maxima of every second lane": ("__shfl_xor_sync(0xffffffff, x, 8)", "__shfl_xor_sync(0xffffffff, x, 4)"),
    "maxima of three warps": ("fmaxf(third, fourth)", "third"),
    "maxima of the row beside": ("lane % 4 * 2 + i % 2) * 4", "lane % 4 * 2) * 4"),
    "scales of the row beside": ("lane * 2 + i / 2 * 8 + i % 2;", "lane * 2 + i / 2 * 8;"),
    "scales of one row in eight": ("warp == 0 && lane < 4", "warp == 0 && lane < 1"),
}  # fmt: skip


@pytest.mark.nvrtc
@pytest.mark.parametrize("fault", TEXT_FAULTS)
def test_the_emulator_finds(fault):
    p = replace(MOE, epilogue=EPILOGUES["bias_swiglu"])
    old, new = TEXT_FAULTS[fault]
    c, shape = config(block_m=16), (13, 576, 264)
    with pytest.raises(GemmgenError):
        judged(p, c, shape, broken=lambda source: source.replace(old, new, 1))


@pytest.mark.nvrtc
def test_the_emulator_finds_nothing_else():
    judged(replace(MOE, epilogue=EPILOGUES["bias_swiglu"]), config(block_m=16), (13, 576, 264))


@pytest.mark.nvrtc
def test_columns_past_the_last_do_not_count():
    """Of an epilogue that is largest where nothing is summed."""
    peak = OfPair(Call("divide", (Const(8.0), ACC * ACC + 1.0)), 0) + OfPair(ACC, 1) * 0.0
    p, shape = replace(MOE, epilogue=peak), (13, 576, 264)
    judged(p, config(), shape)
    with pytest.raises(GemmgenError):
        judged(p, config(), shape, broken=lambda s: s.replace("column < shape_n / 2 ?", "true ?"))


# ---- the choice -------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", (1, 8, 16))
def test_few_rows_of_experts_are_swapped(rows):
    c = choose(EXPERTS, (rows, 4096, 4096), H200, groups=8)
    assert c.swap_ab and (c.block_n, c.consumers) == (256, 1)
    assert rows <= c.block_m <= rows + 8  # a group may have more than the mean
    assert choose(EXPERTS, (128, 4096, 4096), H200, groups=8).swap_ab is False


def test_what_is_refused():
    for changes in ({"block_n": 128}, {"consumers": 2}, {"ping_pong": True, "consumers": 2}):
        with pytest.raises(IllegalConfig) as e:
            lower(MOE, config(**changes))
        assert e.value.rule.id == "swapped-scales"
