"""Examples as their readers run them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import missing_for_gpu

ROOT = Path(__file__).parents[2]


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
