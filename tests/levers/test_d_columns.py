"""D staged in pieces that take turns in two places: results on the emulator, shared memory, what is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
from emulated import judged, same_bits
from grouped import PROBLEMS, layout, problem
from kernels import DENSE, DENSE_F32, FP8, GROUPED, PAIRED, QUANTISED, VECTOR

from gemmgen.check import check
from gemmgen.check.output import staged
from gemmgen.config import Config
from gemmgen.cost_launch import count_tiles
from gemmgen.epilogues import EPILOGUES
from gemmgen.errors import IllegalConfig, IRError
from gemmgen.families import build
from gemmgen.ir import nodes as ir
from gemmgen.ir.dealing import ctas, parts
from gemmgen.ir.rewrite import map_stmts, statements
from gemmgen.passes import run
from gemmgen.pipeline import lower
from gemmgen.target import H200

from mutation.rows_protocol import visit  # isort: skip

ADDED = replace(DENSE_F32, accumulate=True)
PLACES = 2


def config(p, **changes):
    """64 rows and two slabs per piece: small, for the emulator; FP32 has half as many columns in a slab."""
    slab = 128 // p.d.bytes
    small = {"block_m": 64, "block_n": 4 * slab, "consumers": 1, "stages": 2, "d_columns": 2 * slab}
    if small["block_n"] == 256 and p.family != "dense":
        small |= {"block_n": 128, "d_columns": slab}
    return Config(**small | changes)


def waves(p, **changes):
    """Two waves, one slab per piece."""
    slab = 128 // p.d.bytes
    return config(p, block_m=128, block_n=2 * slab, d_columns=slab, **changes)


# ---- results --------------------------------------------------------------------------------


@pytest.mark.nvrtc
@pytest.mark.parametrize("made", (config, waves), ids=lambda f: f.__name__)
@pytest.mark.parametrize("name", PROBLEMS)
def test_results(name, made):
    """N with and without a tail; several tiles of one CTA."""
    p = problem(name, "none")
    n = {"config": 301, "waves": 200}[made.__name__]
    assert judged(p, made(p), (140, n, 150), pad=1, sms=2).exact


@pytest.mark.nvrtc
@pytest.mark.parametrize("sms", (1, 2, 3))
@pytest.mark.parametrize("p", (DENSE, ADDED), ids=("stored", "added"))
def test_tile_after_tile(p, sms):
    """Both places come round many times, in some CTAs an odd number of tiles."""
    assert judged(p, waves(p), (300, 270, 40), sms=sms).exact


@pytest.mark.nvrtc
@pytest.mark.parametrize("shape", [(1, 1, 8), (3, 7, 20), (70, 63, 16), (65, 65, 40), (64, 130, 8)])
def test_less_than_a_tile(shape):
    """Pieces wholly or partly past D's edges: groups of stores without a store."""
    for p in (DENSE, ADDED):
        assert judged(p, config(p), shape).exact


@pytest.mark.nvrtc
@pytest.mark.parametrize("multicast", ("a", "b"))
def test_clusters(multicast):
    assert judged(DENSE, waves(DENSE, multicast=multicast, in_flight=1), (300, 270, 100)).exact


@pytest.mark.nvrtc
@pytest.mark.parametrize("sms", (4, 5, 18))
@pytest.mark.parametrize("p", (DENSE, ADDED), ids=("stored", "added"))
def test_streams(p, sms):
    """Only who finishes a tile stores it: CTAs begin inside of tiles, or share each with others of its own."""
    c, shape = waves(p, stream=True), (300, 130, 150)
    tiles, k_blocks = count_tiles(c, shape), 3
    stretches = ctas(tiles, k_blocks, sms)
    assert any(x.first for i in range(stretches) for x in parts(i, stretches, tiles, k_blocks))
    assert judged(p, c, shape, pad=1, sms=sms).exact


@pytest.mark.nvrtc
@pytest.mark.parametrize("side", ("wide", "tall"))
def test_four_stages(side):
    """The tiles that have no room for a fourth stage beside all of D."""
    tile = {"wide": {"block_n": 256}, "tall": {"block_m": 256}}[side]
    c = Config(stages=4, in_flight=1, d_columns=64, **tile)
    assert judged(DENSE, c, (270, 266, 200), sms=1).exact


@pytest.mark.nvrtc
@pytest.mark.parametrize(
    "changes",
    [{"swizzle_d": 64}, {"swizzle_d": 32}, {"block_n": 192, "swizzle_d": 64, "d_columns": 96}],
)
def test_other_slabs(changes):
    c = config(DENSE, **{"block_n": 128, "d_columns": 32} | changes)
    assert judged(DENSE, c, (70, 201, 40)).exact


@pytest.mark.nvrtc
@pytest.mark.parametrize("epilogue", ("bias_silu", "residual", "bias_gelu"))
def test_epilogues(epilogue):
    """What they read by column is the piece's."""
    p = replace(DENSE, epilogue=EPILOGUES[epilogue])
    judged(p, config(p), (70, 300, 40), pad=1)


@pytest.mark.nvrtc
@pytest.mark.parametrize("grouping", GROUPED)
@pytest.mark.parametrize("name", ("bf16", "f16_f32"))
def test_groups(name, grouping):
    p = problem(name, grouping)
    shape, sizes = (200, 150, 400), (70, 0, 33)
    assert judged(p, waves(p), shape, layout(p, shape, sizes), pad=1).exact


@pytest.mark.nvrtc
@pytest.mark.parametrize("p", (DENSE, FP8, VECTOR), ids=lambda p: p.family)
def test_cutting_changes_no_bit(p):
    """On random data."""
    whole = replace(config(p), d_columns=None)
    assert same_bits(p, (50, 130, 700), (config(p), whole), 3)


