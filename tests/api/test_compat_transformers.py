"""`gemmgen.compat.transformers`: a small model by `from_pretrained`, on the CPU, against its dequantised weights in float64."""

from __future__ import annotations

import json

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers", minversion="5.24")

import stored_weights  # noqa: E402
from emulated_ops import computed_on_cpu, real_torch  # noqa: E402, F401
from mixtures import distance  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402
from small_models import (  # noqa: E402
    LINEAR,
    bound,
    exact_logits,
    layers,
    logits,
    made,
    packed,
    same,
    states,
    tokens,
)
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM  # noqa: E402

from gemmgen import formats, nn  # noqa: E402
from gemmgen.compat.transformers import GemmgenConfig, config, install, with_gemmgen  # noqa: E402
from gemmgen.errors import ArgumentError, UnsupportedProblem  # noqa: E402
from gemmgen.repacking import repack  # noqa: E402

BF16, F16, FP8 = torch.bfloat16, torch.float16, torch.float8_e4m3fn
CODED = (
    "int4_32_bf16",
    "int4_64_bf16_zeros",
    "int4_128_f16",
    "int4_column_bf16",
    "e2m1_32_e8m0",
    "e2m1_16_e4m3",
)
KINDS = ("fp8", "bf16", *CODED)


def dtype_of(weights):
    return F16 if "f16" in weights.replace("bf16", "") else BF16


@pytest.fixture
def saved(tmp_path):
    """A folder with a model in BF16."""
    made().save_pretrained(tmp_path / "wide")
    return tmp_path / "wide"


def loaded(path, *said, auto=AutoModelForCausalLM, dtype=BF16, **given):
    if said or given:
        given = {"quantization_config": GemmgenConfig(*said, **given)}
    return auto.from_pretrained(path, dtype=dtype, **given)


def by_hand(layer, weights, master=False):
    if weights == "fp8":
        return nn.Fp8Linear.of(layer, master=master)
    if weights == "bf16":
        return nn.Linear.of(layer)
    return nn.Linear4bit.from_linear(layer, formats.named(weights))


# ---- quantised while it is loaded -----------------------------------------------------------


@pytest.mark.parametrize("weights", KINDS)
def test_a_model_is_loaded_into_gemmgens_layers(saved, weights):
    dtype, ids = dtype_of(weights), tokens()
    model, plain = loaded(saved, weights, dtype=dtype), loaded(saved, dtype=dtype)
    found = layers(model)
    assert len(found) == LINEAR and type(model.lm_head) is torch.nn.Linear and not model.training
    for name, layer in found.items():
        expected = by_hand(plain.get_submodule(name), weights)
        assert type(layer) is type(expected)
        same(states(layer), states(expected))
    got, exact = logits(model, ids), exact_logits(plain, model, ids)
    assert got.dtype == dtype and distance(got, exact) < bound(weights, dtype)
    quantised = distance(logits(plain, ids), exact)
    assert quantised > 2 * bound("", dtype) or weights in ("fp8", "bf16")


@pytest.mark.parametrize(
    "given", ({"weights": "fp8", "master": True}, {"weights": "bf16"}), ids=str
)
def test_layers_that_train(saved, given):
    model = loaded(saved, **given)
    assert model.hf_quantizer.is_trainable
    model(tokens(), labels=tokens()).loss.backward()
    for layer in layers(model).values():
        assert layer.weight.grad.abs().max() > 0
    assert not loaded(saved, "fp8").hf_quantizer.is_trainable


def test_a_base_model_and_the_one_around_it_read_each_others_checkpoints(saved, tmp_path):
    whole = loaded(saved, "int4_32_bf16")
    base = loaded(saved, "int4_32_bf16", auto=AutoModel)
    same(states(base), states(whole.model))
    AutoModel.from_pretrained(saved, dtype=BF16).save_pretrained(tmp_path / "base")
    around = loaded(tmp_path / "base", "int4_32_bf16")
    same(states(around.model), states(base))


