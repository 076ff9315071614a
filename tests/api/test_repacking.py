"""`gemmgen.repacking`: what is written is what layers hold that were packed in memory, bit for bit, and files are whole or not there."""

from __future__ import annotations

import json
import weakref

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from hostile.checkpoints import BAD  # noqa: E402
from saved import (  # noqa: E402
    EXPERTS,
    GPT_OSS,
    HIDDEN,
    INTERMEDIATE,
    LAYERS,
    VOCABULARY,
    GptOss,
    Llama,
    config,
    gpt_oss,
    linear,
    llama,
    save,
    write,
)

from gemmgen import nn, quant  # noqa: E402
from gemmgen.errors import ArgumentError  # noqa: E402
from gemmgen.quant import Checkpoint, checkpoint  # noqa: E402
from gemmgen.repacking import load, repack  # noqa: E402
from gemmgen.repacking.shards import Writer  # noqa: E402
from gemmgen.torch_ops import compute_on_cpu  # noqa: E402

BF16, F16, E4M3 = torch.bfloat16, torch.float16, torch.float8_e4m3fn
DTYPES = {"bf16": BF16, "f16": F16, "e4m3": E4M3}
UP, DOWN = "model.layers.1.mlp.up_proj", "model.layers.1.mlp.down_proj"
METHODS = {"gptq of 8": "gptq"}  # where the reader is called otherwise
SHARD = 20_000  # bytes: several files


@pytest.fixture(autouse=True)
def on_the_cpu():
    compute_on_cpu()
    yield
    compute_on_cpu(False)


def same(a, b):
    assert a.dtype == b.dtype and a.shape == b.shape
    assert torch.equal(a.reshape(-1).view(torch.uint8), b.reshape(-1).view(torch.uint8))


def state_of(folder):
    return dict(Checkpoint(folder))


def told(folder):
    return json.loads((folder / "config.json").read_text())


def refused(tmp_path, tensors, said, *, match=None, **given):
    """The error, of which nothing is left."""
    source = save(tmp_path / "model", tensors, said)
    with pytest.raises(ArgumentError, match=match) as e:
        repack(source, tmp_path / "out", **given)
    assert [x.name for x in tmp_path.iterdir()] == ["model"]
    return e.value


# ---- what is written ----------------------------------------------------------------------------


@pytest.mark.parametrize("activations", ("bf16", "f16"))
@pytest.mark.parametrize("group", (32, 64, -1))
@pytest.mark.parametrize("method", ("awq", "gptq", "gptq_v2", "gptq of 8"))
def test_linear_layers_are_what_is_packed_in_memory(tmp_path, method, group, activations):
    tensors, dtype = llama(method, group), DTYPES[activations]
    source = save(tmp_path / "model", tensors, config(method, group))
    made = repack(source, tmp_path / "out", activations=activations, shard_bytes=SHARD)
    assert made.layers == 2 * LAYERS and made.method == METHODS.get(method, method)
    found, model = state_of(tmp_path / "out"), Llama()
    load(model, tmp_path / "out")
    assert [*found.keys() ^ model.state_dict().keys()] == []
    read = quant.load(source, made.method)
    assert len(read) == made.layers
    for name, weights in read.items():
        layer = model.get_submodule(name)
        wanted = nn.Linear4bit.from_quantised(
            weights.rescaled(dtype), tensors.get(f"{name}.bias"), dtype
        )
        assert type(layer) is nn.Linear4bit and layer.facts == wanted.facts
        for held, x in wanted.state_dict().items():
            same(layer.state_dict()[held], x)
    for name in found.keys() & tensors.keys():
        same(found[name], tensors[name])
    x = torch.randn(5, HIDDEN, dtype=dtype)
    y = model.get_submodule(UP)(x)
    wide = x.double() @ read[UP].dequantise().T + tensors[f"{UP}.bias"].double()
    assert (y.double() - wide).norm() < 0.02 * wide.norm()


def test_a_state_dict_goes_into_layers_that_stand_there(tmp_path):
    """Without `load`: torch's `load_state_dict`, of files as a mapping."""
    source = save(tmp_path / "model", llama(), config())
    repack(source, tmp_path / "out")
    model = Llama().bfloat16()
    for block in model.model.layers:
        of = {"weights": "int4_32_bf16_zeros"}
        block.mlp.up_proj = nn.Linear4bit(HIDDEN, INTERMEDIATE, **of)
        block.mlp.down_proj = nn.Linear4bit(INTERMEDIATE, HIDDEN, False, **of)
    model.load_state_dict(Checkpoint(tmp_path / "out"), assign=True)
    loaded = Llama()
    load(loaded, tmp_path / "out")
    tokens = torch.arange(VOCABULARY)
    with torch.no_grad():
        same(model.bfloat16()(tokens), loaded.bfloat16()(tokens))


