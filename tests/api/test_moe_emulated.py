"""Every launch of `ops.moe`, emulated one after the other, against a layer in float64. What is read where nobody wrote is NaN."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("cuda.bindings.nvrtc", exc_type=ImportError)

from emulated_ops import Memory, emulated, real_torch  # noqa: E402, F401
from mixtures import CODED, biases_of, choices, distance, drawn, layer, weights_of  # noqa: E402

from gemmgen import ops  # noqa: E402
from gemmgen.ops import mixture  # noqa: E402

EXPERTS, HIDDEN, INNER = 4, 256, 128
FP8_ROWS = ("mxfp4 fp8", "mxfp4 fp8 blocks", "int4 fp8 blocks")
BOUND = {"fp8": 0.06, "bf16": 0.006, "fp8 rows": 0.06, "int8": 0.02}
BOUND |= dict.fromkeys(CODED, BOUND["bf16"]) | dict.fromkeys(("mxfp4 f16", "fp8 by f16"), 0.001)
BOUND |= dict.fromkeys(FP8_ROWS, 0.06)
LAUNCHES = {
    ("fp8", "alternating"): 6,
    ("fp8", "halves"): 7,
    ("bf16", "alternating"): 5,
    ("bf16", "halves"): 6,
    ("fp8 rows", "alternating"): 7,
    ("fp8 rows", "halves"): 8,  # and a copy of scales by torch
    ("int8", "alternating"): 7,
    ("int8", "halves"): 8,
    **{(kind, "alternating"): 5 for kind in CODED},
    **{(kind, "alternating"): 7 for kind in FP8_ROWS},
}


@pytest.mark.parametrize(("kind", "order"), LAUNCHES, ids=str)
@pytest.mark.parametrize(("tokens", "top"), ((5, 2), (70, 3)))
@pytest.mark.parametrize("taken", (False, True))
def test_a_layer(taken, tokens, top, kind, order, monkeypatch):
    """With ids of nobody, an expert without a token, something to add to; of copies, and of rows that are taken by index."""
    mean = -(-tokens * top // EXPERTS)
    monkeypatch.setattr(mixture, "MOST_TAKEN", mean if taken else mean - 1)
    of = {name: drawn(tokens, HIDDEN, kind=kind) for name in ("x", "add")} | {"order": order}
    of |= weights_of(EXPERTS, HIDDEN, INNER, "cpu", kind, order)
    of |= choices(tokens, top, EXPERTS)
    of["chosen"][0, 0], of["chosen"][1, 1] = -1, 77
    exact = layer(**of)
    memory = Memory(*(x for x in of.values() if isinstance(x, torch.Tensor)))
    emulated(monkeypatch, memory)
    with memory:
        y = ops.moe(**of)
    assert len(memory.launched) == LAUNCHES[kind, order], memory.launched
    taken &= kind == "fp8"
    assert sum("indexed" in name for name in memory.launched) == taken * (1 + (order == "halves"))
    assert not y.isnan().any() and distance(y, exact) < BOUND[kind]


@pytest.mark.parametrize(("kind", "order"), LAUNCHES, ids=str)
@pytest.mark.parametrize("epilogue", ("geglu", "swiglu_clamped"))
def test_a_layer_with_biases(epilogue, kind, order, monkeypatch):
    of = {"x": drawn(9, HIDDEN, kind=kind), "order": order, "epilogue": epilogue}
    of |= weights_of(EXPERTS, HIDDEN, INNER, "cpu", kind, order)
    of |= choices(9, 2, EXPERTS) | biases_of(EXPERTS, HIDDEN, INNER)
    exact = layer(**of)
    memory = Memory(*(x for x in of.values() if isinstance(x, torch.Tensor)))
    emulated(monkeypatch, memory)
    with memory:
        y = ops.moe(**of)
    assert not y.isnan().any() and distance(y, exact) < BOUND[kind]