# ---- the kernel -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("p", "changes"),
    [
        (DENSE, {"block_n": 256, "d_columns": 64}),
        (DENSE, {"block_n": 256, "d_columns": 128, "stages": 3, "multicast": "b"}),
        (DENSE, {"block_m": 256, "d_columns": 64, "in_flight": 1, "multicast": "a"}),
        (DENSE, {"block_m": 256, "d_columns": 128, "stages": 3}),
        (ADDED, {"block_m": 256, "d_columns": 32}),
        (DENSE_F32, {"block_m": 192, "consumers": 3, "d_columns": 64, "stages": 3}),
        (FP8, {"block_n": 256, "parts": 2, "d_columns": 64, "stages": 3}),
        (replace(FP8, grouping="batched"), {"block_m": 256, "d_columns": 64, "stages": 3}),
        (replace(VECTOR, grouping="k_flat"), {"d_columns": 32, "stages": 3}),
        (DENSE, {"d_columns": 64, "pdl": True}),
        (DENSE, {"d_columns": 64, "watchdog": True}),
    ],
    ids=lambda x: x.family if x in (DENSE, ADDED, FP8) else None,
)
def test_the_proof_holds(p, changes):
    c = Config(**changes)
    kernel = lower(p, c)
    check(kernel)
    d = kernel.buffer("smem_d")
    assert (d.stages, d.cols) == (PLACES * c.consumers, c.d_columns)
    pieces = [s for s in statements(kernel) if isinstance(s, ir.StageTile)]
    columns = range(0, c.block_n, c.d_columns)
    assert [(s.wave, s.column) for s in pieces] == [(w, x) for w in range(c.waves) for x in columns]
    assert [s.slot for s in pieces] == [i % PLACES for i in range(len(pieces))]


@pytest.mark.parametrize("tile", [{"block_n": 256}, {"block_m": 256}])
def test_room_for_a_fourth_stage(tile):
    with pytest.raises(IllegalConfig, match="smem-capacity"):
        lower(DENSE, Config(stages=4, **tile))
    whole = lower(DENSE, Config(stages=3, **tile))
    cut = lower(DENSE, Config(stages=4, d_columns=64, **tile))
    saved = whole.buffer("smem_d").stages * whole.buffer("smem_d").stage_bytes - 4 * 64 * 128
    assert saved == 32 * 1024
    assert cut.smem_bytes == whole.smem_bytes - saved + 48 * 1024 + 16, "a stage and its mbarriers"


@pytest.mark.parametrize("column", (32, -64, 128))
def test_a_piece_is_whole_slabs_of_the_tile(column):
    kernel = lower(DENSE, Config(d_columns=64))
    assert not [*staged(kernel)]
    moved = visit(ir.StageTile, lambda s: replace(s, column=column), column=64)(kernel)
    (found,) = staged(moved)
    assert found.property.id == "P9" and f"columns {column} to" in found.message


# ---- what is refused ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rule", "p", "changes", "values"),
    [
        ("column-pieces", DENSE, {"d_columns": 128}, {"d_columns": 128, "waves": 1}),
        ("column-pieces", DENSE, {"d_columns": 32}, {"d_columns": 32, "slab": 64}),
        ("column-pieces", DENSE, {"d_columns": 192, "block_n": 256}, {"columns": 256}),
        ("column-pieces", DENSE, {"d_columns": 256}, {"columns": 128}),
        ("column-pieces", DENSE_F32, {"d_columns": 16}, {"slab": 32}),
        ("column-pieces", DENSE, {"d_columns": 64, "block_n": 192}, {"columns": 192}),
        ("column-stores", DENSE, {"swizzle_d": 0}, {"swizzle": 0}),
        ("column-stores", DENSE, {"swap_ab": True, "block_m": 16}, {"swap_ab": True}),
        ("column-stores", DENSE, {"split_k": 2}, {"split_k": 2}),
        ("column-stores", PAIRED, {}, {"output": "evaluated"}),
        ("column-stores", QUANTISED, {}, {"output": "evaluated"}),
    ],
)
def test_what_is_refused(rule, p, changes, values):
    with pytest.raises(IllegalConfig) as e:
        lower(p, Config(**{"d_columns": 64} | changes))
    assert e.value.rule.id == rule
    assert values.items() <= e.value.values.items()


@pytest.mark.parametrize(
    ("block_m", "block_n", "legal"),
    [
        (128, 192, "null"),
        (128, 256, "64 or 128"),
        (256, 192, "64 or 192"),
        (256, 96, "32 or 96"),
        (128, 96, "null"),
    ],
)
def test_the_advice_is_legal(block_m, block_n, legal):
    tile = {"block_m": block_m, "block_n": block_n, "stages": 2}
    with pytest.raises(IllegalConfig) as e:
        lower(DENSE, Config(d_columns=8, **tile))
    assert e.value.fix == f"Use d_columns={legal}."
    for x in legal.split(" or "):
        lower(DENSE, Config(d_columns=None if x == "null" else int(x), **tile))


@pytest.mark.parametrize(
    "more",
    (ir.Zero(dst="acc0"), ir.Sync(of="warp"), ir.Fence(of="wgmma")),
    ids=("zero", "sync", "fence"),
)
def test_an_epilogue_that_does_more_is_not_cut(more):
    """A statement that `split_output` does not know must not get lost."""
    config = Config(d_columns=64)
    kernel = map_stmts(
        build(DENSE, config), lambda s: (s, more) if isinstance(s, ir.StoreTail) else s
    )
    with pytest.raises(IRError, match="epilogue"):
        run(kernel, H200, {**vars(config), "stamps": 0})
