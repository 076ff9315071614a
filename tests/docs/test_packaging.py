"""Wheel and sdist carry every module and every template; an installed wheel emits the same bytes."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def tracked(suffix, folder):
    return {p.relative_to(ROOT / folder).as_posix() for p in (ROOT / folder).rglob(f"*{suffix}")}


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    pytest.importorskip("setuptools")
    out = tmp_path_factory.mktemp("dist")
    copy = tmp_path_factory.mktemp("source")
    for name in ("gemmgen", "templates", "pyproject.toml", "README.md", "LICENSE"):
        subprocess.run(["cp", "-r", str(ROOT / name), str(copy)], check=True)
    code = (
        "import setuptools.build_meta as b, sys; "
        f"b.build_wheel({str(out)!r}); b.build_sdist({str(out)!r})"
    )
    subprocess.run([sys.executable, "-c", code], cwd=copy, check=True, capture_output=True)
    return out


def test_wheel_carries_modules_and_templates(built):
    names = set(zipfile.ZipFile(next(built.glob("*.whl"))).namelist())
    assert {f"gemmgen/{n}" for n in tracked(".py", "gemmgen")} <= names
    assert {f"gemmgen/templates/{n}" for n in tracked(".j2", "templates")} <= names
    assert "gemmgen/py.typed" in names


def test_sdist_carries_modules_and_templates(built):
    with tarfile.open(next(built.glob("*.tar.gz"))) as archive:
        names = {n.partition("/")[2] for n in archive.getnames()}
    assert {f"gemmgen/{n}" for n in tracked(".py", "gemmgen")} <= names
    assert {f"templates/{n}" for n in tracked(".j2", "templates")} <= names


def test_an_unpacked_wheel_emits_the_same_source(built, tmp_path):
    zipfile.ZipFile(next(built.glob("*.whl"))).extractall(tmp_path)
    script = "from gemmgen.cli import main; main(['emit', 'fp8_block/base'])"
    texts = [
        subprocess.run(
            [sys.executable, "-c", script], cwd=where, check=True, capture_output=True
        ).stdout
        for where in (tmp_path, ROOT)
    ]
    assert texts[0] == texts[1] and b"__global__" in texts[0]


USER = """
import gemmgen
from gemmgen import Config, Problem, compile_to_source

problem = Problem(family="fp8_block", a=gemmgen.E4M3, b="e4m3", epilogue="silu")
source: str = compile_to_source(problem, Config(block_n=64)).source
{wrong}
"""


@pytest.mark.parametrize(
    ("wrong", "says"),
    [("", "Success"), ("Config(block_nn=64)", 'Unexpected keyword argument "block_nn"')],
)
def test_a_users_type_checker_reads_the_package(tmp_path, wrong, says):
    """A wheel says that it is typed (above); what it says is found out here."""
    pytest.importorskip("mypy")
    (tmp_path / "user.py").write_text(USER.format(wrong=wrong))
    run = [
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        "--ignore-missing-imports",
        "--cache-dir",
        str(tmp_path / "cache"),
        "user.py",
    ]
    environment = {**os.environ, "MYPYPATH": str(ROOT)}
    found = subprocess.run(run, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert says in found.stdout, found.stdout + found.stderr
