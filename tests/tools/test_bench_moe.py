"""Layers of experts that are timed: drawn, verified and told apart, on the CPU with float64 in the GEMMs' place."""

from __future__ import annotations

from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from moe_on_cpu import KERNELS, SIZES, US, cpu, measured, on_cpu, sizes_of  # noqa: E402, F401

from gemmgen.bench import moe, moe_layer  # noqa: E402
from gemmgen.bench.agree import SUMMED, check_near  # noqa: E402
from gemmgen.bench.moe_sizes import KINDS, MODELS, PROVIDERS, ROUTERS  # noqa: E402
from gemmgen.bench.timing import Timed  # noqa: E402
from gemmgen.errors import (  # noqa: E402
    GemmgenError,
    RuntimeUnavailable,
    VerificationError,
)

OF_8_BITS = ("int8-bf16", "fp8-bf16")
EXACT = ("bf16", "int4", "mxfp4", *OF_8_BITS)  # by 16 bits: torch multiplies by the same numbers


@pytest.mark.parametrize("router", ROUTERS)
def test_a_row_per_number_of_tokens(cpu, router):  # noqa: F811
    rows = measured(1, 40, router=router)
    assert [r.tokens for r in rows] == [1, 40] and rows[0].touched == 2
    for r in rows:
        assert [*r.launches] == ["route", "cast", "spread", "GEMM 1", "GEMM 2", "combine"]
        assert [*r.launches.values()] == pytest.approx([us for _, us in KERNELS])
        assert (r.kernels, r.gemms, r.graph) == pytest.approx((114, 100, 120))
        assert (r.torch, r.read, r.left_out) == (pytest.approx(240), pytest.approx(95), {})
        assert r.eager == pytest.approx({"gemmgen": 180, "torch": 360}) and not r.chains
        ratios = {"over_gemms": 1.14, "over_read": 1.2, "over_torch": 0.5}
        assert r.ratios == pytest.approx(ratios)
    assert cpu.checked == 2 and len(cpu.captured) == 4
    both, down = 2 * SIZES.intermediate * SIZES.hidden, SIZES.hidden * SIZES.intermediate
    each = (both, 3 * 3 * 4, down, 3 * 2 * 4)  # with a scale to 128 x 128
    assert cpu.spans == [[r.touched * x for x in each] for r in rows]


