"""What is known of a tile before it is lowered: never more than the passes find. Nothing here is timed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gemmgen.cost_launch import launch
from gemmgen.epilogues import EPILOGUES
from gemmgen.errors import IllegalConfig, UnsupportedProblem
from gemmgen.heuristics import choose, room, tiles, verdicts
from gemmgen.ir.dtypes import BF16, E4M3, F32, S8
from gemmgen.passes import check_tile
from gemmgen.passes.count_registers import arrays
from gemmgen.passes.layout_smem import most_stages, stages_at_most
from gemmgen.passes.split_registers import fit_at_most
from gemmgen.passes.swap_operands import swap_operands
from gemmgen.pipeline import build, lower
from gemmgen.problem import Problem
from gemmgen.target import H200

DENSE = Problem(family="dense", a=BF16, b=BF16)
FP8 = Problem(family="fp8_block", a=E4M3, b=E4M3)
WGRAD = Problem(family="fp8_1d1d", a=E4M3, b=E4M3, d=F32, accumulate=True)
PROBLEMS = {
    "dense": DENSE,
    "dense-nn": replace(DENSE, layout="nn"),
    "dense-f32": replace(DENSE, d=F32, epilogue=EPILOGUES["bias_silu"]),
    "int8": replace(DENSE, a=S8, b=S8, epilogue=EPILOGUES["scaled"]),
    "fp8": replace(FP8, family="fp8"),
    "fp8_block": FP8,
    "fp8_block-e4m3": replace(FP8, d=E4M3),
    "masked": replace(FP8, grouping="masked"),
    "wgrad": WGRAD,
    "k_flat": replace(WGRAD, grouping="k_flat", accumulate=False),
}
SHAPES = ((16, 2048, 4096), (512, 512, 8192), (4096, 3072, 1024))


def some(problem, shape):
    """Every eleventh candidate: all block_m, block_n and ways to share come up."""
    groups = 1 if problem.grouping == "none" else 8
    return [*tiles.bare(launch(problem, shape, H200, groups), shape[0])][::11]


@pytest.mark.parametrize("name", PROBLEMS)
def test_no_pass_takes_less_than_is_known_before(name):
    problem, lowered = PROBLEMS[name], 0
    for shape in SHAPES:
        for c in some(problem, shape):
            try:
                kernel = lower(problem, c, H200)
            except IllegalConfig:
                continue
            if (
                not kernel.ring
            ):  # it has fewer roles, and as many CTAs share an SM as it has room for
                continue
            before = swap_operands(build(problem, c), H200, c.swap_ab)
            roles = zip(before.roles, kernel.roles, strict=True)
            assert all(arrays(known) <= arrays(found) for known, found in roles), c
            # D in pieces takes less than D as it is built.
            assert c.d_columns or stages_at_most(before, H200) >= most_stages(kernel, H200), c
            assert fit_at_most(before, H200), c
            lowered += 1
    assert lowered > 2


@pytest.mark.parametrize("name", PROBLEMS)
def test_what_has_no_room_is_no_choice(name):
    problem, groups = PROBLEMS[name], 1 if PROBLEMS[name].grouping == "none" else 8
    without, shape = 0, SHAPES[-1]
    for v in verdicts(problem, shape, H200, 1, groups):
        if room.has_none(problem, v.config, shape, H200):
            assert not v.choice
            without += 1
    last = verdicts(problem, shape, H200, 1, groups)[-1]
    assert last.choice and choose(problem, shape, H200, groups) == last.choice.config
    assert without


def test_large_tiles_are_known_to_have_no_room():
    """Of each kind, so that a model that prefers them does not lower them one by one."""
    shape, of = SHAPES[-1], {}
    for name in ("dense", "fp8_block", "wgrad"):
        found = {
            (c.block_m, c.block_n): c
            for c in tiles.bare(launch(PROBLEMS[name], shape, H200), shape[0])
            if not c.ping_pong
        }
        of[name] = room.has_none(PROBLEMS[name], found[256, 256], shape, H200)
        assert not room.has_none(PROBLEMS[name], found[128, 128], shape, H200)
    assert all(of.values())


def test_too_few_stages_are_no_room():
    tile = next(
        c
        for c in tiles.bare(launch(DENSE, SHAPES[-1], H200), 4096)
        if (c.block_m, c.block_n) == (256, 208)
    )
    assert most_stages(lower(DENSE, tile, H200), H200) == 2
    assert room.has_none(DENSE, tile, SHAPES[-1], H200)
    assert not room.has_none(DENSE, tile, (4096, 3072, 128), H200)  # no more are of use


def test_fewer_kernels_are_lowered(monkeypatch):
    import gemmgen.heuristics as h

    seen = []
    monkeypatch.setattr(h, "lower", lambda *given: seen.append(given[1]) or lower(*given))
    problem, shape = PROBLEMS["k_flat"], (2048, 3000, 4096)
    config = choose(problem, shape, H200, 8)
    assert len(seen) <= 8
    quick = len(seen)
    assert verdicts(problem, shape, H200, 1, 8)[-1].choice.config == config
    assert len(seen) - quick > 2 * quick


def test_nothing_legal_says_why_all_the_same():
    """Though all candidates are passed over without being lowered: then they are, for what the passes say."""
    small = replace(H200, smem_bytes=16 << 10)
    of = launch(FP8, (512, 512, 512), small)
    assert all(room.has_none(FP8, c, of.shape, small) for c in tiles.bare(of, of.shape[0]))
    with pytest.raises(UnsupportedProblem, match=r"fits an SM: \[smem-capacity\].*capacity=16384"):
        choose(FP8, of.shape, small)


def test_a_rule_that_no_smaller_tile_keeps_is_raised_as_it_is(monkeypatch):
    import gemmgen.heuristics as h

    def refuse(*given):
        raise IllegalConfig(check_tile.WGMMA_N, {"n": 0}, "Nothing helps.")

    monkeypatch.setattr(h, "lower", refuse)
    with pytest.raises(IllegalConfig) as error:
        choose(FP8, (512, 512, 512), H200)
    assert error.value.rule is check_tile.WGMMA_N