def test_layers_that_are_named_stay(saved):
    model = loaded(saved, "int4_32_bf16", modules_to_not_convert=["layers.*.mlp", "q_proj"])
    kept = {name.rpartition(".")[2] for name in layers(model)}
    assert kept == {"k_proj", "v_proj", "o_proj", "lm_head", "gate_proj", "up_proj", "down_proj"}
    model = loaded(saved, "fp8", modules_to_not_convert=[r"model.layers.*.mlp", "q_proj"])
    assert {x.rpartition(".")[2] for x in layers(model)} == {
        "k_proj",
        "v_proj",
        "o_proj",
        "lm_head",
    }


def test_tokens_one_after_the_other(saved):
    model, ids = loaded(saved, "int4_32_bf16"), tokens(1)
    said = {"max_new_tokens": 3, "do_sample": False, "pad_token_id": 0, "eos_token_id": -1}
    found = model.generate(ids, attention_mask=torch.ones_like(ids), **said)
    assert found.shape == (1, ids.shape[1] + 3)
    best = logits(model, found[:, :-1])[0, -3:].topk(2).values
    chosen = logits(model, found[:, :-1])[0, -3:].gather(-1, found[0, -3:, None])[:, 0]
    # With a cache sums are in another order: another token may be as good.
    assert (chosen >= best[:, 0] - 2 * bound("", BF16) * best.abs().max()).all()


def test_a_compiled_model(saved):
    torch._dynamo.reset()
    for weights in ("fp8", "int4_32_bf16"):
        model, ids = loaded(saved, weights), tokens()
        compiled = torch.compile(model.model, backend="aot_eager", fullgraph=True)
        with torch.no_grad():
            expected = model.model(ids, use_cache=False).last_hidden_state
            assert torch.equal(compiled(ids, use_cache=False).last_hidden_state, expected)


# ---- saved, and loaded again ----------------------------------------------------------------


@pytest.mark.parametrize(("weights", "master"), (*((x, False) for x in KINDS), ("fp8", True)))
def test_what_was_saved_is_loaded_to_the_bit(saved, tmp_path, weights, master):
    dtype = dtype_of(weights)
    left = ["lm_head", "layers.0.mlp.up_proj"]
    model = loaded(saved, weights, master=master, dtype=dtype, modules_to_not_convert=left)
    assert len(layers(model)) == LINEAR - 1
    model.save_pretrained(tmp_path / "ours")
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "ours")
    same(states(again), states(model))
    assert {n: type(x) for n, x in layers(again).items()} == {
        n: type(x) for n, x in layers(model).items()
    }
    ids = tokens()
    assert torch.equal(logits(again, ids), logits(model, ids))
    again.save_pretrained(tmp_path / "twice")
    same(load_file(tmp_path / "twice/model.safetensors"), load_file(tmp_path / "ours/model.safetensors"))  # fmt: skip


def rewritten(folder, change):
    """The tensors in a folder, changed."""
    path = folder / "model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path, {"format": "pt"})


Q = "model.layers.1.self_attn.q_proj"


@pytest.mark.parametrize(
    ("weights", "change", "argument"),
    (
        ("fp8", lambda x: x.pop(f"{Q}.weight_scale"), f"{Q}.weight_scale"),
        ("fp8", lambda x: x.update({f"{Q}.weight": x[f"{Q}.weight"].bfloat16()}), f"{Q}.weight dtype"),
        ("fp8", lambda x: x.update({f"{Q}.weight_scale": torch.ones(2, 1)}), f"{Q}.weight_scale shape"),
        ("fp8", lambda x: (x.pop(f"{Q}.weight"), x.pop(f"{Q}.weight_scale")), "checkpoint"),
        ("int4_32_bf16", lambda x: x.pop(f"{Q}.blocks"), f"{Q}.blocks"),
        ("int4_32_bf16", lambda x: x.pop(f"{Q}._extra_state"), f"{Q}._extra_state"),
        ("int4_32_bf16", lambda x: x[f"{Q}._extra_state"].add_(1), f"{Q}._extra_state"),
        ("e2m1_16_e4m3", lambda x: x.pop(f"{Q}.factors"), f"{Q}.factors"),
    ),
)  # fmt: skip
def test_a_checkpoint_that_lacks_something_is_refused(saved, tmp_path, weights, change, argument):
    loaded(saved, weights).save_pretrained(tmp_path / "ours")
    rewritten(tmp_path / "ours", change)
    with pytest.raises(ArgumentError) as e:
        AutoModelForCausalLM.from_pretrained(tmp_path / "ours")
    assert e.value.argument == argument