@pytest.mark.parametrize("bias", (True, False))
@pytest.mark.parametrize("activations", DTYPES)
def test_experts_are_what_is_packed_in_memory(tmp_path, activations, bias):
    tensors, dtype = gpt_oss(bias), DTYPES[activations]
    source = save(tmp_path / "model", tensors, GPT_OSS)
    made = repack(source, tmp_path / "out", activations=activations, shard_bytes=SHARD)
    assert made.layers == 2 and made.copied == 4 + 4 * bias
    model = GptOss()
    load(model, tmp_path / "out")
    found = state_of(tmp_path / "out")
    for i, block in enumerate(model.model.layers):
        name = f"model.layers.{i}.mlp.experts"
        matrices = [quant.mxfp4(tensors, f"{name}.{x}_proj") for x in ("gate_up", "down")]
        given = {f"{x}_bias": tensors[f"{name}.{x}_proj_bias"] for x in ("gate_up", "down") if bias}
        wanted = nn.Experts4bit.from_quantised(
            *matrices, dtype, activation="swiglu_clamped", **given
        )
        experts = block.mlp.experts
        assert experts.facts == wanted.facts and experts.order == "alternating"
        assert experts.state_dict().keys() == wanted.state_dict().keys()
        for held, x in wanted.state_dict().items():
            same(experts.state_dict()[held], x)
        for held, x in given.items():
            same(found[f"{name}.{held}"], x)
        x = torch.randn(3, HIDDEN, dtype=wanted.dtype)
        chosen, weights = torch.tensor([[0, 1]] * 3), torch.full((3, 2), 0.5)
        same(experts(x, chosen, weights), wanted(x, chosen, weights))


class Pair(torch.nn.Module):
    """Two layers, of which one has a bias."""

    def __init__(self):
        super().__init__()
        self.up, self.down = torch.nn.Linear(256, 384), torch.nn.Linear(384, 256, bias=False)

    def forward(self, x):
        return self.down(self.up(x))


def in_words(group):
    """Tensors of a `Pair` as compressed-tensors has INT4, and its config."""
    weights = quant.quantised.formats.int4(max(group, 0), "bf16")
    tensors = {"up.bias": torch.randn(384).bfloat16()}
    for layer, n, k in (("up", 384, 256), ("down", 256, 384)):
        w = quant.of(torch.randn(n, k) / k**0.5, weights)
        stored = {"packed": w.codes.view(torch.int32), "scale": w.scales, "shape": torch.tensor([n, k])}  # fmt: skip
        tensors |= {f"{layer}.weight_{x}": t for x, t in stored.items()}
    said = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group" if group > 0 else "channel", "group_size": group}  # fmt: skip
    of = {"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": {"group_0": {"weights": said}}}  # fmt: skip
    return tensors, {"dtype": "bfloat16", "quantization_config": of}


@pytest.mark.parametrize("activations", ("bf16", "e4m3_128"))
@pytest.mark.parametrize("group", (128, -1))
def test_int4_in_words(tmp_path, group, activations):
    """By 16 bits, and by FP8 with a scale for each 128 columns: what is packed in memory, and the layers of a model that is loaded quantise so."""
    tensors, said = in_words(group)
    source = save(tmp_path / "model", tensors, said)
    made = repack(source, tmp_path / "out", activations=activations, shard_bytes=SHARD)
    assert (made.method, made.activations, made.layers) == ("int4_packed", activations, 2)
    assert told(tmp_path / "out")["quantization_config"]["packed"]["activations"] == activations
    model, given = Pair(), {"activations": activations} if activations != "bf16" else {}
    load(model, tmp_path / "out")
    for name, weights in quant.load(source, made.method).items():
        layer = model.get_submodule(name)
        wanted = nn.Linear4bit.from_quantised(weights, tensors.get(f"{name}.bias"), **given)
        assert layer.activations == wanted.activations and layer.facts == wanted.facts
        for held, x in wanted.state_dict().items():
            same(layer.state_dict()[held], x)
    assert model(torch.randn(3, 256).bfloat16()).dtype == BF16


