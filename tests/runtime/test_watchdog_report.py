"""What a watched kernel's report says, without the GPU that would write it."""

from __future__ import annotations

from dataclasses import replace

from kernels import DENSE

from gemmgen.config import Config
from gemmgen.pipeline import lower
from gemmgen.runtime.watchdog import Stuck, deadlock


def stuck(kernel, barrier, **where):
    names = [b.name for b in kernel.barriers]
    given = {"cta": 3, "role": 0, "stage": 1, "parity": 0, "row": -1, "col": -1, "k": -1, **where}
    return Stuck(barrier=names.index(barrier), **given)


def said(kernel, *entries):
    return str(deadlock(kernel, list(entries))).splitlines()[1:]


def test_where_a_warp_waits():
    kernel = lower(DENSE, Config(ping_pong=True, block_n=64, watchdog=True))
    place = {"row": 128, "col": 64}
    lines = said(
        kernel,
        *[stuck(kernel, "full", **place, k=2)] * 4,
        stuck(kernel, "turns", **place),
        stuck(kernel, "empty", role=1),
    )
    assert lines == [
        "  CTA    3  consumer  4 warp(s)  full[1] parity 0  tile row 128 column 64, K block 2",
        "  CTA    3  consumer  1 warp(s)  turns[1] parity 0  tile row 128 column 64",
        "  CTA    3  producer  1 warp(s)  empty[1] parity 0  draining the ring",
    ]


def test_a_wait_for_partial_sums_drains_no_ring():
    kernel = lower(DENSE, Config(split_k=2, block_n=64, watchdog=True))
    (line,) = said(kernel, stuck(kernel, "partials_full", stage=0))
    assert line == "  CTA    3  consumer  1 warp(s)  partials_full[0] parity 0  with a tile's sums"


def test_a_rank_that_does_not_come_is_named_with_its_tile():
    kernel = lower(replace(DENSE, collective="reduce_scatter"), Config(block_n=64, watchdog=True))
    at = Stuck(
        cta=3, role=0, barrier=len(kernel.barriers), stage=5, parity=-1, row=128, col=64, k=-1
    )
    late, line = said(kernel, at)
    assert late == "  nothing came from rank(s) 5"
    assert "sums of rank[5]" in line and "tile row 128 column 64" in line


def test_a_rank_whose_rows_do_not_come_is_named_with_their_chunk():
    kernel = lower(replace(DENSE, collective="all_gather"), Config(watchdog=True))
    at = Stuck(
        cta=3, role=1, barrier=len(kernel.barriers), stage=5, parity=2, row=128, col=64, k=-1
    )
    late, *_, line = said(kernel, stuck(kernel, "empty", role=1), at)
    assert late == "  nothing came from rank(s) 5"
    assert "producer" in line and "rows of rank[5] chunk 2" in line
    assert "tile row 128 column 64" in line
