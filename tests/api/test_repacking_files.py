"""`gemmgen.repacking`: folders, files and configs that are not as most are; tests/api/test_repacking.py has what is written."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from saved import LAYERS, config, llama, save, write  # noqa: E402

from gemmgen.errors import ArgumentError, GemmgenError  # noqa: E402
from gemmgen.quant import Checkpoint  # noqa: E402
from gemmgen.repacking import repack, shards  # noqa: E402
from gemmgen.repacking.configs import left_out  # noqa: E402
from gemmgen.repacking.pieces import of_tensor  # noqa: E402


def told(folder):
    return json.loads((folder / "config.json").read_text())


def refused(tmp_path, said, **given):
    """The error, of which nothing is left."""
    source = save(tmp_path / "model", llama(), said)
    with pytest.raises(ArgumentError) as e:
        repack(source, tmp_path / "out", **given)
    assert [x.name for x in tmp_path.iterdir()] == ["model"]
    return e.value


# ---- configs ------------------------------------------------------------------------------------


def inside(dtype="float16", **more):
    """A config of several models, as of text and pictures."""
    of = config()
    return {
        "model_type": "several",
        "text_config": {"torch_dtype": dtype, "rope_config": {"dtype": dtype}, "n": 1},
        "vision_config": {"dtype": "float32"},
        "empty_config": None,
        "quantization_config": of["quantization_config"],
        **more,
    }


def test_a_dtype_within_is_read_and_written(tmp_path):
    source = save(tmp_path / "model", llama(), inside())
    assert repack(source, tmp_path / "a").activations == "f16"
    assert repack(source, tmp_path / "b", activations="bf16").activations == "bf16"
    found = told(tmp_path / "b")
    assert found["text_config"] == {"torch_dtype": "bfloat16", "rope_config": {"dtype": "bfloat16"}, "n": 1}  # fmt: skip
    assert found["vision_config"] == {"dtype": "bfloat16"} and found["empty_config"] is None
    assert "dtype" not in found and "torch_dtype" not in found


def test_the_outer_dtype_goes_before_one_within(tmp_path):
    source = save(tmp_path / "model", llama(), inside(dtype="float16", torch_dtype="bfloat16"))
    assert repack(source, tmp_path / "out").activations == "bf16"


@pytest.mark.parametrize("outside", (True, False))
def test_a_quantization_config_within_gives_way(tmp_path, outside):
    said = inside()
    said["text_config"]["quantization_config"] = said["quantization_config"]
    if not outside:
        del said["quantization_config"]
    source = save(tmp_path / "model", llama(), said)
    assert repack(source, tmp_path / "out").method == "awq"
    found = told(tmp_path / "out")
    assert found["quantization_config"]["quant_method"] == "gemmgen"
    assert "quantization_config" not in found["text_config"]


def test_another_quantization_config_within_is_refused(tmp_path):
    said = inside()
    said["vision_config"]["quantization_config"] = {"quant_method": "fp8"}
    assert refused(tmp_path, said).argument == "vision_config.quantization_config"


def test_errors_name_the_place_within(tmp_path):
    said = inside()
    held = said.pop("quantization_config")
    said["text_config"]["quantization_config"] = {**held, "bits": 8}
    assert refused(tmp_path, said).argument == "text_config.quantization_config.bits"


def test_infinity_and_nan_stay(tmp_path):
    said = {**config(), "time_step_limit": [0.0, math.inf], "least": -math.inf, "none": math.nan}
    source = save(tmp_path / "model", llama(), said)
    repack(source, tmp_path / "out")
    found = told(tmp_path / "out")
    assert found["time_step_limit"] == [0.0, math.inf] and found["least"] == -math.inf
    assert math.isnan(found["none"])


def test_names_that_would_find_packed_layers_are_whole():
    packed = ["m.0.gate_proj", "m.0.up", "m.head"]
    assert left_out(["m.0.gate", "head", "m.1", "m.1"], packed) == [
        r"^m\.0\.gate$",
        "^head$",
        "m.1",
    ]


# ---- files --------------------------------------------------------------------------------------


def test_files_beside_the_model_s_stay_out(tmp_path):
    """Without an index, model.safetensors is the model."""
    source = save(tmp_path / "model", llama(), config(), 1)
    (source / "model.safetensors.index.json").unlink()
    (source / "model-00001-of-00001.safetensors").rename(source / "model.safetensors")
    write(source / "consolidated.safetensors", {"other": torch.ones(2)})
    assert repack(source, tmp_path / "out").layers == 2 * LAYERS
    assert "other" not in Checkpoint(tmp_path / "out")


def test_what_headers_say_stays(tmp_path):
    file = write(tmp_path / "x.safetensors", llama(), __metadata__={"by": "them", "format": "np"})
    repack(file, tmp_path / "out", method="awq")
    assert Checkpoint(tmp_path / "out").metadata == {"by": "them", "format": "pt"}


def test_several_files_need_an_index(tmp_path):
    source = save(tmp_path / "model", llama(), config())
    (source / "model.safetensors.index.json").unlink()
    with pytest.raises(ArgumentError, match=r"must have model\.safetensors\.index\.json") as e:
        repack(source, tmp_path / "out")
    assert e.value.argument == "source" and len(e.value.value) == 3


def test_a_mount_point_is_refused_at_once(tmp_path, monkeypatch):
    source = save(tmp_path / "model", llama(), config())
    (tmp_path / "out").mkdir()
    monkeypatch.setattr(Path, "is_mount", lambda self: self.name == "out")
    told = []
    with pytest.raises(ArgumentError, match="must not be a mount point") as e:
        repack(source, tmp_path / "out", progress=lambda *x: told.append(x))
    assert e.value.argument == "out" and not told
    assert repack(source, tmp_path / "out/in").layers == 2 * LAYERS


@pytest.mark.parametrize("mode", (0o700, 0o750, 0o2775))
def test_an_empty_folder_keeps_its_mode(tmp_path, mode):
    source = save(tmp_path / "model", llama(), config())
    (tmp_path / "out").mkdir()
    (tmp_path / "out").chmod(mode)
    repack(source, tmp_path / "out")
    assert (tmp_path / "out").stat().st_mode & 0o7777 == mode


def test_a_new_folder_has_the_mode_of_new_folders(tmp_path, monkeypatch):
    source = save(tmp_path / "model", llama(), config())
    (tmp_path / "other").mkdir()
    monkeypatch.setattr(os, "umask", None)  # the process's is no library's
    repack(source, tmp_path / "out")
    assert (tmp_path / "out").stat().st_mode == (tmp_path / "other").stat().st_mode


@pytest.mark.parametrize("file", ("tokenizer.json", "model-00003-of-00003.safetensors"))
def test_a_file_of_the_source_that_goes_is_named(tmp_path, file):
    source = save(tmp_path / "model", llama(), config())
    with pytest.raises(ArgumentError, match="cannot be read") as e:
        repack(
            source, tmp_path / "out", progress=lambda *x: (source / file).unlink(missing_ok=True)
        )
    assert (e.value.argument, e.value.value) == ("source", str(source / file))
    assert [x.name for x in tmp_path.iterdir()] == ["model"]


def test_what_cannot_be_written_names_out(tmp_path, monkeypatch):
    source = save(tmp_path / "model", llama(), config())

    def broken(self, *given):
        raise OSError(5, "broken")

    monkeypatch.setattr(shards.Writer, "write", broken)
    with pytest.raises(ArgumentError, match="cannot be written: broken") as e:
        repack(source, tmp_path / "out")
    assert e.value.argument == "out"


def test_a_full_disk_is_an_oserror(tmp_path, monkeypatch):
    source = save(tmp_path / "model", llama(), config())

    def full(self, *given):
        raise OSError(28, "no space")

    monkeypatch.setattr(shards.Writer, "write", full)
    with pytest.raises(OSError, match="no space"):
        repack(source, tmp_path / "out")
    assert [x.name for x in tmp_path.iterdir()] == ["model"]


def test_tensors_are_written_as_long_as_their_headers_say(tmp_path):
    of = [of_tensor("a", torch.ones(3, dtype=torch.uint8)), of_tensor("b", torch.ones(2))]
    writer = shards.Writer(tmp_path, shards.divided(of, 100))
    writer.write("b", bytes(8))
    writer.write("a", b"12")
    with pytest.raises(GemmgenError, match="a: 1 of 3 bytes were not written"):
        writer.check_whole()
    for data, first in ((b"34", 2), (b"34", 0), (b"1234", 0)):
        with pytest.raises(GemmgenError, match="header says fewer"):
            writer.write("a", data, first)
    writer.write("a", b"3", 2)
    writer.check_whole()
    found = Checkpoint(tmp_path / "model.safetensors")
    assert bytes(found["a"].tolist()) == b"123" and found["b"].tolist() == [0, 0]