def in_octets(element, packed=False, strategy="channel"):
    """Tensors of a `Pair` as compressed-tensors has INT8 and FP8, and its config."""
    form = {"int": quant.quantised.formats.INT8_ROWS, "float": quant.quantised.formats.FP8_ROWS}
    dtype = {"int": torch.int8, "float": torch.float8_e4m3fn}[element]
    tensors = {"up.bias": torch.randn(384).bfloat16()}
    for layer, n, k in (("up", 384, 256), ("down", 256, 384)):
        w = quant.of(torch.randn(n, k) / k**0.5, form[element])
        stored = {"weight": w.codes.view(dtype), "weight_scale": w.scales.bfloat16()}
        if strategy == "tensor":
            stored["weight_scale"] = stored["weight_scale"].amax()
        if packed:
            words = (w.codes ^ 128).view(torch.int32)
            stored = {"weight_packed": words, "weight_shape": torch.tensor([n, k])} | {"weight_scale": stored["weight_scale"]}  # fmt: skip
        else:
            stored["input_scale"] = torch.ones(1)
        tensors |= {f"{layer}.{x}": t for x, t in stored.items()}
    said = {"num_bits": 8, "type": element, "symmetric": True, "strategy": strategy}
    of = {"quant_method": "compressed-tensors", "format": "pack-quantized" if packed else f"{element}-quantized", "config_groups": {"group_0": {"weights": said}}}  # fmt: skip
    return tensors, {"dtype": "bfloat16", "quantization_config": of}


@pytest.mark.parametrize("activations", ("bf16", "f16"))
@pytest.mark.parametrize("kind", (("int", False), ("float", False), ("int", True), ("float", False, "tensor")), ids=str)  # fmt: skip
def test_octets(tmp_path, kind, activations):
    """INT8 and FP8: what is packed in memory, and a model that is loaded multiplies by the numbers that they stand for."""
    tensors, said = in_octets(*kind)
    source = save(tmp_path / "model", tensors, said)
    made = repack(source, tmp_path / "out", activations=activations, shard_bytes=SHARD)
    assert made.method == ("channels_packed" if kind[1] else "channels") and made.layers == 2
    name = {"int": "int8_column_f32", "float": "e4m3_column_f32"}[kind[0]]
    assert made.weights == name + "_f16" * (activations == "f16")
    assert told(tmp_path / "out")["quantization_config"]["weights"] == made.weights
    model = Pair()
    load(model, tmp_path / "out")
    read = quant.load(source, made.method)
    for layer, weights in read.items():
        there = model.get_submodule(layer)
        wanted = nn.Linear8bit.from_quantised(weights, tensors.get(f"{layer}.bias"), DTYPES[activations])  # fmt: skip
        assert type(there) is nn.Linear8bit and there.facts == wanted.facts
        for held, x in wanted.state_dict().items():
            same(there.state_dict()[held], x)
    x = torch.randn(5, 256, dtype=DTYPES[activations])
    wide = x.double() @ read["up"].dequantise().T + tensors["up.bias"].double()
    assert (model.up(x).double() - wide).norm() < 0.01 * wide.norm()
    again = Pair()
    again.up = nn.Linear8bit(256, 384, weights=made.weights)
    load(again, tmp_path / "out")
    same(again.up.state_dict()["blocks"], model.up.state_dict()["blocks"])


def test_octets_are_of_one_kind(tmp_path):
    tensors, said = in_octets("int")
    tensors |= {n: t for n, t in in_octets("float")[0].items() if n.startswith("down.")}
    e = refused(tmp_path, tensors, said)
    assert (e.argument, e.value) == ("down.weight dtype", "F8_E4M3") and "I8" in e.allowed


def test_octets_of_no_such_dtype(tmp_path):
    tensors, said = in_octets("int")
    tensors["up.weight"] = tensors["up.weight"].view(torch.uint8)
    e = refused(tmp_path, tensors, said)
    assert (e.argument, e.value) == ("up.weight dtype", "U8") and "I8 or F8_E4M3" in e.allowed


@pytest.mark.parametrize("activations", ("e4m3", "e4m3_128"))
def test_octets_are_multiplied_by_16_bits(tmp_path, activations):
    e = refused(tmp_path, *in_octets("int"), activations=activations)
    assert (e.argument, e.value) == ("activations", activations) and "16 bits" in e.allowed


def test_octets_in_words_that_are_not_whole(tmp_path):
    tensors, said = in_octets("int", True)
    tensors["up.weight_shape"] = torch.tensor([384, 254])
    e = refused(tmp_path, tensors, said)
    assert e.argument == "up weight_shape" and e.value == (384, 254)


@pytest.mark.parametrize(
    ("field", "value"),
    (("strategy", "block"), ("symmetric", False), ("num_bits", 6), ("type", "nf")),
)
def test_octets_of_other_scales_are_refused(tmp_path, field, value):
    tensors, said = in_octets("float")
    said["quantization_config"]["config_groups"]["group_0"]["weights"][field] = value
    e = refused(tmp_path, tensors, said)
    assert e.argument == f"quantization_config.config_groups.group_0.weights.{field}"


@pytest.mark.parametrize("name", ("weight", "weight_scale"))
def test_a_tensor_of_octets_that_is_missing_is_named(tmp_path, name):
    tensors, said = in_octets("int")
    del tensors[f"up.{name}"]
    assert refused(tmp_path, tensors, said).argument.startswith("up.weight")


