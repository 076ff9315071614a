"""examples/mlp_moe.py: on the CPU with float64 in the kernels' place, and what it says without a GPU."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from example_runs import example_fixture, without_a_gpu  # noqa: E402, F401
from torch_reference import on_cpu  # noqa: E402, F401

NAME = "mlp_moe.py"
SIZES = {"tokens": 50, "hidden": 160, "intermediate": 96, "experts": 6, "top": 2}


def test_the_layers_are_as_near_as_their_dtypes(example, capsys):
    found = example.errors("cpu", **SIZES)
    plain, mine, quantised = found.values()
    assert mine < 1.2 * plain < 0.04 < quantised < 0.09
    out = capsys.readouterr().out
    # A router of 6 outputs is no multiple of 8.
    assert "21 layers converted, 1 left" in out and "router: features" in out
    assert "3 layers converted, 1 left" in out


def test_without_a_gpu_it_says_so():
    without_a_gpu(NAME)
