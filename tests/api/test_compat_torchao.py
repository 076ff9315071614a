"""`gemmgen.compat.torchao`: layers of small models by `quantize_`, on the CPU, against their dequantised weights in float64."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torchao", minversion="0.18")
pytest.importorskip("transformers", minversion="5.24")

from emulated_ops import computed_on_cpu, real_torch  # noqa: E402, F401
from mixtures import distance  # noqa: E402
from small_models import LINEAR, bound, exact_logits, layers, logits, made, same, states, tokens  # noqa: E402
from torchao.core.config import config_to_dict  # noqa: E402
from torchao.quantization import FqnToConfig, quantize_  # noqa: E402

from gemmgen import formats, nn  # noqa: E402
from gemmgen.compat.torchao import GemmgenConfig  # noqa: E402
from gemmgen.errors import ArgumentError  # noqa: E402

BF16, F16, FP8 = torch.bfloat16, torch.float16, torch.float8_e4m3fn
KINDS = {"fp8": BF16, "bf16": F16, "int4_32_bf16": BF16, "int4_64_f16_zeros": F16, "int4_column_bf16": BF16, "e2m1_16_e4m3": BF16}  # fmt: skip
N, K = 144, 160


def no_head(layer, name):
    return isinstance(layer, torch.nn.Linear) and "lm_head" not in name


@pytest.mark.parametrize("weights", KINDS)
def test_a_model_gets_gemmgens_layers(weights):
    dtype, ids = KINDS[weights], tokens()
    plain = made(dtype)
    model = copy.deepcopy(plain).eval()
    quantize_(model, GemmgenConfig(weights), filter_fn=no_head)
    assert len(layers(model)) == LINEAR and type(model.lm_head) is torch.nn.Linear
    got, exact = logits(model, ids), exact_logits(plain, model, ids)
    assert got.dtype == dtype and distance(got, exact) < bound(weights, dtype)
    again = copy.deepcopy(plain).eval()
    quantize_(again, GemmgenConfig(weights), filter_fn=no_head)
    for x in again.parameters():
        x.data.zero_()
    again.load_state_dict(model.state_dict())
    same(states(again), states(model))
    assert torch.equal(logits(again, ids), got)


@pytest.mark.parametrize("weights", KINDS)
@pytest.mark.parametrize("biased", (False, True))
def test_a_layer_becomes_what_it_would_be_by_hand(weights, biased):
    layer = torch.nn.Linear(K if "int4_64" not in weights else 192, N, biased, dtype=KINDS[weights])
    by_hand = {"fp8": nn.Fp8Linear.of, "bf16": nn.Linear.of}
    if weights in by_hand:
        expected = by_hand[weights](copy.deepcopy(layer))
    else:
        expected = nn.Linear4bit.from_linear(layer, formats.named(weights))
    model = torch.nn.ModuleDict({"one": layer, "other": torch.nn.Sequential(layer, layer)}).eval()
    quantize_(model, GemmgenConfig(weights))
    assert layer is model["one"] and layer is model["other"][0] and layer is model["other"][1]
    assert type(layer) is type(expected) and not layer.training
    assert repr(layer) == repr(expected)
    same(states(layer), states(expected))


@pytest.mark.parametrize(
    "given", ({}, {"master": True}, {"weights": "bf16"}, {"weights": "int4_32_bf16"}), ids=str
)
def test_a_second_name_of_a_layer(given):
    """Whatever a filter asks; of another kind it is an error."""
    model = torch.nn.ModuleDict({"a": torch.nn.Linear(64, 64, dtype=BF16)})
    model["b"] = model["a"]
    quantize_(model, GemmgenConfig(**given), filter_fn=lambda layer, name: name in ("a", "b"))
    assert model["a"] is model["b"] and len(layers(model)) == 1
    other = GemmgenConfig("e2m1_32_e8m0" if given.get("weights") == "bf16" else "bf16")
    with pytest.raises(ArgumentError, match="whose forward may differ"):
        quantize_(model, other, filter_fn=lambda layer, name: name == "a")


@pytest.mark.parametrize("master", (False, True))
def test_the_module_itself_is_replaced_in_place(master):
    layer = torch.nn.Linear(K, N, dtype=BF16)
    weight, x = layer.weight, torch.randn(3, K).to(BF16)
    expected = nn.Fp8Linear.of(layer)(x)
    quantize_(layer, GemmgenConfig(master=master))
    assert type(layer) is nn.Fp8Linear and (layer.weight is weight) is master
    assert torch.equal(layer(x), expected)


def test_configs_by_name():
    model = torch.nn.Sequential(*(torch.nn.Linear(64, 64, dtype=BF16) for _ in range(3)))
    by_name = {"0": GemmgenConfig("int4_32_bf16"), "re:[2-9]": GemmgenConfig("fp8")}
    quantize_(model, FqnToConfig(by_name), filter_fn=None)
    assert [type(x) for x in model] == [nn.Linear4bit, torch.nn.Linear, nn.Fp8Linear]
    assert config_to_dict(GemmgenConfig("fp8"))["_data"] == {"weights": "fp8", "master": False}


def test_a_compiled_model():
    torch._dynamo.reset()
    model, x = (
        torch.nn.Sequential(torch.nn.Linear(64, 96), torch.nn.Linear(96, 64)),
        torch.ones(5, 64),
    )
    model, x = model.to(BF16), x.to(BF16)
    model[0](x)  # the class that it had may be compiled already
    quantize_(model, GemmgenConfig("e2m1_32_e8m0"))
    with torch.no_grad():
        assert torch.equal(torch.compile(model, backend="aot_eager", fullgraph=True)(x), model(x))


@pytest.mark.parametrize(
    ("given", "argument"),
    (
        ({"weights": "int8"}, "weights"),
        ({"master": None}, "master"),
        ({"weights": "int4_32_bf16", "master": True}, "master"),
    ),
    ids=str,
)
def test_wrong_configs(given, argument):
    with pytest.raises(ArgumentError) as e:
        GemmgenConfig(**given)
    assert e.value.argument == argument


class Doubled(torch.nn.Linear):
    def forward(self, x):
        return 2 * super().forward(x)


def hooked():
    layer = torch.nn.Linear(64, 64, dtype=BF16)
    layer.register_forward_hook(lambda *x: None)
    return layer


@pytest.mark.parametrize(
    ("layer", "weights", "why"),
    (
        (torch.nn.Linear(64, 72, dtype=BF16), "fp8", r"features are \(64, 72\), must be multiples of 16"),
        (torch.nn.Linear(60, 64, dtype=F16), "bf16", r"features are \(60, 64\), must be multiples of 8"),
        (torch.nn.Linear(96, 64, dtype=BF16), "int4_64_bf16", "in_features is 96, must be a multiple of 64"),
        (torch.nn.Linear(64, 64), "fp8", r"weight is torch\.float32, must be torch\.bfloat16"),
        (torch.nn.Linear(64, 64, dtype=F16), "int4_32_bf16", r"weight is torch\.float16, must be"),
        (Doubled(64, 64, dtype=BF16), "fp8", "is a Doubled, whose forward may differ"),
        (hooked(), "fp8", "has hooks"),
    ),
    ids=str,
)  # fmt: skip
def test_layers_that_cannot_be_replaced(layer, weights, why):
    model = torch.nn.Sequential(layer)
    with pytest.raises(ArgumentError, match=rf"^model=.*: {why}.*, for weights=.*filter_fn"):
        quantize_(model, GemmgenConfig(weights))
    assert model[0] is layer and isinstance(layer, torch.nn.Linear)