@pytest.mark.parametrize("group", (32, 64))
def test_int4_by_fp8_has_a_scale_for_each_128(tmp_path, group):
    e = refused(tmp_path, *in_words(group), activations="e4m3_128")
    assert (e.argument, e.value) == ("activations", "e4m3_128")
    assert "a scale for each 128 columns or a row" in e.allowed


def test_experts_by_fp8_with_a_scale_for_each_128(tmp_path):
    """The same files but for a word in config.json."""
    source = save(tmp_path / "model", gpt_oss(), GPT_OSS)
    for said in ("e4m3", "e4m3_128"):
        repack(source, tmp_path / said, activations=said)
    one, other = (state_of(tmp_path / said) for said in ("e4m3", "e4m3_128"))
    assert one.keys() == other.keys()
    for name, x in one.items():
        same(x, other[name])
    model = GptOss()
    load(model, tmp_path / "e4m3_128")
    assert {b.mlp.experts.activations for b in model.model.layers} == {"e4m3_128"}


NVFP4 = {
    "nvfp4": {"quant_method": "modelopt", "quant_algo": "NVFP4"},
    "nvfp4_packed": {"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized"},
}


def nvfp4(method, layer):
    """A layer's tensors."""
    weight = quant.of(torch.randn(INTERMEDIATE, HIDDEN), quant.quantised.formats.NVFP4)
    one = torch.tensor(weight.tensor_scale)
    names = {
        "nvfp4": {"weight": weight.codes, "weight_scale_2": one, "input_scale": one},
        "nvfp4_packed": {"weight_packed": weight.codes, "weight_global_scale": 1 / one, "input_global_scale": one},
    }[method] | {"weight_scale": weight.scales}  # fmt: skip
    return {f"{layer}.{name}": x for name, x in names.items()}


@pytest.mark.parametrize("method", NVFP4)
def test_nvfp4(tmp_path, method):
    tensors, said = nvfp4(method, "layer"), NVFP4[method]
    source = save(tmp_path / "model", tensors, {"quantization_config": said}, 1)
    made = repack(source, tmp_path / "out")
    assert made.weights == "e2m1_16_e4m3" and made.copied == 0
    found = state_of(tmp_path / "out")
    (read,) = quant.load(source, method).values()
    for name, x in nn.Linear4bit.from_quantised(read).state_dict().items():
        same(found.pop(f"layer.{name}"), x)
    assert not found


def test_config_and_files(tmp_path):
    source = save(tmp_path / "model", llama("gptq", 64), config("gptq", 64, "float16"))
    made = repack(source, tmp_path / "out", shard_bytes=SHARD)
    out = tmp_path / "out"
    shards = sorted(x.name for x in out.glob("*.safetensors"))
    assert len(shards) > 2 and shards[0] == f"model-00001-of-{len(shards):05}.safetensors"
    others = ["chat_template.jinja", "config.json", "model.safetensors.index.json", "tokenizer.json"]  # fmt: skip
    assert [*made.files] == sorted([*shards, *others]) == sorted(x.name for x in out.iterdir())
    assert (out / "tokenizer.json").read_bytes() == (source / "tokenizer.json").read_bytes()
    index = json.loads((out / "model.safetensors.index.json").read_text())
    places = Checkpoint(out).places
    assert index["weight_map"] == {name: at.path.name for name, at in sorted(places.items())}
    assert index["metadata"]["total_size"] == made.size == sum(x.size for x in places.values())
    for shard in shards:
        held = [x for x in places.values() if x.path.name == shard]
        assert sum(x.size for x in held) <= SHARD or len(held) == 1
    assert told(out) == {
        "model_type": "llama",
        "torch_dtype": "float16",
        "quantization_config": {
            "quant_method": "gemmgen",
            "weights": "int4_64_f16_zeros",
            "stored": "gemmgen",
            "modules_to_not_convert": ["model.embed_tokens", "lm_head"],
            "packed": {
                "version": 1,
                "from": "gptq",
                "layers": "linear",
                "element": "int4",
                "group": 64,
                "scale": "f16",
                "zeros": True,
                "activations": "f16",
            },
        },
    }


def test_tensors_begin_at_multiples_of_their_elements(tmp_path):
    """As readers ask that map files."""
    source = save(tmp_path / "model", llama(), config())
    repack(source, tmp_path / "out", shard_bytes=SHARD)
    for at in Checkpoint(tmp_path / "out").places.values():
        size = {"U8": 1, "F16": 2, "I64": 8}[at.dtype]
        assert at.start % size == 0


def test_the_formats_own_package_reads_the_files(tmp_path):
    files = pytest.importorskip("safetensors.torch")
    source = save(tmp_path / "model", llama(), config())
    repack(source, tmp_path / "out", shard_bytes=10**6)
    assert not (tmp_path / "out/model.safetensors.index.json").exists()
    found, ours = files.load_file(tmp_path / "out/model.safetensors"), state_of(tmp_path / "out")
    assert found.keys() == ours.keys()
    for name, x in found.items():
        same(x, ours[name])


