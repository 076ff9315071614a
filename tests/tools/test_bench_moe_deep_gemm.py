"""A layer of experts by DeepGEMM's kernels with torch between them: `gemmgen.compat.deep_gemm` stands in, on the CPU."""

from __future__ import annotations

import sys
from functools import partial
from types import ModuleType, SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from mixtures import distance  # noqa: E402
from moe_on_cpu import SIZES, asked, cpu, measured, on_cpu  # noqa: E402, F401
from roundings import of_length  # noqa: E402

from gemmgen import ops  # noqa: E402
from gemmgen.bench import moe, moe_deep_gemm, moe_layer  # noqa: E402
from gemmgen.bench.agree import SUMMED, check_near  # noqa: E402
from gemmgen.bench.grouped_deep_gemm import ALIGNED  # noqa: E402
from gemmgen.bench.moe_sizes import DEEP_GEMM  # noqa: E402
from gemmgen.compat import deep_gemm  # noqa: E402
from gemmgen.errors import ArgumentError, RuntimeUnavailable, VerificationError  # noqa: E402

BOTH = ["deep_gemm", "deep_gemm casts"]
# Between two chains: rows of gate, of up and hidden ones are rounded to E4M3 on either side, each by 0.026 of their length, which makes
# 0.064 of six; three in ten weights are the same on both, as the largest of their blocks is.
APART = 0.06
# What the exact layer leaves out: an expert's result, a token's weights and its sum.
CHAIN = of_length(torch.bfloat16, 3)


def standing_in(monkeypatch, spoilt=lambda d: None):
    """What was multiplied: shapes of A and of B."""
    found = []

    def grouped(a, scale_a, b, scale_b, out, *, out_dtype, **given):
        assert out_dtype == "bf16" and given["row_groups"].dtype == torch.int32
        found.append((tuple(a.shape), tuple(b.shape)))
        torch.ops.gemmgen.fp8_block_grouped_gemm.out(a, scale_a, b, scale_b, out=out, **given)
        out[given["row_groups"] < 0] = float("nan")  # which no kernel need write
        spoilt(out)

    monkeypatch.setitem(sys.modules, "deep_gemm", deep_gemm)
    monkeypatch.setattr(ops, "fp8_block_grouped_gemm", grouped)
    return found


def test_both_chains_beside_the_layer(cpu, monkeypatch):  # noqa: F811
    found = standing_in(monkeypatch)
    rows = measured(1, 40, providers=("gemmgen", DEEP_GEMM))
    for r in rows:
        assert r.chains == pytest.approx({"deep_gemm": 200, "deep_gemm casts": 160})
        ratios = {x: r.ratios[f"over_{x.replace(' ', '_')}"] for x in BOTH}
        assert ratios == pytest.approx({"deep_gemm": 0.6, "deep_gemm casts": 0.75})
        eager = {"gemmgen": 180, "deep_gemm": 300, "deep_gemm casts": 240}
        assert r.eager == pytest.approx(eager) and not r.left_out and r.torch is None
    first, second = (6, 288, 272), (6, 272, 144)
    for tokens in (1, 40):  # each chain verified, then captured
        held = ops.routing.rows_of(tokens * SIZES.top, SIZES.experts, ALIGNED)
        assert found[:8] == [((held, b[-1]), b) for _ in range(4) for b in (first, second)]
        del found[:8]
    ours, *others = (x.double() for x in cpu.captured[3:])
    assert len(others) == 2
    for y in others:  # other scales of w1, and hidden rows rounded to BF16
        assert 0.001 < distance(y, ours) < APART


@pytest.mark.parametrize("name", BOTH)
def test_a_chain_is_as_exact_as_its_roundings(cpu, monkeypatch, name):  # noqa: F811
    standing_in(monkeypatch)
    w = moe_layer.drawn(SIZES, 0, False, "cpu", halves=True)
    t = moe_layer.tokens(SIZES, 40, "zipf", 0, "cpu")
    y = moe_deep_gemm.ways(w, t)[name]().double()
    rounded = partial(moe_deep_gemm.rounded, name, w)
    want = moe_layer.exact(t, w.quantised_halves, rounded, moe_deep_gemm.gated)
    check_near(y, want, SUMMED)
    assert distance(y, want) < CHAIN
    with pytest.raises(VerificationError):  # of the codes whose rows alternate
        check_near(y, moe_layer.exact(t, w.quantised, w.rounded), SUMMED)


