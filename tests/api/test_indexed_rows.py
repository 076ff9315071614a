"""Grouped GEMMs whose rows come by index: against the same of copied rows, emulated, and what is refused."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("cuda.bindings.nvrtc", exc_type=ImportError)

from emulated_ops import Memory, emulated, real_torch  # noqa: E402, F401

from gemmgen import ops  # noqa: E402
from gemmgen.errors import ArgumentError  # noqa: E402
from gemmgen.ir.dtypes import BF16  # noqa: E402
from gemmgen.problem import Problem  # noqa: E402

EXPERTS, HIDDEN, WIDE = 4, 256, 256


def routed(tokens, top):
    """Rows by expert, of which one has none and a choice is nobody's."""
    chosen = torch.randint(0, EXPERTS - 1, (tokens, top), dtype=torch.int32)
    chosen[0, 0] = -1
    return ops.route(chosen, EXPERTS)


@pytest.mark.parametrize(("tokens", "top"), ((5, 2), (90, 3)))
def test_16_bits(tokens, top, monkeypatch):
    """Where there is a copy, the bits of the copies."""
    r = routed(tokens, top)
    x = torch.randn(tokens, HIDDEN).bfloat16()
    w = torch.randn(EXPERTS, WIDE, HIDDEN).bfloat16()
    said = {"group_ends": r.ends, "expected_rows": tokens}
    memory = Memory(x, w, r.slots, r.copies, r.ends)
    emulated(monkeypatch, memory)
    with memory:
        copies, _ = ops.spread(x, None, r.slots, r.rows)
        want = ops.grouped_gemm(copies, w, **said)
        got = ops.grouped_gemm(x, w, rows=r.copies, top=top, **said)
    there = r.copies >= 0
    assert got.shape == want.shape and torch.equal(got[there], want[there])


@pytest.mark.parametrize("layout", ("mn", "row"))
def test_fp8(layout, monkeypatch):
    """Scales are of the product's rows."""
    tokens, top = 70, 2
    r = routed(tokens, top)
    q, scale = ops.quantise_rows(torch.randn(tokens, HIDDEN))
    w, scale_w = ops.quantise_blocks(torch.randn(EXPERTS, WIDE, HIDDEN))
    said = {"group_ends": r.ends, "expected_rows": tokens, "out_dtype": "e4m3"}
    said |= {"epilogue": "swiglu", "scale_a_layout": layout}
    memory = Memory(q, scale, w, scale_w, r.slots, r.copies, r.ends)
    emulated(monkeypatch, memory)
    with memory:
        copies, scales = ops.spread(q, scale, r.slots, r.rows)
        if layout == "row":
            scales = scales.contiguous()
        want = ops.fp8_block_grouped_gemm(copies, scales, w, scale_w, **said)
        got = ops.fp8_block_grouped_gemm(q, scales, w, scale_w, rows=r.copies, top=top, **said)
    there = r.copies >= 0
    for mine, theirs in zip(got, want, strict=True):
        mine, theirs = (x.view(torch.uint8) if x.dtype.itemsize == 1 else x for x in (mine, theirs))
        assert torch.equal(mine[there], theirs[there])


def test_any_problem(monkeypatch):
    """`multiply` of a problem by index: the bits of the function."""
    tokens, top = 20, 2
    r = routed(tokens, top)
    x = torch.randn(tokens, HIDDEN).bfloat16()
    w = torch.randn(EXPERTS, WIDE, HIDDEN).bfloat16()
    p = Problem(family="dense", a=BF16, b=BF16, grouping="ends", indexed=True)
    memory = Memory(x, w, r.copies, r.ends)
    emulated(monkeypatch, memory)
    with memory:
        want = ops.grouped_gemm(x, w, rows=r.copies, top=top, group_ends=r.ends)
        got = ops.multiply(p, x, w, table=r.ends, rows=r.copies, top=top)
    there = r.copies >= 0
    assert got.shape == want.shape and torch.equal(got[there], want[there])


def test_rows_that_a_has_not_are_zeros(monkeypatch):
    a, b = torch.randn(3, HIDDEN).bfloat16(), torch.randn(1, WIDE, HIDDEN).bfloat16()
    rows = torch.tensor([2, 3, -1, 0, 2**31 - 1, -(2**31)], dtype=torch.int32)
    ends = torch.tensor([6], dtype=torch.int32)
    memory = Memory(a, b, rows, ends)
    emulated(monkeypatch, memory)
    with memory:
        d = ops.grouped_gemm(a, b, group_ends=ends, rows=rows)
    assert d[[1, 2, 4, 5]].eq(0).all() and d[[0, 3]].ne(0).any()


@pytest.mark.parametrize(
    ("argument", "changes"),
    (
        ("top", {"top": 0}),
        ("top", {"top": 2.0}),
        ("top", {"rows": None, "top": 2}),
        ("rows", {"group_ends": None, "row_groups": torch.zeros(8, dtype=torch.int32)}),
        ("indexed", {"layout": "tn"}),
    ),
    ids=str,
)
def test_what_is_refused(argument, changes):
    given = {"rows": torch.zeros(8, dtype=torch.int32), "top": 1}
    given |= {"group_ends": torch.zeros(1, dtype=torch.int32)} | changes
    a, b = torch.zeros(8, 64).bfloat16(), torch.zeros(1, 64, 64).bfloat16()
    with pytest.raises(ArgumentError) as e:
        ops.grouped_gemm(a, b, **given)
    assert e.value.argument == argument


def test_more_copies_than_int32_counts(monkeypatch):
    a, b = torch.randn(4, HIDDEN).bfloat16(), torch.randn(1, 64, HIDDEN).bfloat16()
    rows, ends = torch.zeros(8, dtype=torch.int32), torch.tensor([8], dtype=torch.int32)
    memory = Memory(a, b, rows, ends)
    emulated(monkeypatch, memory)
    with memory, pytest.raises(ArgumentError) as e:
        ops.grouped_gemm(a, b, group_ends=ends, rows=rows, top=1 << 29)
    assert e.value.argument == "top" and "less than 536870912" in str(e.value)
