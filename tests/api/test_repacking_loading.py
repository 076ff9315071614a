"""`gemmgen.repacking.load`: which modules of a model layers of packed weights take the place of, and what dtype the others get."""

from __future__ import annotations

import json

import pytest

torch = pytest.importorskip("torch")

from saved import (  # noqa: E402
    EXPERTS,
    GPT_OSS,
    HIDDEN,
    INTERMEDIATE,
    VOCABULARY,
    GptOss,
    Llama,
    config,
    gpt_oss,
    llama,
    save,
)

from gemmgen import nn  # noqa: E402
from gemmgen.errors import ArgumentError  # noqa: E402
from gemmgen.repacking import load, repack  # noqa: E402
from gemmgen.torch_ops import compute_on_cpu  # noqa: E402

UP, DOWN = "model.layers.1.mlp.up_proj", "model.layers.1.mlp.down_proj"
EXPERT = "model.layers.0.mlp.experts"
DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16}


@pytest.fixture(autouse=True)
def on_the_cpu():
    compute_on_cpu()
    yield
    compute_on_cpu(False)


@pytest.fixture
def packed(tmp_path):
    repack(save(tmp_path / "model", llama(), config()), tmp_path / "out")
    return tmp_path / "out"


def told(folder):
    return json.loads((folder / "config.json").read_text())


def with_layer(name, layer, model=None):
    model = model or Llama()
    model.set_submodule(name, layer)
    return model


def linear(n, k, bias=True, of=torch.nn.Linear):
    return of(k, n, bias=bias)


def test_only_what_was_written_is_loaded(tmp_path):
    source = save(tmp_path / "model", llama(), config())
    with pytest.raises(ArgumentError, match="gemmgen repack wrote"):
        load(Llama(), source)
    repack(source, tmp_path / "out")
    with pytest.raises(ArgumentError, match="must be a module of the model") as e:
        load(torch.nn.Linear(2, 2), tmp_path / "out")
    assert e.value.value == "model.layers.0.mlp.up_proj"
    model = Llama()
    model.model.layers[0].mlp.up_proj = torch.nn.ReLU()
    with pytest.raises(ArgumentError, match=r"must be a torch.nn.Linear"):
        load(model, tmp_path / "out")
    said = told(tmp_path / "out")
    said["quantization_config"]["packed"]["version"] = 2
    (tmp_path / "out/config.json").write_text(json.dumps(said))
    with pytest.raises(ArgumentError, match="must be 1"):
        load(Llama(), tmp_path / "out")


def test_a_model_on_meta_is_filled(tmp_path):
    source = save(tmp_path / "model", llama(), config())
    repack(source, tmp_path / "out")
    with torch.device("meta"):
        model = Llama()
    found = load(model, tmp_path / "out", device="cpu")
    assert not found.missing_keys and not found.unexpected_keys
    assert {x.device.type for x in (*model.parameters(), *model.buffers())} == {"cpu"}
    layer = model.get_submodule(UP)
    load(model, tmp_path / "out")  # again, into the layers that are there
    assert model.get_submodule(UP) is layer


# ---- models that are not as their files ---------------------------------------------------------


class Own(torch.nn.Linear):
    """Of a program, with a `forward` of its own."""


@pytest.mark.parametrize(
    ("layer", "argument"),
    (
        (lambda: linear(9, 7), f"{UP} in_features"),
        (lambda: linear(HIDDEN, HIDDEN), f"{UP} out_features"),
        (lambda: linear(INTERMEDIATE, HIDDEN, of=Own), UP),
        (lambda: nn.Linear4bit(INTERMEDIATE, HIDDEN, weights="int4_32_bf16_zeros"), f"{UP} in_features"),
        (lambda: torch.nn.Embedding(INTERMEDIATE, HIDDEN), UP),
    ),
)  # fmt: skip
def test_another_layer_than_the_files_have_is_refused(packed, layer, argument):
    model = with_layer(UP, layer())
    with pytest.raises(ArgumentError, match="128x64") as e:
        load(model, packed)
    assert e.value.argument == argument
    assert not any(isinstance(x, nn.Linear4bit) and x.facts.endswith("128x64") for x in model.modules())  # fmt: skip


@pytest.mark.parametrize(
    ("name", "layer", "says"),
    (
        (DOWN, lambda: linear(HIDDEN, INTERMEDIATE, True), f'Missing.*"{DOWN}.bias"'),
        (UP, lambda: linear(INTERMEDIATE, HIDDEN, False), f'Unexpected.*"{UP}.bias"'),
    ),
)
def test_a_bias_that_only_one_side_has_is_named(packed, name, layer, says):
    with pytest.raises(RuntimeError, match=says):
        load(with_layer(name, layer()), packed)


