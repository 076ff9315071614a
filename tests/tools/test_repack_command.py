"""`gemmgen repack`: what it prints, what it refuses and with which exit code; tests/api/test_repacking.py has what it writes."""

from __future__ import annotations

import json

import pytest

torch = pytest.importorskip("torch")

from saved import GPT_OSS, LAYERS, GptOss, Llama, config, gpt_oss, llama, save  # noqa: E402

from gemmgen import nn, repacking  # noqa: E402
from gemmgen.cli import main, progress  # noqa: E402
from gemmgen.environment import PROGRESS  # noqa: E402
from gemmgen.quant import Checkpoint  # noqa: E402
from gemmgen.repacking import load  # noqa: E402


@pytest.fixture
def model(tmp_path):
    return save(tmp_path / "model", llama(), config())


def ran(capsys, *argv):
    code = main(["repack", *map(str, argv)])
    return (code, *capsys.readouterr())


def test_a_checkpoint_is_packed_and_loaded(tmp_path, capsys, model):
    out = tmp_path / "out"
    code, printed, err = ran(capsys, model, "-o", out, "--shard-size", "20000")
    assert (code, err) == (0, "")
    assert printed.startswith(
        f"{out}: awq is packed as int4_32_bf16_zeros for bf16; layers: 6, other tensors: 11, files: "
    )
    found = Llama()
    load(found, out)
    assert sum(type(x) is nn.Linear4bit for x in found.modules()) == 2 * LAYERS
    assert len([*out.glob("*.safetensors")]) > 2


def test_json(tmp_path, capsys, model):
    out = tmp_path / "out"
    code, printed, err = ran(capsys, model, "-o", out, "--activations", "f16", "--json")
    assert (code, err) == (0, "")
    said = json.loads(printed)
    files = sorted(x.name for x in out.iterdir())
    assert said == {
        "out": str(out),
        "method": "awq",
        "weights": "int4_32_f16_zeros",
        "activations": "f16",
        "layers": 2 * LAYERS,
        "copied": 11,
        "files": files,
        "size": sum(x.size for x in Checkpoint(out).places.values()),
    }


def test_experts_for_fp8(tmp_path, capsys):
    source, out = save(tmp_path / "model", gpt_oss(), GPT_OSS), tmp_path / "out"
    assert ran(capsys, source, "-o", out, "--activations", "e4m3")[0] == 0
    found = GptOss()
    load(found, out)
    experts = found.get_submodule("model.layers.1.mlp.experts")
    assert experts.activations == "e4m3" and experts.gate_up_factors is not None


@pytest.mark.parametrize(
    ("given", "says"),
    (
        (("--activations", "e4m3"), "--activations='e4m3': must be bf16 or f16 for awq"),
        (("--method", "gptq"), "--method='gptq': must not be given: config.json says awq"),
        (("--shard-size", "5 GB"), "--shard-size='5 GB': must be a positive number of bytes"),
    ),
)
def test_options_are_refused_by_their_names(tmp_path, capsys, model, given, says):
    code, printed, err = ran(capsys, model, "-o", tmp_path / "out", *given)
    assert (code, printed) == (2, "") and says in err
    assert [x.name for x in tmp_path.iterdir()] == ["model"]


def test_what_is_refused_is_json_too(tmp_path, capsys):
    tensors = llama("gptq")
    name = "model.layers.1.mlp.down_proj.g_idx"
    tensors[name] = tensors[name].flip(0)
    source = save(tmp_path / "model", tensors, config("gptq", desc_act=True))
    code, printed, _ = ran(capsys, source, "-o", tmp_path / "out", "--json")
    error = json.loads(printed)["error"]
    assert code == 2 and (error["id"], error["argument"]) == ("GG-A001", name)
    assert "act-order (desc_act) is not taken" in error["allowed"]
    assert [x.name for x in tmp_path.iterdir()] == ["model"]


def test_places_are_called_as_on_the_command_line(tmp_path, capsys, model):
    for argv, says in (
        ((tmp_path / "none", "-o", tmp_path / "out"), "CHECKPOINT="),
        ((model, "-o", model), "-o="),
    ):
        code, _, err = ran(capsys, *argv)
        assert code == 2 and says in err


@pytest.mark.parametrize("size", ("1000", "1MB", "2GB", "3MiB", "1GiB"))
def test_sizes(tmp_path, monkeypatch, capsys, size):
    asked = []

    def repack(*given, shard_bytes, **more):
        asked.append(shard_bytes)
        raise KeyboardInterrupt

    monkeypatch.setattr(repacking, "repack", repack)
    assert ran(capsys, "x", "-o", tmp_path / "out", "--shard-size", size)[0] == 130
    units = {"MB": 10**6, "GB": 10**9, "MiB": 2**20, "GiB": 2**30}
    assert asked == [int(size.rstrip("MGiB")) * units.get(size.lstrip("0123"), 1)]


def test_an_interruption_leaves_nothing(tmp_path, capsys, model, monkeypatch):
    def update(self, title, done, total):
        if done == total:
            raise KeyboardInterrupt

    monkeypatch.setattr(progress.Bar, "update", update)
    code, printed, err = ran(capsys, model, "-o", tmp_path / "out")
    assert (code, printed, err) == (130, "", "gemmgen: interrupted\n")
    assert [x.name for x in tmp_path.iterdir()] == ["model"]


def test_progress(tmp_path, capsys, model, monkeypatch):
    monkeypatch.setenv(PROGRESS, "always")
    monkeypatch.setattr(progress, "FIRST", 0.0)
    _, _, err = ran(capsys, model, "-o", tmp_path / "out")
    assert "repacking, MB: " in err
    monkeypatch.setenv(PROGRESS, "never")
    assert ran(capsys, model, "-o", tmp_path / "again")[2] == ""
