"""Sums of squares of A's rows beside its product: through every layer that has no GPU."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from changed_text import check_found
from emulated import judged, machine, prepared, same_bits
from kernels import DENSE_F32, FP8, SQUARES, SQUARES_PAIRED, emitted
from mutation.rows_protocol import visit

from gemmgen.check import ProtocolViolation, check
from gemmgen.config import Config
from gemmgen.emulator import EmulatorError
from gemmgen.errors import ArgumentError, IllegalConfig, VerificationError
from gemmgen.heuristics import choose
from gemmgen.ir import nodes as ir
from gemmgen.ir.dtypes import BF16, F16
from gemmgen.ir.rewrite import statements
from gemmgen.pipeline import lower
from gemmgen.problem import Problem
from gemmgen.runtime.launch import check_launch
from gemmgen.target import H200
from gemmgen.verification import exact_integers
from gemmgen.verification.engines import NumpyEngine
from gemmgen.verification.reference import enclosure, product
from gemmgen.verification.trial import output, pitches

ONE = {"block_m": 64, "consumers": 1, "stages": 3}

# ---- problems and configs -----------------------------------------------------------------


def test_json_and_back():
    assert SQUARES.to_json()["squares"] is True and "squares" not in DENSE_F32.to_json()
    assert Problem.from_json(SQUARES.to_json()) == SQUARES


@pytest.mark.parametrize(
    ("argument", "problem", "changes"),
    [
        ("squares", SQUARES, {"squares": 1}),
        ("squares", FP8, {"squares": True}),
        ("squares", SQUARES, {"d": BF16}),
        ("squares", SQUARES, {"layout": "tt"}),
        ("squares", SQUARES, {"grouping": "ends"}),
        ("squares", SQUARES, {"a": "e4m3", "b": "e4m3"}),
        ("accumulate", SQUARES, {"accumulate": True}),
        ("collective", SQUARES, {"collective": "all_reduce"}),
    ],
    ids=str,
)
def test_what_has_no_squares_is_refused(argument, problem, changes):
    with pytest.raises(ArgumentError) as e:
        replace(problem, **changes)
    assert e.value.argument == argument


@pytest.mark.parametrize(
    ("rule", "config"),
    [
        ("squares-rows", Config(swap_ab=True, block_m=16)),
        ("squares-lines", Config(**ONE, swizzle_ab=64)),
        ("squares-lines", Config(**ONE, block_k_bytes=64)),
        ("shares-squares", Config(**ONE, shares=2)),
        ("slice-sums", Config(block_m=64, consumers=2, stages=4, slice_k=True)),
    ],
    ids=str,
)
def test_configs_that_sum_none_are_refused(rule, config):
    with pytest.raises(IllegalConfig) as e:
        lower(SQUARES, config)
    assert e.value.rule.id == rule


@pytest.mark.parametrize("problem", [SQUARES, SQUARES_PAIRED], ids=["one row", "pairs"])
@pytest.mark.parametrize("shape", [(1, 50, 7168), (137, 50, 28672), (8192, 50, 7680)], ids=str)
def test_a_config_is_chosen(problem, shape):
    config = choose(problem, shape, H200)
    assert not config.swap_ab and lower(problem, config)


@pytest.mark.parametrize("n", [2, 48, 52, 54])
def test_columns_that_leave_no_whole_pieces_are_refused(n):
    kernel = lower(SQUARES_PAIRED, Config(**ONE))
    check_launch(kernel, (64, 50, 128))
    if n == 2:  # none but that of the squares
        check_launch(kernel, (64, n, 128))
        return
    with pytest.raises(ArgumentError, match=r"^columns="):
        check_launch(kernel, (64, n, 128))


# ---- what is computed ---------------------------------------------------------------------


def test_the_reference_is_a_sum_of_squares():
    for p, n in ((SQUARES, 25), (SQUARES_PAIRED, 50)):
        x, engine = exact_integers(p, 9, n, 200, 3), NumpyEngine()
        a = (x.a.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
        b = (x.b.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
        want = a @ b.T
        want[:, -x.fold] += (a**2).sum(1)
        want = want.reshape(9, -1, x.fold).sum(2)
        assert (product(p, x, engine) == want).all()
        bounds = enclosure(p, x, engine)
        assert (bounds.want == want).all()
        assert (bounds.low <= want).all() and (want <= bounds.high).all()


# ---- the proof ----------------------------------------------------------------------------


def without(kind):
    return visit(kind, lambda s: ())


BREAKS = {
    "no K block's squares": without(ir.SumSquares),
    "squares twice": visit(ir.SumSquares, lambda s: (s, s)),
    "squares of the other wave": visit(ir.SumSquares, lambda s: replace(s, wave=0)),
    "never added": without(ir.AddSquares),
    "added twice": visit(ir.AddSquares, lambda s: (s, s)),
    "added to the other wave": visit(ir.AddSquares, lambda s: replace(s, src="squares0")),
    "never cleared": visit(ir.Zero, lambda s: () if s.dst.startswith("squares") else s),
    "D's tail": visit(ir.StoreTail, lambda s: replace(s, tensor="d", own=False)),
    "the column in D": visit(ir.StoreTail, lambda s: replace(s, tensor="d")),
    "D's tail elsewhere": visit(ir.StoreTail, lambda s: replace(s, own=False)),
}


@pytest.mark.parametrize("name", BREAKS)
def test_the_proof_finds(name):
    kernel = lower(SQUARES_PAIRED, Config(block_m=256, consumers=2, block_n=32, stages=3))
    assert check(kernel).certificate
    with pytest.raises(ProtocolViolation):
        check(BREAKS[name](kernel))


def late(kernel):
    """Squares are read after the products have begun: a load that no wait for products is behind."""

    def moved(s):
        body = [x for x in s.body if not isinstance(x, ir.SumSquares)]
        sums = [x for x in s.body if isinstance(x, ir.SumSquares)]
        if not sums:
            return s
        at = next(i for i, x in enumerate(body) if isinstance(x, ir.WgmmaCommit)) + 1
        return replace(s, body=(*body[:at], *sums, *body[at:]))

    return visit(ir.ForK, moved)(kernel)


def test_a_load_that_an_arrival_in_another_cta_may_overtake_is_found():
    kernel = lower(SQUARES, Config(**ONE, multicast="a"))
    assert check(kernel).certificate
    with pytest.raises(ProtocolViolation, match="may still be read"):
        check(late(kernel))


IN_TEXT = {
    # A sum is of all pieces of a row: in another order each lane's are no others' still, but of banks that others read.
    "a piece of another row": ("^ (lane / 4)) * 16", "^ (lane / 8)) * 16"),
    "the same piece twice": ("lane % 4 * 2 + i % 2)", "lane % 4 * 2)"),
    "the upper rows twice": ("i / 2 * 1024", "i / 2 * 0"),
    "no low halves": ("[i / 2] += low * low", "[i / 2] += high * high"),
    "no squares": ("+= high * high", "+= high"),
    "the next column": ("lane % 4 * 2 + i % 2 == shape_n", "lane % 4 * 2 + i % 2 + 1 == shape_n"),
    "rows exchanged": ("lower : upper", "upper : lower"),
    "another row": ("squares_stride + i % columns", "squares_stride + i % columns + 1"),
}  # fmt: skip


@pytest.mark.parametrize("name", IN_TEXT)
def test_the_link_finds_a_changed_text(name):
    check_found(emitted(SQUARES_PAIRED, Config(**ONE, block_n=32)), *IN_TEXT[name])


# ---- on the emulator ----------------------------------------------------------------------

CASES = {
    "one row of B": (SQUARES, Config(**ONE, block_n=32), (70, 25, 136)),
    "in the tile's last column": (SQUARES, Config(**ONE, block_n=40), (70, 37, 136)),
    "a tile of its own": (SQUARES, Config(**ONE, block_n=24), (70, 25, 136)),
    "pairs": (SQUARES_PAIRED, Config(**ONE, block_n=32), (70, 50, 200)),
    "many columns": (SQUARES_PAIRED, Config(**ONE, block_n=128), (130, 258, 200)),
    "nothing in flight": (SQUARES_PAIRED, Config(**ONE, block_n=64, in_flight=0), (70, 50, 200)),
    "two waves": (
        SQUARES_PAIRED,
        Config(block_m=256, consumers=2, block_n=32, stages=3),
        (300, 50, 200),
    ),
    "K divided": (SQUARES_PAIRED, Config(**ONE, block_n=32, split_k=4), (70, 50, 520)),
    "K in stretches": (SQUARES_PAIRED, Config(**ONE, block_n=64, stream=True), (200, 50, 520)),
    "A shared": (SQUARES_PAIRED, Config(**ONE, block_n=32, multicast="a"), (130, 50, 200)),
    "B shared": (SQUARES_PAIRED, Config(**ONE, block_n=32, multicast="b"), (130, 50, 200)),
    "by turns": (
        SQUARES_PAIRED,
        Config(block_m=64, consumers=2, ping_pong=True, block_n=32, stages=4),
        (130, 50, 200),
    ),
    "in pieces": (SQUARES, Config(**ONE, block_n=128, d_columns=32), (70, 125, 200)),
    "rows padded": (SQUARES_PAIRED, Config(**ONE, block_n=64, swizzle_d=0), (70, 50, 200)),
    "f16": (replace(SQUARES_PAIRED, a=F16, b=F16), Config(**ONE, block_n=32), (70, 50, 200)),
    "several": (
        replace(SQUARES_PAIRED, grouping="batched"),
        Config(**ONE, block_n=32),
        (70, 50, 200),
    ),
    "unrolled": (SQUARES_PAIRED, Config(**ONE, block_n=32, unroll=4), (70, 50, 520)),
    "B along N": (replace(SQUARES, layout="nn"), Config(**ONE, block_n=64), (70, 25, 136)),
    "watched": (SQUARES_PAIRED, Config(**ONE, block_n=32, watchdog=True), (70, 50, 200)),
}


@pytest.mark.nvrtc
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("pad", [0, 3])
def test_kernels_on_trial(name, pad):
    problem, config, shape = CASES[name]
    assert judged(problem, config, shape, pad=pad).exact


@pytest.mark.nvrtc
def test_the_product_is_that_without_squares():
    """D's bits, and the squares' of however wide a tile."""
    config, shape = Config(**ONE, block_n=32), (70, 50, 200)
    plain = replace(SQUARES_PAIRED, squares=False)
    operands, found = exact_integers(plain, *shape, 4), {}
    for p in (plain, SQUARES_PAIRED):
        kernel, program = prepared(p, config)
        given = replace(operands, squares=p.squares)
        d = output(p, given, pitches(kernel, shape))
        after = machine().execute(program, given, pitches(kernel, shape), d, 0x5A)
        found[p] = d.extract(after)
    assert (found[plain][:, :24] == found[SQUARES_PAIRED]).all()
    assert same_bits(SQUARES_PAIRED, shape, [config, Config(**ONE, block_n=64)], 5)


@pytest.mark.nvrtc
@pytest.mark.parametrize("name", [x for x in IN_TEXT if x != "a piece of another row"])
def test_the_emulator_finds_a_changed_text(name):
    old, new = IN_TEXT[name]
    with pytest.raises((VerificationError, EmulatorError)):
        judged(
            SQUARES_PAIRED,
            Config(**ONE, block_n=32),
            (70, 50, 136),
            broken=lambda s: s.replace(old, new),
        )


def test_the_statements_are_where_squares_are():
    kinds = [type(s) for s in statements(lower(SQUARES, Config(**ONE)))]
    assert kinds.count(ir.SumSquares) == kinds.count(ir.AddSquares) == 1
    assert ir.SumSquares not in map(type, statements(lower(DENSE_F32, Config(**ONE))))
