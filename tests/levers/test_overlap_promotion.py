"""Pieces of a K block promoted while the next is multiplied: results on the emulator, what is refused, and faults
that must show."""

from __future__ import annotations

import pytest
from emulated import judged, same_bits
from grouped import PROBLEMS, layout, problem
from kernels import FP8, GROUPED, INT8_BLOCK, VECTOR

from gemmgen.check import ProtocolViolation, check
from gemmgen.config import Config
from gemmgen.emulator import Race
from gemmgen.errors import IllegalConfig
from gemmgen.ir import nodes as ir
from gemmgen.ir.promotion import promotes
from gemmgen.ir.rewrite import statements
from gemmgen.passes import overlap_promotion
from gemmgen.pipeline import lower

from mutation.rows_pieces import early_release, exchanged_sums, one_sum, undrained  # isort: skip
from mutation.rows_protocol import visit  # isort: skip

PROMOTING = tuple(n for n in PROBLEMS if PROBLEMS[n]["family"] != "dense")


def overlapped(**changes) -> Config:
    return Config(**{"block_m": 256, "block_n": 64, "stages": 2, "in_flight": 1} | changes)


# ---- results --------------------------------------------------------------------------------

WAYS = (
    {},
    {"multicast": "a", "unroll": 4},
    {"multicast": "b", "block_m": 128, "parts": 2},
    {"block_n": 128, "block_m": 128, "parts": 2},
    {"block_n": 48, "parts": 2},
    {"swizzle_ab": 64},
    {"block_m": 128, "consumers": 1, "block_n": 40, "stages": 1},
)


@pytest.mark.nvrtc
@pytest.mark.parametrize("way", range(len(WAYS)))
@pytest.mark.parametrize("name", PROMOTING)
def test_results(name, way):
    p, c = problem(name, "none"), overlapped(**WAYS[way])
    try:
        lower(p, c)
    except IllegalConfig as e:
        instead = {"wgmma-n": {"block_n": 64}, "overlap-unroll": {"unroll": 3}}
        instead["overlap-columns"] = {"multicast": "none"}
        c = overlapped(**WAYS[way] | instead[e.rule.id])
    assert judged(p, c, (270, 201, 300), pad=way % 3).exact


@pytest.mark.nvrtc
def test_loads_that_a_release_in_another_cta_may_overtake(monkeypatch):
    """Without the rule: the proof and the emulator both find them."""
    monkeypatch.setattr(overlap_promotion, "_check_columns", lambda kernel, pieces: None)
    p, c = problem("fp8_1d1d", "none"), overlapped(block_m=128, parts=2, multicast="b")
    with pytest.raises(ProtocolViolation, match="P2"):
        check(lower(p, c))
    with pytest.raises(Race):
        judged(p, c, (256, 128, 384))
    alone = overlapped(block_m=128, parts=2)
    check(lower(p, alone))
    assert judged(p, alone, (256, 128, 384)).exact


@pytest.mark.nvrtc
@pytest.mark.parametrize("grouping", GROUPED)
def test_groups(grouping):
    p = problem("fp8_block", grouping)
    shape, sizes = (200, 264, 400), (70, 0, 33)
    c = overlapped(block_m=128, block_n=128, parts=2, multicast="a")
    assert judged(p, c, shape, layout(p, shape, sizes)).exact


@pytest.mark.nvrtc
def test_exchanged_operands():
    c = overlapped(swap_ab=True, block_m=40, block_n=256, stages=3)
    assert judged(FP8, c, (70, 300, 300)).exact


@pytest.mark.nvrtc
@pytest.mark.parametrize("p", (FP8, VECTOR, INT8_BLOCK), ids=lambda p: f"{p.family}-{p.a.name}")
def test_overlapping_changes_no_bit(p):
    """On random data: the same products, added in the same order."""
    assert same_bits(p, (50, 130, 700), [overlapped(in_flight=x) for x in (0, 1)], 3)


def test_a_piece_is_issued_before_the_one_before_is_promoted():
    body = next(
        s.body
        for s in statements(lower(VECTOR, overlapped()))
        if isinstance(s, ir.ForK) and any(isinstance(x, ir.Mma) for x in s.body)
    )
    order = [(type(s).__name__, getattr(s, "dst", "")) for s in body]
    first, second = (i for i, s in enumerate(body) if isinstance(s, ir.Mma))
    promoted = [i for i, s in enumerate(body) if promotes(s, "columns")]
    waits = [s.pending for s in body if isinstance(s, ir.WgmmaWait)]
    assert first < second < promoted[0] < promoted[1], order
    assert waits == [1, 0]


# ---- what is refused ------------------------------------------------------------------------

BROKEN = {
    "undrained": (undrained, "P2"),
    "released early": (early_release, "P2"),
    "one sum": (one_sum, "P2|P10"),
    "exchanged sums": (exchanged_sums, "P2|P10"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_what_the_proof_refuses(case):
    broken, properties = BROKEN[case]
    kernel = lower(VECTOR, overlapped())
    check(kernel)
    with pytest.raises(ProtocolViolation, match=properties):
        check(visit(ir.ForK, broken, role="consumer")(kernel))
