"""B's scales, a chunk of K blocks at a time: more K blocks than a warp has lanes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from emulated import judged
from kernels import FP8

from gemmgen.config import Config
from gemmgen.errors import GemmgenError
from gemmgen.ir.dtypes import S8
from gemmgen.ir.groupings import Layout
from gemmgen.ir.promotion import LANES

BLOCK = 128
SMALL = Config(block_m=64, block_n=32, consumers=1, stages=2, unroll=4)
K_GROUPS = replace(FP8, grouping="k_columns")
# Groups that end inside a chunk, and with one.
LATER = tuple(b * BLOCK for b in (3, 0, LANES + 2, LANES))

CASES = {
    "a block more": (FP8, SMALL, LANES + 1),
    "two chunks": (FP8, SMALL, 2 * LANES),
    "three": (FP8, SMALL, 2 * LANES + 1),
    "int8": (replace(FP8, a=S8, b=S8), SMALL, LANES + 1),
    "two scale blocks": (FP8, replace(SMALL, block_n=144, unroll=1), LANES + 1),
    "exchanged": (FP8, replace(SMALL, block_m=8, block_n=128, swap_ab=True), LANES + 1),
    "divided": (FP8, replace(SMALL, split_k=2), 2 * LANES + 3),
    "masked": (replace(FP8, grouping="masked"), SMALL, LANES + 1),
}


def shape(p, blocks):
    """Several tiles, the last K block a part of one."""
    return 40, 300 if p.grouping == "none" else 150, blocks * BLOCK - 16


@pytest.mark.nvrtc
@pytest.mark.parametrize("name", CASES)
def test_emulated(name):
    p, c, blocks = CASES[name]
    judged(p, c, shape(p, blocks))


@pytest.mark.nvrtc
def test_emulated_groups_that_split_k():
    judged(K_GROUPS, SMALL, (40, 150, sum(LATER)), Layout(groups=len(LATER), table=LATER))


SPLIT = replace(SMALL, split_k=2)
FAULTS = {
    "the first chunk's again": (SMALL, LANES + 2, "min(chunk + 32 + lane,", "min(lane,"),
    "a block on": (SMALL, LANES + 2, "min(chunk + 32 + lane,", "min(chunk + 33 + lane,"),
    "the first lane's": (SMALL, 3, "lane_scales[0], k - chunk)", "lane_scales[0], 0)"),
    "each lane's own": (SMALL, 3, "__shfl_sync(0xffffffff, lane_scales[0], k - chunk)", "lane_scales[0]"),
    "past the last": (SMALL, 3, "min(lane, tile.k_blocks - 1)", "lane"),
    "past the last chunk": (SMALL, 3, "min(chunk + 32 + lane, tile.k_blocks - 1)", "chunk + 32 + lane"),
    "every share from K 0": (SPLIT, 6, "tile.k_first / 128 + lane", "lane"),
    "past the last share": (SPLIT, 6, "min(tile.k_first / 128 + lane, (shape_k - 1) / 128)", "tile.k_first / 128 + lane"),
}  # fmt: skip


@pytest.mark.nvrtc
@pytest.mark.parametrize("fault", FAULTS)
def test_the_emulator_finds(fault):
    c, blocks, old, new = FAULTS[fault]
    with pytest.raises(GemmgenError):
        judged(FP8, c, shape(FP8, blocks), broken=lambda text: text.replace(old, new))
