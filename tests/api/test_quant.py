"""`gemmgen.quant`: tensors as AWQ, GPTQ and gpt-oss store them become the numbers that their definitions say, code by code."""

from __future__ import annotations

import os

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from hostile.checkpoints import BAD, entry  # noqa: E402
from saved import write  # noqa: E402
from stored_weights import NAME, K, N, awq, drawn, exact, gptq  # noqa: E402

from gemmgen import quant  # noqa: E402
from gemmgen.errors import ArgumentError  # noqa: E402
from gemmgen.formats import E2M1_VALUES, MXFP4, NVFP4, dequantise, int4, quantise  # noqa: E402
from gemmgen.quant import Checkpoint  # noqa: E402
from gemmgen.quant.stated import Stated, stated  # noqa: E402

READERS = {
    "awq": (awq, quant.awq),
    "gptq": (gptq, quant.gptq),
    "gptq_v2": (
        lambda *x: gptq(*x, less=0),
        lambda t, n: quant.gptq(t, n, checkpoint_format="gptq_v2"),
    ),
}


@pytest.mark.parametrize("group", [32, 64, 128])
@pytest.mark.parametrize("method", READERS)
def test_integers_with_groups_and_zeros(method, group):
    stored, read = READERS[method]
    given = drawn(group)
    got = read(stored(*given), NAME)
    assert got.format == int4(group, "f16", zeros=True)
    assert got.shape == (N, K) and got.codes.is_contiguous() and got.scales.is_contiguous()
    assert np.array_equal(got.dequantise().numpy(), exact(*given))


@pytest.mark.parametrize("method", READERS)
@pytest.mark.parametrize(("k", "group"), [(32, 32), (64, 64), (128, 128), (96, 0), (256, 0)])
def test_one_group_is_a_column_where_no_format_has_its_size(method, k, group):
    stored, read = READERS[method]
    given = drawn(k, k)
    got = read(stored(*given), NAME)
    assert got.format == int4(group, "f16", zeros=True)
    assert np.array_equal(got.dequantise().numpy(), exact(*given))


def test_gptq_without_zeros_of_its_own_is_symmetric():
    codes, zeros, scales = drawn()
    got = quant.gptq(gptq(codes, np.full_like(zeros, 8), scales), NAME)
    assert got.format == int4(32, "f16") and got.zeros is None
    assert np.array_equal(got.dequantise().numpy(), exact(codes, 8 + 0 * zeros, scales))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_scales_keep_their_dtype(dtype):
    given = drawn()
    tensors = awq(*given)
    tensors[f"{NAME}.scales"] = tensors[f"{NAME}.scales"].to(dtype)
    got = quant.awq(tensors, NAME)
    scales = tensors[f"{NAME}.scales"].double().numpy()
    assert got.scales.dtype == dtype
    assert np.array_equal(got.dequantise().numpy(), exact(given[0], given[1], scales))


def experts(seed=0, rows=6, groups=3):
    rng = np.random.default_rng(seed)
    blocks = rng.integers(0, 256, (2, rows, groups, 16), np.uint8)
    scales = rng.integers(0, 255, (2, rows, groups), np.uint8)
    name = "model.layers.0.mlp.experts.gate_up_proj"
    return name, {
        f"{name}_blocks": torch.from_numpy(blocks),
        f"{name}_scales": torch.from_numpy(scales),
    }


