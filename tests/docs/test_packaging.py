"""Wheel and sdist carry every module and every template; an installed wheel emits the same bytes."""

from __future__ import annotations

import email
import os
import re
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import numpy
import pytest

ROOT = Path(__file__).parents[2]


def tracked(suffix, folder):
    return {p.relative_to(ROOT / folder).as_posix() for p in (ROOT / folder).rglob(f"*{suffix}")}


NOT_SOURCE = (".git", ".venv", "__pycache__", "site", "out", "build", "dist", "*.egg-info")
CACHES = (".pytest_cache", ".ruff_cache", ".mypy_cache", ".hypothesis")


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    pytest.importorskip("setuptools")
    out = tmp_path_factory.mktemp("dist")
    copy = tmp_path_factory.mktemp("source") / "gemmgen"
    shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(*NOT_SOURCE, *CACHES), symlinks=True)
    code = (
        "import setuptools.build_meta as b, sys; "
        f"b.build_wheel({str(out)!r}); b.build_sdist({str(out)!r})"
    )
    subprocess.run([sys.executable, "-c", code], cwd=copy, check=True, capture_output=True)
    return out


def contents(sdist):
    with tarfile.open(sdist) as archive:
        return {n.partition("/")[2] for n in archive.getnames()}


def test_wheel_carries_modules_and_templates(built):
    names = set(zipfile.ZipFile(next(built.glob("*.whl"))).namelist())
    assert {f"gemmgen/{n}" for n in tracked(".py", "gemmgen")} <= names
    assert {f"gemmgen/templates/{n}" for n in tracked(".j2", "templates")} <= names
    assert "gemmgen/py.typed" in names


def test_sdist_carries_modules_and_templates(built):
    names = contents(next(built.glob("*.tar.gz")))
    assert {f"gemmgen/{n}" for n in tracked(".py", "gemmgen")} <= names
    assert {f"templates/{n}" for n in tracked(".j2", "templates")} <= names


def test_sdist_is_the_repository(built):
    """Whoever packages gemmgen can run its tests and build its documentation."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("no clone: which files are the repository's is not known")
    missing = set(listed.stdout.splitlines()) - contents(next(built.glob("*.tar.gz")))
    assert {n for n in missing if (ROOT / n).exists()} <= {".gitignore"}


@pytest.fixture(scope="module")
def installed(built, tmp_path_factory):
    """The folder of the programs of an environment that has the wheel, and nothing else of gemmgen.

    What the wheel depends on is that of the tests' own environment: nothing is fetched.
    """
    pytest.importorskip("pip")
    folder = tmp_path_factory.mktemp("installed")
    venv.create(folder, with_pip=False)
    pip = [sys.executable, "-m", "pip", "--python", str(folder), "install", "-q"]
    wheel = next(built.glob("*.whl"))
    subprocess.run([*pip, "--no-index", "--no-deps", str(wheel)], check=True, capture_output=True)
    packages = next(folder.glob("lib/python*/site-packages"))
    (packages / "dependencies.pth").write_text(f"{Path(numpy.__file__).parents[1]}\n")
    return folder / "bin"


def said(program, *words, cwd):
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    run = [str(program), *words]
    return subprocess.run(run, cwd=cwd, env=environment, check=True, capture_output=True).stdout


def test_an_installed_wheel_is_what_runs(installed, tmp_path):
    where = said(
        installed / "python", "-c", "import gemmgen; print(gemmgen.__file__)", cwd=tmp_path
    )
    assert Path(where.decode().strip()).is_relative_to(installed.parent)


def test_an_installed_wheel_emits_the_same_source(installed, tmp_path):
    text = said(installed / "gemmgen", "emit", "fp8_block/base", cwd=tmp_path)
    assert text == (ROOT / "generated/fp8_block/base.cu").read_bytes()


def test_an_installed_wheel_says_its_version(installed, tmp_path):
    assert b"0.1.0" in said(installed / "gemmgen", "--version", cwd=tmp_path)


def metadata(built):
    archive = zipfile.ZipFile(next(built.glob("*.whl")))
    file = next(n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
    return email.message_from_bytes(archive.read(file))


def test_an_index_shows_no_link_into_the_repository(built):
    """Its page has README's words; where a link would lead nowhere it has the path."""
    text = metadata(built).get_payload()
    links = re.findall(r"\]\(([^)]*)\)", text)
    assert not [link for link in links if not re.match("https?://", link)]
    assert "(`docs/performance.md`)" in text and "speed.svg" not in text
    assert "1. `generated/fp8_block/base.cu`: a whole kernel" in text
    assert "`gemmgen/passes/__init__.py`" in text
    headings = re.findall("^#.*$", (ROOT / "README.md").read_text(), re.M)
    assert re.findall("^#.*$", text, re.M) == headings


def test_metadata_says_licence_and_pythons(built):
    of = metadata(built)
    assert of["License-Expression"] == "Apache-2.0" and of["Requires-Python"] == ">=3.10"
    assert "LICENSES/LicenseRef-gemmgen-output.txt" in of.get_all("License-File")
    assert of["Description-Content-Type"] == "text/markdown"


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