def test_blocks_of_another_format_are_refused(saved, tmp_path):
    loaded(saved, "int4_32_bf16").save_pretrained(tmp_path / "ours")
    path = tmp_path / "ours/config.json"
    path.write_text(path.read_text().replace("int4_32_bf16", "int4_64_bf16"))
    with pytest.raises(ArgumentError, match=r"must be int4_64_bf16 128x256"):
        AutoModelForCausalLM.from_pretrained(tmp_path / "ours")


def test_it_is_not_dequantised(saved):
    with pytest.raises(UnsupportedProblem, match="dequantize"):
        loaded(saved, "fp8").dequantize()


# ---- checkpoints of others ------------------------------------------------------------------


def described(folder, **said):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"quantization_config": said}))


def stored_by(method, tensors, zeros=16, group=32):
    """By each layer's name the numbers in float64; its weight in `tensors` becomes what `method` stores. group: None: a row's columns."""
    numbers = {}
    names = [n.removesuffix(".weight") for n in tensors if "_proj.weight" in n]
    for seed, name in enumerate(names):
        n, k = tensors.pop(f"{name}.weight").shape
        codes, zero, scales = stored_weights.drawn(group or k, k, n, seed)
        zero = zero * 0 + 8 if zeros == 8 else zero
        scales = (scales / 64).astype("float16")
        write = getattr(stored_weights, method.removesuffix("_v2"))
        less = {"less": 0} if method == "gptq_v2" else {}
        tensors.update(write(codes, zero, scales, name, **less))
        numbers[name] = torch.from_numpy(stored_weights.exact(codes, zero, scales))
    return numbers


METHODS = {
    "awq": {"quant_method": "awq", "version": "gemm", "zero_point": True},
    "gptq": {"quant_method": "gptq", "sym": False, "desc_act": False},
    "gptq_v2": {"quant_method": "gptq", "sym": False, "checkpoint_format": "gptq_v2"},
}


@pytest.mark.parametrize("dtype", (None, BF16))
@pytest.mark.parametrize("method", METHODS)
def test_weights_of_4_bits_are_read(tmp_path, method, dtype):
    made(F16).save_pretrained(tmp_path)
    plain, exact = loaded(tmp_path, dtype=F16), {}
    rewritten(tmp_path, lambda tensors: exact.update(stored_by(method, tensors)))
    described(tmp_path, bits=4, group_size=32, **METHODS[method])
    said = with_gemmgen(AutoConfig.from_pretrained(tmp_path), dtype)
    model = AutoModelForCausalLM.from_pretrained(tmp_path, config=said)
    to, found = dtype or F16, layers(model)
    assert model.dtype == to and len(found) == LINEAR
    for name, layer in found.items():
        assert layer.weights == f"int4_32_{'f16' if dtype is None else 'bf16'}_zeros"
        plain.get_submodule(name).weight.data = exact[name].to(F16)
    ids = tokens()
    got = logits(model, ids)
    # Numbers are rounded to the dtype, of BF16 after their scales.
    assert distance(got, exact_logits(plain, model, ids)) < bound("", to)
    assert distance(logits(plain, ids), got.double()) < 2 * bound("", to)
    model.save_pretrained(tmp_path / "ours")
    same(states(AutoModelForCausalLM.from_pretrained(tmp_path / "ours")), states(model))


@pytest.mark.parametrize("sym", (False, True))
def test_gptq_whose_zeros_are_all_the_same(tmp_path, sym):
    made(F16).save_pretrained(tmp_path)
    exact = {}
    rewritten(tmp_path, lambda tensors: exact.update(stored_by("gptq", tensors, zeros=8)))
    described(tmp_path, bits=4, group_size=32, quant_method="gptq", sym=sym)
    said = with_gemmgen(AutoConfig.from_pretrained(tmp_path))
    model = AutoModelForCausalLM.from_pretrained(tmp_path, config=said)
    for name, layer in layers(model).items():
        assert layer.weights == "int4_32_f16" + "_zeros" * (not sym)
        assert torch.equal(packed(layer).numbers(), exact[name].to(F16))


