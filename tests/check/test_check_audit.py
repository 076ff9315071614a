"""The schedule audit: every scheduler on fixed and random shapes, and schedules that are wrong."""

from __future__ import annotations

from dataclasses import replace

import pytest
from draws import draws
from hypothesis import given, settings
from hypothesis import strategies as st
from kernels import VARIETY

from gemmgen.check.audit import agreement, audit, examine, sample
from gemmgen.ir.nodes import Block, Cluster
from gemmgen.ir.rewrite import map_stmts
from gemmgen.ir.stmts import multicasts
from gemmgen.pipeline import lower
from gemmgen.schedulers import order, panels

BLOCK = Block(m=64, n=72, k=128)
PAIR = Cluster(size=2, shared="b")


@st.composite
def cases(draw):
    shared = draw(st.sampled_from((None, "a", "b")))
    cluster = Cluster(size=draw(st.sampled_from((2, 4))) if shared else 1, shared=shared)
    block = Block(m=64 * draw(st.integers(1, 4)), n=8 * draw(st.integers(1, 32)), k=64)
    shape = draw(st.tuples(st.integers(1, 3000), st.integers(1, 3000), st.integers(1, 700)))
    ctas = cluster.size * draw(st.sampled_from((1, 2, 39, 57, 66)))
    return (
        panels(draw(st.sampled_from("mn")), draw(st.integers(1, 64))),
        block,
        cluster,
        shape,
        ctas,
    )


@settings(max_examples=draws(500), deadline=None, derandomize=True)
@given(cases())
def test_every_schedule_holds(case):
    assert not list(audit(*case))


@pytest.mark.parametrize("name", VARIETY)
def test_the_kernels_multicast_what_their_scheduler_shares(name):
    kernel = lower(*VARIETY[name])
    assert not list(agreement(kernel))
    assert len(list(sample(kernel))) > 2


def walks(ctas: int = 4, shape: tuple[int, int, int] = (640, 720, 256)) -> list:
    return [list(order(panels("m", 4), BLOCK, PAIR, shape, ctas, cta)) for cta in range(ctas)]


def wrong(tiles: list, shape: tuple[int, int, int] = (640, 720, 256)) -> str:
    return "; ".join(examine(tiles, BLOCK, PAIR, shape))


def test_a_missing_tile_is_found():
    tiles = walks()
    assert wrong(tiles) == ""
    for walk in tiles[2:]:
        walk.pop()
    assert "is never computed" in wrong(tiles)


def test_a_tile_computed_twice_is_found():
    tiles = walks()
    tiles[0][1], tiles[1][1] = tiles[0][0], tiles[1][0]
    assert "is computed 2 times" in wrong(tiles)


def test_a_tile_of_another_k_is_found():
    tiles = walks()
    tiles[0][0] = replace(tiles[0][0], k_blocks=3)
    assert "different numbers of K blocks" in wrong(tiles)


def test_ctas_that_divide_k_have_the_same_tile():
    cluster, shape = Cluster(size=4), (640, 720, 256)
    tiles = [list(order(panels("m", 4), BLOCK, cluster, shape, 8, cta)) for cta in range(8)]
    assert not list(examine(tiles, BLOCK, cluster, shape))
    tiles[5][2] = replace(tiles[5][2], d_col=0, b_row=0)
    assert any("the K of different tiles" in text for text in examine(tiles, BLOCK, cluster, shape))
    apart = [list(order(panels("m", 4), BLOCK, Cluster(), shape, 8, cta)) for cta in range(8)]
    assert any("different tiles" in text for text in examine(apart, BLOCK, cluster, shape))


def test_a_multicast_the_scheduler_does_not_share_is_found():
    kernel = lower(*VARIETY["fp8-multicast-a"])
    other = map_stmts(kernel, lambda s: replace(s, mask=1) if multicasts(s) else s)
    assert [f.property.id for f in agreement(other)] == ["P13", "P13"]
    swapped = replace(kernel, cluster=Cluster(size=2, shared="b"))
    assert {f.property.id for f in agreement(swapped)} == {"P13"}
