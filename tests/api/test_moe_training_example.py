"""examples/moe_training.py: on the CPU with float64 in the kernels' place, and what it says without a GPU."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from example_runs import example_fixture, without_a_gpu  # noqa: E402, F401
from torch_reference import on_cpu  # noqa: E402, F401

NAME = "moe_training.py"


def test_losses_are_those_of_torch(example, on_cpu, capsys):  # noqa: F811
    s = example.Sizes(tokens=24, hidden=64, intermediate=32, experts=4, top=2, shared=32)
    found = example.show(s, "cpu", 8, True)
    plain, near, quantised = (found[n] for n in ("torch, BF16", "gemmgen, BF16", "gemmgen, FP8"))
    assert plain[4] < 0.98 * plain[0]
    assert all(abs(a - b) < 0.02 * b for a, b in zip(near, plain, strict=True))
    assert all(abs(a - b) < 0.08 * b for a, b in zip(quantised, plain, strict=True))
    assert near != plain != quantised
    assert "in 8 steps" in capsys.readouterr().out


def test_without_a_gpu_it_says_so():
    out = without_a_gpu(NAME)
    assert "torch, BF16" in out and "gemmgen, FP8" not in out
