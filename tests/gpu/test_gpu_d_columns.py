"""On a Hopper GPU: D staged in pieces that take turns, bit for bit where the result is exact."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from grouped import PROBLEMS, layout, problem
from kernels import DENSE, DENSE_F32, GROUPED
from on_gpu import judged, legal, same_bits

from gemmgen.config import Config
from gemmgen.epilogues import EPILOGUES
from gemmgen.ir.dtypes import E4M3
from gemmgen.ir.groupings import GROUPINGS

pytestmark = pytest.mark.gpu

FAST = replace(DENSE, a=E4M3, b=E4M3)
ADDED = replace(DENSE_F32, accumulate=True)
NOT_RAGGED = tuple(g for g in GROUPED if not GROUPINGS[g].ragged)
SIDES_M = (1, 63, 65, 129, 300, 1024, 4097)
SIDES_NK = ((2, 16), (130, 144), (258, 400), (514, 272), (1000, 1000), (1408, 2048), (4098, 520))
SHAPES = tuple((m, n, k) for m, (n, k) in itertools.product(SIDES_M, SIDES_NK))
# Rows, columns, consumers.
TILES = ((128, 256, 2), (256, 128, 2), (192, 128, 3), (64, 256, 1), (128, 128, 2), (256, 96, 2))
COLUMNS = (128, 96, 64, 48, 32, 16)


@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: "x".join(map(str, s)))
@pytest.mark.parametrize("p", (DENSE, FAST), ids=("bf16", "e4m3"))
def test_four_stages(p, shape):
    """The tiles that have no room for a fourth stage beside all of D; many tiles of each CTA."""
    i = sum(shape)
    for tile in ({"block_n": 256}, {"block_m": 256}):
        multicast = ("none", "a", "b")[i % 3]
        config = legal(
            p, Config(stages=4, d_columns=64, in_flight=i % 2, multicast=multicast, **tile)
        )
        assert config is not None
        judged(p, config, shape, pad=i % 3, seed=i)


@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: "x".join(map(str, s)))
def test_added(shape):
    """Pieces that the copy engine adds to what D holds, and their tails."""
    config = legal(ADDED, Config(block_m=256, stages=3, d_columns=32, multicast="a"))
    assert config is not None
    judged(ADDED, config, shape, pad=shape[0] % 3, seed=shape[1])


@pytest.mark.parametrize("tile", TILES, ids=lambda t: "x".join(map(str, t)))
@pytest.mark.parametrize("name", PROBLEMS)
def test_tiles(name, tile):
    p, (block_m, block_n, consumers) = problem(name, "none"), tile
    sizes = {"block_m": block_m, "block_n": block_n, "consumers": consumers}
    ways = [*itertools.product(COLUMNS, (None, 64, 32), ("none", "a", "b"), (1, 2))]
    tried = 0
    for i in range(0, 5 * len(ways), 5):  # another order than that of the fields
        columns, swizzle, multicast, parts = ways[i % len(ways)]
        changes = {"d_columns": columns, "swizzle_d": swizzle, "multicast": multicast}
        config = legal(p, Config(stages=2, parts=parts, **sizes, **changes))
        if config and tried < 3:
            shape = ((130, 522, 272), (300, 777, 1000), (1025, 1024, 384))[tried]
            judged(p, config, shape, pad=tried, seed=i)
            tried += 1
    assert tried or p.family != "dense"


@pytest.mark.parametrize("grouping", NOT_RAGGED)
@pytest.mark.parametrize("name", PROBLEMS)
def test_groups(name, grouping):
    p = problem(name, grouping)
    columns = 128 // p.d.bytes
    tile = {"block_n": 2 * columns, "d_columns": columns}
    # A sum that an unrolled loop adds holds registers of which scales along rows leave too few.
    config = next(
        filter(None, (legal(p, Config(stages=2, **tile, unroll=unroll)) for unroll in (2, 1)))
    )
    for i, sizes in enumerate(((1, 0, 3, 17), (130, 0, 41), (64, 128, 1), (7,) * 32, (300, 65))):
        rows = max(sizes) if grouping != "rows" else sum(-(-s // 128) * 128 for s in sizes)
        shape = rows, (130, 522, 1024)[i % 3], (272, 400, 1024)[i % 3]
        judged(p, config, shape, layout(p, shape, sizes), pad=i % 3, seed=i)


@pytest.mark.parametrize("epilogue", EPILOGUES)
def test_epilogues(epilogue):
    p = replace(DENSE, epilogue=EPILOGUES[epilogue])
    tiles = ({"block_m": 256}, {"block_n": 256})  # erff leaves no registers for two waves
    config = next(
        filter(None, (legal(p, Config(d_columns=64, stages=3, **tile)) for tile in tiles)), None
    )
    if config is None:
        pytest.skip("pairs columns: its values are not staged by columns")
    for shape in ((130, 522, 272), (300, 260, 1000)):
        judged(p, config, shape, pad=1, seed=3)


@pytest.mark.parametrize("p", (DENSE, FAST, ADDED), ids=("bf16", "e4m3", "added"))
def test_pieces_change_no_bit(p):
    """On random data: the same sums, staged elsewhere."""
    whole = Config(block_m=256, block_n=64, stages=3)
    pieces = replace(whole, d_columns=32 if p is ADDED else 64)
    for shape in ((150, 500, 700), (1000, 1408, 2048)):
        assert same_bits(p, shape, (whole, pieces), 4)
