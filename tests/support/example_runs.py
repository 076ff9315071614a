"""Examples as their readers run them."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest
from conftest import missing_for_gpu

ROOT = Path(__file__).parents[2]


@pytest.fixture(name="example")
def example_fixture(request, monkeypatch):
    """examples/`NAME` as a module; NAME is of the module of the test."""
    path = ROOT / "examples" / request.module.NAME
    spec = spec_from_file_location(path.stem, path)
    module = module_from_spec(spec)
    monkeypatch.setitem(sys.modules, path.stem, module)
    spec.loader.exec_module(module)
    return module


def run(name, **environment):
    """examples/`name` in a process of its own."""
    path = ROOT / "examples" / name
    env = {**environment, "PYTHONPATH": str(ROOT)}
    return subprocess.run([sys.executable, path], env=env, capture_output=True, text=True)


def without_a_gpu(name):
    """What it prints where there is none, and says so. Skips where there is one."""
    if not missing_for_gpu():
        pytest.skip("there is a GPU")
    found = run(name, PATH="")
    assert found.returncode == 3 and "Hopper" in found.stderr and "Traceback" not in found.stderr
    return found.stdout


def on_a_gpu(name):
    """What it prints."""
    found = run(name, **os.environ)
    assert found.returncode == 0, found.stderr
    return found.stdout