@pytest.mark.parametrize("kind", KINDS)
def test_both_ways_compute_the_same_layer(kind, cpu):  # noqa: F811
    measured(40, kind=kind)
    ours, theirs = (x.double() for x in cpu.captured)
    least, most = (0.004, 0.03) if kind.startswith("int8") else (0.01, 0.09)  # BF16 beside it
    if kind in EXACT:
        least, most = 0.001, 0.012  # rounded otherwise
    assert least < (ours - theirs).norm() / theirs.norm() < most


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_read(kind, cpu):  # noqa: F811
    """Codes, and scales if there are some, of the experts that were chosen."""
    s = sizes_of(kind)
    (r,) = measured(5, kind=kind)
    both, down = 2 * s.intermediate * s.hidden, s.hidden * s.intermediate
    scales = {"fp8-blocks": (3 * 3, 3 * 2)}.get(kind, (2 * s.intermediate, s.hidden))
    alone = ({*EXACT} - {*OF_8_BITS}) | {"int4-fp8-blocks"}  # without scales of rows
    scales = () if kind in alone else [x * 4 for x in scales]
    bits = {
        "bf16": 16,
        "int4": 4 + 16 / 128,
        **dict.fromkeys(("mxfp4", "mxfp4-fp8", "mxfp4-fp8-blocks", "int4-fp8-blocks"), 4 + 8 / 32),
    }
    codes = [int(x * bits.get(kind, 8)) // 8 for x in (both, down)]
    found = [x // r.touched for x in cpu.spans[0]]
    assert found == [x for pair in zip(codes, scales or [None] * 2, strict=True) for x in pair if x]


def test_only_who_is_asked_for(cpu):  # noqa: F811
    (r,) = measured(5, providers=("gemmgen",))
    assert r.torch is r.read is r.ratios["over_read"] is r.ratios["over_torch"] is None
    assert len(cpu.captured) == 1 and not cpu.spans


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_drawn_is_the_same_again(kind):
    s = sizes_of(kind)
    one, other = (moe_layer.drawn(s, seed, True, "cpu", kind) for seed in (3, 3))
    assert all(map(torch.equal, one.wide, other.wide))
    assert one.scale_w1 is other.scale_w1 or torch.equal(one.scale_w1, other.scale_w1)
    assert torch.equal(one.w2.view(torch.uint8), other.w2.view(torch.uint8))
    for e in range(s.experts):  # an expert's codes are its own numbers
        for x, y in zip(one.quantised(e), one.plain(e), strict=True):
            assert x.shape == y.shape and (x - y).norm() < 0.04 * y.norm()
            assert 0.01 < y.std() < 0.04
    assert moe_layer.drawn(s, 3, False, "cpu", kind).wide is None
    assert not torch.equal(moe_layer.drawn(s, 4, True, "cpu", kind).wide[1], one.wide[1])


def test_zipf_prefers_the_first():
    sizes = replace(SIZES, experts=64)
    even, zipf = (moe_layer.tokens(sizes, 500, router, 0, "cpu").chosen for router in ROUTERS)
    assert (zipf < 8).sum() > 2 * (even < 8).sum() > 0
    for chosen in (even, zipf):
        assert chosen.dtype == torch.int32 and (chosen[:, 0] != chosen[:, 1]).all()


@pytest.mark.parametrize("kind", KINDS)
def test_a_wrong_layer_is_not_timed(kind, cpu, monkeypatch):  # noqa: F811
    layer = moe_layer.Weights.layer
    monkeypatch.setattr(moe_layer.Weights, "layer", lambda w, t: layer(w, t) * 1.05)
    with pytest.raises(VerificationError, match="differs"):
        measured(5, kind=kind)


@pytest.mark.parametrize(
    ("spoilt", "why"),
    ((lambda y: y * 1.05, "wrong result: "), (lambda y: y.no, "fails: AttributeError")),
)
def test_torch_that_fails_is_left_out(cpu, monkeypatch, spoilt, why):  # noqa: F811
    layer = moe_layer.by_torch
    monkeypatch.setattr(moe_layer, "by_torch", lambda w, t: spoilt(layer(w, t)))
    (r,) = measured(5)
    assert r.torch is None and r.left_out["torch"].startswith(why) and r.read
    assert [*r.eager] == ["gemmgen"]


def test_an_order_that_is_lost_is_found():
    """The reference is not what it refers to: a copy in another expert's place is no rounding."""
    w, t = (
        moe_layer.drawn(SIZES, 0, True, "cpu"),
        moe_layer.tokens(SIZES, 30, "even", 0, "cpu"),
    )
    want = moe_layer.exact(t, w.plain, moe_layer.as_it_is)
    check_near(moe_layer.by_torch(w, t).double(), want, SUMMED)
    for wrong in (
        replace(t, chosen=t.chosen.flip(1)),
        replace(t, weights=t.weights.roll(1, 0)),
        replace(t, x=t.x.roll(1, 0)),
    ):
        with pytest.raises(VerificationError):
            check_near(moe_layer.by_torch(w, wrong).double(), want, SUMMED)


def test_weights_that_do_not_fit(cpu, monkeypatch):  # noqa: F811
    free = SIZES.bytes(False) + 1
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (free, free))
    with pytest.raises(RuntimeUnavailable, match="without provider torch"):
        measured(5)
    assert measured(5, providers=("gemmgen", "read"))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (100, 100))
    with pytest.raises(RuntimeUnavailable, match=r"free$"):
        measured(5, providers=("gemmgen",))


def test_a_torch_without_groups(cpu, monkeypatch):  # noqa: F811
    monkeypatch.setattr(moe.grouped_torch, "available", lambda: False)
    with pytest.raises(RuntimeUnavailable, match="_grouped_mm"):
        measured(5)
    assert measured(5, providers=("gemmgen",))


def test_launches_of_other_kinds_keep_their_names():
    def run(*names):
        return [Timed(kernel=x, seconds=US) for x in names]

    found = moe.named(run("vectorized_copy", "gemmgen_a", "cast_x", "gemmgen_a", "cast_y"))
    assert found == pytest.approx({"vectorized_copy": 1, "GEMM 1": 1, "cast": 2, "GEMM 2": 1})
    with pytest.raises(GemmgenError, match="no GEMM, only cast"):
        moe.named(run("cast_x"))
    with pytest.raises(GemmgenError, match="nothing"):
        moe.named([])


def test_models_are_layers_that_there_are():
    assert MODELS["v3"].bytes(True) == 3 * MODELS["v3"].bytes(False) == 9 * 256 * 7168 * 2048
    assert MODELS["v3-local"].experts * 8 == MODELS["v3"].experts
    assert PROVIDERS[0] == "gemmgen"
    v3 = MODELS["v3"]
    assert v3.bytes(False, kind="bf16") == 2 * v3.bytes(False) == 4 * v3.bytes(False, kind="mxfp4")
