"""Every launch of `torch_ops.moe_train`, forward and backward, emulated one after the other, against float64's autograd. What is read where nobody wrote is NaN."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("cuda.bindings.nvrtc", exc_type=ImportError)

from emulated_ops import Memory, emulated, real_torch  # noqa: E402, F401
from mixtures import choices, distances, drawn, trained, weights_of, wide_layer  # noqa: E402

from gemmgen import ops  # noqa: E402
from gemmgen.ops import mixture  # noqa: E402
from gemmgen.torch_ops import expert_products  # noqa: E402
from gemmgen.torch_ops import moe_train as function  # noqa: E402

EXPERTS, HIDDEN, INNER, TOKENS, TOP = 4, 256, 128, 70, 3
BOUND = {"bf16": 0.008, "fp8": 0.085}
PLAIN = ["grouped_gemm", "k_grouped_gemm", "quantise_rows", "quantise_blocks", "combine", "spread"]
SCALED = ["fp8_block_grouped_gemm", "fp8_k_grouped_gemm"]
# Of route, spread, casts, GEMMs and combine.
LAUNCHES = {("bf16", False): 12, ("bf16", True): 15, ("fp8", False): 25, ("fp8", True): 28}


def combine(y, slots, weights, add=None):
    return ops.combine(y, slots, weights, add=add)


@pytest.fixture
def functions(monkeypatch):
    """`ops` in the place of the operators, which a CPU has not."""
    found = {name: getattr(ops, name) for name in (*PLAIN, *SCALED, "moe")}
    found = SimpleNamespace(**found | {"route": mixture._routed, "combine": combine})
    monkeypatch.setattr(expert_products, "gemmgen", found)
    monkeypatch.setattr(sys.modules["gemmgen.torch_ops.moe_train"], "gemmgen", found)


@pytest.mark.parametrize(("kind", "recompute"), LAUNCHES, ids=str)
def test_both_passes(kind, recompute, functions, monkeypatch):
    """With ids of nobody, an expert without a token, something to add to."""
    of = {"x": drawn(TOKENS, HIDDEN), "add": drawn(TOKENS, HIDDEN)}
    of |= weights_of(EXPERTS, HIDDEN, INNER, "cpu", "bf16")
    of |= choices(TOKENS, TOP, EXPERTS)
    of["chosen"][0, 0], of["chosen"][1, 1] = -1, 77
    dy = drawn(TOKENS, HIDDEN)
    exact = trained(wide_layer, of, dy)
    memory = Memory(*(x for x in (*of.values(), dy) if isinstance(x, torch.Tensor)))
    emulated(monkeypatch, memory)
    with memory:
        found = trained(lambda **of: function(**of, kind=kind, recompute=recompute), of, dy)
    assert len(memory.launched) == LAUNCHES[kind, recompute], memory.launched
    assert not any(x.isnan().any() for x in found.values())
    off = distances(found, exact)
    assert all(x < BOUND[kind] for x in off.values()), off