def test_casts_are_the_same():
    """But for a rounding of the scale that one multiplies with and the other divides by."""
    x = torch.randn(40, 272).bfloat16()
    x[7] = 0
    (q, scale), (codes, factors) = ops.quantise_rows(x), moe_deep_gemm.by_torch(x)
    assert torch.allclose(scale, factors, rtol=1e-6) and factors.shape == (40, 3)
    assert (q.float() != codes.float()).float().mean() < 0.001 and codes.is_contiguous()


@pytest.mark.parametrize(("tokens", "top"), ((1, 1), (1, 6), (50, 3), (600, 2)))
def test_places_are_those_of_routes(tokens, top):
    g = torch.Generator().manual_seed(tokens)
    chosen = torch.rand(tokens, 6, generator=g).topk(top).indices.int()
    at, routes = moe_deep_gemm.places(chosen, 6), ops.route(chosen, 6, alignment=ALIGNED)
    assert torch.equal(at.slots.view_as(chosen), routes.slots.long())
    held = routes.copies >= 0
    assert at.tokens.shape == at.experts.shape == (routes.rows,)
    assert torch.equal(at.experts >= 0, held) and at.experts.dtype == torch.int32
    assert torch.equal(at.tokens[held], routes.copies[held].long() // top)
    assert torch.equal(at.experts[held], chosen.flatten()[routes.copies[held].long()])


def test_a_wrong_chain_is_left_out(cpu, monkeypatch):  # noqa: F811
    standing_in(monkeypatch, lambda d: d.mul_(1.05))
    (r,) = measured(5, providers=("gemmgen", DEEP_GEMM))
    assert not r.chains and [*r.eager] == ["gemmgen"] and [*r.left_out] == BOTH
    assert all(why.startswith("wrong result: ") for why in r.left_out.values())


def test_a_chain_that_no_graph_holds_is_timed_without(cpu, monkeypatch):  # noqa: F811
    standing_in(monkeypatch)

    def captured(call, times):
        if call.func is moe_deep_gemm.layer:
            raise RuntimeError("operation not permitted when stream is capturing")
        return SimpleNamespace(replayed=call)

    monkeypatch.setattr(moe, "captured", captured)
    (r,) = measured(5, providers=("gemmgen", DEEP_GEMM))
    assert not r.chains and [*r.eager] == ["gemmgen", *BOTH]
    assert all("not permitted" in why for why in r.left_out.values())


def module(**names):
    found = ModuleType("deep_gemm")
    found.__spec__, found.__file__ = SimpleNamespace(), "/site/deep_gemm/__init__.py"
    vars(found).update(names)
    return found


def test_what_is_missing_is_named(cpu, monkeypatch):  # noqa: F811
    monkeypatch.setitem(sys.modules, "deep_gemm", None)
    monkeypatch.setattr(moe_deep_gemm, "find_spec", lambda name: None)
    with pytest.raises(RuntimeUnavailable, match="provider deep_gemm: deep_gemm is not installed"):
        measured(5, providers=("gemmgen", DEEP_GEMM))
    monkeypatch.setattr(moe_deep_gemm, "find_spec", lambda name: name)
    with pytest.raises(RuntimeUnavailable, match="import deep_gemm fails"):
        measured(5, providers=("gemmgen", DEEP_GEMM))
    monkeypatch.setitem(sys.modules, "deep_gemm", module())
    missing = r"/site/deep_gemm/__init__.py has no m_grouped_fp8_gemm_nt_contiguous"
    with pytest.raises(RuntimeUnavailable, match=missing):
        measured(5, providers=("gemmgen", DEEP_GEMM))
    assert measured(5, providers=("gemmgen",))  # which asks for nothing


def test_other_scales_and_too_little_memory(cpu, monkeypatch):  # noqa: F811
    with pytest.raises(ArgumentError, match="--kind"):
        asked(providers=("gemmgen", DEEP_GEMM), kind="int8-rows")
    standing_in(monkeypatch)
    least = SIZES.bytes(False, True)
    assert least == SIZES.bytes(False) + 2 * 6 * 272 * 144
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (least - 1, least))
    with pytest.raises(RuntimeUnavailable, match=r"free$"):
        measured(5, providers=("gemmgen", DEEP_GEMM))
    assert measured(5, providers=("gemmgen",))
