"""`gemmgen.compat.fused_experts`: vLLM's keywords, what they become, what is refused; with float64 in the place of the GEMMs."""

from __future__ import annotations

import inspect

import pytest

torch = pytest.importorskip("torch")

from mixtures import BF16, BY_ROW, F32, biases_of, choices, distance, drawn, layer, weights_of  # noqa: E402
from torch_reference import on_cpu  # noqa: E402, F401

from gemmgen import ops  # noqa: E402
from gemmgen.compat.fused_experts import fused_experts  # noqa: E402
from gemmgen.errors import ArgumentError  # noqa: E402
from gemmgen.nn.experts import CALLS  # noqa: E402
from gemmgen.ops import mixture  # noqa: E402

EXPERTS, HIDDEN, INNER, TOKENS = 6, 256, 128, 30
KINDS = ("fp8", "bf16", "fp8 rows", "int8")
BOUND = {"fp8": 0.08, "bf16": 0.01, "fp8 rows": 0.08, "int8": 0.03}


@pytest.fixture(autouse=True)
def gemms(on_cpu, monkeypatch):  # noqa: F811
    monkeypatch.setattr(mixture, "CALLS", CALLS)


def right(kind="fp8", **changes):
    """Arguments of `ops.moe`, with these changed."""
    of = {"x": drawn(TOKENS, HIDDEN), **choices(TOKENS, 3, EXPERTS), "order": "halves"}
    return of | weights_of(EXPERTS, HIDDEN, INNER, "cpu", kind, "halves") | changes


def asked(of):
    """As `fused_experts` calls them."""
    names = {"x": "hidden_states", "chosen": "topk_ids", "weights": "topk_weights"}
    names |= {"scale_w1": "w1_scale", "scale_w2": "w2_scale", "w1": "w1", "w2": "w2"}
    found = {names[n]: x for n, x in of.items() if n in names}
    if "scale_w1" not in of:
        return found
    by_row = of["scale_w1"].dim() == 2
    found |= {"per_channel_quant": True} if by_row else {"block_shape": [128, 128]}
    return found | {"use_int8_w8a8" if of["w1"].dtype == torch.int8 else "use_fp8_w8a8": True}


def test_keywords():
    """Those of vLLM 0.10.0, in their order; behind them what later ones have, which must be None."""
    names = (
        "hidden_states w1 w2 topk_weights topk_ids inplace activation apply_router_weight_on_input "
    )
    names += (
        "use_fp8_w8a8 use_int8_w8a8 use_int8_w8a16 use_int4_w4a16 use_mxfp4_w4a4 per_channel_quant "
    )
    names += (
        "global_num_experts expert_map w1_scale w2_scale w1_zp w2_zp a1_scale a2_scale block_shape "
    )
    names += "allow_deep_gemm allow_cutlass_block_scaled_grouped_gemm w1_bias w2_bias quant_config"
    assert " ".join(inspect.signature(fused_experts).parameters) == names


@pytest.mark.parametrize("kind", KINDS)
def test_a_layer(kind):
    of = right(kind)
    y = fused_experts(**asked(of))
    assert torch.equal(y, ops.moe(**of)) and distance(y, layer(**of)) < BOUND[kind]


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_written_in_place(kind):
    of = right(kind)
    y, x = ops.moe(**of), of["x"].clone()
    assert fused_experts(**asked(of | {"x": x}), inplace=True) is x and torch.equal(x, y)
    kept = of["x"].clone()
    assert fused_experts(**asked(of)) is not of["x"] and torch.equal(of["x"], kept)


