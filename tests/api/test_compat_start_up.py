"""Programs that know nothing of gemmgen and import deep_gemm: a command, a folder of the path, plugins of engines."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gemmgen.compat import deep_gemm
from gemmgen.compat.deep_gemm import __main__ as command
from gemmgen.compat.deep_gemm.stand_in import install_if_asked
from gemmgen.errors import ArgumentError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # pytest needs it there

ROOT = Path(__file__).parents[2]
PROGRAM = """
import deep_gemm, sys
from deep_gemm.utils.layout import get_tma_aligned_size
import beside
print(__name__, deep_gemm.__name__, get_tma_aligned_size(5, 4), beside.name, *sys.argv[1:])
"""
PARENT = """
import multiprocessing, subprocess, sys
import deep_gemm

def work():
    print(deep_gemm.__name__, deep_gemm.ceil_div(5, 4), flush=True)

if __name__ == "__main__":
    process = multiprocessing.get_context("spawn").Process(target=work)
    process.start()
    process.join()
    text = "import deep_gemm.utils.math as m; print(m.__name__)"
    print(subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True).stdout.strip())
"""


def run(*arguments: object, **variables: str) -> subprocess.CompletedProcess:
    """A new interpreter that finds gemmgen."""
    held = {k: v for k, v in os.environ.items() if not k.startswith(("GEMMGEN_AS", "PYTHONPATH"))}
    paths = os.pathsep.join((*filter(None, [variables.pop("first", "")]), str(ROOT)))
    return subprocess.run(
        [sys.executable, "-W", "error", *map(str, arguments)],
        env=held | {"PYTHONPATH": paths} | variables,
        capture_output=True,
        text=True,
        timeout=300,
    )


def printed(*arguments: object, **variables: str) -> list[str]:
    done = run(*arguments, **variables)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.fixture
def program(tmp_path):
    (tmp_path / "beside.py").write_text("name = 'beside'\n")
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    return path


WANTED = "__main__ gemmgen.compat.deep_gemm 8 beside one -m two"


def test_a_program_is_run(program):
    """With its arguments, and with what lies beside it."""
    module = ("-m", "gemmgen.compat.deep_gemm")
    assert printed(*module, program, "one", "-m", "two") == [WANTED]


def test_a_module_is_run(program):
    module = ("-m", "gemmgen.compat.deep_gemm", "-m", "program")
    assert printed(*module, "one", "-m", "two", first=str(program.parent)) == [WANTED]


def test_processes_that_a_program_starts_find_it_too(tmp_path):
    path = tmp_path / "parent.py"
    path.write_text(PARENT)
    assert printed("-m", "gemmgen.compat.deep_gemm", path) == [
        "gemmgen.compat.deep_gemm 2",
        "gemmgen.compat.deep_gemm.utils.math",
    ]


def test_a_folder_of_the_path_is_enough(program):
    (folder,) = printed("-m", "gemmgen.compat.deep_gemm", "--path")
    assert [x.name for x in Path(folder).iterdir() if x.name != "__pycache__"] == ["deep_gemm"]
    assert printed(program, "one", "-m", "two", first=folder) == [WANTED]


def test_without_it_nothing_is_served(program):
    done = run(program)
    assert done.returncode == 1 and "No module named 'deep_gemm'" in done.stderr
    done = run("-c", "import gemmgen.compat.deep_gemm, deep_gemm")
    assert done.returncode == 1 and "No module named 'deep_gemm'" in done.stderr


def test_how_a_program_ends_is_how_the_command_ends(tmp_path):
    path = tmp_path / "ends.py"
    path.write_text("raise SystemExit(3)")
    assert run("-m", "gemmgen.compat.deep_gemm", path).returncode == 3


@pytest.mark.parametrize("arguments", ([], ["-m"], ["--replace", "x.py"], ["--path", "x.py"]))
def test_what_says_nothing_to_run(arguments, capsys):
    assert command.main(arguments) == 2
    assert capsys.readouterr().err.startswith("usage: python -m gemmgen.compat.deep_gemm")
    assert not deep_gemm.is_installed()


# ---- plugins ------------------------------------------------------------------------------


@pytest.fixture
def removed():
    yield
    deep_gemm.uninstall()


@pytest.mark.parametrize("value", (None, "", "0", "1"))
def test_plugins_do_what_the_environment_says(value, monkeypatch, removed):
    monkeypatch.delenv("GEMMGEN_AS_DEEP_GEMM", raising=False)
    if value is not None:
        monkeypatch.setenv("GEMMGEN_AS_DEEP_GEMM", value)
    install_if_asked()
    assert deep_gemm.is_installed() == (value == "1")


@pytest.mark.parametrize("value", ("yes", "true", "2"))
def test_a_value_that_says_neither_is_refused(value, monkeypatch, removed):
    monkeypatch.setenv("GEMMGEN_AS_DEEP_GEMM", value)
    with pytest.raises(ArgumentError, match=f"GEMMGEN_AS_DEEP_GEMM='{value}': must be 0 or 1"):
        install_if_asked()
    assert not deep_gemm.is_installed()


@pytest.mark.parametrize("group", ("vllm.general_plugins", "sglang.srt.plugins"))
def test_engines_find_the_plugin(group):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    ((name, value),) = project["entry-points"][group].items()
    module, _, function = value.partition(":")
    assert name == "gemmgen" and getattr(sys.modules[module], function) is install_if_asked