def test_the_config_says_what_is_multiplied(tmp_path):
    source = save(tmp_path / "model", llama(), config(dtype="float16"))
    assert repack(source, tmp_path / "a").activations == "f16"
    assert repack(source, tmp_path / "b", activations="bf16").activations == "bf16"
    assert told(tmp_path / "b")["torch_dtype"] == "bfloat16"
    source = save(tmp_path / "other", llama(), {**config(), "torch_dtype": "float32"})
    assert repack(source, tmp_path / "c").weights == "int4_32_bf16_zeros"
    source = save(tmp_path / "experts", gpt_oss(), GPT_OSS)
    repack(source, tmp_path / "d", activations="e4m3")
    assert told(tmp_path / "d")["dtype"] == "bfloat16"


def test_one_file_without_a_config(tmp_path):
    """Groups are what the layers have in common."""
    (tmp_path / "alone").mkdir()
    file = write(tmp_path / "alone/x.safetensors", llama("gptq", 64))
    made = repack(file, tmp_path / "deep/er/out", method="gptq", activations="f16")
    out = tmp_path / "deep/er/out"
    assert made.weights == "int4_64_f16_zeros" and made.layers == 2 * LAYERS
    assert made.files == ("config.json", "model.safetensors")
    assert [*told(out)] == ["quantization_config"]
    with pytest.raises(ArgumentError, match="is required, one of awq"):
        repack(file, tmp_path / "out")


def test_links_are_followed(tmp_path):
    """As in a cache of downloads, whose folders are links to files."""
    source = save(tmp_path / "blobs", llama(), config())
    (tmp_path / "model").mkdir()
    for file in source.iterdir():
        (tmp_path / "model" / file.name).symlink_to(file)
    made = repack(tmp_path / "model", tmp_path / "out")
    assert made.layers == 2 * LAYERS
    assert not any(x.is_symlink() for x in (tmp_path / "out").iterdir())


# ---- memory -------------------------------------------------------------------------------------


class Bytes(bytearray):
    """As `read_bytes` gives them; it can be seen to go."""


def test_one_matrix_is_in_memory_at_a_time(tmp_path, monkeypatch):
    """Each is written before the next is read, and gone."""
    source = save(tmp_path / "model", llama(), config())
    of_layer = [x.size for n, x in Checkpoint(source).places.items() if n.startswith(f"{UP}.q") or n == f"{UP}.scales"]  # fmt: skip
    live, most, events = {}, [0], []
    real = checkpoint.read_bytes

    def read(*given):
        data = Bytes(real(*given))
        live[id(data)] = len(data)
        weakref.finalize(data, live.pop, id(data))
        most[0] = max(most[0], sum(live.values()))
        return data

    def at(kind, name):
        events.append((kind, name.rpartition(".")[0]))

    getting, writing = Checkpoint.__getitem__, Writer.write
    monkeypatch.setattr(
        Checkpoint, "__getitem__", lambda self, n: at("read", n) or getting(self, n)
    )
    monkeypatch.setattr(Writer, "write", lambda self, n, *x: at("write", n) or writing(self, n, *x))
    opened = []
    monkeypatch.setattr(checkpoint, "read_bytes", read)
    monkeypatch.setattr(Writer, "__init__", counting(Writer.__init__, lambda: most.__setitem__(0, 0) or opened.append(1)))  # fmt: skip
    repack(source, tmp_path / "out", shard_bytes=SHARD)
    assert opened and most[0] <= sum(of_layer) and not live
    turns = [x for i, x in enumerate(events) if events[i - 1 : i] != [x]]
    reads = [name for kind, name in turns if kind == "read"]
    assert len(reads) == len(set(reads)) == 2 * LAYERS
    for i, (kind, name) in enumerate(turns):
        assert kind == "write" or turns[i + 1] == ("write", name)


def counting(real, call):
    def made(self, *given):
        call()
        real(self, *given)

    return made


def test_progress_counts_bytes(tmp_path):
    source, seen = save(tmp_path / "model", llama(), config()), []
    repack(source, tmp_path / "out", progress=lambda *x: seen.append(x))
    done, of, names = zip(*seen, strict=True)
    assert [*done] == sorted(done) and {*of} == {done[-1]} and done[0] == 0
    assert f"{UP}.blocks" in names and "lm_head.weight" in names
    read = sum(x.size for n, x in Checkpoint(source).places.items() if not n.endswith("g_idx"))
    assert done[-1] == read


# ---- whole or not at all ------------------------------------------------------------------------