def test_mxfp4_as_gpt_oss_has_it():
    name, tensors = experts()
    got = quant.mxfp4(tensors, name)
    blocks, scales = tensors.values()
    assert got.format == MXFP4 and got.shape == (2, 6, 96)
    assert got.codes.data_ptr() == blocks.data_ptr() and torch.equal(got.scales, scales)
    values = got.dequantise()
    for e, n, k in np.ndindex(2, 6, 96):
        byte = int(blocks[e, n, k // 32, k % 32 // 2])
        code = byte >> 4 if k % 2 else byte & 15
        size = E2M1_VALUES[code & 7] * 2.0 ** (int(scales[e, n, k // 32]) - 127)
        assert values[e, n, k] == (-size if code & 8 else size)


FORMATS = [MXFP4, NVFP4, *(int4(g, s, zeros=z) for g in (32, 0) for s in ("f16", "bf16", "f32") for z in (False, True))]  # fmt: skip


@pytest.mark.parametrize("form", FORMATS, ids=lambda f: f.name)
def test_a_weight_is_quantised(form):
    weight = torch.randn(4, 8, 64, dtype=torch.bfloat16)
    got = quant.of(weight, form)
    assert got.format == form and got.shape == (4, 8, 64)
    wanted = dequantise(quantise(weight.double().numpy(), form))
    assert np.array_equal(got.dequantise().numpy(), wanted)
    assert not np.array_equal(wanted, weight.double().numpy())
    assert got.dequantise(torch.float32).dtype == torch.float32


@pytest.mark.parametrize(("dtype", "bits"), [(torch.bfloat16, 8), (torch.float16, 11)])
def test_weights_are_rounded_once(dtype, bits):
    """1 + 2^-bits + 2^-25 is above the middle of 1 and the next number, and in float32 just there, from where ties go to 1."""
    scale = ((1 << 26) + (1 << 26 - bits) + 2) // 7 * 2.0**-26  # 7 divides it
    held = quant.Quantised(
        format=int4(32, "f32"),
        codes=torch.full((1, 16), 0x1F, dtype=torch.uint8),  # 15, then 1: 7 and -7
        scales=torch.full((1, 1), scale),
    )
    exact = 1 + 2.0**-bits + 2.0**-25
    assert held.dequantise().tolist() == [[exact, -exact] * 16]
    assert held.dequantise(torch.float32).tolist() == [[1 + 2.0**-bits, -1 - 2.0**-bits] * 16]
    up = 1 + 2.0 ** (1 - bits)
    got = held.dequantise(dtype)
    assert got.dtype == dtype and got.tolist() == [[up, -up] * 16]


@pytest.mark.parametrize(
    ("dtype", "wanted"), [(torch.float8_e4m3fn, 448.0), (torch.float8_e5m2, float("inf"))]
)
def test_weights_beyond_a_dtype_become_its_extreme(dtype, wanted):
    held = quant.of(torch.full((1, 32), 1e6), MXFP4)
    got = held.dequantise(dtype)
    assert got.dtype == dtype and got.shape == (1, 32) and (got.double() == wanted).all()


# ---- what is not taken ------------------------------------------------------------------------


def changed(tensors, end, change):
    name = next(n for n in tensors if n.endswith(end))
    return {n: change(t) if n == name else t for n, t in tensors.items()}


def without(tensors, end):
    return {n: t for n, t in tensors.items() if not n.endswith(end)}


def turned(t):
    return t.t()


WRONG = {
    "no qweight": ("awq", ".qweight", lambda t: without(t, ".qweight")),
    "no scales": ("gptq", ".scales", lambda t: without(t, ".scales")),
    "no zeros": ("gptq", ".qzeros", lambda t: without(t, ".qzeros")),
    "a list": ("awq", ".qweight", lambda t: changed(t, ".qweight", lambda x: x.tolist())),
    "bytes": ("awq", ".qweight dtype", lambda t: changed(t, ".qweight", lambda x: x.to(torch.int8))),
    "three sides": ("awq", ".qweight shape", lambda t: changed(t, ".qweight", lambda x: x[None])),
    "no inputs": ("gptq", ".qweight shape", lambda t: changed(t, ".qweight", lambda x: x[:0])),
    "version gemv": ("awq", ".qweight shape", lambda t: changed(t, ".qweight", turned)),
    "8 bits": ("gptq", ".qzeros shape", lambda t: changed(t, ".qzeros", lambda x: x.repeat(1, 2))),
    "zeros of fewer groups": ("awq", ".qzeros shape", lambda t: changed(t, ".qzeros", lambda x: x[:2])),
    "scales of others": ("gptq", ".scales shape", lambda t: changed(t, ".scales", lambda x: x[:, 8:])),
    "scales of FP8": ("awq", ".scales dtype", lambda t: changed(t, ".scales", lambda x: x.to(torch.float8_e4m3fn))),
    "infinite scales": ("awq", ".scales", lambda t: changed(t, ".scales", lambda x: x * 1e6)),
    "NaN": ("gptq", ".scales", lambda t: changed(t, ".scales", lambda x: x * np.nan)),
    "act-order": ("gptq", ".g_idx", lambda t: changed(t, ".g_idx", lambda x: x.flip(0))),
    "groups of too few": ("gptq", ".g_idx shape", lambda t: changed(t, ".g_idx", lambda x: x[1:])),
    "groups of no integers": ("gptq", ".g_idx dtype", lambda t: changed(t, ".g_idx", lambda x: x.float())),
    "zeros of gptq_v2": ("gptq", ".qzeros", lambda t: changed(t, ".qzeros", lambda x: x | 15)),
}  # fmt: skip


@pytest.mark.parametrize("says", WRONG)
def test_what_is_not_taken_is_named(says):
    method, argument, change = WRONG[says]
    stored, read = READERS[method]
    tensors = stored(*drawn(zeros=15))
    read(tensors, NAME)
    with pytest.raises(ArgumentError) as e:
        read(change(tensors), NAME)
    assert e.value.argument == NAME + argument


@pytest.mark.parametrize("method", ["awq", "gptq"])
def test_groups_of_another_size_are_named(method):
    stored, read = READERS[method]
    with pytest.raises(ArgumentError, match="groups of 32, 64, 128") as e:
        read(stored(*drawn(16)), NAME)
    assert e.value.argument == f"{NAME}.scales shape"


def test_act_order_is_named():
    tensors = changed(gptq(*drawn()), ".g_idx", lambda x: x.flip(0))
    with pytest.raises(ArgumentError, match="act-order"):
        quant.gptq(tensors, NAME)


MICROSCALED = {
    "no scales": ("_scales", lambda t: without(t, "_scales")),
    "no blocks": ("_blocks", lambda t: without(t, "_blocks")),
    "blocks of one": ("_blocks shape", lambda t: changed(t, "_blocks", lambda x: x[0, 0])),
    "blocks of 16": ("_blocks shape", lambda t: changed(t, "_blocks", lambda x: x[..., :8])),
    "signed": ("_blocks dtype", lambda t: changed(t, "_blocks", lambda x: x.view(torch.int8))),
    "scales of fewer rows": ("_scales shape", lambda t: changed(t, "_scales", lambda x: x[:, 1:])),
    "scales as numbers": ("_scales dtype", lambda t: changed(t, "_scales", lambda x: x.float())),
    "NaN": ("_scales", lambda t: changed(t, "_scales", lambda x: x | 255)),
}


@pytest.mark.parametrize("says", MICROSCALED)
def test_what_is_not_taken_of_mxfp4_is_named(says):
    argument, change = MICROSCALED[says]
    name, tensors = experts()
    with pytest.raises(ArgumentError) as e:
        quant.mxfp4(change(tensors), name)
    assert e.value.argument == name + argument


@pytest.mark.parametrize(
    ("argument", "call"),
    [
        ("checkpoint_format", lambda: quant.gptq({}, "x", checkpoint_format="marlin")),
        ("method", lambda: quant.load({}, "gguf")),
        ("method", lambda: quant.load({}, ["awq"])),
        ("progress", lambda: quant.load({}, "awq", progress=1)),
        ("source", lambda: quant.load({"a.weight": 1}, "awq")),
        ("paths", lambda: quant.load(5, "awq")),
        ("paths", lambda: quant.load(["a", 5], "awq")),
        ("weight", lambda: quant.of([1.0], MXFP4)),
        ("weight dtype", lambda: quant.of(torch.ones(4, 32, dtype=torch.int8), MXFP4)),
        ("weight shape", lambda: quant.of(torch.ones(32), MXFP4)),
        ("weight shape", lambda: quant.of(torch.ones(0, 4, 32), MXFP4)),
        ("weight", lambda: quant.of(torch.full((4, 32), float("nan")), MXFP4)),
        ("K", lambda: quant.of(torch.ones(4, 33), MXFP4)),
        ("form", lambda: quant.of(torch.ones(4, 32), "mxfp4")),
        ("dtype", lambda: quant.of(torch.ones(4, 32), MXFP4).dequantise(torch.int8)),
        ("dtype", lambda: quant.of(torch.ones(4, 32), MXFP4).dequantise("float32")),
        ("dtype", lambda: quant.of(torch.ones(4, 32), MXFP4).dequantise([])),
        ("dtype", lambda: quant.of(torch.ones(4, 32), int4(32)).rescaled([])),
        ("dtype", lambda: quant.of(torch.ones(4, 32), MXFP4).dequantise(torch.float8_e5m2fnuz)),
    ],
)
def test_wrong_arguments_are_named(argument, call):
    with pytest.raises(ArgumentError) as e:
        call()
    assert e.value.argument == argument


def test_tensors_that_are_no_weights_of_the_format_are_named():
    right = quant.of(torch.ones(4, 32), MXFP4)
    wrong = quant.Quantised(format=MXFP4, codes=right.codes, scales=right.scales.to(torch.float16))
    with pytest.raises(ArgumentError, match="scales dtype"):
        wrong.dequantise()


# ---- files --------------------------------------------------------------------------------------


def test_files_hold_what_was_written(tmp_path):
    tensors = {
        "a": torch.randn(3, 4).half(),
        "b": torch.randn(2, 1, 3).bfloat16(),
        "c": torch.arange(5),
        "d": torch.randn(8).to(torch.float8_e4m3fn),
        "e": torch.tensor(True),
        "f": torch.empty(0, 4, dtype=torch.int32),
    }
    file = write(tmp_path / "x.safetensors", tensors, __metadata__={"format": "pt"})
    found = Checkpoint(file)
    assert [*found] == [*tensors] and len(found) == 6
    for name, t in tensors.items():
        assert found[name].dtype == t.dtype and found[name].shape == t.shape
        assert torch.equal(found[name].view(torch.uint8) if t.dim() else found[name], t.view(torch.uint8) if t.dim() else t)  # fmt: skip
    with pytest.raises(KeyError):
        found["g"]


def test_a_tensors_bytes_are_read_in_parts(tmp_path):
    t = torch.arange(6).view(2, 3)
    file = write(tmp_path / "x.safetensors", {"a": torch.ones(2).half(), "b": t})
    at = Checkpoint(file).places["b"]
    assert (at.path, at.dtype, at.shape, at.size) == (file, "I64", (2, 3), 48)
    assert at.octets(8, 16) == t.numpy().tobytes()[8:24]
    with pytest.raises(ArgumentError, match="it ends before"):
        at.octets(40, 16)


@pytest.mark.parametrize("method", READERS)
def test_a_folder_of_files_is_loaded_layer_by_layer(tmp_path, method):
    stored, _ = READERS[method]
    first, second = drawn(seed=1), drawn(64, seed=2)
    one = stored(*first)
    write(tmp_path / "model-1.safetensors", {**one, "model.norm.weight": torch.ones(4).half()})
    write(tmp_path / "model-2.safetensors", {n.replace("0", "1"): t for n, t in stored(*second).items()})  # fmt: skip
    (tmp_path / "config.json").write_text("{}")
    seen = []
    got = quant.load(tmp_path, method, progress=lambda *x: seen.append(x))
    names = [NAME, NAME.replace("0", "1")]
    assert [*got] == names and seen == [(0, 2, ""), (1, 2, names[0]), (2, 2, names[1])]
    for name, given in zip(names, (first, second), strict=True):
        assert np.array_equal(got[name].dequantise().numpy(), exact(*given))


def test_a_tensor_is_read_once(tmp_path, monkeypatch):
    seen = []
    real = Checkpoint.__getitem__
    monkeypatch.setattr(Checkpoint, "__getitem__", lambda self, n: seen.append(n) or real(self, n))
    name, tensors = experts()
    got = quant.load(write(tmp_path / "x.safetensors", tensors), "mxfp4")
    assert torch.equal(got[name].dequantise(), quant.mxfp4(tensors, name).dequantise())
    assert sorted(seen) == sorted(tensors)
    quant.load(write(tmp_path / "y.safetensors", gptq(*drawn())), "gptq")
    assert len(set(seen)) == len(seen) == 6


def test_a_name_is_known_without_its_tensor(tmp_path):
    file = write(tmp_path / "x.safetensors", {"a": torch.ones(2).half()})
    found = Checkpoint(file)
    file.unlink()
    assert "a" in found and "b" not in found and 1 not in found
    with pytest.raises(ArgumentError, match="cannot be read"):
        found["a"]


def test_experts_are_loaded_from_tensors():
    name, tensors = experts()
    assert [*quant.load(tensors, "mxfp4")] == [name]


@pytest.mark.parametrize("says", BAD)
def test_files_that_are_none_are_refused(tmp_path, says):
    argument, allowed, data = BAD[says]
    file = tmp_path / "x.safetensors"
    file.write_bytes(data)
    with pytest.raises(ArgumentError) as e:
        dict(Checkpoint(file))
    assert e.value.argument == argument and allowed in e.value.allowed
    assert argument != "paths" or e.value.value == str(file)


def test_what_those_files_are_made_of_is_read(tmp_path):
    (tmp_path / "x").write_bytes(entry())
    assert dict(Checkpoint(tmp_path / "x"))["a"].tolist() == [*b"ab"]


def test_places_that_are_no_files_are_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "empty").mkdir()
    for path in (tmp_path / "none", tmp_path / "pipe", tmp_path / "empty", "a\0b"):
        with pytest.raises(ArgumentError) as e:
            Checkpoint(path)
        assert e.value.argument == "paths"


def test_a_tensor_in_two_files_is_refused(tmp_path):
    files = [write(tmp_path / f"{i}.safetensors", {"a": torch.ones(2).half()}) for i in (1, 2)]
    with pytest.raises(ArgumentError, match="too") as e:
        Checkpoint(files)
    assert e.value.argument == "a"


# ---- what a config says -------------------------------------------------------------------------

OF_4 = {"bits": 4, "group_size": 128}
IN_WORDS = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 128, "actorder": None}  # fmt: skip


def words_of(*changes):
    """What compressed-tensors says of INT4, of so many groups of layers."""
    groups = {f"group_{i}": {"targets": ["Linear"], "weights": IN_WORDS | x} for i, x in enumerate(changes)}  # fmt: skip
    return {"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": groups}  # fmt: skip


def octets_of(*changes, form="float-quantized"):
    """And of 8 bits."""
    weights = {"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True}
    said = words_of()
    said["config_groups"] = {f"group_{i}": {"weights": weights | x} for i, x in enumerate(changes)}
    return said | {"format": form}


STATED = (
    (octets_of({}), Stated(method="channels")),
    (octets_of({"type": "int", "strategy": "tensor"}, form="int-quantized"), Stated(method="channels")),
    (octets_of({}, form="naive-quantized"), Stated(method="channels")),
    (words_of({"num_bits": 8, "strategy": "channel", "group_size": None}), Stated(method="channels_packed")),
    ({"quant_method": "awq", "version": "GEMM", **OF_4}, Stated(method="awq", group=128, zeros=True)),
    ({"quant_method": "gptq", **OF_4}, Stated(method="gptq", group=128)),
    ({"quant_method": "gptq", **OF_4, "group_size": -1, "sym": False}, Stated(method="gptq", group=0, zeros=True)),
    ({"quant_method": "gptq", **OF_4, "checkpoint_format": "gptq_v2"}, Stated(method="gptq_v2", group=128)),
    ({"quant_method": "gptq", **OF_4, "desc_act": True}, Stated(method="gptq", group=128, reordered=True)),
    ({"quant_method": "mxfp4"}, Stated(method="mxfp4")),
    ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, Stated(method="nvfp4")),
    ({"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized"}, Stated(method="nvfp4_packed")),
    (words_of({}), Stated(method="int4_packed", group=128)),
    (words_of({"symmetric": False, "group_size": 32}), Stated(method="int4_packed", group=32, zeros=True)),
    (words_of({"strategy": "channel", "group_size": None}, {"strategy": "channel"}), Stated(method="int4_packed", group=0)),
    (words_of({"actorder": "weight"}), Stated(method="int4_packed", group=128, reordered=True)),
)  # fmt: skip


def test_groups_that_say_different_things_are_refused():
    with pytest.raises(ArgumentError, match="must say the same of all weights") as e:
        stated(words_of({}, {"group_size": 64}))
    with pytest.raises(ArgumentError, match="must say the same"):
        stated(words_of({}, {"num_bits": 8, "strategy": "channel"}))
    assert e.value.argument == "quantization_config.config_groups"


@pytest.mark.parametrize(("said", "wanted"), STATED)
def test_what_a_config_says(said, wanted):
    assert stated(said) == wanted and wanted.method in quant.METHODS


@pytest.mark.parametrize(
    ("said", "field"),
    (
        (None, ""),
        ([], ""),
        ({}, ".quant_method"),
        ({"quant_method": ["awq"]}, ".quant_method"),
        ({"quant_method": "awq", "version": "gemv", **OF_4}, ".version"),
        ({"quant_method": "awq", "version": "gemm", "zero_point": False, **OF_4}, ".zero_point"),
        ({"quant_method": "gptq", **OF_4, "bits": 8}, ".bits"),
        ({"quant_method": "gptq", **OF_4, "group_size": 16}, ".group_size"),
        ({"quant_method": "gptq", **OF_4, "checkpoint_format": "marlin"}, ".checkpoint_format"),
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, ".quant_algo"),
        ({"quant_method": "compressed-tensors", "format": "marlin-24"}, ".format"),
        ({"quant_method": "compressed-tensors", "format": "int-quantized"}, ".config_groups"),
        (octets_of({"strategy": "block"}), ".config_groups.group_0.weights.strategy"),
        (octets_of({"num_bits": 4}), ".config_groups.group_0.weights.num_bits"),
        (octets_of({}, {"symmetric": False}), ".config_groups.group_1.weights.symmetric"),
        (octets_of({}) | {"format": "pack-quantized"}, ".config_groups.group_0.weights.type"),
        ({"quant_method": "compressed-tensors", "format": "pack-quantized"}, ".config_groups"),
        (words_of(), ".config_groups"),
        (words_of({"num_bits": 3}), ".config_groups.group_0.weights.num_bits"),
        (words_of({"num_bits": 8}), ".config_groups.group_0.weights.strategy"),
        (words_of({}, {"type": "float"}), ".config_groups.group_1.weights.type"),
        (words_of({"strategy": "tensor"}), ".config_groups.group_0.weights.strategy"),
        (words_of({"group_size": 16}), ".config_groups.group_0.weights.group_size"),
        (words_of({"symmetric": "no"}), ".config_groups.group_0.weights.symmetric"),
        (words_of({}) | {"config_groups": {"a": {"weights": None}}}, ".config_groups.a.weights"),
    ),
)
def test_configs_of_others_are_refused(said, field):
    with pytest.raises(ArgumentError) as e:
        stated(said, "here")
    assert e.value.argument == f"here{field}" and e.value.allowed.startswith("must be")
