"""Rows of B that come by page: an indexer's scores of a paged cache, through every layer that has no GPU."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from emulated import machine, prepared
from kernels import PAGED
from mutation.rows_paged import beside, fewer, of_page
from mutation.rows_paged import lower as lower_row
from mutation.rows_protocol import drop, visit

from gemmgen.check import ProtocolViolation, check
from gemmgen.config import Config
from gemmgen.epilogues import EPILOGUES, PerColumn, acc, gate, mqa_logits, relu, up
from gemmgen.errors import ArgumentError, IllegalConfig
from gemmgen.ir import nodes as ir
from gemmgen.ir.dtypes import BF16, E4M3, F32
from gemmgen.ir.groupings import Layout
from gemmgen.ir.rewrite import statements
from gemmgen.link import TextDiffers, link
from gemmgen.ops.building import config_for
from gemmgen.pipeline import compile_to_source, lower
from gemmgen.problem import Problem
from gemmgen.runtime.launch import check_launch
from gemmgen.see.operand import operand
from gemmgen.target import H200
from gemmgen.verification import (
    NumpyEngine,
    check_bound,
    check_exact,
    exact_integers,
    random_normal,
)
from gemmgen.verification.parts import parts
from gemmgen.verification.trial import judge, output, pitches

SMALL = Config(swap_ab=True, block_m=64, block_n=128, stages=2)
PLAIN = Problem(family="dense", a=BF16, b=BF16, d=F32, grouping="batched", paged=True)

# ---- what is refused ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        {"grouping": "none"},
        {"grouping": "masked"},
        {"layout": "nn"},
        {"weights_ready": True},
        {"family": "fp8_block", "a": E4M3, "b": E4M3},
        {"family": "w4a16", "weights": "int4_128_bf16"},
        {"paged": 1},
        {"paged": 16},
        {"paged": 64.0},
        {"paged": 32, "grouping": "none"},
    ],
    ids=str,
)
def test_problems_without_pages(change):
    with pytest.raises(ArgumentError, match=r"^paged="):
        replace(PLAIN, **change)


@pytest.mark.parametrize("rows", [64, 32])
def test_json_and_back(rows):
    p = replace(PLAIN, paged=rows)
    assert Problem.from_json(p.to_json()) == p and p.to_json()["paged"] == rows


def test_a_page_has_64_rows_where_none_are_said():
    assert type(Problem(family="dense", a=BF16, b=BF16, paged=False).paged) is int
    assert PLAIN.paged == 64 and Problem.from_json({**PLAIN.to_json(), "paged": True}) == PLAIN
    one, other = (lower(x, SMALL) for x in (PAGED, replace(PAGED, paged=32)))
    assert other.name == one.name.replace("_paged_", "_paged_32_")


@pytest.mark.parametrize(
    ("rule", "problem", "config"),
    [
        ("paged-tile", PLAIN, Config(block_n=96)),
        ("paged-tile", PLAIN, Config(block_n=32)),
        ("paged-tile", replace(PLAIN, paged=32), Config(block_n=48)),
        ("paged-shared", PLAIN, Config(multicast="b")),
        (
            "paged-producer",
            PAGED,
            replace(SMALL, direct=True, block_m=32, block_n=64, consumers=1, unroll=2),
        ),
    ],
)
def test_configs_that_load_no_pages(rule, problem, config):
    with pytest.raises(IllegalConfig) as e:
        lower(problem, config)
    assert e.value.rule.id == rule


@pytest.mark.parametrize("d", [F32, E4M3])
@pytest.mark.parametrize("shape", [(512, 4096, 4096), (1, 64, 64), (300, 160, 100)])
def test_choices_share_no_pages(d, shape):
    """Where a cluster would share B, it does not."""
    problem = replace(PLAIN, d=d)
    for groups in (1, 64):
        lower(problem, config_for(problem, shape, groups, H200.device_name))


def test_rows_of_all_groups_are_counted():
    """By the scheduler, in int: those of D of all sequences."""
    kernel = lower(PAGED, SMALL)
    check_launch(kernel, (32, 64, 128), 2**20)
    with pytest.raises(ArgumentError, match="rows of D"):
        check_launch(kernel, (32 * 2**11, 64, 128), 2**20)


# ---- the proof ----------------------------------------------------------------------------


def other_place(s):
    return replace(s, offset=(s.offset + 8192) % 16384)


def by_group(s):
    return replace(s, pages="", coords=(*s.coords[:2], ir.Coord(base="tile.group")))


@pytest.mark.parametrize("rows", [64, 32])
@pytest.mark.parametrize("change", [beside, lower_row, other_place, by_group])
def test_the_proof_finds_a_box_of_another_page(change, rows):
    kernel = lower(replace(PAGED, paged=rows), SMALL)
    assert check(kernel).certificate
    with pytest.raises(ProtocolViolation, match="P10 carry-over"):
        check(of_page(change)(kernel))


def test_the_proof_finds_pages_that_only_one_of_them_knows():
    kernel = lower(PAGED, SMALL)
    maps = (replace(m, grouped=m.grouped and not m.pages) for m in kernel.maps)
    unpaged = (replace(m, pages="") for m in kernel.maps)
    plain = replace(kernel.groups, pages=False)
    for wrong in ({"maps": tuple(maps)}, {"maps": tuple(unpaged)}, {"groups": plain}):
        with pytest.raises(ProtocolViolation, match="P10 carry-over"):
            check(replace(kernel, **wrong))


def late(s):
    """Numbers of pages that are read when the tile's K blocks are loaded."""
    return replace(s, body=tuple(sorted(s.body, key=lambda x: isinstance(x, ir.LoadPages))))


