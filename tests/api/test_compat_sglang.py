"""`gemmgen.compat.sglang`: SGLang's keywords, what they become, what is refused; with float64 in the place of the GEMMs."""

from __future__ import annotations

import inspect
from collections import namedtuple
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from mixtures import BF16, biases_of, choices, distance, drawn, layer, weights_of  # noqa: E402
from torch_reference import on_cpu  # noqa: E402, F401

from gemmgen import ops  # noqa: E402
from gemmgen.compat.sglang import fused_experts  # noqa: E402
from gemmgen.errors import ArgumentError  # noqa: E402
from gemmgen.nn.experts import CALLS  # noqa: E402
from gemmgen.ops import mixture  # noqa: E402

EXPERTS, HIDDEN, INNER, TOKENS = 6, 256, 128, 20
BOUND = {"fp8": 0.08, "bf16": 0.01, "fp8 rows": 0.08, "int8": 0.03}
Output = namedtuple("Output", "topk_weights topk_ids router_logits")
CLAMPED = {"gemm1_alpha": 1.702, "gemm1_clamp_limit": 7.0}


@pytest.fixture(autouse=True)
def gemms(on_cpu, monkeypatch):  # noqa: F811
    monkeypatch.setattr(mixture, "CALLS", CALLS)


def right(kind="bf16", order="halves", **changes):
    """Arguments of `ops.moe`."""
    of = {"x": drawn(TOKENS, HIDDEN), **choices(TOKENS, 3, EXPERTS), "order": order}
    return of | weights_of(EXPERTS, HIDDEN, INNER, "cpu", kind, order) | changes


def asked(of, **said):
    """As `fused_experts` calls them; said: of the config."""
    names = {"x": "hidden_states", "w1": "w1", "w2": "w2", "bias_w1": "b1", "bias_w2": "b2"}
    names |= {"scale_w1": "w1_scale", "scale_w2": "w2_scale"}
    found = {names[n]: x for n, x in of.items() if n in names}
    found["topk_output"] = Output(of["weights"], of["chosen"], None)
    found["moe_runner_config"] = SimpleNamespace(**{"inplace": False, **said})
    if "scale_w1" not in of:
        return found
    by_row = of["scale_w1"].dim() == 2
    found |= {"per_channel_quant": True} if by_row else {"block_shape": [128, 128]}
    return found | {"use_int8_w8a8" if of["w1"].dtype == torch.int8 else "use_fp8_w8a8": True}


def test_keywords():
    """Those of SGLang 0.5, in their order."""
    names = "hidden_states w1 w2 topk_output moe_runner_config b1 b2 use_fp8_w8a8 use_int8_w8a8 use_int8_w8a16 use_int4_w4a16 "
    names += "per_channel_quant w1_scale w2_scale w1_zp w2_zp a1_scale a2_scale block_shape"
    assert " ".join(inspect.signature(fused_experts).parameters) == names


@pytest.mark.parametrize("kind", BOUND)
def test_a_layer(kind):
    of = right(kind)
    of["chosen"][0, 0] = -1  # of another rank
    y = fused_experts(**asked(of))
    assert torch.equal(y, ops.moe(**of)) and distance(y, layer(**of)) < BOUND[kind]


@pytest.mark.parametrize(
    ("said", "is_to"),
    (
        ({"activation": "silu"}, {}),
        ({"activation": "gelu"}, {"epilogue": "geglu"}),
        (CLAMPED, {"epilogue": "swiglu_clamped", "order": "alternating"}),
        ({**CLAMPED, "gate_up_interleaved": False}, {"epilogue": "swiglu_clamped"}),
    ),
    ids=("silu", "gelu", "clamped", "clamped halves"),
)
def test_gates_and_biases(said, is_to):
    of = right(
        order=is_to.get("order", "halves"), **{n: x for n, x in is_to.items() if n != "order"}
    )
    of |= biases_of(EXPERTS, HIDDEN, INNER)
    y = fused_experts(**asked(of, **said))
    assert torch.equal(y, ops.moe(**of)) and distance(y, layer(**of)) < BOUND["bf16"]
    rounded = of | {n: of[n].to(BF16).float() for n in ("bias_w1", "bias_w2")}
    narrow = of | {n: of[n].to(BF16) for n in ("bias_w1", "bias_w2")}
    assert torch.equal(fused_experts(**asked(narrow, **said)), ops.moe(**rounded))


def test_what_is_written_in_place():
    """As a config asks for that does not say."""
    of = right()
    y, x = ops.moe(**of), of["x"].clone()
    given = asked(of | {"x": x}) | {"moe_runner_config": SimpleNamespace()}
    assert fused_experts(**given) is x and torch.equal(x, y)


def test_a_factor_of_weights():
    of = right()
    y = fused_experts(**asked(of, routed_scaling_factor=2.5))
    assert torch.equal(y, ops.moe(**of | {"weights": of["weights"] * 2.5}))
    assert torch.equal(fused_experts(**asked(of, routed_scaling_factor=1.0)), ops.moe(**of))


CASES = (
    ("topk_output", {"topk_output": (1, 2)}, {}),
    ("use_int8_w8a16", {"use_int8_w8a16": True}, {}),
    ("w1_zp", {"w1_zp": torch.ones(1)}, {}),
    ("b2", {"b1": torch.ones(EXPERTS, 2 * INNER)}, {}),
    ("b1 shape", {"b1": torch.ones(EXPERTS), "b2": torch.ones(EXPERTS, HIDDEN)}, {}),
    ("hidden_states dtype", {"hidden_states": torch.ones(TOKENS, HIDDEN)}, {}),
    ("topk_ids dtype", {"topk_output": Output(torch.ones(TOKENS, 3), torch.ones(TOKENS, 3), None)}, {}),
    ("is_gated", {}, {"is_gated": False}),
    ("no_combine", {}, {"no_combine": True}),
    ("apply_router_weight_on_input", {}, {"apply_router_weight_on_input": True}),
    ("activation", {}, {"activation": "swigluoai"}),
    ("activation", {}, {"activation": "gelu", **CLAMPED}),
    ("gemm1_alpha", {}, {"gemm1_clamp_limit": 7.0}),
    ("gemm1_clamp_limit", {}, {**CLAMPED, "gemm1_clamp_limit": 3.0}),
    ("routed_scaling_factor", {}, {"routed_scaling_factor": "2"}),
    ("routed_scaling_factor", {}, {"routed_scaling_factor": True}),
    ("routed_scaling_factor", {}, {"routed_scaling_factor": float("nan")}),
    ("topk_weights dtype", {"topk_output": Output(torch.ones(TOKENS, 3).double(), torch.ones(TOKENS, 3).int(), None)}, {"routed_scaling_factor": 2.0}),
    ("topk_weights", {"topk_output": Output([[1.0]], torch.ones(TOKENS, 3).int(), None)}, {"routed_scaling_factor": 2.0}),
    ("swiglu_limit", {}, {"swiglu_limit": 10.0}),
    ("custom_act_fn", {}, {"custom_act_fn": print}),
    ("gate_up_interleaved", {}, {**CLAMPED, "gate_up_interleaved": 1}),
    ("inplace", {}, {"inplace": 1}),
)  # fmt: skip


@pytest.mark.parametrize(("named", "change", "said"), CASES, ids=[x for x, *_ in CASES])
def test_errors(named, change, said):
    given = asked(right(), **said) | change
    before = given["hidden_states"].clone()
    with pytest.raises(ArgumentError) as e:
        fused_experts(**given)
    assert e.value.argument == named
    assert torch.equal(given["hidden_states"], before)
