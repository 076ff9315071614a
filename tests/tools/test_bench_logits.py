"""What the benchmark of an indexer's scores asks for, without a GPU."""

from __future__ import annotations

import pytest
from kernels import LOGITS

from gemmgen.bench.logits import CONFIGS, WINDOWS, bounds
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
