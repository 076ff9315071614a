"""Completion in a shell, by its own protocol: a line and where the cursor is, to the words that may stand there."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gemmgen.bench.shapes import SETS
from gemmgen.cli import COMMANDS, _parser, completion, given, subcommands
from gemmgen.cli.options import KERNELS, OPERANDS
from gemmgen.epilogues import EPILOGUES
from gemmgen.families import FAMILIES
from gemmgen.ir.groupings import GROUPINGS
from gemmgen.levers import FIELDS
from gemmgen.problem import LAYOUTS
from gemmgen.target import BY_DEVICE

ROOT = Path(__file__).parents[2]
HEAVY = {"torch", "cuda", "rich"}


def asked(line: str, folder: Path, *options: str, program: tuple[str, ...] = ("gemmgen",)):
    """The process that a shell starts where the cursor is at the end of `line`, and what it answers."""
    answer = folder / "answer"
    env = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "_ARGCOMPLETE": str(len(program)),
        "_ARGCOMPLETE_IFS": "\n",
        "_ARGCOMPLETE_STDOUT_FILENAME": str(answer),
        "COMP_TYPE": "9",
        "COMP_LINE": " ".join((*program, line)),
        "COMP_POINT": str(len(" ".join((*program, line)))),
    }
    run = [sys.executable, *options, "-m", "gemmgen"]
    done = subprocess.run(run, cwd=folder, env=env, capture_output=True, text=True, timeout=120)
    return done, answer.read_text().split("\n") if answer.exists() else []


def answers(line: str, folder: Path, **more) -> set[str]:
    pytest.importorskip("argcomplete")
    done, words = asked(line, folder, **more)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    return {word.rstrip() for word in words}


def test_commands(tmp_path):
    assert answers("", tmp_path) == {*COMMANDS, "-h", "--help", "--version"}
    assert answers("re", tmp_path) == {"repack", "report"}
    module = ("python", "-m", "gemmgen")
    assert answers("e", tmp_path, program=module) == {"emit", "emulate", "explain", "errors"}


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("emit ", KERNELS),
        ("emit fp8_", [x for x in KERNELS if x.startswith("fp8_")]),
        ("emit dense --grouping ", GROUPINGS),
        ("emit dense --grouping=m", ["--grouping=masked"]),
        ("emit dense --layout ", LAYOUTS),
        ("emit dense --ab ", OPERANDS),
        ("emit dense --epilogue scaled", [x for x in EPILOGUES if x.startswith("scaled")]),
        ("emit dense --set ", [f"{x}=" for x in FIELDS]),
        ("emit dense --dump after:plan-m", ["after:plan-multicast"]),
        ("explain dense --why-not stages=3,multicast", ["stages=3,multicast="]),
        ("explain dense --device ", [x.replace(" ", "\\ ") for x in BY_DEVICE]),
        ("bench dense --shapes large,dec", ["large,decode"]),
        ("bench dense --shapes lar", [x for x in SETS if x.startswith("lar")]),
        ("diff dense dense/t", [x for x in KERNELS if x.startswith("dense/t")]),
        ("diff dense swap", ["swap_ab="]),
        ("show dense --level t", ["trace"]),
        ("diff dense dense/tn --level r", ["resources"]),
        ("casts --x f", ["f16", "f32"]),
        ("moe --model v", ["v3", "v3-local"]),
        ("moe --providers gemmgen,r", ["gemmgen,read"]),
        ("moe --router ", ["even", "zipf"]),
        ("cache v", ["verify"]),
        ("emit dense -m ", []),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_words(tmp_path, line, words):
    found = {x for x in answers(line, tmp_path) if not x.startswith("-") or line.endswith("=m")}
    assert found == ({*words} or {""} & found)


def test_values_of_levers(tmp_path):
    """Those that are listed, and those of a span; none of a field that there is not."""
    assert {"multicast=none", "multicast=a", "multicast=b"} == answers(
        "emit dense --set multicast=", tmp_path
    )
    stages = answers("emit dense --set stages=1", tmp_path)
    assert stages == {f"stages={n}" for n in (1, *range(10, 17))}
    assert answers("emit dense --set no_such=", tmp_path) == {""}


def test_files(tmp_path):
    """Of paths alone, also where only one of several can be given."""
    (tmp_path / "measured.json").touch()
    for line in (
        "chart mea",
        "report --bench mea",
        "layout dense A --svg mea",
        "emit --config mea",
    ):
        assert answers(line, tmp_path) == {"measured.json"}
    assert answers("emit dense -m mea", tmp_path) == {""}


def test_every_closed_set_is_offered():
    """What help says is one of some words, and what is a path."""
    missing = []
    for name in COMMANDS:
        for action in subcommands(_parser([name]))[name]._actions:
            closed = "one of " in (action.help or "") or action.dest in ("kernel", "grouping")
            if (closed or action.type is given.path) and not (
                action.choices or hasattr(action, "completer")
            ):
                missing.append((name, action.dest))
    assert not missing


def test_nothing_heavy_is_loaded(tmp_path):
    """What a reader waits for between a key and the words: no command's arguments need it, nor does what answers."""
    code = (
        "import sys; from gemmgen.cli import COMMANDS, _parser; [_parser([x]) for x in COMMANDS]; "
        f"print(*{HEAVY} & {{*sys.modules}})"
    )
    run = [sys.executable, "-c", code]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    ran = subprocess.run(run, env=env, capture_output=True, text=True, check=True)
    assert not ran.stdout.split()
    pytest.importorskip("argcomplete")
    done, _ = asked("emit dense --set ", tmp_path, "-X", "importtime")
    loaded = {line.rpartition("|")[2].strip().split(".")[0] for line in done.stderr.splitlines()}
    assert "argcomplete" in loaded and not loaded & HEAVY


def test_a_shell_completes(tmp_path):
    """bash, with the function that argcomplete registers."""
    register, bash = shutil.which("register-python-argcomplete", path=BIN), shutil.which("bash")
    if not (register and bash):
        pytest.skip("needs bash and argcomplete")
    program = tmp_path / "gemmgen"
    program.write_text(f'#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable} -m gemmgen "$@"\n')
    program.chmod(0o755)
    script = f"""
        eval "$({register} gemmgen)"
        COMP_LINE="gemmgen emit dense --grouping ma" COMP_POINT=32 COMP_TYPE=9 COMP_CWORD=4
        COMP_WORDS=(gemmgen emit dense --grouping ma)
        _python_argcomplete gemmgen ma --grouping
        echo "${{COMPREPLY[@]}}"
    """
    env = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run([bash, "-c", script], env=env, capture_output=True, text=True)
    assert done.stdout.split() == [x for x in GROUPINGS if x.startswith("ma")], done.stderr


BIN = str(Path(sys.executable).parent)


@pytest.mark.parametrize("file", ("gemmgen/cli/__init__.py", "gemmgen/__main__.py"))
def test_scripts_are_marked(file):
    """Where a shell completes every marked script: in the first 1024 characters."""
    assert "PYTHON_ARGCOMPLETE_OK" in (ROOT / file).read_text()[:1024]


def test_without_argcomplete_nothing_happens(monkeypatch):
    monkeypatch.setenv(completion.ASKED, "1")
    monkeypatch.setitem(sys.modules, "argcomplete", None)

    def never(words):
        raise AssertionError(words)

    assert completion.complete(never) is None


def test_nobody_asks():
    assert completion.ASKED not in os.environ
    assert completion.complete(lambda words: argparse.ArgumentParser()) is None


def test_every_family_is_a_kernel():
    assert {*FAMILIES} < {*KERNELS}
