"""Rows of D that begin with their windows: an indexer's scores of the keys that a query has, and nothing else."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from changed_text import check_found
from emulated import judged, machine, prepared
from kernels import COMPACT, LOGITS, emitted

from gemmgen.check import ProtocolViolation, check
from gemmgen.codes import decode, encode
from gemmgen.config import Config
from gemmgen.emulator import EmulatorError
from gemmgen.epilogues import mqa_logits
from gemmgen.errors import ArgumentError, VerificationError
from gemmgen.ir import nodes as ir
from gemmgen.ir.blocks import is_if
from gemmgen.ir.dtypes import BF16, F16, F32
from gemmgen.ir.rewrite import map_stmts
from gemmgen.pipeline import lower
from gemmgen.problem import Problem
from gemmgen.verification import exact_integers
from gemmgen.verification.trial import output, pitches, run
from gemmgen.verification.windows import from_windows

SMALL = Config(swap_ab=True, block_m=64, block_n=128, stages=2)


@pytest.mark.parametrize(
    ("argument", "change"),
    [
        ("compact", {"compact": 1}),
        ("compact", {"epilogue": "none"}),
        ("compact", {"epilogue": mqa_logits(32, from_first=True)}),
        ("compact", {"grouping": "batched"}),
    ],
)
def test_problems_whose_rows_begin_with_no_window(argument, change):
    with pytest.raises(ArgumentError, match=f"^{argument}="):
        replace(COMPACT, **change)


def test_json_and_names():
    assert Problem.from_json(COMPACT.to_json()) == COMPACT and COMPACT.to_json()["compact"]
    assert "compact" not in LOGITS.to_json()
    one, other = (lower(p, SMALL) for p in (COMPACT, LOGITS))
    assert one.name == other.name.replace("_swap", "_compact_swap")
    assert [x.name for x in one.params if x not in other.params] == ["d_room"]


# ---- what is written ------------------------------------------------------------------------


@pytest.mark.nvrtc
@pytest.mark.parametrize(
    ("dtype", "config"),
    [
        (F32, SMALL),
        (BF16, replace(SMALL, block_n=256, stages=3)),
        (F16, replace(SMALL, block_m=32, block_n=64, consumers=1, stages=3, ping_pong=False)),
        (F32, replace(SMALL, block_n=64, ping_pong=True, multicast="a")),
    ],
    ids=str,
)
@pytest.mark.parametrize("shape", [(32 * 7, 301, 128), (32, 1, 64), (32 * 3, 130, 320)], ids=str)
def test_kernels_on_trial(dtype, config, shape):
    """Exact and within the bound, and what lies behind a window is as it was."""
    assert judged(replace(COMPACT, d=dtype), config, shape).exact


WINDOWS = {
    "all empty": [(0, 0), (130, 130), (300, 300), (9, 3), (0, 0)],
    "one column each": [(0, 1), (127, 128), (128, 129), (255, 256), (299, 300)],
    "across tiles": [(100, 140), (127, 257), (0, 300), (255, 257), (1, 299)],
    "one row of a tile only": [(0, 0), (130, 135), (0, 0), (0, 0), (256, 300)],
    "past the keys": [(0, 2**31 - 1), (299, 1000), (300, 301), (2**31 - 1, 2**31 - 1), (0, 1)],
}


def scores(problem, config, windows, edits=()):
    """Codes [rows, N] of the product's columns, minus infinity outside of `windows`; and the operands."""
    first, end = np.array(windows, np.int32).T
    operands = exact_integers(problem, 160, 300, 128, 3)
    given = {**operands.arguments, "window_first": first, "window_end": end}
    operands = replace(operands, arguments=given)
    kernel, program = prepared(problem, config, edits)
    strides = pitches(kernel, operands.shape, 1)
    return [run(machine(), program, problem, operands, strides, x).codes for x in (0xFF, 0x55)]


@pytest.mark.nvrtc
@pytest.mark.parametrize("name", WINDOWS)
def test_scores_are_those_of_whole_rows(name):
    """Bit for bit, whatever D's memory held."""
    found = scores(COMPACT, SMALL, WINDOWS[name])
    (whole, _) = scores(LOGITS, SMALL, WINDOWS[name])
    assert all(np.array_equal(x, whole) for x in found)


