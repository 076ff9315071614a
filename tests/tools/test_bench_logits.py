"""What the benchmark of an indexer's scores asks for, without a GPU."""

from __future__ import annotations

import pytest
from kernels import LOGITS

from gemmgen.bench import logits
from gemmgen.bench.logits import CONFIGS, WINDOWS, bounds
from gemmgen.errors import GemmgenError
from gemmgen.pipeline import lower


@pytest.mark.parametrize("windows", WINDOWS)
@pytest.mark.parametrize(
    ("queries", "keys"), [(2048, 4096), (2048, 65536), (8192, 8192), (64, 640)]
)
def test_windows_lie_within_the_keys(queries, keys, windows):
    first, end = bounds(queries, keys, windows)
    assert len(first) == len(end) == queries
    assert all(0 <= a <= b <= keys for a, b in zip(first, end, strict=True))


def test_windows_of_one_rank_of_several_are_half_of_the_keys():
    _, end = bounds(2048, 65536, "parallel")
    assert abs(sum(end) / len(end) / 65536 - 0.5) < 0.01
    assert end[1023] - end[0] == end[2047] - end[1024] == 1023


def test_causal_windows_end_with_their_own_key():
    assert bounds(4, 10, "causal") == ([0] * 4, [7, 8, 9, 10])


@pytest.mark.parametrize("name", [name for name, config in CONFIGS.items() if config])
def test_every_config_is_legal(name):
    config = CONFIGS[name]
    assert lower(LOGITS, config).block.m == config.block_m


@pytest.fixture
def scores():
    """What `_check` is given, and right scores of 8 queries, 64 heads and 40 keys."""
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    q, kv = torch.randn(8, 64, 128), torch.randn(40, 128)
    scale, weights = torch.rand(40) + 0.5, torch.randn(8, 64)
    first, end = torch.zeros(8).int(), torch.arange(33, 41).int()
    each = torch.einsum("ihd,jd->ihj", q, kv).relu() * weights[:, :, None] * scale
    outside = torch.arange(40) >= end[:, None]
    return (q, kv, scale, weights, first, end), each, outside


def masked(each, outside):
    return each.sum(1).masked_fill(outside, -float("inf"))


def test_right_scores_pass(scores):
    torch = pytest.importorskip("torch")
    given, each, outside = scores
    logits._check(given, masked(each, outside), torch.arange(8))


@pytest.mark.parametrize("fault", ("not a number", "a lost head", "a window too wide"))
def test_wrong_scores_are_found(scores, fault):
    torch = pytest.importorskip("torch")
    given, each, outside = scores
    if fault == "a lost head":
        each = each[:, 1:]
    got = masked(each, outside)
    if fault == "not a number":
        got[3, 5] = float("nan")
    if fault == "a window too wide":
        got[0, 39] = 0.0
    with pytest.raises(GemmgenError):
        logits._check(given, got, torch.arange(8))
