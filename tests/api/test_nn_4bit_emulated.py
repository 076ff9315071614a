"""Every launch of the layers of 4 bits, emulated one after the other, against their weights in float64. What is read where nobody wrote is NaN."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("cuda.bindings.nvrtc", exc_type=ImportError)

from emulated_ops import Memory, emulated, real_torch  # noqa: E402, F401
from four_bits import drawn  # noqa: E402
from mixtures import distance  # noqa: E402
from roundings import of_length  # noqa: E402

from gemmgen import formats, nn, ops  # noqa: E402
from gemmgen.ops import mixture  # noqa: E402

EXPERTS, HIDDEN, INNER, TOKENS, TOP = 3, 128, 64, 7, 2
LINEAR = of_length(torch.bfloat16, 2)  # weights and the result
# gate, up, their product, each expert's result and the sum, of MXFP4, which is exact
MIXTURE = of_length(torch.bfloat16, 5)


@pytest.fixture(autouse=True)
def functions(monkeypatch):
    """`ops` in the place of the operators, which a CPU has not."""
    names = ("w4a16_gemm", "w4a16_grouped_gemm", "w4a8_gemm", "w4a8_grouped_gemm")
    found = {name: getattr(ops, name) for name in (*names, "quantise_rows", "spread", "combine")}
    found |= {"route": mixture._routed}
    for module in ("coded", "experts4bit"):
        at = sys.modules[f"gemmgen.nn.{module}"]
        monkeypatch.setattr(at, "gemmgen", SimpleNamespace(**found))
    monkeypatch.setattr(sys.modules["gemmgen.nn.experts4bit"], "CALLS", mixture.CALLS)


@pytest.mark.parametrize(
    ("form", "dtype", "launches", "bound"),
    (
        (formats.int4(32, "bf16", zeros=True), None, 1, LINEAR),
        (formats.MXFP4, torch.float8_e4m3fn, 2, 0.04),  # of rows in FP8
    ),
)
def test_a_linear_layer(form, dtype, launches, bound, monkeypatch):
    weights = drawn(form, 70, 160)
    layer = nn.Linear4bit.from_quantised(weights, torch.randn(70), dtype)
    x = torch.randn(2, 3, 160).bfloat16()
    exact = x.double() @ weights.dequantise().mT + layer.bias.double()
    memory = Memory(x, *layer.buffers())
    emulated(monkeypatch, memory)
    with memory:
        y = layer(x)
    assert y.shape == (2, 3, 70) and len(memory.launched) == launches
    assert distance(y, exact) < bound


def test_experts(monkeypatch):
    """With biases of each, one that is nobody's choice, and choices that are no expert."""
    sides = (EXPERTS, 2 * INNER, HIDDEN), (EXPERTS, HIDDEN, INNER)
    weights = [drawn(formats.MXFP4, *s) for s in sides]
    biases = [torch.randn(s[:2]) for s in sides]
    given = dict(zip(("gate_up_bias", "down_bias"), biases, strict=True))
    layer = nn.Experts4bit.from_quantised(*weights, **given, activation="swiglu_clamped")
    x, shares = torch.randn(TOKENS, HIDDEN).bfloat16(), torch.rand(TOKENS, TOP)
    chosen = torch.arange(TOKENS * TOP).view(TOKENS, TOP) % 2
    chosen[0, 0], chosen[1, 1] = -1, 77
    exact = torch.zeros(TOKENS, HIDDEN, dtype=torch.float64)
    w1, w2 = (w.dequantise() for w in weights)
    for t, j in ((t, j) for t in range(TOKENS) for j in range(TOP)):
        e = int(chosen[t, j])
        if 0 <= e < EXPERTS:
            both = x[t].double() @ w1[e].mT + biases[0][e].double()
            gate, up = both[::2].clamp(max=7.0), both[1::2].clamp(-7.0, 7.0)
            h = gate * torch.sigmoid(1.702 * gate) * (up + 1)
            exact[t] += shares[t, j].double() * (h @ w2[e].mT + biases[1][e].double())
    memory = Memory(x, chosen, shares, *layer.buffers())
    emulated(monkeypatch, memory)
    with memory:
        y = layer(x, chosen, shares)
    assert len(memory.launched) == 5, memory.launched
    assert not y.isnan().any() and distance(y, exact) < MIXTURE