def test_a_bias_that_files_do_not_have_stays_without_strict(packed):
    layer = linear(HIDDEN, INTERMEDIATE, True)
    model = with_layer(DOWN, layer)
    found = load(model, packed, strict=False)
    assert found.missing_keys == [f"{DOWN}.bias"]
    assert torch.equal(model.get_submodule(DOWN).bias, layer.bias)


def test_a_layer_of_another_form_is_replaced(packed):
    model = with_layer(UP, nn.Linear4bit(HIDDEN, INTERMEDIATE, weights="int4_64_bf16"))
    assert not load(model, packed).missing_keys
    assert model.get_submodule(UP).weights == "int4_32_bf16_zeros"


def experts(count=EXPERTS, hidden=HIDDEN, intermediate=INTERMEDIATE, bias=True):
    """What Transformers' module says of itself."""
    made = torch.nn.Module()
    made.num_experts, made.hidden_size, made.intermediate_size = count, hidden, intermediate
    made.expert_dim = intermediate
    made.gate_up_proj_bias = torch.nn.Parameter(torch.zeros(count, 2 * intermediate)) if bias else None  # fmt: skip
    return made


@pytest.mark.parametrize("bias", (True, False))
def test_experts_that_are_as_their_files(tmp_path, bias):
    repack(save(tmp_path / "model", gpt_oss(bias), GPT_OSS), tmp_path / "out")
    model = with_layer(EXPERT, experts(bias=bias), GptOss())
    assert not load(model, tmp_path / "out").missing_keys
    assert (model.get_submodule(EXPERT).gate_up_bias is not None) == bias
    with pytest.raises(RuntimeError, match=f"{EXPERT}.gate_up_bias"):
        load(with_layer(EXPERT, experts(bias=not bias), GptOss()), tmp_path / "out")


@pytest.mark.parametrize(
    ("made", "argument"),
    (
        (lambda: experts(count=3), f"{EXPERT} experts"),
        (lambda: experts(hidden=32), f"{EXPERT} hidden"),
        (lambda: experts(intermediate=32), f"{EXPERT} intermediate"),
        (lambda: nn.Experts4bit(EXPERTS, HIDDEN, 32), f"{EXPERT} intermediate"),
        (lambda: linear(HIDDEN, HIDDEN), EXPERT),
    ),
)
def test_other_experts_than_the_files_have_are_refused(tmp_path, made, argument):
    repack(save(tmp_path / "model", gpt_oss(), GPT_OSS), tmp_path / "out")
    with pytest.raises(ArgumentError) as e:
        load(with_layer(EXPERT, made(), GptOss()), tmp_path / "out")
    assert e.value.argument == argument


# ---- dtypes -------------------------------------------------------------------------------------


@pytest.mark.parametrize("activations", DTYPES)
@pytest.mark.parametrize("held", (torch.float16, torch.bfloat16, torch.float32))
def test_a_model_for_other_activations_runs(tmp_path, held, activations):
    """Whatever its other tensors were in."""
    tensors = {
        name: x.to(held) if x.is_floating_point() and not name.endswith("scales") else x
        for name, x in llama().items()
    }
    source = save(tmp_path / "model", tensors, config())
    repack(source, tmp_path / "out", activations=activations)
    model, dtype = Llama(), DTYPES[activations]
    load(model, tmp_path / "out")
    with torch.no_grad():
        assert model(torch.arange(VOCABULARY)).dtype == dtype
    assert model.model.layers[0].steps.dtype == torch.int64
    assert model.get_submodule(UP).bias.dtype == torch.float32
    exact = tensors[f"{UP}.bias"].float()
    assert torch.equal(model.get_submodule(UP).bias, exact)
    load(model, tmp_path / "out", cast=False)
    assert model.lm_head.weight.dtype == held


def test_experts_for_fp8_have_bf16_beside(tmp_path):
    tensors = {n: x.float() if n.endswith("router.weight") else x for n, x in gpt_oss().items()}
    repack(save(tmp_path / "model", tensors, GPT_OSS), tmp_path / "out", activations="e4m3")
    model = GptOss()
    load(model, tmp_path / "out")
    assert model.model.layers[0].mlp.router.weight.dtype == torch.bfloat16


def test_activations_that_are_none_are_refused(packed):
    said = told(packed)
    said["quantization_config"]["packed"]["activations"] = "f64"
    (packed / "config.json").write_text(json.dumps(said))
    with pytest.raises(ArgumentError, match="must be one of bf16, f16, e4m3") as e:
        load(Llama(), packed)
    assert e.value.argument == "quantization_config.packed.activations"
