"""Importing gemmgen loads nothing; its public names are imported when they are used."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import gemmgen

ROOT = Path(__file__).parents[2]
HEAVY = ("numpy", "torch", "cuda", "jinja2")


def loaded_by(code: str) -> set[str]:
    """The top-level packages, and gemmgen's own modules, that running `code` leaves imported."""
    code += "\nimport sys; print('modules:', *sys.modules)"
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return {*run.stdout.rpartition("modules:")[2].split()}


def test_importing_gemmgen_loads_nothing():
    loaded = loaded_by("import gemmgen; dir(gemmgen); gemmgen.__version__")
    assert not loaded & {*HEAVY}
    assert {name for name in loaded if name.startswith("gemmgen")} == {"gemmgen"}


@pytest.mark.parametrize("code", ("gemmgen.Config()", "gemmgen.Problem"))
def test_what_says_what_and_how_loads_nothing_heavy(code):
    assert not loaded_by(f"import gemmgen; {code}") & {*HEAVY}


def test_the_compiler_loads_jinja2_only():
    assert loaded_by("from gemmgen import compile_to_source") & {*HEAVY} == {"jinja2"}


def test_help_loads_nothing_heavy():
    code = "from gemmgen.cli import main\ntry: main(['--help'])\nexcept SystemExit: pass"
    loaded = loaded_by(code)
    assert "gemmgen.cli" in loaded and not loaded & {*HEAVY, "gemmgen.pipeline"}


def test_every_public_name_has_a_home():
    assert {*gemmgen.__all__} == {*gemmgen.HOMES, "__version__"}
    assert {*gemmgen.__all__} <= {*dir(gemmgen)}
    for name, home in gemmgen.HOMES.items():
        assert getattr(gemmgen, name).__module__.startswith(f"gemmgen.{home}")


def test_type_checkers_see_the_same_names():
    tree = ast.parse((ROOT / "gemmgen/__init__.py").read_text())
    seen = {
        alias.name: node.module
        for branch in tree.body
        if isinstance(branch, ast.If)
        for node in branch.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert seen == gemmgen.HOMES


def test_an_unknown_name():
    with pytest.raises(AttributeError, match="no attribute 'gem'"):
        _ = gemmgen.gem
    with pytest.raises(ImportError, match="gem"):
        exec("from gemmgen import gem")
