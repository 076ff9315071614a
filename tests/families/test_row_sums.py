"""Sums of rows in windows: an indexer's scores, through every layer that has no GPU."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from changed_text import check_found
from emulated import machine, prepared
from kernels import LOGITS, emitted, reads_rows
from test_scheduler import SHIM, device_code

from gemmgen.bench.logits import bounds as bounds_of
from gemmgen.check import ProtocolViolation, check
from gemmgen.check.audit import audit
from gemmgen.check.audit_windows import samples
from gemmgen.config import Config
from gemmgen.emulator import EmulatorError
from gemmgen.epilogues import EPILOGUES, acc, from_json, gate, mqa_logits, relu, to_json
from gemmgen.errors import ArgumentError, IllegalConfig, IRError, VerificationError
from gemmgen.heuristics import choose
from gemmgen.ir import nodes as ir
from gemmgen.ir.blocks import is_if
from gemmgen.ir.dtypes import BF16, E4M3, F32, S8
from gemmgen.ir.expr import InWindow, OfRows, PerColumn, PerElement, PerRow, RowBound, Scalar
from gemmgen.ir.groupings import Layout
from gemmgen.ir.rewrite import map_stmts
from gemmgen.ir.row_sums import fold_rows, split_rows, windows
from gemmgen.ir.text import expression
from gemmgen.ir.verify import verify
from gemmgen.pipeline import lower
from gemmgen.problem import Problem
from gemmgen.schedulers import order
from gemmgen.see.layout_page import views
from gemmgen.target import H200
from gemmgen.verification import (
    NumpyEngine,
    check_bound,
    check_exact,
    exact_integers,
    random_normal,
)
from gemmgen.verification.trial import judge, output, pitches

SMALL = Config(swap_ab=True, block_m=64, block_n=128, stages=2)
BATCHED = replace(LOGITS, grouping="batched")
WALKED = {
    LOGITS: "one GEMM",
    replace(LOGITS, epilogue=mqa_logits(32, from_first=True)): "from the first column",
    BATCHED: "batched",
    replace(BATCHED, epilogue=mqa_logits(32, from_first=True)): "batched, from the first column",
}
BOUNDS = RowBound("first", "first"), RowBound("end", "end")
SCORES = OfRows(relu(acc) * PerRow("w"), 32)

# ---- expressions --------------------------------------------------------------------------


def test_an_epilogue_is_split_at_its_sum():
    e = mqa_logits(64)
    inner, outer = split_rows(e)
    assert inner == relu(acc) * PerRow("weights") and fold_rows(e) == 64
    assert outer == InWindow(acc * PerColumn("column_scale"), *windows(e))
    assert [x.name for x in windows(e)] == ["window_first", "window_end"]
    assert fold_rows(acc) == 1 and windows(acc) == ()


@pytest.mark.parametrize("from_first", [False, True])
@pytest.mark.parametrize("heads", [8, 32, 64, 128])
def test_json_and_back(heads, from_first):
    e = mqa_logits(heads, from_first=from_first)
    assert from_json(to_json(e)) == e


def test_windows_that_begin_at_0_have_one_bound():
    e = mqa_logits(32, from_first=True)
    assert [x.name for x in windows(e)] == ["window_end"]
    assert "in_window((sum" in expression(e) and ", 0, window_end[row])" in expression(e)
    for firsts in (["first", "first"], [1], [None]):
        with pytest.raises(ArgumentError, match="epilogue"):
            from_json(["window", ["sum_rows", 32, "acc"], *firsts, "end"])


@pytest.mark.parametrize(
    "wrong",
    [
        SCORES,
        InWindow(acc, *BOUNDS),
        InWindow(SCORES + SCORES, *BOUNDS),
        InWindow(SCORES * acc, *BOUNDS),
        InWindow(SCORES * PerRow("r"), *BOUNDS),
        InWindow(SCORES * PerElement("c"), *BOUNDS),
        InWindow(OfRows(PerRow("w") * 2.0, 32), *BOUNDS),
        InWindow(OfRows(gate(acc), 32), *BOUNDS),
        InWindow(OfRows(SCORES, 32), *BOUNDS),
        InWindow(InWindow(SCORES, *BOUNDS), *BOUNDS) * 2.0,
        acc + BOUNDS[0],
    ],
    ids=repr,
)
def test_what_is_no_window_of_one_sum_is_refused(wrong):
    with pytest.raises(ArgumentError, match="epilogue"):
        replace(LOGITS, epilogue=wrong)


@pytest.mark.parametrize("rows", [0, 7, 24, 256, True, "32"])
def test_rows_that_no_quad_sums(rows):
    with pytest.raises(ArgumentError, match="rows of OfRows"):
        OfRows(acc, rows)


def test_bounds_in_the_wrong_places():
    with pytest.raises(ArgumentError, match="first of InWindow"):
        InWindow(SCORES, *BOUNDS[::-1])


@pytest.mark.parametrize(
    ("argument", "change"),
    [
        ("grouping", {"grouping": "masked"}),
        ("grouping", {"grouping": "k_flat"}),
        ("grouping", {"grouping": "summed"}),
        ("collective", {"collective": "all_reduce"}),
        ("accumulate", {"accumulate": True}),
        ("d", {"d": E4M3}),
    ],
)
def test_problems_that_sum_no_rows(argument, change):
    with pytest.raises(ArgumentError, match=f"^{argument}="):
        replace(LOGITS, **change)


def test_no_picture_shows_a_tile_that_no_memory_holds():
    assert "D" not in views(lower(LOGITS, SMALL))
    assert "D" in views(lower(replace(LOGITS, epilogue=acc), SMALL))


def test_packed_weights_sum_no_rows():
    coded = {"family": "w4a16", "a": BF16, "b": BF16, "weights": "int4_128_bf16"}
    Problem(d=F32, **coded)
    with pytest.raises(ArgumentError, match=r"^family=.*packed"):
        Problem(d=F32, epilogue=LOGITS.epilogue, **coded)


@pytest.mark.parametrize(
    ("rule", "change"),
    [
        ("split-depths", {"split_k": 2}),
        ("shares-alone", {"shares": 2}),
        ("stream-groups", {"stream": True}),
    ],
)
def test_a_tile_without_k_is_not_divided(rule, change):
    with pytest.raises(IllegalConfig) as e:
        lower(LOGITS, replace(SMALL, **change))
    assert e.value.rule.id == rule


# ---- the scheduler and the proof ----------------------------------------------------------


@pytest.mark.parametrize("problem", WALKED, ids=WALKED.get)
@pytest.mark.parametrize("multicast", ["none", "a", "b"])
def test_the_audit_finds_a_window_that_no_tile_reaches(problem, multicast, monkeypatch):
    kernel = lower(problem, replace(SMALL, multicast=multicast))
    s, block, cluster = kernel.scheduler, kernel.block, kernel.cluster

    def findings():
        for shape, ctas, layout in samples(block, cluster, s):
            yield from audit(s, block, cluster, shape, ctas, layout)

    assert not list(findings())
    from gemmgen import schedulers

    real = schedulers._windowed

    def early(walk, s, block, cluster, shape, layout):
        rows = shape[0] // block.fold_rows * layout.groups
        table = (*layout.table[:-rows], *(x - 1 for x in layout.table[-rows:]))
        return real(walk, s, block, cluster, shape, replace(layout, table=table))

    monkeypatch.setattr(schedulers, "_windowed", early)
    assert "K blocks, and a window reaches it" in next(findings()).message


@pytest.mark.parametrize("problem", WALKED, ids=WALKED.get)
def test_the_proof_finds_a_scheduler_of_other_windows(problem):
    kernel = lower(problem, SMALL)
    params = (*kernel.scheduler.params[:-1], "arg_weights")
    with pytest.raises(ProtocolViolation, match="reads windows"):
        check(replace(kernel, scheduler=replace(kernel.scheduler, params=params)))


@pytest.mark.parametrize(
    "config",
    [SMALL, replace(SMALL, in_flight=1), replace(SMALL, ping_pong=True, block_n=64)],
    ids=str,
)
def test_the_proof_needs_what_a_tile_without_k_blocks_needs(config):
    kernel = lower(LOGITS, config)
    assert check(kernel).certificate
    with pytest.raises(ProtocolViolation, match="0 of the block's"):
        check(map_stmts(kernel, lambda s: () if is_if(s, "no_blocks") else s))
    with pytest.raises(ProtocolViolation, match="more than once"):
        check(
            map_stmts(
                kernel, lambda s: replace(s, when="has_blocks") if is_if(s, "no_blocks") else s
            )
        )


def without_sums(s):
    return () if isinstance(s, ir.Evaluate) else s


def moved(s):
    return replace(s, wave=1 - s.wave) if isinstance(s, ir.Evaluate) else s


def whole(s):
    return replace(s, src="acc0") if isinstance(s, ir.StoreValues) and s.src else s


def of_another_wave(s):
    held = (("column_scale", "column_scale0_held"),)
    return replace(s, held=(*held, *s.held[1:])) if isinstance(s, ir.StoreValues) and s.src else s


def never_read(s):
    return () if reads_rows(s) else s


def read_where_none_come(s):
    return ir.If(when="no_blocks", body=(s,)) if reads_rows(s) else s


def stored_twice(s):
    return (s, s) if isinstance(s, ir.StoreValues) else s


def by_the_leader(s):
    return ir.If(when="leader", body=(s,)) if isinstance(s, ir.StoreValues) else s


FAULTS = (
    without_sums,
    moved,
    whole,
    of_another_wave,
    never_read,
    read_where_none_come,
    stored_twice,
    by_the_leader,
)


@pytest.mark.parametrize("change", FAULTS)
def test_the_proof_finds_sums_that_are_not_the_tiles(change):
    kernel = lower(LOGITS, replace(SMALL, block_n=256))
    with pytest.raises(ProtocolViolation):
        check(map_stmts(kernel, change))


@pytest.mark.parametrize(
    ("kind", "change", "message"),
    [
        (ir.StoreValues, {"held": (("bias", "window_end_held"),)}, "holds 'bias'"),
        (ir.StoreValues, {"held": (("window_end", "nowhere"),)}, "in 'nowhere'"),
        (ir.StoreValues, {"src": ""}, "of sums: src is ''"),
        (ir.Evaluate, {"of": "argument"}, "of argument: src is 'acc0'"),
    ],
)
def test_values_of_nothing_are_refused(kind, change, message):
    def visit(s):
        return replace(s, **change) if isinstance(s, kind) and s.src else s

    with pytest.raises(IRError, match=message):
        verify(map_stmts(lower(LOGITS, SMALL), visit))


READS = """
using std::max;
template <class T> T __ldg(const T* p) { return *p; }
"""
MAIN = """
int main() {
    int m, n, k, groups, rows, table[4096];
    while (std::scanf("%d %d %d %d %d %d", &m, &n, &k, &gridDim.x, &groups, &rows) == 6) {
        for (int i = 0; i < BOUNDS * rows; ++i) std::scanf("%d", table + i);
        for (blockIdx.x = 0; blockIdx.x < gridDim.x; ++blockIdx.x) {
            Scheduler scheduler(m, n, k, MADE);
            for (Tile t; scheduler.next(t);) std::printf("%d %d %d %d %d %d ", t.a_row, t.b_row, t.d_row, t.d_col, t.k_blocks, GROUP);
        }
        std::printf("\\n");
    }
}
"""


@pytest.mark.skipif(not shutil.which("g++"), reason="no g++")
@pytest.mark.parametrize("problem", WALKED, ids=WALKED.get)
@pytest.mark.parametrize("multicast", ["none", "a", "b"])
def test_the_device_walks_windows_as_python_does(problem, multicast, tmp_path):
    a = emitted(problem, replace(SMALL, multicast=multicast))
    program = tmp_path / "walk.cpp"
    grouped, bounds = problem.grouping == "batched", len(windows(problem.epilogue))
    made = "groups, " * grouped + ("table, table + rows" if bounds > 1 else "table")
    given = {"BOUNDS": bounds, "MADE": made, "GROUP": "t.group" if grouped else "0"}
    macros = "\n" + "".join(f"#define {name} {value}\n" for name, value in given.items())
    program.write_text(SHIM + READS + device_code(a.source) + macros + MAIN)
    run = partial(subprocess.run, check=True, text=True)
    flags = ["-std=c++17", "-Wall", "-Werror", "-Wno-unused-result", "-Wno-unknown-pragmas"]
    run(["g++", *flags, "-o", tmp_path / "walk", program])
    cases = [*samples(a.kernel.block, a.kernel.cluster, a.kernel.scheduler)]
    lines = [
        " ".join(map(str, (*s, ctas, x.groups, len(x.table) // bounds, *x.table)))
        for s, ctas, x in cases
    ]
    got = run([tmp_path / "walk"], input="\n".join(lines), capture_output=True).stdout.splitlines()
    for (shape, ctas, layout), line in zip(cases, got, strict=True):
        tiles = [
            (t.a_row, t.b_row, t.d_row, t.d_col, t.k_blocks, t.group)
            for cta in range(ctas)
            for t in order(
                a.kernel.scheduler, a.kernel.block, a.kernel.cluster, shape, ctas, cta, layout
            )
        ]
        assert [int(x) for x in line.split()] == [x for t in tiles for x in t]


@pytest.mark.parametrize("keys", [4096, 16384])
@pytest.mark.parametrize("kind", ["causal", "parallel"])
def test_the_choice_shares_windows_out(kind, keys):
    """No CTA has a run more than the mean. With panel=8 one has 12 tiles more, in runs of 7, and 45, in runs of 16."""
    shape, problem = (512 * 64, keys, 128), replace(LOGITS, epilogue=mqa_logits(64))
    kernel = lower(problem, choose(problem, shape, H200))
    bounds = bounds_of(512, keys, kind)
    layout, ctas = Layout(table=(*bounds[0], *bounds[1])), H200.sms
    walk = partial(order, kernel.scheduler, kernel.block, kernel.cluster, shape, ctas)
    loads = [sum(t.k_blocks > 0 for t in walk(cta, layout)) for cta in range(ctas)]
    tiles = -(-shape[0] // kernel.block.m) * -(-keys // kernel.block.n)
    assert max(loads) <= sum(loads) / ctas + kernel.scheduler.run(tiles, ctas)


# ---- on the emulator ----------------------------------------------------------------------

CASES = {
    "f32": (LOGITS, SMALL),
    "64 heads, 64 of K, two waves": (
        replace(LOGITS, epilogue=mqa_logits(64)),
        replace(SMALL, block_m=128, block_n=256, block_k_bytes=64),
    ),
    "bf16, 32 of K, one consumer": (
        replace(LOGITS, d=BF16),
        replace(SMALL, block_m=32, block_n=64, block_k_bytes=32, consumers=1, pdl=True),
    ),
    "ping-pong, a shared": (LOGITS, replace(SMALL, ping_pong=True, block_n=64, multicast="a")),
    "b shared, in flight": (LOGITS, replace(SMALL, in_flight=1, multicast="b", raster="n")),
    "promoted": (replace(LOGITS, family="fp8"), SMALL),
    "scales of rows": (replace(LOGITS, family="fp8_1d1d"), SMALL),
    "scales of blocks": (replace(LOGITS, family="fp8_block"), SMALL),
    "int8": (replace(LOGITS, a=S8, b=S8), SMALL),
    "bf16 operands": (replace(LOGITS, a=BF16, b=BF16), SMALL),
    "batched": (BATCHED, replace(SMALL, block_m=64)),
    "batched, from the first column, a shared": (
        replace(BATCHED, epilogue=mqa_logits(32, from_first=True)),
        replace(SMALL, multicast="a", block_m=32, pdl=True),
    ),
    "from the first column": (replace(LOGITS, epilogue=mqa_logits(32, from_first=True)), SMALL),
    "three rows of D": (
        replace(LOGITS, epilogue=mqa_logits(8)),
        replace(SMALL, block_m=24),
    ),
    "columns inside of the sum, too": (
        replace(
            LOGITS,
            epilogue=InWindow(
                OfRows(relu(acc + PerColumn("column_scale")) * PerRow("weights"), 32)
                * PerColumn("column_scale"),
                *BOUNDS,
            ),
        ),
        SMALL,
    ),
    "direct": (
        LOGITS,
        replace(SMALL, direct=True, block_m=32, block_n=64, consumers=1, unroll=2),
    ),
}


@pytest.mark.nvrtc
@pytest.mark.parametrize("name", CASES)
def test_kernels_on_trial(name):
    problem, config = CASES[name]
    kernel, program = prepared(problem, config)
    rows = fold_rows(problem.epilogue)
    for shape in ((5 * rows, 201, 128), (rows, 1, 32), (3 * rows, 300, 272)):
        assert judge(machine(), program, kernel, problem, shape).exact


def result_of(problem, config, operands):
    kernel, program = prepared(problem, config)
    strides = pitches(kernel, operands.shape, 1)
    d = output(problem, operands, strides)
    runs = [
        d.extract(machine().execute(program, operands, strides, d, fill)) for fill in (0xFF, 0x55)
    ]
    assert (runs[0] == runs[1]).all(), "bitwise repeatable, and nothing unwritten"
    return runs[0]


WINDOWS = {
    "all empty": [(0, 0), (130, 130), (300, 300), (9, 3), (0, 0)],
    "one column each": [(0, 1), (127, 128), (128, 129), (255, 256), (299, 300)],
    "across tiles": [(100, 140), (127, 257), (0, 300), (255, 257), (1, 299)],
    "one row of a tile only": [(0, 0), (130, 135), (0, 0), (0, 0), (256, 300)],
    "causal": [(0, 60), (0, 120), (0, 180), (0, 240), (0, 300)],
    "past D": [(0, 2**31 - 1), (299, 1000), (300, 301), (2**31 - 1, 2**31 - 1), (0, 1)],
}


@pytest.mark.nvrtc
@pytest.mark.parametrize("config", [SMALL, replace(SMALL, multicast="b")], ids=["alone", "pair"])
@pytest.mark.parametrize("name", WINDOWS)
def test_windows(name, config):
    first, end = np.array(WINDOWS[name], np.int32).T
    for draw, judged in ((exact_integers, check_exact), (random_normal, check_bound)):
        operands = draw(LOGITS, 160, 300, 128, 3)
        given = {**operands.arguments, "window_first": first, "window_end": end}
        operands = replace(operands, arguments=given)
        got = result_of(LOGITS, config, operands)
        judged(LOGITS, operands, got, NumpyEngine())
        columns = np.arange(300)
        inside = (columns >= first[:, None]) & (columns < end[:, None])
        assert (np.isneginf(got.view(np.float32)) == ~inside).all()


@pytest.mark.nvrtc
def test_the_bound_finds_a_lost_head():
    """One weight of one row is another: the sums of that row are others, by more than the bound allows."""
    operands = random_normal(LOGITS, 64, 40, 128, 2)
    ends = {"window_first": np.zeros(2, np.int32), "window_end": np.full(2, 40, np.int32)}
    operands = replace(operands, arguments={**operands.arguments, **ends})
    weights = operands.arguments["weights"].copy()
    weights[37] = 0
    lost = replace(operands, arguments={**operands.arguments, "weights": weights})
    got = result_of(LOGITS, SMALL, lost)
    with pytest.raises(VerificationError, match=r"first at \(1, "):
        check_bound(LOGITS, operands, got, NumpyEngine())


def test_named_epilogues_sum_no_rows():
    assert all(fold_rows(e) == 1 for e in EPILOGUES.values())
    assert Problem(family="dense", a=E4M3, b=E4M3, d=F32, epilogue=mqa_logits(8)).d == F32
    assert split_rows(SCORES * Scalar("s"))[1] == acc * Scalar("s")


# ---- faults that must be found ------------------------------------------------------------

IN_TEXT = {
    "a sum is the last of what it adds": ("parts[j] += value(", "parts[j] = value("),
    "rows of two sums are mixed": ("value(j / 2 * 16 +", "value(j / 2 * 8 +"),
    "the quad adds two lanes twice": ("upper ? first : second, 2)", "upper ? first : second, 1)"),
    "a lane keeps what it gives": ("odd ? x0 : x1, 1)", "odd ? x1 : x0, 1)"),
    "lanes of two rows store one": ("tile.d_row + lane / 2 % 2, col", "tile.d_row, col"),
    "the other row's window": ("const auto value = [&](int i) { return __ldg(at_window_end + min(tile.d_row + i * 2 + lane / 2 % 2", "const auto value = [&](int i) { return __ldg(at_window_end + min(tile.d_row + i * 2 + lane % 2"),
    "columns 8 to 15 lie where 0 to 7 do": ("warp * 16 + lane % 2 * 8 + lane / 4;", "warp * 16 + lane / 4;"),
    "outside is infinity": ("__uint_as_float(0xff800000)", "__uint_as_float(0x7f800000)"),
    "a window begins late": (">= window_first_held", "> window_first_held"),
    "weights of the next row": ("(lane % 4 * 2 + i / 2 * 8 % 32 + i % 2)", "(lane % 4 * 2 + i / 2 * 8 % 32 + 1)"),
    "weights of another head": ("weights_held[i / 4 * 2 + i % 2]", "weights_held[i / 4 * 2]"),
    "each tile is taken for a run": ("for (Tile tile; scheduler.begin(tile);)", "for (Tile tile; scheduler.next(tile);)"),
    "a run's first tile alone is taken": ("while (scheduler.step(tile))", "if (scheduler.step(tile))"),
    "windows are not broadcast": ("scheduler.broadcast();", ""),
    "tiles with K blocks are filled": ("if (tile.k_blocks == 0)", "if (tile.k_blocks != 0)"),
    "rows past D's last are stored": ("if (row < (shape_m / 32) &&", "if (row < shape_m &&"),
    "a filled tile's columns are half of them": ("* 64 + i % 64;", "* 64 + i % 32;"),
}  # fmt: skip


@pytest.mark.parametrize("name", IN_TEXT)
def test_the_link_finds_a_changed_text(name):
    check_found(emitted(LOGITS, SMALL), *IN_TEXT[name])


IN_SCHEDULER = {  # of which the link knows nothing
    "only the last row's window counts": ("first = min(first, __ldg(firsts + at))", "first = __ldg(firsts + at)"),
    "ends are not joined": ("end = max(end, __ldg(ends + at))", "end = __ldg(ends + at)"),
    "the first rows' windows are all rows'": ("reach(m * ROWS);", "reach(0);"),
    "a tile that begins at a window's last column is skipped": ("end > column", "end > column + 1"),
    "a window's first tile is skipped": ("first < column + COLUMNS", "first < column"),
    "a run's last tile is left out": ("left = min(run,", "left = min(run - 1,"),
    "what rows are given is read for a CTA's first run alone": ("scheduler.begin(tile);) {\n            {", "scheduler.begin(tile);) {\n            if (scheduler.index < 2 * scheduler.stride) {"),
    "a run begins at its second tile": ("column = (n * run - 1) * COLUMNS", "column = n * run * COLUMNS"),
    "rows are counted as the product's": ("row / 32, col", "row, col"),
}  # fmt: skip
FOUR = [(0, 1), (130, 131), (10, 250), (140, 141), (0, 300), (128, 256), (256, 257), (5, 5)]


@pytest.mark.nvrtc
@pytest.mark.parametrize("name", IN_SCHEDULER)
def test_the_emulator_finds_a_changed_scheduler(name):
    operands = exact_integers(LOGITS, 256, 300, 64, 3)
    first, end = np.array(FOUR, np.int32).T
    given = {**operands.arguments, "window_first": first, "window_end": end}
    operands = replace(operands, arguments=given)

    def run(*edits):
        kernel, program = prepared(LOGITS, SMALL, edits)
        strides = pitches(kernel, operands.shape)
        d = output(LOGITS, operands, strides)
        after = machine(sms=3).execute(program, operands, strides, d, 0xFF)
        d.check(after, 0xFF)
        check_exact(LOGITS, operands, d.extract(after), NumpyEngine())

    run()
    with pytest.raises((VerificationError, EmulatorError)):
        run(IN_SCHEDULER[name])