@pytest.mark.parametrize("ids", (torch.int32, torch.int64))
def test_experts_of_a_rank(ids):
    """Ranks with any of the experts, in any order, add up to all of them."""
    of = right("bf16")
    of["chosen"][0, 0], of["chosen"][1, 0], of["chosen"][2, 0] = -1, EXPERTS, 99
    of["chosen"] = of["chosen"].to(ids)
    exact, found = layer(**of), 0
    for mine in ([4, 0], [1, 2, 5], [3]):
        at = torch.full((EXPERTS,), -1, dtype=torch.int32)
        at[mine] = torch.arange(len(mine)).int()
        part = asked(of) | {name: of[name][mine] for name in ("w1", "w2")}
        y = fused_experts(**part, expert_map=at, global_num_experts=EXPERTS)
        assert torch.equal(y, fused_experts(**part, expert_map=at))
        found = found + y.double()
    assert distance(found, exact) < BOUND["bf16"]


@pytest.mark.parametrize("kind", BY_ROW)
def test_scales_of_channels_may_have_a_side_more(kind):
    of = asked(right(kind))
    sides = {n: of[n].unsqueeze(-1) for n in ("w1_scale", "w2_scale")}
    assert torch.equal(fused_experts(**of | sides), fused_experts(**of))


OF_CHANNELS = (
    ("use_int8_w8a8", {"use_int8_w8a8": True, "use_fp8_w8a8": True}),
    ("per_channel_quant", {"per_channel_quant": 1}),
    ("block_shape", {"block_shape": [128, 128]}),
    ("w1_scale", {"w1_scale": None}),
    ("w2_scale", {"w2_scale": None}),
    ("w1_scale shape", {"w1_scale": torch.ones(EXPERTS, 2, 2)}),
    ("w1_scale shape", {"w1_scale": torch.ones(EXPERTS, 2, 1)}),
    ("w2_scale shape", {"w2_scale": torch.ones(EXPERTS)}),
    ("w2_scale dtype", {"w2_scale": torch.ones(EXPERTS, HIDDEN).double()}),
    ("w1 dtype", {"w1": drawn(EXPERTS, 2 * INNER, HIDDEN)}),
)


@pytest.mark.parametrize(("named", "change"), OF_CHANNELS, ids=[x for x, _ in OF_CHANNELS])
@pytest.mark.parametrize("kind", BY_ROW)
def test_errors_of_channels(kind, named, change):
    with pytest.raises(ArgumentError) as e:
        fused_experts(**asked(right(kind)) | change)
    assert e.value.argument == named


def test_channels_and_blocks_are_told_apart():
    """By what is asked for, not by what scales there are."""
    rows, integers = asked(right("fp8 rows")), asked(right("int8"))
    for named, of in (
        ("w1_scale shape", rows | {"per_channel_quant": False, "block_shape": [128, 128]}),
        ("per_channel_quant", integers | {"per_channel_quant": False}),
        ("per_channel_quant", asked(right("bf16")) | {"per_channel_quant": True}),
    ):
        with pytest.raises(ArgumentError) as e:
            fused_experts(**of)
        assert e.value.argument == named


def test_permissions_change_nothing():
    of = asked(right())
    y = fused_experts(**of)
    for name in ("allow_deep_gemm", "allow_cutlass_block_scaled_grouped_gemm"):
        assert torch.equal(fused_experts(**of, **{name: True}), y)
    assert torch.equal(fused_experts(**of | {"block_shape": (128, 128)}), y)
    assert torch.equal(fused_experts(**of, global_num_experts=40), y)


