"""A's block scales that the consumers' lanes read: results on the emulator, the pass, the proof, and faults that must show."""

from __future__ import annotations

from dataclasses import replace

import pytest
from emulated import judged, same_bits
from grouped import layout, problem
from kernels import DENSE, FP8, GROUPED, INT8_BLOCK, VARIETY, VECTOR, emitted

from gemmgen import emulator
from gemmgen.check import ProtocolViolation, check
from gemmgen.config import Config
from gemmgen.errors import IllegalConfig, VerificationError
from gemmgen.ir import nodes as ir
from gemmgen.ir.promotion import HELD_BLOCKS
from gemmgen.ir.rewrite import map_stmts, statements
from gemmgen.pipeline import lower

READING = [name for name, (_, c) in VARIETY.items() if c.lane_scales and not c.direct]


def config(**changes) -> Config:
    small = {"block_m": 64, "block_n": 32, "stages": 2, "consumers": 1, "lane_scales": True}
    return Config(**small | changes)


SWAPPED = {"swap_ab": True, "block_m": 16, "block_n": 64}


# ---- results --------------------------------------------------------------------------------


@pytest.mark.nvrtc
@pytest.mark.parametrize("blocks", range(1, 2 * HELD_BLOCKS + 2))
def test_every_number_of_k_blocks(blocks):
    """Chunks of all lengths, the last block of K whole and not; rows beyond M; several tiles of a CTA."""
    shape = (70, 75, 128 * blocks - 48 * (blocks % 2))
    assert judged(FP8, config(), shape, pad=1, sms=1).exact


@pytest.mark.nvrtc
@pytest.mark.parametrize(
    "changes",
    (
        {"unroll": 4, "stages": 3},
        {"unroll": 3},
        {"unroll": 8},
        {"consumers": 2, "block_m": 128, "multicast": "a"},
        {"consumers": 3, "block_m": 192, "multicast": "b"},
        {"block_m": 128},
        {"block_m": 128, "in_flight": 1},
        {"block_n": 144},
        {"block_n": 136},
        {"parts": 2, "in_flight": 1},
        {"peek": True},
        {"ping_pong": True, "consumers": 2},
        {"split_k": 4},
        {"split_k": 2, "block_m": 128},
        {"stream": True},
        {"watchdog": True, "pdl": True},
        SWAPPED,
        {**SWAPPED, "block_m": 8, "unroll": 4},
        {**SWAPPED, "block_m": 64, "block_n": 128, "multicast": "a"},
        {**SWAPPED, "block_m": 24, "block_n": 256, "stages": 2, "consumers": 2},
        {**SWAPPED, "split_k": 2},
        {**SWAPPED, "stream": True},
    ),
    ids=str,
)
def test_with_other_ways(changes):
    """Eleven K blocks: no multiple of a chunk, nor is any CTA's share."""
    assert judged(FP8, config(**changes), (140, 300, 1360), pad=1, sms=4).exact


@pytest.mark.nvrtc
@pytest.mark.parametrize("changes", ({}, SWAPPED, {"split_k": 2}), ids=str)
@pytest.mark.parametrize("grouping", GROUPED)
def test_groups(grouping, changes):
    """Groups without rows, or without K blocks; whose last tile reaches past their end."""
    p = problem("fp8_block", grouping)
    if "split_k" in changes and grouping.startswith("k_"):
        pytest.skip("groups that split K are not divided once more")
    shape, sizes = (100 if grouping == "batched" else 256, 70, 1280), (100, 0, 156)
    assert judged(p, config(**changes), shape, layout(p, shape, sizes), pad=1, sms=2).exact


@pytest.mark.nvrtc
@pytest.mark.parametrize("changes", ({}, SWAPPED), ids=str)
def test_int8(changes):
    assert judged(INT8_BLOCK, config(**changes), (100, 72, 1100), sms=2).exact


@pytest.mark.nvrtc
@pytest.mark.parametrize("changes", ({}, {"block_n": 144}, SWAPPED, {"split_k": 2}), ids=str)
def test_it_changes_no_bit(changes):
    ways = (config(**changes), config(**changes, lane_scales=False))
    assert same_bits(FP8, (150, 70, 1700), ways, 3)


@pytest.mark.nvrtc
def test_under_every_schedule():
    for schedule in (emulator.Eager(), emulator.Late(), emulator.Random(seed=3)):
        assert judged(FP8, config(stages=3), (100, 40, 1200), sms=1, schedule=schedule).exact


# ---- faults in the text ----------------------------------------------------------------------

FAULTS = {
    "the next row's": ({}, "lane / 4 * 4 + k - chunk", "(lane / 4 ^ 1) * 4 + k - chunk"),
    "the next K block's": ({}, "lane / 4 * 4 + k - chunk", "lane / 4 * 4 + (k - chunk ^ 1)"),
    "the upper row's twice": ({}, "min(row + 8 * i, shape_m - 1)", "min(row, shape_m - 1)"),
    "another warp's": ({}, "warp * 16 + lane / 4, kk", "(warp ^ 1) * 16 + lane / 4, kk"),
    "the chunk before": (
        {},
        "min(chunk + 4 + lane % 4, tile.k_blocks - 1);\n                    #",
        "min(chunk + lane % 4, tile.k_blocks - 1);\n                    #",
    ),
    "another column's": (SWAPPED, "i % 2 * 4 + k", "(i + 1) % 2 * 4 + k"),
    "another quad's": (SWAPPED, "lane % 4 * 8 + i", "(lane % 4 ^ 1) * 8 + i"),
}


