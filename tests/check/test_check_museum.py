"""Every exhibit of the museum is caught, by its property, and its fix is proved."""

from __future__ import annotations

from dataclasses import replace

import pytest
from check_museum import MUSEUM
from check_oracle import explore

from gemmgen.check import ProtocolViolation, check
from gemmgen.check.audit import examine
from gemmgen.check.prove import prove
from gemmgen.ir.nodes import Block, Cluster
from gemmgen.schedulers import Tile


@pytest.mark.parametrize("e", MUSEUM, ids=lambda e: e.name)
def test_exhibit(e):
    kernel = e.kernel
    check(kernel)
    with pytest.raises(ProtocolViolation) as caught:
        if e.unrolled:
            prove(e.unrolled(e.program(kernel)))
        else:
            check(e.broken(kernel))
    assert caught.value.property.id == e.caught_by, caught.value


@pytest.mark.parametrize("e", MUSEUM, ids=lambda e: e.name)
def test_every_exhibit_says_where_it_comes_from(e):
    assert e.source and e.says
    assert bool(e.broken) != bool(e.unrolled)


def test_names_are_unique():
    assert len({e.name for e in MUSEUM}) == len(MUSEUM)


def odd_rows(cta: int, tiles: int) -> list[Tile]:
    """DeepGEMM #415: with an odd number of row tiles, the pairs of a cluster drift apart: some
    pair spans the end of one column of tiles and the start of the next."""
    index = [2 * i + cta for i in range(tiles)]
    return [Tile(64 * (i % 3), 72 * (i // 3), 64 * (i % 3), 72 * (i // 3), 2) for i in index]


def test_cluster_that_straddles_two_columns():
    """The whole grid is covered, each tile once; only the peers' shared operand differs."""
    block, cluster, shape = Block(m=64, n=72, k=128), Cluster(size=2, shared="b"), (192, 144, 256)
    found = list(examine([odd_rows(0, 3), odd_rows(1, 3)], block, cluster, shape))
    assert found == ["the CTAs of cluster 0 share b, but at rows [0, 72]"]
    even = (256, 144, 256)
    pairs = [[replace(t, d_row=t.d_row) for t in straight(cta)] for cta in range(2)]
    assert not list(examine(pairs, block, cluster, even))


def straight(cta: int) -> list[Tile]:
    """The fix: whole clusters within a column."""
    at = [(row + 64 * cta, col) for col in (0, 72) for row in (0, 128)]
    return [Tile(row, col, row, col, 2) for row, col in at]


def test_the_explorer_agrees_where_it_can_look():
    """Exhibits in a ring of two stages with one consumer: every interleaving is visited."""
    small = {"block_m": 64, "block_n": 64, "stages": 2, "consumers": 1, "multicast": "none"}
    seen = 0
    for e in MUSEUM:
        if e.broken and e.caught_by != "P12" and e.config.multicast == "none":
            kernel = replace(e, config=replace(e.config, **small)).kernel
            instance = replace(e.instance, k_blocks=2, tiles=2)
            program = replace(e, instance=instance).program(e.broken(kernel))
            verdict = explore(program)
            assert verdict.complete and verdict.bug, e.name
            seen += 1
    assert seen > 10
