"""D whose columns have gaps, as heads whose middle is somebody else's: through every layer that has no GPU."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from changed_text import check_found
from emulated import judged, machine, prepared
from kernels import DENSE, DIRECT, FP8, HEADS, VECTOR, emitted
from mutation.rows_gaps import in_heads, with_tails
from mutation.rows_protocol import visit

from gemmgen.check import ProtocolViolation, check
from gemmgen.config import Config
from gemmgen.emulator import EmulatorError
from gemmgen.epilogues import EPILOGUES, mqa_logits
from gemmgen.errors import ArgumentError, CacheError, IllegalConfig, VerificationError
from gemmgen.heuristics import choose
from gemmgen.heuristics.tuned import profile
from gemmgen.ir import nodes as ir
from gemmgen.ir.counts import MOST_SIDE
from gemmgen.ir.dtypes import E4M3, F16, F32
from gemmgen.ir.heads import NO_GAPS, Heads, gaps_of
from gemmgen.ir.rewrite import statements
from gemmgen.pipeline import lower
from gemmgen.problem import Problem
from gemmgen.runtime.launch import check_gaps, check_launch
from gemmgen.runtime.launch_record import from_json, record_of, to_json
from gemmgen.runtime.tensor_map import Matrix
from gemmgen.target import H200
from gemmgen.verification import exact_integers
from gemmgen.verification.gaps import between_gaps
from gemmgen.verification.trial import output, pitches

# ---- where columns lie --------------------------------------------------------------------


@pytest.mark.parametrize("numbers", [(2, 3, 4), (0, 1, 5), (5, 2, 0), (1, 1, 1)], ids=str)
def test_columns_lie_where_reshaping_heads_puts_them(numbers):
    left, mid, right = numbers
    heads = Heads(left=left, mid=mid, right=right)
    n = 7 * heads.side
    parts = np.arange(n).reshape(7, heads.side)
    gap = np.full((7, mid), -1)
    wanted = np.concatenate([parts[:, :left], gap, parts[:, left:]], 1).reshape(-1)
    assert heads.columns(n) == len(wanted)
    assert [heads.column(c) for c in range(n)] == np.flatnonzero(wanted >= 0).tolist()
    assert [c for r in heads.stored(n) for c in r] == np.flatnonzero(wanted >= 0).tolist()


def test_no_gaps_are_no_change():
    assert [NO_GAPS.column(c) for c in range(9)] == [*range(9)]
    assert NO_GAPS.columns(9) == 9 and gaps_of(lower(FP8, Config()).maps) == NO_GAPS


# ---- problems -----------------------------------------------------------------------------


def test_json_and_back():
    assert HEADS.to_json()["heads"] == [128, 64, 128] and "heads" not in FP8.to_json()
    assert Problem.from_json(HEADS.to_json()) == HEADS
    assert replace(FP8, heads=[128, 64, 128]) == HEADS


@pytest.mark.parametrize(
    ("argument", "heads"),
    [
        ("heads", 128),
        ("heads", (128, 64)),
        ("heads", "128,64,128"),
        ("heads", (0, 64, 0)),
        ("heads left", (-16, 64, 128)),
        ("heads left", (True, 64, 128)),
        ("heads left", (8, 64, 128)),
        ("heads mid", (128, 0, 128)),
        ("heads mid", (128, 4, 128)),
        ("heads mid", (128, 64.0, 128)),
        ("heads right", (128, 64, 24)),
        ("heads right", (128, 64, 4112)),
    ],
    ids=str,
)
def test_what_is_no_head(argument, heads):
    with pytest.raises(ArgumentError, match=f"^{argument}="):
        replace(FP8, heads=heads)


@pytest.mark.parametrize(
    ("argument", "change"),
    [
        ("grouping", {"grouping": "batched"}),
        ("collective", {"collective": "all_reduce"}),
        ("accumulate", {"accumulate": True, "d": F32}),
        ("d", {"d": E4M3}),
        ("epilogue", {"epilogue": EPILOGUES["reglu"]}),
        ("epilogue", {"epilogue": mqa_logits(32), "d": F32}),
        ("heads left", {"d": F16, "heads": (8, 8, 16)}),
    ],
    ids=str,
)
def test_problems_that_have_no_gaps(argument, change):
    with pytest.raises(ArgumentError, match=f"^{argument}="):
        replace(HEADS, **change)


# ---- which configs ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("heads", "block_n", "swizzle"),
    [
        ((128, 64, 128), 128, 128),
        ((32, 8, 128), 128, 64),
        ((128, 8, 48), 128, 32),
        ((128, 8, 128), 96, 64),
        ((0, 8, 64), 128, 128),
    ],
    ids=str,
)
def test_the_swizzle_is_the_widest_that_no_gap_cuts(heads, block_n, swizzle):
    kernel = lower(replace(FP8, heads=heads), Config(block_n=block_n))
    assert kernel.buffer("smem_d").swizzle == swizzle
    assert not [s for s in statements(kernel) if isinstance(s, ir.StoreTail)]


@pytest.mark.parametrize(
    ("heads", "config"),
    [
        ((128, 64, 128), Config(swizzle_d=0)),
        ((128, 64, 128), Config(block_n=8)),
        ((32, 64, 128), Config(swizzle_d=128)),
    ],
    ids=str,
)
def test_boxes_over_a_gap_are_refused(heads, config):
    with pytest.raises(IllegalConfig) as e:
        lower(replace(FP8, heads=heads), config)
    assert e.value.rule.id == "heads-boxes" and str(heads) in str(e.value)


@pytest.mark.parametrize("heads", [(128, 64, 128), (16, 8, 16), (48, 8, 0)], ids=str)
@pytest.mark.parametrize("shape", [(4096, 8064, 512), (1, 768, 7168)], ids=str)
def test_a_config_is_chosen(heads, shape):
    p = replace(FP8, heads=heads)
    assert lower(p, choose(p, shape, H200))


def test_tuned_rows_of_the_plain_problem_serve():
    assert profile(HEADS) == profile(FP8)


# ---- the proof ----------------------------------------------------------------------------


def turned(s):
    """Rows of D are placed as columns are."""
    inner, outer = s.coords
    return replace(s, coords=(inner, replace(outer, heads=inner.heads)))


@pytest.mark.parametrize(
    "change",
    [
        in_heads(NO_GAPS),
        in_heads(Heads(left=64, mid=64, right=192)),
        in_heads(Heads(left=128, mid=128, right=128)),
        visit(ir.TmaStore, turned),
        with_tails,
    ],
    ids=["without gaps", "early", "twice as wide", "rows", "a tail"],
)
@pytest.mark.parametrize("config", [Config(), Config(swap_ab=True, block_m=16)], ids=str)
def test_the_proof_finds_columns_in_the_wrong_place(change, config):
    kernel = lower(HEADS, config)
    assert check(kernel).certificate
    with pytest.raises(ProtocolViolation, match="P9 output"):
        check(change(kernel))


@pytest.mark.parametrize("numbers", [(32, 64, 32), (128, 64, 96), (96, 64, 128)], ids=str)
def test_the_proof_finds_a_box_over_a_gap(numbers):
    """The same heads in map and stores, whose boxes they do not fit."""
    heads = Heads(**dict(zip(("left", "mid", "right"), numbers, strict=True)))
    kernel = lower(HEADS, Config())
    maps = tuple(replace(m, heads=heads) if m.tensor == "d" else m for m in kernel.maps)
    kernel = replace(in_heads(heads)(kernel), maps=maps)
    with pytest.raises(ProtocolViolation, match="is stored in D's column"):
        check(kernel)


IN_TEXT = {
    "gaps a column late": ("(tile.d_col + 128) / 256", "(tile.d_col + 127) / 256"),
    "gaps behind whole heads": ("(tile.d_col + 128) / 256", "tile.d_col / 256"),
    "narrower gaps": (" / 256 * 64", " / 256 * 32"),
    "longer heads": (" / 256 * 64", " / 192 * 64"),
    "no gaps": ("tile.d_col + (tile.d_col + 128) / 256 * 64", "tile.d_col"),
    "boxes are clipped by D's columns": ("if (tile.d_col < shape_n", "if (tile.d_col + (tile.d_col + 128) / 256 * 64 < shape_n"),
}  # fmt: skip


@pytest.mark.parametrize("name", IN_TEXT)
def test_the_link_finds_a_changed_text(name):
    check_found(emitted(HEADS, Config()), *IN_TEXT[name])


# ---- on the emulator ----------------------------------------------------------------------

CASES = {
    "one consumer": (HEADS, Config(block_m=64, consumers=1), (70, 512, 256)),
    "tiles over heads": (HEADS, Config(block_n=192, stages=3), (130, 768, 136)),
    "a head in a box's width": (replace(HEADS, heads=(16, 8, 16)), Config(), (70, 160, 136)),
    "left alone": (replace(HEADS, heads=(96, 40, 0)), Config(), (70, 384, 136)),
    "right alone": (replace(HEADS, heads=(0, 40, 96)), Config(), (70, 384, 136)),
    "gaps wider than heads": (replace(HEADS, heads=(32, 256, 64)), Config(), (70, 288, 136)),
    "swapped": (HEADS, Config(swap_ab=True, block_m=16, stages=6), (17, 512, 256)),
    "swapped, two waves": (
        replace(HEADS, heads=(32, 8, 96)),
        Config(swap_ab=True, block_m=8, block_n=256, stages=3),
        (9, 384, 136),
    ),
    "in pieces, f32": (
        replace(DENSE, d=F32, heads=(64, 4, 96)),
        Config(block_m=256, block_n=64, stages=3, d_columns=32),
        (300, 320, 72),
    ),
    "by turns, f16": (
        replace(VECTOR, d=F16, heads=(64, 8, 64)),
        Config(ping_pong=True, block_m=64, block_n=64),
        (130, 384, 256),
    ),
    "K divided": (HEADS, Config(block_n=64, split_k=2, stages=3), (70, 256, 512)),
    "K in stretches": (HEADS, Config(block_n=64, stream=True, stages=3), (70, 256, 1024)),
    "K in slices": (
        replace(DENSE, heads=(64, 8, 64)),
        Config(slice_k=True, swap_ab=True, block_m=16, block_n=64, consumers=3, stages=6),
        (17, 256, 520),
    ),
    "direct": (
        HEADS,
        replace(DIRECT, lane_scales=True),
        (5, 512, 256),
    ),
    "A shared, a bias": (
        replace(HEADS, epilogue=EPILOGUES["bias"]),
        Config(multicast="a", stages=3),
        (130, 768, 256),
    ),
}


@pytest.mark.nvrtc
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("pad", [0, 3])
def test_kernels_on_trial(name, pad):
    problem, config, shape = CASES[name]
    assert judged(problem, config, shape, pad=pad).exact


@pytest.mark.nvrtc
def test_columns_are_those_of_the_product_without_gaps():
    config, shape = Config(block_n=192, stages=3), (70, 768, 256)
    operands = exact_integers(FP8, *shape, 4)
    found = {}
    for p in (FP8, HEADS):
        kernel, program = prepared(p, config)
        given = replace(operands, heads=p.gaps)
        strides = pitches(kernel, shape)
        d = output(p, given, strides)
        found[p] = d.extract(machine().execute(program, given, strides, d, 0x5A))
    heads = found[HEADS].reshape(70, 3, 320)
    plain = found[FP8].reshape(70, 3, 256)
    assert (heads[..., :128] == plain[..., :128]).all()
    assert (heads[..., 192:] == plain[..., 128:]).all()
    assert (heads[..., 128:192] == 0x5A5A).all()


@pytest.mark.nvrtc
@pytest.mark.parametrize("name", [x for x in IN_TEXT if "clipped" not in x])
def test_the_emulator_finds_a_changed_text(name):
    old, new = IN_TEXT[name]
    with pytest.raises((VerificationError, EmulatorError)):
        judged(HEADS, Config(stages=3), (70, 512, 128), broken=lambda s: s.replace(old, new))


# ---- hosts --------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [128, 257, 320, MOST_SIDE // 256 * 256])
def test_a_launch_of_other_columns_is_refused(n):
    with pytest.raises(ArgumentError, match=r"^n="):
        check_launch(lower(HEADS, Config()), (64, n, 128))


def test_a_launch_over_another_d_is_refused():
    def d(inner):
        return Matrix(pointer=16, outer=4, inner=inner, stride=inner)

    check_gaps(lower(HEADS, Config()), 512, d(640))
    check_gaps(lower(FP8, Config()), 512, d(512))
    for columns in (512, 632, 648):
        with pytest.raises(ArgumentError, match=f"^d columns={columns}: must be 640"):
            check_gaps(lower(HEADS, Config()), 512, d(columns))


def test_records_of_launches_have_gaps():
    record = record_of(lower(HEADS, Config()))
    data = to_json(record)
    assert data["maps"][-1]["heads"] == {"left": 128, "mid": 64, "right": 128}
    as_read = json.loads(json.dumps(data))
    assert gaps_of(from_json(as_read).maps) == HEADS.heads
    for wrong in ({"left": 0, "mid": 64, "right": 0}, {"left": 128, "mid": -1, "right": 128}):
        as_read["maps"][-1]["heads"] = wrong
        with pytest.raises(CacheError, match="heads"):
            from_json(as_read)


def test_what_a_gap_holds_must_stay():
    heads = Heads(left=2, mid=1, right=1)
    d = np.full((2, 8), 0x5A5A, np.uint16)
    d[:, [0, 1, 3, 4, 5, 7]] = np.arange(6)
    assert between_gaps(d, heads, 0x5A).tolist() == [[*range(6)]] * 2
    d[1, 6] = 0x5A00
    with pytest.raises(VerificationError, match=r"1 elements of gaps .* row 1, column 6 "):
        between_gaps(d, heads, 0x5A)