def test_gptq_with_zeros_where_its_config_says_none(tmp_path):
    made(F16).save_pretrained(tmp_path)
    rewritten(tmp_path, lambda tensors: stored_by("gptq", tensors))
    described(tmp_path, bits=4, group_size=32, quant_method="gptq", sym=True)
    said = with_gemmgen(AutoConfig.from_pretrained(tmp_path))
    with pytest.raises(ArgumentError, match="must be int4_32_f16, as the checkpoint's config says"):
        AutoModelForCausalLM.from_pretrained(tmp_path, config=said)


@pytest.mark.parametrize("dtype", (None, BF16))
@pytest.mark.parametrize("method", METHODS)
def test_scales_of_whole_rows_are_read(tmp_path, method, dtype):
    """Each layer has the widest groups that divide its columns, 128 or 192."""
    made(F16, intermediate_size=192).save_pretrained(tmp_path)
    exact = {}
    rewritten(tmp_path, lambda x: exact.update(stored_by(method, x, group=None)))
    described(tmp_path, bits=4, group_size=-1, **METHODS[method])
    said = with_gemmgen(AutoConfig.from_pretrained(tmp_path), dtype)
    model = AutoModelForCausalLM.from_pretrained(tmp_path, config=said)
    to, found = dtype or F16, layers(model)
    ending = f"{'f16' if dtype is None else 'bf16'}_zeros"
    assert len(found) == LINEAR
    for name, layer in found.items():
        assert layer.weights == f"int4_{64 if 'down' in name else 128}_{ending}"
        if dtype is None:
            assert torch.equal(packed(layer).numbers(), exact[name].to(to))
    model.save_pretrained(tmp_path / "ours")
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "ours")
    assert again.config.quantization_config.weights == f"int4_column_{ending}"
    same(states(again), states(model))
    ids = tokens()
    assert torch.equal(logits(again, ids), logits(model, ids))


def test_groups_where_a_config_says_whole_rows(tmp_path):
    made(F16).save_pretrained(tmp_path)
    rewritten(tmp_path, lambda tensors: stored_by("awq", tensors))
    described(tmp_path, bits=4, group_size=-1, **METHODS["awq"])
    said = with_gemmgen(AutoConfig.from_pretrained(tmp_path))
    allowed = "format='int4_32_f16_zeros': must be int4_column_f16_zeros, as the checkpoint's"
    with pytest.raises(ArgumentError, match=allowed):
        AutoModelForCausalLM.from_pretrained(tmp_path, config=said)


@pytest.mark.parametrize("scales", ("weight_scale_inv", "weight_scale"))
@pytest.mark.parametrize("exponents", (False, True))
def test_fp8_of_deepseeks_kind_is_read(saved, tmp_path, scales, exponents):
    plain, expected = loaded(saved), {}

    def change(tensors):
        for name in [n.removesuffix(".weight") for n in tensors if "_proj.weight" in n]:
            layer = nn.Fp8Linear.of(plain.get_submodule(name))
            scale = layer.weight_scale
            if exponents:
                scale = scale.log2().ceil().exp2()
                layer.weight_scale = scale
                scale = scale.to(torch.float8_e8m0fnu)
            expected[name] = states(layer)
            tensors[f"{name}.weight"], tensors[f"{name}.{scales}"] = layer.weight, scale

    rewritten(saved, change)
    described(saved, quant_method="fp8", weight_block_size=[128, 128], activation_scheme="dynamic")
    said = with_gemmgen(AutoConfig.from_pretrained(saved))
    model = AutoModelForCausalLM.from_pretrained(saved, config=said)
    found = layers(model)
    assert found.keys() == expected.keys()
    for name, layer in found.items():
        same(states(layer), expected[name])
    model.save_pretrained(tmp_path / "ours")
    assert f"{Q}.weight_scale" in load_file(tmp_path / "ours/model.safetensors")
    same(states(AutoModelForCausalLM.from_pretrained(tmp_path / "ours")), states(model))