@pytest.mark.parametrize("after", (0, 1, 7, -1))
@pytest.mark.parametrize(
    "error",
    (KeyboardInterrupt(), MemoryError(), OSError(5, "broken"), ArgumentError("paths", 1, "x")),
)
def test_what_is_interrupted_leaves_nothing(tmp_path, error, after):
    source = save(tmp_path / "model", llama(), config())
    calls = []

    def stop(done, of, name):
        calls.append(name)
        if len(calls) > after >= 0 or (after < 0 and not name):
            assert [x.name for x in tmp_path.iterdir()] != ["model"]
            raise error

    with pytest.raises(type(error)) as e:
        repack(source, tmp_path / "new/out", progress=stop)
    assert e.value is error  # as the caller raised it
    assert [x.name for x in tmp_path.iterdir()] == ["model"]
    repack(source, tmp_path / "new/out")


def test_what_is_no_empty_folder_stays_as_it_is(tmp_path):
    source = save(tmp_path / "model", llama(), config())
    (tmp_path / "full").mkdir()
    (tmp_path / "full/x").write_text("mine")
    (tmp_path / "file").write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path / "full")
    for name in ("full", "file", "link", "model", "file/below", "a\0b"):
        with pytest.raises(ArgumentError) as e:
            repack(source, tmp_path / name)
        assert e.value.argument == "out"
    assert (tmp_path / "full/x").read_text() == (tmp_path / "file").read_text() == "mine"
    (tmp_path / "empty").mkdir()
    assert repack(source, tmp_path / "empty").layers == 2 * LAYERS
    assert sorted(x.name for x in tmp_path.iterdir()) == ["empty", "file", "full", "link", "model"]


def test_a_disk_that_is_too_small_is_seen_before(tmp_path, monkeypatch):
    from gemmgen.repacking import folder

    class Usage:
        free = 1000

    monkeypatch.setattr(folder.shutil, "disk_usage", lambda path: Usage)
    e = refused(tmp_path, llama(), config(), match="bytes are free")
    assert e.argument == "out"


# ---- what is refused ----------------------------------------------------------------------------


def test_act_order_is_refused(tmp_path):
    tensors = llama("gptq")
    tensors[f"{UP}.g_idx"] = tensors[f"{UP}.g_idx"].flip(0)
    e = refused(tmp_path, tensors, config("gptq", desc_act=True), match="act-order")
    assert e.argument == f"{UP}.g_idx"


def test_act_order_needs_its_tensor(tmp_path):
    tensors = llama("gptq")
    del tensors[f"{DOWN}.g_idx"]
    e = refused(tmp_path, tensors, config("gptq", desc_act=True), match="must be among")
    assert e.argument == f"{DOWN}.g_idx"


SAID = {  # of a quantization_config: the field, its value
    "another method": ("quant_method", "bitsandbytes"),
    "no method": ("quant_method", None),
    "other bits": ("bits", 8),
    "a group that is not taken": ("group_size", 16),
    "another version": ("version", "gemv"),
    "packed already": ("quant_method", "gemmgen"),
}


@pytest.mark.parametrize("says", SAID)
def test_configs_are_refused(tmp_path, says):
    field, value = SAID[says]
    e = refused(tmp_path, llama(), config(**{field: value}))
    assert e.argument == f"quantization_config.{field}"
    assert str(e.value).lower() == str(value).lower() and e.allowed.startswith("must ")


@pytest.mark.parametrize("name", ("qweight", "qzeros", "scales"))
def test_a_tensor_that_is_missing_is_named(tmp_path, name):
    tensors = llama()
    del tensors[f"{UP}.{name}"]
    assert refused(tmp_path, tensors, config()).argument == f"{UP}.{name}"


@pytest.mark.parametrize(
    ("method", "name"),
    [("nvfp4", x) for x in ("weight", "weight_scale", "weight_scale_2")]
    + [("nvfp4_packed", f"weight_{x}") for x in ("packed", "scale", "global_scale")],
)
def test_a_tensor_of_nvfp4_that_is_missing_is_named(tmp_path, method, name):
    """Of one layer of two: what is left of it is nobody's wide weight."""
    tensors = nvfp4(method, "a") | nvfp4(method, "b")
    del tensors[f"b.{name}"]
    e = refused(tmp_path, tensors, {"quantization_config": NVFP4[method]})
    assert e.argument == f"b.{name}"


@pytest.mark.parametrize("dtype", (torch.int32, torch.uint8, torch.float8_e4m3fn, torch.bool))
def test_a_weight_that_is_quantised_otherwise_is_refused(tmp_path, dtype):
    tensors = llama() | {"other.weight": torch.zeros(8, 8).to(dtype)}
    e = refused(tmp_path, tensors, config(), match="must be F16, BF16, F32, F64")
    assert e.argument == "other.weight dtype"