LATE = visit(ir.ForTiles, late)
FEWER, NONE = visit(ir.LoadPages, fewer), visit(ir.LoadPages, drop)


@pytest.mark.parametrize("change", [LATE, FEWER, NONE], ids=["late", "fewer", "none"])
def test_the_proof_finds_numbers_that_are_not_the_tiles(change):
    with pytest.raises(ProtocolViolation, match="P10 carry-over"):
        check(change(lower(PAGED, SMALL)))


@pytest.mark.parametrize(
    ("said", "else_"),
    [
        ("page[1]", "page[0]"),
        ("tile.b_row / 64 + i", "tile.b_row / 64"),
        ("* pages_stride + min", "+ min"),
        ("(shape_n - 1) / 64", "shape_n / 64"),
        ("number * pitch", "pitch"),
        ("uint32_t(page_count)", "uint32_t(shape_n)"),
    ],
)
def test_the_text_is_read_back(said, else_):
    a = compile_to_source(PAGED, SMALL)
    assert said in a.source
    with pytest.raises(TextDiffers):
        link(a.kernel, a.source.replace(said, else_))


@pytest.mark.parametrize("rows", [64, 32])
def test_a_picture_has_each_page_in_its_place(rows):
    kernel = lower(replace(PAGED, paged=rows), replace(SMALL, block_n=256))
    boxes = operand(kernel, "b").boxes
    assert [(b.row, b.offset) for b in boxes] == [
        (rows * i, 128 * rows * i) for i in range(256 // rows)
    ]


def pages_of(rows):
    """As if the kernel's pages had so many."""
    return lambda k: replace(k, groups=replace(k.groups, pages=rows))


@pytest.mark.parametrize(
    "change",
    [
        pages_of(64),
        pages_of(16),
        visit(ir.LoadPages, lambda s: replace(s, rows=64)),
        visit(ir.LoadPages, lambda s: replace(s, rows=64, count=2)),
    ],
)
def test_the_proof_finds_pages_of_other_rows(change):
    with pytest.raises(ProtocolViolation, match="P10 carry-over"):
        check(change(lower(replace(PAGED, paged=32), SMALL)))


# ---- on the emulator ----------------------------------------------------------------------

CASES = {
    "32 heads": (PAGED, SMALL),
    "64 heads, pages of 64 bytes a row, two waves": (
        replace(PAGED, epilogue=mqa_logits(64, from_first=True), d=BF16),
        replace(SMALL, block_n=256, block_k_bytes=64),
    ),
    "two bounds, pdl, one page a tile": (
        replace(PAGED, epilogue=mqa_logits(32)),
        replace(SMALL, block_n=64, consumers=1, block_m=32, pdl=True),
    ),
    "of 32 keys": (replace(PAGED, paged=32), SMALL),
    "of 32 keys, 64 bytes a row, two waves": (
        replace(PAGED, epilogue=mqa_logits(64, from_first=True), d=BF16, paged=32),
        replace(SMALL, block_n=256, block_k_bytes=64),
    ),
    "of 32 rows, bf16, two slabs": (
        replace(PLAIN, paged=32),
        Config(block_n=96, stages=2, block_k_bytes=128, swizzle_ab=64),
    ),
    "ping-pong, a shared": (PAGED, replace(SMALL, ping_pong=True, block_n=64, multicast="a")),
    "bf16, two slabs": (PLAIN, Config(block_n=128, stages=2, block_k_bytes=128, swizzle_ab=64)),
    "bias": (replace(PLAIN, epilogue=EPILOGUES["bias"]), Config(stages=2, split_k=2)),
    "promoted": (replace(PAGED, family="fp8"), SMALL),
    "pairs of columns": (
        replace(PLAIN, epilogue=relu(gate(acc + PerColumn("bias"))) * up(acc + PerColumn("bias"))),
        Config(block_n=128, stages=2),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_kernels_are_proved_and_read_back(name):
    assert compile_to_source(*CASES[name]).link


@pytest.mark.nvrtc
@pytest.mark.parametrize("name", CASES)
def test_kernels_on_trial(name):
    problem, config = CASES[name]
    kernel, program = prepared(problem, config)
    rows = kernel.block.fold_rows
    n = 2 if "pairs" in name else 1
    for shape in ((2 * rows, 202, 128), (rows, n, 32), (rows, 300, 272)):
        assert judge(machine(), program, kernel, problem, shape).exact


@pytest.mark.nvrtc
@pytest.mark.parametrize("junk", [-1, -(2**31), 2**31 - 1, 17, 10_000])
def test_numbers_that_no_window_reaches_are_never_a_page(junk):
    """Of keys that no query sees, a number may be anything, and others' bits stay what they are. There are 17 pages."""
    kernel, program = prepared(PAGED, SMALL)
    ends = np.array([[70, 64], [0, 0], [1, 130]], np.int32)
    for draw, judged in ((exact_integers, check_exact), (random_normal, check_bound)):
        operands = draw(PAGED, 64, 300, 128, 5, Layout(groups=3))
        operands = replace(operands, arguments={**operands.arguments, "window_end": ends})
        pages = operands.pages.copy()
        for group, end in enumerate(ends.max(1)):
            pages[group, -(-end // 64) :] = junk
        found = []
        for x in (operands, replace(operands, pages=pages)):
            strides = pitches(kernel, operands.shape, 1)
            d = output(PAGED, operands, strides)
            found.append(d.extract(machine().execute(program, x, strides, d, 0xFF)))
        for part in parts(PAGED, operands, 1):
            judged(part.problem, part.operands, found[0][part.rows], NumpyEngine())
        assert (found[0] == found[1]).all()


def test_a_number_of_no_page_reads_as_zeros():
    kernel, program = prepared(PLAIN, Config(block_n=128, stages=2))
    operands = exact_integers(PLAIN, 5, 200, 64, 3, Layout(groups=2))
    pages = operands.pages.copy()
    pages[1, 1] = -1
    strides = pitches(kernel, operands.shape, 1)
    d = output(PLAIN, operands, strides)
    whole, lost = (
        d.extract(machine().execute(program, x, strides, d, 0xFF))
        for x in (operands, replace(operands, pages=pages))
    )
    assert whole[6:11, 64:128].any() and not lost[6:11, 64:128].any()  # a row lies between groups
    whole[6:11, 64:128] = 0
    assert (lost == whole).all()


def test_every_page_is_loaded_once():
    loads = [
        s for s in statements(lower(PAGED, replace(SMALL, block_n=256))) if getattr(s, "pages", "")
    ]
    assert [s.coords[2].offset for s in loads] == [0, 1, 2, 3]
