"""The command line: exit codes, JSON, files that never land elsewhere. No GPU is needed here."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gemmgen.cli import COMMANDS, main
from gemmgen.errors import RuntimeUnavailable
from gemmgen.gallery import GALLERY, path_of
from gemmgen.passes import PIPELINE, RULES

GENERATED = Path(__file__).parents[2] / "generated"


def run(capsys, *argv):
    code = main(list(argv))
    return code, *capsys.readouterr()


def test_emit_prints_the_source(capsys):
    code, out, _ = run(capsys, "emit", "fp8_block", "-m", "4096", "-n", "512", "-k", "512")
    assert code == 0 and "__global__" in out


def test_emit_uses_the_config_given(capsys):
    _, out, _ = run(capsys, "emit", "dense", "--set", "block_n=80", "--set", "swizzle_d=0")
    assert "BLOCK_N = 80" in out
    _, out, _ = run(capsys, "emit", "dense", "--config", '{"block_n": 40}', "--d", "f32")
    assert "BLOCK_N = 40" in out and "_f32_" in out


def test_emit_reads_a_config_file(capsys, tmp_path):
    file = tmp_path / "config.json"
    file.write_text('{"block_n": 48, "stages": 3}')
    _, out, _ = run(capsys, "emit", "dense", "--config", str(file))
    assert "BLOCK_N = 48" in out and "STAGES = 3" in out


def test_emit_json_holds_what_was_asked(capsys):
    _, out, _ = run(capsys, "emit", "fp8_block/n144", "--json")
    data = json.loads(out)
    assert data["config"]["block_n"] == 144 and data["name"] in data["source"]


def test_emit_writes_into_the_folder(capsys, tmp_path):
    code, out, _ = run(capsys, "emit", "fp8_block/base", "-o", str(tmp_path / "new"))
    files = sorted(p.name for p in (tmp_path / "new").iterdir())
    assert code == 0 and len(files) == 2 and all(name in out for name in files)


@pytest.mark.parametrize("stage", ["build", *(p.name for p in PIPELINE)])
def test_dump_after_every_pass(capsys, stage):
    code, out, _ = run(capsys, "emit", "dense", "--dump", "after:" + stage.replace("_", "-"))
    assert code == 0 and out.startswith("kernel gemmgen_dense")


def test_all_and_check(capsys, tmp_path):
    """What is in generated/, first of all."""
    code, out, _ = run(capsys, "emit", "--all", "--check", "-o", str(GENERATED), "--json")
    assert code == 0, f"run gemmgen emit --all and read the diff: {out}"
    folder = str(tmp_path)
    assert run(capsys, "emit", "--all", "-o", folder)[0] == 0
    written = {p.relative_to(tmp_path): p.read_bytes() for p in tmp_path.rglob("*.*")}
    assert written == {p.relative_to(GENERATED): p.read_bytes() for p in GENERATED.rglob("*.*")}
    stale = tmp_path / f"{path_of(GALLERY[0])}.cu"
    stale.write_text(stale.read_text() + "// changed\n")
    (tmp_path / "extra.cu").write_text("")
    before = {p: p.read_bytes() for p in tmp_path.rglob("*.*")}
    code, out, _ = run(capsys, "emit", "--all", "--check", "-o", folder, "--json")
    assert code == 1
    assert json.loads(out)["stale"] == [f"{path_of(GALLERY[0])}.cu"]
    assert json.loads(out)["extra"] == ["extra.cu"]
    assert before == {p: p.read_bytes() for p in tmp_path.rglob("*.*")}  # no write path


def test_check_of_a_missing_folder_writes_nothing(capsys, tmp_path):
    assert run(capsys, "emit", "--all", "--check", "-o", str(tmp_path / "none"))[0] == 1
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    ("argv", "argument"),
    [
        (["emit", "fp4_block"], "KERNEL"),
        (["emit"], "KERNEL"),
        (["emit", "dense", "-m", "0"], "m="),
        (["emit", "dense", "--set", "block_n=17"], "block_n"),
        (["emit", "dense", "--set", "tile=17"], "tile"),
        (["emit", "dense", "--set", "block_n"], "--set"),
        (["emit", "dense", "--config", "{"], "--config"),
        (["emit", "dense", "--config", "no_such_file.json"], "--config"),
        (["emit", "dense", "--d", "e5m2"], "d="),
        (["emit", "dense", "--ab", "f64"], "a="),
        (["emit", "dense", "--grouping", "every"], "grouping="),
        (["emit", "dense", "--alignment", "96"], "alignment="),
        (["emit", "dense", "--accumulate"], "accumulate="),
        (["emulate", "dense", "--rows", "3,4"], "--rows"),
        (["emulate", "fp8_block/masked", "--rows", "3,x"], "--rows"),
        (["emit", "dense", "--layout", "nnt"], "layout="),
        (["emit", "fp8_block", "--layout", "nn"], "layout="),
        (["emit", "dense", "--epilogue", "celu"], "epilogue"),
        (["emit", "dense", "--dump", "after:none"], "--dump"),
        (["emit", "dense", "--check"], "--check"),
        (["compile"], "KERNEL"),
    ],
)
def test_bad_arguments(capsys, argv, argument):
    code, _, err = run(capsys, *argv)
    assert code == 2 and argument in err


def test_a_layout(capsys):
    code, out, _ = run(capsys, "emit", "dense", "--layout", "tn", "-m", "512", "-n", "512")
    assert code == 0 and '"layout": "tn"' in out and "p, 1, 1, 1, 1;" in out


def test_illegal_config_as_json(capsys):
    code, out, _ = run(capsys, "emit", "fp8_block", "--set", "stages=16", "--json")
    error = json.loads(out)["error"]
    assert code == 2 and error["rule"] == "smem-capacity" and error["values"] and error["fix"]


class TestFiles:
    """-o writes inside the folder it names, or not at all."""

    def test_a_link_is_refused(self, capsys, tmp_path):
        elsewhere = tmp_path / "elsewhere"
        elsewhere.write_text("# Generated by gemmgen: ours.")
        folder = tmp_path / "out"
        run(capsys, "emit", "dense/f16_f32", "-o", str(folder))
        file = next(folder.glob("*.cu"))
        file.unlink()
        file.symlink_to(elsewhere)
        assert run(capsys, "emit", "dense/f16_f32", "-o", str(folder))[0] == 2
        assert elsewhere.read_text() == "# Generated by gemmgen: ours."

    def test_a_strangers_file_is_refused(self, capsys, tmp_path):
        run(capsys, "emit", "dense/f16_f32", "-o", str(tmp_path))
        file = next(tmp_path.glob("*.cu"))
        file.write_text("mine")
        assert run(capsys, "emit", "dense/f16_f32", "-o", str(tmp_path))[0] == 2
        assert file.read_text() == "mine"

    @pytest.mark.parametrize("name", ["../x.cu", "/etc/x.cu", "a/../../x.cu", "..", "."])
    def test_names_cannot_lead_out(self, tmp_path, name):
        from gemmgen.cli.files import write
        from gemmgen.errors import ArgumentError

        with pytest.raises(ArgumentError):
            write(tmp_path / "out", name, b"gemmgen")
        assert not (tmp_path / "x.cu").exists()

    def test_a_linked_folder_cannot_lead_out(self, tmp_path):
        from gemmgen.cli.files import write
        from gemmgen.errors import ArgumentError

        (tmp_path / "out").mkdir()
        (tmp_path / "other").mkdir()
        (tmp_path / "out" / "family").symlink_to(tmp_path / "other")
        with pytest.raises(ArgumentError):
            write(tmp_path / "out", "family/x.cu", b"gemmgen")
        assert not list((tmp_path / "other").iterdir())

    def test_nothing_half_written(self, tmp_path, monkeypatch):
        from gemmgen.cli import files
        from gemmgen.errors import ArgumentError

        files.write(tmp_path, "x.ir", b"# Generated by gemmgen: old")
        monkeypatch.setattr(files.os, "replace", _full_disk)
        with pytest.raises(ArgumentError):
            files.write(tmp_path, "x.ir", b"# Generated by gemmgen: new")
        assert [p.read_bytes() for p in tmp_path.iterdir()] == [b"# Generated by gemmgen: old"]


def _full_disk(*_):
    raise OSError(28, "No space left on device")


def test_list_rules_and_help(capsys):
    _, out, _ = run(capsys, "list", "--json")
    assert set(json.loads(out)["gallery"]) == {path_of(e) for e in GALLERY}
    _, out, _ = run(capsys, "rules", "--json")
    assert [r["id"] for r in json.loads(out)] == [r.id for r in RULES]
    for command in COMMANDS:
        with pytest.raises(SystemExit) as e:
            main([command, "--help"])
        assert e.value.code == 0


def no_gpu(monkeypatch):
    from gemmgen.runtime import driver

    def missing(*_):
        raise RuntimeUnavailable("no CUDA driver")

    monkeypatch.setattr(driver, "require_hopper", missing)


SMALL = ("-m", "40", "-n", "24", "-k", "96")


def test_run_without_a_gpu_emulates(capsys, monkeypatch):
    no_gpu(monkeypatch)
    code, out, _ = run(capsys, "run", "dense", *SMALL, "--json")
    said = json.loads(out)
    assert code == 0 and said["exact"] and said["launches_verified"] == 5
    assert said["power"][1] == {"fault": "missing wgmma step", "found": 48, "of": 48}
    _, out, _ = run(capsys, "run", "fp8_block", *SMALL[:4], "-k", "300")
    assert "these inputs show: lost product 64 of 64, missing wgmma step 64 of 64, " in out
    assert out.count("stale scale of") == 3


def test_run_on_a_gpu_that_is_not_there(capsys, monkeypatch):
    no_gpu(monkeypatch)
    code, _, err = run(capsys, "run", "dense", *SMALL, "--device", "0")
    assert code == 3 and "no CUDA driver" in err
    code, _, err = run(capsys, "run", "dense", *SMALL, "--device", "tpu")
    assert code == 2 and "--device" in err


@pytest.mark.parametrize("schedule", ["eager", "late", "random:7"])
def test_emulate_under_any_schedule(capsys, schedule):
    argv = ("emulate", "fp8_block", *SMALL, "--schedule", schedule, "--stats", "--json")
    code, out, _ = run(capsys, *argv)
    stats = json.loads(out)["stats"]
    assert code == 0 and stats["bytes_loaded_by_tma"] > 0 and stats["warp_instructions"]
    assert run(capsys, "emulate", "dense", *SMALL, "--schedule", "unfair")[0] == 2


def test_watchdog_builds_emulate(capsys):
    code, out, _ = run(capsys, "emulate", "dense", *SMALL, "--watchdog", "--json")
    assert code == 0 and json.loads(out)["kernel"].endswith("_watched")


def test_swap_ab_is_a_flag(capsys):
    argv = ("dense", "--swap-ab", "--config", '{"block_m": 16}', "--json")
    for command in ("emulate", "compile", "emit"):
        code, out, _ = run(capsys, command, *argv, *SMALL * (command == "emulate"))
        assert code == 0 and "16x128x64_s4c2_swap" in out
    assert run(capsys, "check", *argv)[0] == 0
    code, _, err = run(capsys, "emit", "dense", "--swap-ab", "--config", '{"block_m": 72}')
    assert code == 2 and "swapped-rows" in err


def test_check(capsys):
    code, out, _ = run(capsys, "check", "fp8_block/base", "--json")
    (row,) = json.loads(out)
    assert code == 0 and row["proved"] and row["events"] > 100
    assert row["text"].endswith(f"text = IR: {row['events']} events")
    _, out, _ = run(capsys, "check", "--properties", "--json")
    assert [p["id"] for p in json.loads(out)] == [f"P{i}" for i in range(1, 16)]


def test_check_of_a_broken_kernel(capsys, monkeypatch):
    from dataclasses import replace

    from gemmgen.cli import check_command
    from gemmgen.ir.nodes import Wait
    from gemmgen.ir.rewrite import map_stmts

    def broken(*argv):
        flip = lambda s: replace(s, flip=1 - s.flip) if isinstance(s, Wait) else s  # noqa: E731
        return map_stmts(lower(*argv), flip)

    lower = check_command.lower
    monkeypatch.setattr(check_command, "lower", broken)
    code, out, _ = run(capsys, "check", "dense/f16_f32")
    assert code == 1 and "BROKEN" in out and "producer" in out


def test_check_of_a_text_that_differs(capsys, monkeypatch):
    from gemmgen.cli import check_command

    emit = check_command.emit
    monkeypatch.setattr(check_command, "emit", lambda k: emit(k).replace("wait<0>", "wait<1>"))
    code, out, _ = run(capsys, "check", "dense/f16_f32", "--json")
    (row,) = json.loads(out)
    assert code == 1 and not row["proved"] and "in consumer" in row["differs"]


def test_doctor_names_what_is_missing(capsys, monkeypatch):
    from gemmgen.cli import doctor_command

    monkeypatch.setattr(doctor_command, "version", _not_installed)
    code, out, _ = run(capsys, "doctor", "--json")
    findings = {f["what"]: f for f in json.loads(out)}
    assert code == 3 and not findings["torch"]["ok"] and "pip install" in findings["torch"]["fix"]


def _not_installed(name):
    from importlib.metadata import PackageNotFoundError

    raise PackageNotFoundError(name)
