"""`gemmgen show` and `gemmgen diff`: each level is what the compiler makes of the kernel; colours change no text."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from ticking import ticking

from gemmgen.cli import levels, main
from gemmgen.errors import CompileError, RuntimeUnavailable
from gemmgen.gallery import artifact, exhibit
from gemmgen.ir.text import dump
from gemmgen.pipeline import compile_to_source
from gemmgen.runtime import disassemble
from gemmgen.see.ansi import CODES, WORDS, paint, paint_diff

ROOT = Path(__file__).parents[2]
ESCAPE = re.compile(r"\x1b\[[\d;]*m")
BASE = artifact(exhibit("fp8_block/base"))


@pytest.fixture
def nvrtc():
    pytest.importorskip("cuda.bindings.nvrtc", exc_type=ImportError)


@pytest.fixture
def nvdisasm(nvrtc):
    try:
        return disassemble.find()
    except RuntimeUnavailable as missing:
        pytest.skip(str(missing))


def run(capsys, *argv):
    code = main(list(argv))
    return code, *capsys.readouterr()


# ---- show ---------------------------------------------------------------------------------


def test_show_ir_and_cuda(capsys):
    assert run(capsys, "show", "fp8_block/base") == (0, dump(BASE.kernel), "")
    assert run(capsys, "show", "fp8_block/base", "--level", "cu") == (0, BASE.source, "")
    _, out, _ = run(capsys, "show", "fp8_block/base", "--level", "cu", "--json")
    assert json.loads(out) == {"name": BASE.name, "level": "cu", "text": BASE.source}


@pytest.mark.nvrtc
def test_show_ptx(capsys, nvrtc):
    code, out, _ = run(capsys, "show", "fp8_block/base", "--level", "ptx")
    assert code == 0 and f".entry {BASE.name}(" in out and "wgmma.mma_async" in out


@pytest.mark.nvrtc
def test_show_sass(capsys, nvdisasm):
    code, out, _ = run(capsys, "show", "fp8_block/base", "--level", "sass")
    assert code == 0 and "QGMMA.64x128x32" in out and "UTMALDG.2D" in out


def test_colours_are_asked_for(capsys, monkeypatch):
    for argv, coloured in (
        (("--color", "always"), True),
        (("--color", "never"), False),
        ((), False),  # not a terminal
    ):
        _, out, _ = run(capsys, "show", "fp8_block/base", *argv)
        assert bool(ESCAPE.search(out)) == coloured
        assert ESCAPE.sub("", out) == dump(BASE.kernel)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert ESCAPE.search(run(capsys, "show", "fp8_block/base")[1])
    monkeypatch.setenv("NO_COLOR", "1")
    assert not ESCAPE.search(run(capsys, "show", "fp8_block/base")[1])


@pytest.mark.parametrize(
    "path", sorted((ROOT / "generated").rglob("*.*"))[::5], ids=lambda p: p.name
)
def test_paint_changes_no_text(path):
    text = path.read_text()
    painted = paint(text, path.suffix[1:])
    assert ESCAPE.sub("", painted) == text and painted.count("\x1b[0m") * 2 == painted.count("\x1b")


@pytest.mark.parametrize(
    "language, text, kind, word",
    [
        ("ir", "  TmaLoad smem=smem_a", "name", "  TmaLoad"),
        ("ir", "  TmaLoad smem=smem_a", "kind", "smem"),
        ("ir", "role consumer: warpgroups 0..1", "title", "role consumer: warpgroups 0..1"),
        ("cu", "int x = 3;  // why 4", "comment", "// why 4"),
        ("cu", "ptx::mma(acc, 0x10);", "name", "ptx::mma"),
        ("ptx", "\tmov.b32 %r1, 7;", "name", "mov.b32"),
        ("ptx", "\tmov.b32 %r1, 7;", "kind", "%r1"),
        ("sass", "        /*0010*/   S2R R0, SR_TID.X ;", "comment", "/*0010*/"),
        ("sass", "        /*0010*/   S2R R0, SR_TID.X ;", "kind", "R0"),
        ("sass", "        FFMA R24, R3, R4, R24 ;", "name", "FFMA"),
    ],
)
def test_words_have_their_colour(language, text, kind, word):
    assert f"\x1b[{CODES[kind]}m{word}\x1b[0m" in paint(text, language)


def test_every_level_has_colours():
    assert set(WORDS) == set(levels.LEVELS)


# ---- diff ---------------------------------------------------------------------------------


def patched(old: list[str], diff: list[str]) -> list[str]:
    """`old` with a unified diff applied."""
    new, at = [], 0
    for line in diff[2:]:
        if found := re.match(r"@@ -(\d+)", line):
            start = int(found[1]) - 1
            new += old[at:start]
            at = start
        elif line[0] == "+":
            new.append(line[1:])
        else:
            assert old[at] == line[1:]
            new += [line[1:]] * (line[0] == " ")
            at += 1
    return new + old[at:]


@pytest.mark.parametrize("level", ("ir", "cu"))
def test_a_diff_leads_from_one_to_the_other(capsys, level):
    _, out, _ = run(capsys, "diff", "fp8_block/base", "stages=4", "--level", level, "--json")
    data = json.loads(out)
    other = compile_to_source(BASE.problem, replace(BASE.config, stages=4))
    assert data["names"] == [BASE.name, other.name]
    one, two = (levels.comparable(a, level) for a in (BASE, other))
    assert one != two and patched(one, data["diff"]) == two


def test_diff_of_two_gallery_kernels(capsys):
    code, out, _ = run(capsys, "diff", "fp8_block/base", "fp8_block/n144")
    assert code == 0 and out.startswith(f"--- {BASE.name}\n+++ ")
    assert re.search(r"^\+ +Promote .* by=split", out, re.M) and re.search(
        r"^- +Promote ", out, re.M
    )


def test_no_difference(capsys):
    assert run(capsys, "diff", "fp8_block/base", "stages=5")[1] == "no difference at level ir\n"
    _, out, _ = run(capsys, "diff", "fp8_block/base", "fp8_block/base", "--json")
    assert json.loads(out)["diff"] == []


def test_family_options_describe_both(capsys):
    argv = ("diff", "dense", "raster=n", "--d", "f32", "--set", "panel=4", "--json")
    _, out, _ = run(capsys, *argv)
    assert all("_f32_" in name for name in json.loads(out)["names"])


def test_diff_in_colour():
    lines = ["--- a", "+++ b", "@@ -1 +1 @@", "-x", "+y", " z"]
    painted = paint_diff(lines)
    assert [ESCAPE.sub("", p) for p in painted] == lines
    assert painted[5] == " z" and len({p[:5] for p in painted[2:5]}) == 3


@pytest.mark.nvrtc
def test_ptx_without_line_numbers(nvrtc):
    lines = levels.comparable(BASE, "ptx")
    assert len(lines) > 1000
    assert not [x for x in lines if x.strip().startswith((".loc", ".file")) or BASE.name in x]


@pytest.mark.nvrtc
def test_sass_without_addresses(nvdisasm):
    lines = levels.comparable(BASE, "sass")
    assert sum("QGMMA" in x for x in lines) >= 4
    assert not [x for x in lines if "/*" in x or re.search(r"\.L_x_\d", x) or BASE.name in x]


@pytest.mark.nvrtc
def test_resources(capsys, nvrtc):
    argv = ("diff", "fp8_block/split_k", "fp8_block/base", "--level", "resources", "--json")
    rows = {row[0]: row[1:] for row in json.loads(run(capsys, *argv)[1])["rows"]}
    split = artifact(exhibit("fp8_block/split_k")).kernel
    change = (BASE.kernel.smem_bytes or 0) - (split.smem_bytes or 0)
    smem = [f"{k.smem_bytes:,}" for k in (split, BASE.kernel)]
    assert rows["smem bytes"] == [*smem, f"{change:+,}"]
    assert rows["spill bytes"] == ["0", "0", ""]
    assert rows["bytes per phase of partials_full"][1:] == ["", "only one"]
    assert rows["registers of consumer"][1] == "232"


@pytest.mark.nvrtc
def test_both_are_compiled_under_a_bar(capsys, nvrtc, monkeypatch):
    ticking(monkeypatch)
    _, out, err = run(capsys, "diff", "fp8_block/base", "stages=4", "--level", "resources")
    assert re.search(r"^ *stages +5 +4 +-1$", out, re.M)
    assert "compiling: 1 of 2, 10 s left" in err


# ---- what may be wrong --------------------------------------------------------------------


@pytest.mark.parametrize(
    "argv, code, words",
    [
        (["show", "fp8_block/base", "--level", "llvm"], 2, "--level='llvm'"),
        (["show", "fp8_block/base", "--level", "resources"], 2, "--level='resources'"),
        (["show", "fp8_block/base", "--color", "red"], 2, "--color='red'"),
        (["diff", "fp8_block/base", "fp9"], 2, "OTHER='fp9'"),
        (["diff", "fp8_block/base", "stages=99"], 2, "stages=99"),
        (["diff", "fp8_block/base", "block_n=152"], 2, "[scale-blocks]"),
    ],
)
def test_wrong_arguments(capsys, argv, code, words):
    found, _, err = run(capsys, *argv)
    assert found == code and words in err


def test_without_nvdisasm(capsys, monkeypatch, nvrtc):
    monkeypatch.setattr(disassemble, "PACKAGE", "no-such-package")
    monkeypatch.setenv("PATH", "")
    code, _, err = run(capsys, "show", "fp8_block/base", "--level", "sass")
    assert code == 3 and "pip install nvidia-cuda-nvdisasm" in err


def test_nvdisasm_on_path(monkeypatch, tmp_path):
    program = tmp_path / disassemble.PROGRAM
    program.write_text("#!/bin/sh\necho no such image >&2\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setattr(disassemble, "PACKAGE", "no-such-package")
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    assert disassemble.find() == program
    with pytest.raises(CompileError, match="no such image"):
        disassemble.sass(b"")