THEIRS = {
    "awq": {"quant_method": "awq", "version": "gemm", "bits": 4, "group_size": 128},
    "gptq": {"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": True},
    "fp8": {"quant_method": "fp8", "weight_block_size": [128, 128]},
}


@pytest.mark.parametrize(
    ("method", "given", "argument"),
    (
        ("awq", {"version": "gemv"}, "version"),
        ("awq", {"bits": 8}, "bits"),
        ("awq", {"zero_point": False}, "zero_point"),
        ("awq", {"group_size": 0}, "group_size"),
        ("gptq", {"bits": 3}, "bits"),
        ("gptq", {"group_size": 256}, "group_size"),
        ("gptq", {"dynamic": {"-:.*": {}}}, "dynamic"),
        ("gptq", {"lm_head": True}, "lm_head"),
        ("gptq", {"checkpoint_format": "marlin"}, "checkpoint_format"),
        ("fp8", {"weight_block_size": None}, "weight_block_size"),
        ("fp8", {"weight_block_size": [64, 128]}, "weight_block_size"),
        ("fp8", {"activation_scheme": "static"}, "activation_scheme"),
        ("fp8", {"fmt": "e5m2"}, "fmt"),
        ("awq", {"quant_method": "bitsandbytes"}, "quant_method"),
    ),
)
def test_checkpoints_that_are_not_taken(method, given, argument):
    theirs = transformers.LlamaConfig(dtype=BF16, quantization_config=THEIRS[method] | given)
    assert with_gemmgen(
        transformers.LlamaConfig(dtype=BF16, quantization_config=THEIRS[method])
    ).quantization_config
    with pytest.raises(ArgumentError) as e:
        with_gemmgen(theirs)
    assert e.value.argument == f"config.quantization_config.{argument}"


def test_configs_of_which_nothing_is_read():
    with pytest.raises(ArgumentError, match=r"^config='LlamaConfig': must be of a checkpoint"):
        with_gemmgen(transformers.LlamaConfig())
    theirs = transformers.LlamaConfig(dtype=torch.float32, quantization_config=THEIRS["awq"])
    with pytest.raises(ArgumentError, match=r"^dtype=torch.float32: must be"):
        with_gemmgen(theirs)
    assert with_gemmgen(theirs, BF16).dtype == BF16 and theirs.dtype == torch.float32


# ---- checkpoints that are packed ------------------------------------------------------------


@pytest.mark.parametrize("group", (32, None))
@pytest.mark.parametrize("method", METHODS)
def test_a_folder_that_was_packed_is_loaded(tmp_path, method, group):
    """As the checkpoint that it was packed from, bit for bit."""
    made(F16, intermediate_size=192).save_pretrained(tmp_path / "theirs")
    rewritten(tmp_path / "theirs", lambda x: stored_by(method, x, group=group))
    described(tmp_path / "theirs", bits=4, group_size=group or -1, **METHODS[method])
    repack(tmp_path / "theirs", tmp_path / "ours", activations="bf16", shard_bytes=10**5)
    install()
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "ours")
    said = with_gemmgen(AutoConfig.from_pretrained(tmp_path / "theirs"), BF16)
    wanted = AutoModelForCausalLM.from_pretrained(tmp_path / "theirs", config=said)
    assert model.dtype == BF16 and len(layers(model)) == LINEAR
    same(states(model), states(wanted))
    model.save_pretrained(tmp_path / "again")
    same(states(AutoModelForCausalLM.from_pretrained(tmp_path / "again")), states(model))


@pytest.mark.parametrize(
    ("changed", "argument"),
    (
        ({"version": 2}, "quantization_config.packed.version"),
        ({"layers": "experts"}, "packed.layers"),
        ({"activations": "e4m3"}, "packed.activations"),
    ),
)
def test_a_folder_that_was_packed_otherwise_is_refused(changed, argument):
    packed = {"version": 1, "layers": "linear", "activations": "bf16"}
    assert GemmgenConfig("int4_32_bf16", packed=packed).as_saved().weights == "int4_32_bf16"
    with pytest.raises(ArgumentError) as e:
        GemmgenConfig("int4_32_bf16", packed=packed | changed)
    assert e.value.argument == argument