@pytest.mark.nvrtc
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_shows(fault):
    changes, right, wrong = FAULTS[fault]
    with pytest.raises(VerificationError):
        judged(
            FP8, config(**changes), (100, 70, 1300), broken=lambda t: t.replace(right, wrong), sms=1
        )


# ---- the pass -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", READING)
def test_nothing_of_the_scales_goes_through_shared_memory(name):
    """A stage is smaller by them, and the producer has one load less."""
    p, c = VARIETY[name]
    kernel, plain = lower(p, c), lower(p, replace(c, lane_scales=False))
    assert {s.name for s in plain.smem} - {s.name for s in kernel.smem} == {"smem_scale_a"}
    assert {m.name for m in plain.maps} - {m.name for m in kernel.maps} == {"map_scale_a"}
    assert not any(
        isinstance(s, ir.LoadRowScales | ir.LoadColumnScales) for s in statements(kernel)
    )
    (full,) = (b for b in kernel.barriers if b.name == "full")
    (before,) = (b for b in plain.barriers if b.name == "full")
    scales = plain.buffer("smem_scale_a")
    assert before.tx_bytes - full.tx_bytes == scales.stage_bytes
    new = {x.name for x in kernel.params} - {x.name for x in plain.params}
    grouped = {"scale_a_stride_g"} if plain.groups.rows else set()
    assert new == {"scale_a", "scale_a_stride_m", "scale_a_stride_k"} | grouped


@pytest.mark.parametrize("p", (VECTOR, DENSE, replace(FP8, family="fp8")), ids=lambda p: p.family)
def test_families_that_have_no_such_scales_refuse(p):
    with pytest.raises(IllegalConfig) as e:
        lower(p, Config(lane_scales=True))
    assert e.value.rule.id == "lane-scales" and "lane_scales=false" in str(e.value)


def test_text_has_no_map_of_them():
    text = emitted(FP8, config()).source
    assert "map_scale_a" not in text and "SCALE_A" not in text
    assert "map_scale_a" in emitted(FP8, config(lane_scales=False)).source


# ---- the proof ------------------------------------------------------------------------------


def each(kind, change, **having):
    """A change of every statement of `kind` with these values."""

    def visit(s):
        has = isinstance(s, kind) and all(getattr(s, n) == v for n, v in having.items())
        return change(s) if has else s

    return visit


def drop(s):
    return ()


WRONG = {
    "not shared": ("fp8-lane-scales", each(ir.ShareScales, drop, of="rows")),
    "not taken over": (
        "fp8-lane-scales",
        each(ir.Copy, drop, dst="lane_rows0"),
    ),
    "not loaded first": (
        "fp8-lane-scales",
        each(ir.LoadBlockScales, drop, of="rows", block="first"),
    ),
    "not loaded ahead": (
        "fp8-lane-scales",
        each(ir.LoadBlockScales, drop, of="rows", block="next"),
    ),
    "the first chunk's again": (
        "fp8-lane-scales",
        each(ir.LoadBlockScales, lambda s: replace(s, block="first"), of="rows", block="next"),
    ),
    "another wave's": (
        "fp8-lane-scales-waves",
        each(ir.LoadBlockScales, lambda s: replace(s, wave=1 - s.wave), of="rows"),
    ),
    "another wave's registers": (
        "fp8-lane-scales-waves",
        each(ir.ShareScales, lambda s: replace(s, src="lane_rows0"), of="rows"),
    ),
    "chunks that lanes do not hold": (
        "fp8-lane-scales",
        each(ir.ForChunks, lambda s: replace(s, blocks=2 * HELD_BLOCKS)),
    ),
    "B's for A's": (
        "fp8-lane-scales",
        each(ir.ShareScales, lambda s: replace(s, src="lane_scales"), of="rows"),
    ),
    "A's for B's": (
        "fp8-lane-scales",
        each(ir.ShareScales, lambda s: replace(s, src="lane_rows0"), of="block"),
    ),
    "shared as rows, swapped": (
        "fp8-lane-scales-swap",
        each(ir.ShareScales, lambda s: replace(s, of="rows"), of="columns"),
    ),
    "rows of a warp, swapped": (
        "fp8-lane-scales-swap",
        each(ir.LoadBlockScales, lambda s: replace(s, of="rows"), of="all_rows"),
    ),
    "counted from the tile's first": (
        "fp8-lane-scales-split-k",
        each(
            ir.LoadBlockScales,
            lambda s: replace(s, block=s.block.split()[0]),
            of="rows",
        ),
    ),
}


@pytest.mark.parametrize("fault", WRONG)
def test_the_proof_refuses(fault):
    name, change = WRONG[fault]
    kernel = lower(*VARIETY[name])
    check(kernel)
    wrong = map_stmts(kernel, change)
    assert wrong != kernel
    with pytest.raises(ProtocolViolation, match="P10"):
        check(wrong)
