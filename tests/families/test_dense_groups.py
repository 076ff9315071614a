"""Groups by their ends of which few rows or none lie between two: what is right, and which alignments a problem may have."""

from __future__ import annotations

from dataclasses import replace

import pytest
from emulated import judged
from grouped import CASES, PROBLEMS, layout, problem

from gemmgen.config import Config
from gemmgen.epilogues import EPILOGUES
from gemmgen.errors import ArgumentError
from gemmgen.heuristics.tuned import profile
from gemmgen.ir.dtypes import BF16, E4M3, F16
from gemmgen.ir.groupings import ALIGNMENTS, DENSE, GROUPINGS
from gemmgen.problem import Problem

SMALL = Config(block_m=64, block_n=64, consumers=1, stages=2, multicast="none")
# Rows of a group end inside tiles, and begin there.
TILES = {
    "plain": {},
    "two warpgroups": {"block_m": 128, "consumers": 2},
    "b shared": {"block_m": 128, "consumers": 2, "multicast": "b"},
    "swapped": {"swap_ab": True, "block_m": 24},
    "a slice each": {"split_k": 2},
}
SCALED = ("fp8_block", "fp8_block_f32", "fp8_1d1d", "s8_block")


def dense(name, grouping="ends"):
    return problem(name, grouping, 4 if name in SCALED else 1)


@pytest.mark.nvrtc
@pytest.mark.parametrize("name", PROBLEMS)
@pytest.mark.parametrize(("sides", "sizes"), CASES[2:])
def test_families(name, sides, sizes):
    p = dense(name)
    assert judged(p, SMALL, sides, layout(p, sides, sizes), pad=1).exact


@pytest.mark.nvrtc
@pytest.mark.parametrize("changes", TILES.values(), ids=TILES)
@pytest.mark.parametrize("name", ("fp8_block", "bf16"))
def test_tiles(name, changes):
    p = dense(name)
    shape, sizes = (400, 72, 400), (1, 0, 67, 130, 3, 64, 0, 9)
    assert judged(p, replace(SMALL, **changes), shape, layout(p, shape, sizes), pad=1, sms=3).exact


@pytest.mark.nvrtc
@pytest.mark.parametrize("alignment", (4, 8))
def test_quantised_results(alignment):
    """Their scales lie side by side too, and are written by row."""
    p = replace(problem("fp8_block", "ends", alignment), d=E4M3, epilogue=EPILOGUES["swiglu"])
    shape, sizes = (300, 256, 200), (5, 0, 130, 41)
    for c in (
        Config(block_m=64, block_n=256, parts=2, consumers=1, stages=2),
        Config(swap_ab=True, block_m=16, block_n=256, consumers=1, stages=2),
    ):
        assert judged(p, c, shape, layout(p, shape, sizes))


@pytest.mark.nvrtc
@pytest.mark.parametrize("name", ("fp8_block", "bf16"))
def test_rows_by_index(name):
    p = replace(dense(name), indexed=True)
    shape, sizes = (300, 136, 200), (3, 130, 0, 41)
    assert judged(p, replace(SMALL, multicast="none"), shape, layout(p, shape, sizes), pad=1).exact


@pytest.mark.nvrtc
@pytest.mark.parametrize("to", (BF16, F16))
def test_packed_weights(to):
    p = Problem(
        family="w4a16",
        a=to,
        b=to,
        d=to,
        weights="int4_64_bf16_zeros" if to == BF16 else "e2m1_32_e8m0_f16",
    )
    p = replace(p, grouping="ends", alignment=1)
    c = Config(
        swap_ab=True, block_m=16, block_n=64, block_k_bytes=256, consumers=1, stages=4, in_flight=1
    )
    shape, sizes = (90, 72, 320), (1, 0, 33, 20, 5)
    assert judged(p, c, shape, layout(p, shape, sizes)).exact


@pytest.mark.nvrtc
@pytest.mark.parametrize("layouts", ("tn", "tt"))
def test_rows_side_by_side(layouts):
    """Of a turned A eight have the 16 bytes at whose multiples boxes begin."""
    p = replace(dense("bf16"), layout=layouts, alignment=8)
    shape, sizes = (200, 72, 200), (3, 0, 67, 80)
    assert judged(p, SMALL, shape, layout(p, shape, sizes), pad=1).exact


@pytest.mark.parametrize(
    ("p", "allowed"),
    (
        (Problem(**PROBLEMS["bf16"], grouping="ends"), (128, 64, 8, 4, 1)),
        (Problem(**PROBLEMS["fp8_rowwise"], grouping="ends"), (128, 64, 8, 4, 1)),
        (Problem(**PROBLEMS["bf16"], grouping="ends", layout="tn"), (128, 64, 8)),
        *((Problem(**PROBLEMS[x], grouping="ends"), (128, 64, 8, 4)) for x in SCALED),
        (Problem(**PROBLEMS["bf16"], grouping="rows"), (128, 64)),
    ),
    ids=str,
)
def test_which_there_are(p, allowed):
    for alignment in (*ALIGNMENTS, *DENSE, 32, 2, 0, True, "1"):
        if type(alignment) is int and alignment in allowed:
            assert replace(p, alignment=alignment).alignment == alignment
            continue
        with pytest.raises(ArgumentError) as e:
            replace(p, alignment=alignment)
        assert e.value.argument == "alignment"
        said = f"must be one of {allowed} for grouping={p.grouping}"
        assert str(e.value).endswith(said)


def test_what_was_measured_serves_them():
    """Where groups begin changes no time that a database has; of groups told row by row it may."""
    for grouping, alike in (("ends", True), ("rows", False)):
        one, other = (
            Problem(**PROBLEMS["bf16"], grouping=grouping, alignment=x) for x in ALIGNMENTS
        )
        assert (profile(one) == profile(other)) == alike == GROUPINGS[grouping].dense
    assert profile(dense("bf16")) == profile(Problem(**PROBLEMS["bf16"], grouping="ends"))