# ---- what is refused ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "argument"),
    (
        ({"weights": "int8"}, "weights"),
        ({"weights": None}, "weights"),
        ({"master": 1}, "master"),
        ({"weights": "bf16", "master": True}, "master"),
        ({"modules_to_not_convert": "lm_head"}, "modules_to_not_convert"),
        ({"modules_to_not_convert": [1]}, "modules_to_not_convert"),
        ({"stored": "hqq"}, "stored"),
        ({"stored": "awq"}, "stored"),
        ({"quant_method": "awq"}, "quant_method"),
    ),
    ids=str,
)
def test_wrong_configs(given, argument):
    with pytest.raises(ArgumentError) as e:
        GemmgenConfig(**given)
    assert e.value.argument == argument


@pytest.mark.parametrize(
    ("weights", "dtype"), (("fp8", F16), ("int4_32_bf16", F16), ("bf16", torch.float32))
)
def test_another_dtype_is_refused(saved, weights, dtype):
    with pytest.raises(ArgumentError, match=rf"^dtype={dtype}: must be .*weights are {weights}"):
        loaded(saved, weights, dtype=dtype)


def test_layers_that_no_kernel_takes_are_named(tmp_path):
    made(hidden_size=72, intermediate_size=88, head_dim=16).save_pretrained(tmp_path)
    with pytest.raises(ArgumentError) as e:
        loaded(tmp_path, "fp8")
    assert e.value.argument == "modules_to_not_convert"
    assert "layers.0.mlp.up_proj features are (72, 88), must be multiples of 16" in e.value.allowed
    for weights in ("int4_32_bf16", "int4_column_bf16"):
        match = r"layers\.0\.mlp\.up_proj in_features is 72, must be a multiple of 32"
        with pytest.raises(ArgumentError, match=match):
            loaded(tmp_path, weights)
    with pytest.raises(ArgumentError, match=r"must leave a torch\.nn\.Linear"):
        loaded(tmp_path, "fp8", modules_to_not_convert=[".*"])


def test_a_head_that_shares_its_weight(tmp_path):
    made(tie_word_embeddings=True).save_pretrained(tmp_path)
    assert len(layers(loaded(tmp_path, "fp8"))) == LINEAR
    with pytest.raises(ArgumentError, match="lm_head shares its weight"):
        loaded(tmp_path, "fp8", modules_to_not_convert=["q_proj"])


@pytest.mark.parametrize("weights", ("fp8", "e2m1_32_e8m0"))
def test_weights_that_are_not_there_or_no_numbers(saved, weights):
    rewritten(saved, lambda x: x[f"{Q}.weight"].fill_(torch.nan))
    if weights != "fp8":
        with pytest.raises(ArgumentError, match=rf"^{Q}.weight="):
            loaded(saved, weights)
    rewritten(saved, lambda x: x.pop(f"{Q}.weight"))
    with pytest.raises(ArgumentError, match=rf"^checkpoint=\['{Q}'\]: must have the weights"):
        loaded(saved, weights)


@pytest.mark.parametrize("places", ({"": "disk"}, {"model": 0, "lm_head": "cpu"}), ids=str)
def test_layers_are_not_offloaded(saved, places):
    with pytest.raises(ArgumentError) as e:
        AutoModelForCausalLM.from_pretrained(
            saved, dtype=BF16, device_map=places, quantization_config=GemmgenConfig()
        )
    assert e.value.argument == "device_map"


def test_layers_are_not_divided(saved, monkeypatch):
    model = loaded(saved, "fp8")
    monkeypatch.setattr(model, "_tp_size", 2)
    with pytest.raises(ArgumentError, match=r"^tp_size=2: must be 1"):
        model.hf_quantizer.postprocess_model(model)


def test_another_of_that_name_is_an_error(monkeypatch):
    install()
    install()
    monkeypatch.setitem(config.auto.AUTO_QUANTIZER_MAPPING, "gemmgen", object)
    with pytest.raises(ArgumentError, match=r"^quant_method='gemmgen': must be free"):
        install()