def refusals():
    for name in ("use_int8_w8a8", "use_int8_w8a16", "use_int4_w4a16", "use_mxfp4_w4a4"):
        yield name, {name: True}
    yield "apply_router_weight_on_input", {"apply_router_weight_on_input": True}
    yield "block_shape", {"per_channel_quant": True}
    for name in ("apply_router_weight_on_input", "per_channel_quant", "use_int8_w8a8"):
        yield name, {name: 0}
    for name in ("w1_zp", "w2_zp", "a1_scale", "a2_scale"):
        yield name, {name: torch.ones(1)}
    yield from (("activation", {"activation": x}) for x in ("relu", "silu_no_mul", None, ["silu"]))
    yield "w2_bias", {"w1_bias": torch.ones(EXPERTS, 2 * INNER)}
    yield "w1_bias dtype", {"w1_bias": torch.ones(EXPERTS, 2 * INNER).int()}
    yield (
        "w2_bias shape",
        {"w1_bias": torch.ones(EXPERTS, 2 * INNER), "w2_bias": torch.ones(EXPERTS)},
    )
    yield from (("inplace", {"inplace": x}) for x in (1, None))
    yield from (("use_fp8_w8a8", {"use_fp8_w8a8": x}) for x in (1, None))
    yield from (("block_shape", {"block_shape": x}) for x in (None, [64, 128], [128], 128))
    yield from (("global_num_experts", {"global_num_experts": x}) for x in (0, -2, 5, 6.0, True))
    yield "w1_scale", {"use_fp8_w8a8": False}
    yield "w1_scale", {"w1_scale": None}
    yield "w2_scale", {"w2_scale": None}
    yield "w2_scale shape", {"w2_scale": torch.ones(EXPERTS, 1, 1)}
    yield "w1 dtype", {"w1": drawn(EXPERTS, 2 * INNER, HIDDEN)}
    yield "w1 shape", {"w1": weights_of(6, HIDDEN, 96)["w1"]}
    yield "w2 shape", {"w2": weights_of(6, HIDDEN, 256)["w2"]}
    yield "hidden_states dtype", {"hidden_states": torch.ones(TOKENS, HIDDEN)}
    yield "hidden_states shape", {"hidden_states": drawn(TOKENS, 1, HIDDEN)}
    yield "topk_weights dtype", {"topk_weights": torch.ones(TOKENS, 3).double()}
    yield "topk_ids dtype", {"topk_ids": torch.ones(TOKENS, 3)}
    yield "topk_ids shape", {"topk_ids": torch.ones(4, 3).int()}
    at = torch.arange(EXPERTS).int()
    yield "expert_map dtype", {"expert_map": at.long()}
    yield "expert_map", {"expert_map": [0, 1]}
    yield "expert_map shape", {"expert_map": at.view(2, 3)}
    yield "expert_map shape", {"expert_map": at[:0]}
    yield "topk_ids dtype", {"expert_map": at, "topk_ids": torch.ones(TOKENS, 3)}
    yield "global_num_experts", {"expert_map": at, "global_num_experts": 7}
    yield "global_num_experts", {"expert_map": at[:5]}


CASES = tuple(refusals())


@pytest.mark.parametrize(("named", "change"), CASES, ids=[x for x, _ in CASES])
def test_errors(named, change):
    of = asked(right()) | change
    before = of["hidden_states"].clone()
    with pytest.raises(ArgumentError) as e:
        fused_experts(**of)
    assert e.value.argument == named
    assert torch.equal(of["hidden_states"], before)


def test_16_bits_have_no_blocks():
    with pytest.raises(ArgumentError, match="block_shape"):
        fused_experts(**asked(right("bf16")), block_shape=[128, 128])
    with pytest.raises(ArgumentError, match="w1 dtype"):
        fused_experts(**asked(right("bf16")), use_fp8_w8a8=True, block_shape=[128, 128])


@pytest.mark.parametrize("dtype", (F32, BF16))
def test_weights_of_a_router(dtype):
    of = right("bf16")
    of["weights"] = of["weights"].to(dtype)
    assert distance(fused_experts(**asked(of)), layer(**of)) < BOUND["bf16"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("activation", "epilogue"), (("gelu", "geglu"), ("swigluoai", "swiglu_clamped"))
)
def test_gates_and_biases(activation, epilogue, kind):
    """gpt-oss's rows alternate between gate and up."""
    order = "alternating" if activation == "swigluoai" else "halves"
    of = right(kind) | weights_of(EXPERTS, HIDDEN, INNER, "cpu", kind, order)
    of |= {"order": order, "epilogue": epilogue, **biases_of(EXPERTS, HIDDEN, INNER)}
    given = asked(of) | {"w1_bias": of["bias_w1"], "w2_bias": of["bias_w2"]}
    y = fused_experts(**given, activation=activation)
    assert torch.equal(y, ops.moe(**of)) and distance(y, layer(**of)) < BOUND[kind]