@pytest.mark.nvrtc
def test_windows_that_begin_before_the_first_key_write_nowhere_else():
    """They are asked not to; a column is then that of the key so many behind, and of one too far behind there is no column."""
    windows = [(-1, 3), (-(2**31), 300), (-5, 0), (-(2**31), -(2**31)), (-299, 300)]
    first, end = np.array(windows, np.int32).T
    operands = exact_integers(COMPACT, 160, 300, 128, 3)
    given = {**operands.arguments, "window_first": first, "window_end": end}
    kernel, program = prepared(COMPACT, SMALL)
    strides = pitches(kernel, operands.shape, 1)
    d = output(COMPACT, operands, strides)
    moved = replace(operands, arguments=given)
    after = machine().execute(program, moved, strides, d, 0x07)
    d.check(after, 0x07)
    (whole, _) = scores(LOGITS, SMALL, [(0, 3), (0, 0), (0, 0), (0, 0), (0, 1)])
    wanted = np.full((5, 300), 0x07070707, np.uint32)
    wanted[0, 1:4] = whole[0, :3]
    wanted[4, 299] = whole[4, 0]
    assert np.array_equal(d.extract(after), wanted)


STORE = "const uint32_t at = uint32_t(col) - uint32_t(window_first_held[0]);"
IN = (
    "col < min(window_end_held[0], shape_n) && col >= window_first_held[0] && at < uint32_t(d_room)"
)
CHANGES = [
    (STORE, "const uint32_t at = col;"),
    (STORE, STORE.replace(";", " + 1;")),
    (
        STORE,
        STORE.replace("window_first_held[0]", "__shfl_sync(0xffffffff, window_first_held[0], 0)"),
    ),
    (IN, IN.replace(" && col >= window_first_held[0] && at < uint32_t(d_room)", "")),
    (IN, IN.replace("col < min(window_end_held[0], shape_n) && ", "")),
    (IN, IN.replace("col >= window", "col > window")),
    (IN, IN.replace(", shape_n)", ", shape_n - 1)")),
]


@pytest.mark.nvrtc
@pytest.mark.parametrize("change", CHANGES, ids=lambda x: x[1][:60])
def test_the_emulator_finds_a_changed_store(change):
    (whole, _) = scores(LOGITS, SMALL, WINDOWS["across tiles"])
    try:
        found = scores(COMPACT, SMALL, WINDOWS["across tiles"], (change,))
    except (EmulatorError, VerificationError):
        return
    assert not all(np.array_equal(x, whole) for x in found)


@pytest.mark.parametrize(
    ("old", "new"),
    [*CHANGES, (IN, IN.replace(" && at < uint32_t(d_room)", ""))],
    ids=lambda x: x[:60],
)
def test_the_link_finds_a_changed_store(old, new):
    check_found(emitted(COMPACT, SMALL), old, new)


def test_what_lies_behind_a_window_must_stay():
    given = {"window_first": [1, 0], "window_end": [3, 9]}
    codes = encode(np.arange(8.0).reshape(2, 4), F32)
    codes[0, 2:] = 0x07070707
    moved = decode(from_windows(codes, COMPACT, given, 7), F32)
    assert moved.tolist() == [[-np.inf, 0, 1, -np.inf], [4, 5, 6, 7]]
    codes[0, 3] = 0
    with pytest.raises(VerificationError, match=r"1 elements behind windows.*row 0, column 3"):
        from_windows(codes, COMPACT, given, 7)


# ---- the proof ------------------------------------------------------------------------------


def as_whole_rows(s):
    return replace(s, of="sums") if isinstance(s, ir.StoreValues) else s


def cleaned_whole_rows(s):
    return cleaned_too(as_whole_rows(s))


def stored_in_all_tiles(s):
    return s.body if is_if(s, "has_blocks") and stores(s) else s


def of_another_row(s):
    if not isinstance(s, ir.StoreValues):
        return s
    return replace(s, held=tuple((x, "window_end_held" if x == "window_first" else y) for x, y in s.held))  # fmt: skip


def cleaned_too(s):
    if not (is_if(s, "has_blocks") and stores(s)):
        return s
    outside = ir.StoreValues(tensor="d", wave=0, of="outside")
    return (s, ir.If(when="no_blocks", body=(outside,)))


def never(s):
    return () if isinstance(s, ir.StoreValues) else s


def stores(s):
    return any(isinstance(x, ir.StoreValues) for x in s.body)


@pytest.mark.parametrize(
    "change",
    [as_whole_rows, cleaned_whole_rows, stored_in_all_tiles, of_another_row, cleaned_too, never],
)
def test_the_proof_finds(change):
    kernel = lower(COMPACT, SMALL)
    assert check(kernel).certificate
    with pytest.raises(ProtocolViolation):
        check(map_stmts(kernel, change))