def test_only_wide_weights_of_two_sides_are_left(tmp_path):
    more = {"a.weight": torch.ones(2, 2), "b.weight": torch.ones(2, 2, 2).byte(), "c.steps": torch.ones(2, 2).byte()}  # fmt: skip
    source = save(tmp_path / "model", llama() | more, config())
    repack(source, tmp_path / "out")
    left = told(tmp_path / "out")["quantization_config"]["modules_to_not_convert"]
    assert left == ["model.embed_tokens", "lm_head", "a"]


@pytest.mark.parametrize("name", ("other.qweight", "other.weight_packed"))
def test_codes_of_another_method_are_refused(tmp_path, name):
    tensors = nvfp4("nvfp4", "a") | {name: torch.zeros(8, 8, dtype=torch.int32)}
    e = refused(tmp_path, tensors, {"quantization_config": NVFP4["nvfp4"]}, match="another method")
    assert e.argument == name


def test_a_tensor_that_only_the_index_has_is_named(tmp_path):
    source = save(tmp_path / "model", llama(), config())
    path = source / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    file = index["weight_map"][f"{UP}.scales"]
    for name, value in (("model.gone", file), (f"{UP}.scales", "../x.safetensors")):
        changed = {**index["weight_map"], name: value}
        path.write_text(json.dumps({**index, "weight_map": changed}))
        with pytest.raises(ArgumentError) as e:
            repack(source, tmp_path / "out")
        assert name in e.value.argument
    path.write_text(json.dumps({"weight_map": {}}))
    with pytest.raises(ArgumentError, match="weight_map"):
        repack(source, tmp_path / "out")


def test_other_groups_than_the_config_says_are_refused(tmp_path):
    tensors = llama() | linear(DOWN, HIDDEN, INTERMEDIATE, "awq", 64, 9)
    e = refused(tmp_path, tensors, config(), match="groups of 32 columns, as quantization_config")
    assert e.argument == f"{DOWN}.scales shape"


def test_layers_that_have_no_group_in_common_are_refused(tmp_path):
    tensors = llama() | linear(DOWN, HIDDEN, INTERMEDIATE, "awq", 64, 9)
    said = {"model_type": "llama"}
    e = refused(tmp_path, tensors, said, match="as other layers have", method="awq")
    assert e.argument == f"{DOWN}.scales shape"


def test_a_layer_of_another_group_is_refused(tmp_path):
    tensors = llama() | linear(DOWN, HIDDEN, INTERMEDIATE, "awq", 16, 9)
    e = refused(tmp_path, tensors, {"a": 1}, match="groups of 32, 64, 128 or all", method="awq")
    assert e.argument == f"{DOWN}.scales shape"


def test_sides_that_are_no_multiple_are_refused(tmp_path):
    tensors = llama(group=-1) | linear("odd", 16, 40, "awq", -1, 0)
    e = refused(tmp_path, tensors, config(group=-1), match="must be a multiple of 32")
    assert e.argument == "odd K" and e.value == 40


def test_zeros_that_a_symmetric_config_does_not_have_are_refused(tmp_path):
    e = refused(tmp_path, llama("gptq"), config("gptq", sym=True), match="as quantization_config")
    assert e.argument == "model.layers.0.mlp.up_proj format"


def test_a_scale_that_is_no_number_is_refused(tmp_path):
    tensors = llama()
    tensors[f"model.layers.{LAYERS - 1}.mlp.down_proj.scales"][0, 0] = np.nan  # the last one
    assert refused(tmp_path, tensors, config()).argument.endswith("down_proj.scales")


def test_a_tensor_that_has_a_packed_ones_name_is_refused(tmp_path):
    e = refused(tmp_path, llama() | {f"{UP}.blocks": torch.zeros(8).half()}, config())
    assert e.argument == f"{UP}.blocks"


def test_what_was_written_is_refused(tmp_path):
    source = save(tmp_path / "model", llama(), config())
    repack(source, tmp_path / "once")
    with pytest.raises(ArgumentError, match="packed already") as e:
        repack(tmp_path / "once", tmp_path / "twice")
    assert e.value.argument == "quantization_config.quant_method"
    (tmp_path / "once/config.json").unlink()
    with pytest.raises(ArgumentError, match="packed already") as e:
        repack(tmp_path / "once", tmp_path / "twice", method="awq")
    assert e.value.argument.endswith("._extra_state")


@pytest.mark.parametrize("method", ("awq", "gptq"))
def test_e4m3_is_for_mxfp4(tmp_path, method):
    e = refused(tmp_path, llama(method), config(method), activations="e4m3")
    assert (e.argument, e.value) == ("activations", "e4m3") and "by no others" in e.allowed


