"""examples/moe_layer.py: on the CPU with float64 in the kernels' place, and what it says without a GPU."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from example_runs import example_fixture, without_a_gpu  # noqa: E402, F401
from torch_reference import on_cpu  # noqa: E402, F401

from gemmgen.nn.experts import CALLS  # noqa: E402
from gemmgen.ops import mixture  # noqa: E402

NAME = "moe_layer.py"
NAMES = {"torch, bfloat16", "gemmgen, FP8"}


def test_the_blocks_are_as_near_as_their_dtypes(example, on_cpu, monkeypatch, capsys):  # noqa: F811
    monkeypatch.setattr(mixture, "CALLS", CALLS)
    s = example.Sizes(hidden=256, intermediate=128, experts=8, groups=4, kept=2, top=3)
    found = example.show(s, "cpu", 50, True)
    assert {*found} == NAMES
    assert found["torch, bfloat16"] < 0.02 < found["gemmgen, FP8"] < 0.09
    out = capsys.readouterr().out
    assert "50 tokens, 3 of 8 experts each" in out and "from float64" in out


def test_tokens_stay_within_their_groups(example):
    torch.manual_seed(1)
    s = example.SMALL
    chosen, weights = example.Router(s)(torch.randn(200, s.hidden).bfloat16())
    assert chosen.shape == weights.shape == (200, s.top + 1)
    assert (chosen[:, s.top] == s.experts).all() and (weights[:, s.top] == 1).all()
    chosen, weights = chosen[:, : s.top], weights[:, : s.top]
    groups = chosen // (s.experts // s.groups)
    assert max(len({*row}) for row in groups.tolist()) == s.kept
    assert all(len({*row}) == s.top for row in chosen.tolist())
    assert len({*chosen.flatten().tolist()}) == s.experts
    assert torch.allclose(weights.sum(-1), torch.tensor(s.factor))


def test_a_bias_changes_the_choice_alone(example):
    s = example.SMALL
    router, x = example.Router(s), torch.randn(30, s.hidden).bfloat16()
    with torch.no_grad():
        router.bias[5] = 10.0
        chosen, weights = router(x)
    assert (chosen == 5).any(-1).all() and weights[:, : s.top].max() < s.factor


def test_without_a_gpu_it_says_so():
    out = without_a_gpu(NAME)
    assert "torch, bfloat16" in out and "gemmgen, FP8" not in out
