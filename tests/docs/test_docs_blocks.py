"""Blocks of the docs that are neither gemmgen's commands nor Python: each kind has what holds it to the code."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from check_museum import MUSEUM
from test_docs import ROOT, need_nvrtc, of
from test_project import PROJECT

from gemmgen.check import ProtocolViolation, check
from gemmgen.cli import _parser, main

CHECKED_BY = {  # languages of blocks, and what holds them
    "sh": "test_docs.test_commands_run and the tests below",
    "python": "test_docs.test_python_runs; those that need a GPU: test_python_compiles",
    "cuda": "test_docs.test_excerpts_are_from_generated",
    "c": "test_c_compiles",
    "diff": "tests/docs/test_extending.py; of the ten steps, tests/docs/test_ten_steps.py",
    "text": "test_trace_is_current, tests/docs/test_extending.py; of the ten steps, tests/docs/test_ten_steps.py",
    "": "drawings",
}
TORCHRUN = "torchrun"
READERS_OWN = ("python my_program.py",)  # no program of ours
SHELL = [
    words for f in of("sh") for line in f.text.splitlines() if (words := shlex.split(line, True))
]
MODULES = sorted({w[2] for w in SHELL if w[:2] == ["python", "-m"] and w[2] != "gemmgen"})
CC = shutil.which("cc") or shutil.which("gcc")


def test_every_language_is_checked():
    from test_docs import FENCES

    assert {f.language for f in FENCES} == set(CHECKED_BY)


def without_variables(words: list[str]) -> list[str]:
    """A command without the variables that are set before it."""
    return words[1:] if re.match(r"[A-Z_]+=", words[0]) else words


def test_every_command_is_known():
    """gemmgen, also under torchrun, make, pip, a module of this repository, or the reader's own program."""
    for words in map(without_variables, SHELL):
        known = words[0] in ("gemmgen", "make", "pip", TORCHRUN) or words[:2] == ["python", "-m"]
        assert known or " ".join(words) in READERS_OWN, words


def test_pip_installs_what_there_is():
    """Extras, the wheel of this version, lock files; nothing is on an index."""
    wheel = f"dist/{PROJECT['name']}-{PROJECT['version']}-py3-none-any.whl"
    lines = [" ".join(words) for words in SHELL if words[0] == "pip"]
    runs = [shlex.split(run) for line in lines for run in line.split(" && ")]
    assert runs
    for words in runs:
        *options, what = words[2:]
        assert words[:2] == ["pip", "install"], words
        if options[-1:] == ["-r"]:
            assert (ROOT / what).is_file(), words
            continue
        name, _, extras = what.removesuffix("]").partition("[")
        assert name == ("." if "-e" in options else wheel), words
        assert {*filter(None, extras.split(","))} <= {*PROJECT["optional-dependencies"]}, words
        assert {*options} <= {"-e", "--no-deps"}, words


def test_commands_of_torchrun_parse():
    """One of `python -m gemmgen` for each of some processes."""
    found = [words for words in SHELL if words[0] == TORCHRUN]
    assert found
    for _, option, processes, m, module, *argv in found:
        assert (option, m, module) == ("--nproc-per-node", "-m", "gemmgen") and int(processes) > 1
        _parser(argv).parse_args(argv)


def test_commands_with_variables_parse():
    found = [w[1:] for w in SHELL if w[0] != without_variables(w)[0]]
    argvs = [words[1:] for words in found if words[0] == "gemmgen"]
    assert argvs
    for argv in argvs:
        _parser(argv).parse_args(argv)


@pytest.mark.parametrize("module", MODULES)
def test_modules_have_the_options(module):
    if module == "tests.gpu_fuzz":
        pytest.importorskip("torch")
    run = [sys.executable, "-m", module, "--help"]
    text = subprocess.run(run, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    known = set(re.findall(r"(?<!\w)--?[\w-]+", text))
    used = [w for words in SHELL if words[:3] == ["python", "-m", module] for w in words[3:]]
    assert {w for w in used if w.startswith("-")} <= known


@pytest.mark.skipif(CC is None, reason="no C compiler")
def test_c_compiles(tmp_path):
    """Against the header of such a pack; what the page leaves to the reader are parameters here."""
    need_nvrtc()
    assert main(["pack", "dense", "--shapes", "16x512x1024", "-o", str(tmp_path)]) == 0
    alone, _ = of("c")
    include, _, body = alone.text.partition("\n")
    compiles(tmp_path, include, "a b d", body)


@pytest.mark.skipif(CC is None, reason="no C compiler")
def test_c_of_groups_compiles(tmp_path):
    need_nvrtc()
    argv = ["pack", "fp8_block", "--grouping", "masked", "--shapes", "4x64x512x1024"]
    assert main([*argv, "--prefix", "experts", "-o", str(tmp_path)]) == 0
    _, grouped = of("c")
    body = grouped.text + "\n(void)args;"
    compiles(tmp_path, '#include "experts.h"', "a b d scale_a scale_b group_rows", body)


def compiles(folder: Path, include: str, given: str, body: str) -> None:
    """As a function that is given device addresses and a stream."""
    arguments = ", ".join(f"CUdeviceptr {x}" for x in given.split())
    head = f"{include}\n#include <stdio.h>\nvoid page({arguments}, CUstream stream) {{"
    (folder / "page.c").write_text(f"{head}\n(void)stream;\n{body}\n}}\n")
    run = [CC, "-std=c11", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", "page.c"]
    ended = subprocess.run(run, cwd=folder, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr


def test_trace_is_current():
    """verification.md shows how the museum's kernel is refused today."""
    exhibit = next(e for e in MUSEUM if e.name == "release-before-wgmma-is-done")
    with pytest.raises(ProtocolViolation) as caught:
        check(exhibit.broken(exhibit.kernel))
    shown = [f.text for f in of("text") if f.path.name == "verification.md"]
    assert str(caught.value) in shown