def test_exponents_that_e4m3_has_no_room_for_are_refused(tmp_path):
    e = refused(tmp_path, gpt_oss(least=60), GPT_OSS, activations="e4m3", match="span")
    assert e.argument == "model.layers.0.mlp.experts.gate_up_proj scales"


ARGUMENTS = {
    "activations": ("f32", ["bf16"]),
    "method": ("gguf", "gptq", "awq"),  # the config says it
    "shard_bytes": (0, -1, True, "5GB"),
    "progress": (3,),
}


@pytest.mark.parametrize(("argument", "value"), [(a, x) for a, v in ARGUMENTS.items() for x in v])
def test_arguments_are_refused(tmp_path, argument, value):
    e = refused(tmp_path, llama(), config(), **{argument: value})
    assert e.argument == argument


def test_sources_are_refused(tmp_path):
    (tmp_path / "empty").mkdir()
    for path in (tmp_path / "none", tmp_path / "empty", "", None, "a\0b"):
        with pytest.raises(ArgumentError):
            repack(path, tmp_path / "out", method="awq")
    e = refused(tmp_path / "empty", {"a": torch.ones(2)}, config(), match=r"\*.qweight")
    assert e.argument == "source"


def test_a_tensor_of_more_than_the_file_has_is_refused(tmp_path):
    """Before anything is made of its sides."""
    tensors = llama()
    source = save(tmp_path / "model", tensors, config(), 1)
    file = next(source.glob("*.safetensors"))
    data = file.read_bytes()
    real = str([*tensors[f"{UP}.qweight"].shape]).encode()
    file.write_bytes(data.replace(real, b"[9" + b" " * (len(real) - 6) + b",99]"))
    with pytest.raises(ArgumentError, match=r"must hold \[9, 99\] of I32"):
        repack(source, tmp_path / "out")


@pytest.mark.parametrize("says", BAD)
def test_files_that_are_none_are_refused(tmp_path, says):
    (tmp_path / "x.safetensors").write_bytes(BAD[says][2])
    with pytest.raises(ArgumentError):
        repack(tmp_path / "x.safetensors", tmp_path / "out", method="awq")
    assert [x.name for x in tmp_path.iterdir()] == ["x.safetensors"]


@pytest.mark.parametrize("text", ("", "[]", "{", '{"quantization_config": 3}', "\xff"))
def test_configs_that_are_none_are_refused(tmp_path, text):
    source = save(tmp_path / "model", llama(), config())
    (source / "config.json").write_text(text, encoding="latin-1")
    with pytest.raises(ArgumentError):
        repack(source, tmp_path / "out")


def test_one_of_several_files_is_refused_where_a_layer_goes_on(tmp_path):
    source = save(tmp_path / "model", llama(), config())
    with pytest.raises(ArgumentError, match="must be among the tensors"):
        repack(source / "model-00002-of-00003.safetensors", tmp_path / "out")


EXPERT = "model.layers.0.mlp.experts"


@pytest.mark.parametrize(
    ("changed", "argument"),
    (
        ({"model_type": "other"}, "model_type"),
        ({"swiglu_limit": 5.0}, "swiglu_limit"),
    ),
)
def test_other_experts_than_gpt_oss_s_are_refused(tmp_path, changed, argument):
    assert refused(tmp_path, gpt_oss(), GPT_OSS | changed).argument == argument


@pytest.mark.parametrize(
    ("name", "tensor"),
    (
        (f"{EXPERT}.down_proj_blocks", None),
        (f"{EXPERT}.down_proj_scales", None),
        (f"{EXPERT}.gate_up_proj_blocks", None),
        (f"{EXPERT}.down_proj_bias", None),
        (f"{EXPERT}.down_proj_bias", torch.zeros(EXPERTS, HIDDEN + 1)),
        (f"{EXPERT}.gate_up_proj_bias", torch.zeros(EXPERTS, INTERMEDIATE)),
        (f"{EXPERT}.gate_up_proj_bias", torch.zeros(2 * EXPERTS * INTERMEDIATE)),
        (f"{EXPERT}.down_proj_blocks", torch.zeros(EXPERTS, HIDDEN, 3, 16, dtype=torch.uint8)),
        (f"{EXPERT}.gate_up_proj_blocks", torch.zeros(EXPERTS, 3, 2, 16, dtype=torch.uint8)),
        (f"{EXPERT}.gate_up_proj_blocks", torch.zeros(EXPERTS, 4, 16, dtype=torch.uint8)),
        ("other_blocks", torch.zeros(EXPERTS, 4, 1, 16, dtype=torch.uint8)),
    ),
)
def test_tensors_of_experts_are_named(tmp_path, name, tensor):
    tensors = gpt_oss()
    tensors[name] = tensor
    if tensor is None:
        del tensors[name]
    e = refused(tmp_path, tensors, GPT_OSS)
    assert name in (e.argument, e.argument.removesuffix(" shape"), e.value)
