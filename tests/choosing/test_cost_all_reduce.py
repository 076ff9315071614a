"""What a launch is priced at by which every GPU gets the sum of all; and where it pays. None of it was timed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gemmgen.config import Config
from gemmgen.cost import operand_bytes, terms
from gemmgen.cost_launch import floors, flops, launch
from gemmgen.cost_link import NCCL_BEGINS, Hosts, nccl, pays, plain
from gemmgen.cost_ranks import EXCHANGED
from gemmgen.heuristics import choose
from gemmgen.problem import Problem
from gemmgen.target import BY_DEVICE, H200

DENSE = Problem(family="dense", a="bf16", b="bf16")
REDUCE = replace(DENSE, collective="all_reduce")
ROUNDED = replace(REDUCE, wire="bf16")
SHAPE = M, N, K = 64, 7168, 8192


def test_a_launch_of_one_rank_is_the_plain_one():
    assert terms(REDUCE, Config(), SHAPE, H200) == terms(DENSE, Config(), SHAPE, H200)


@pytest.mark.parametrize("ranks", (2, 8))
def test_every_rank_has_all_rows(ranks):
    """So all but the link is as of the plain GEMM, however many there are."""
    assert operand_bytes(REDUCE, SHAPE, ranks) == operand_bytes(DENSE, SHAPE)
    assert floors(REDUCE, SHAPE, H200, ranks) == floors(DENSE, SHAPE, H200)
    found, alone = terms(REDUCE, Config(), SHAPE, H200, ranks), terms(DENSE, Config(), SHAPE, H200)
    assert replace(found, link=alone.link) == alone
    assert launch(REDUCE, SHAPE, H200, ranks).tiles(Config()) == 56
    assert plain(launch(REDUCE, SHAPE, H200, ranks)).shape == SHAPE
    assert flops(SHAPE) == 2 * M * N * K


@pytest.mark.parametrize("ranks", (2, 4, 8))
@pytest.mark.parametrize("problem, size", ((REDUCE, 4), (ROUNDED, 2)), ids=("f32", "bf16"))
def test_nothing_hides_what_is_sent_to_all_others(problem, size, ranks):
    link = terms(problem, Config(), SHAPE, H200, ranks).link
    assert link.bytes == (ranks - 1) * size * M * N
    assert link.shown == link.seconds == link.bytes / H200.link_bytes_per_second
    assert link.beside == EXCHANGED
    twice = terms(problem, Config(), (4 * M, 2 * N, K), H200, ranks)
    assert twice.link.beside == twice.waves * EXCHANGED and twice.waves > 1


def test_a_ring_sends_less_to_many():
    """As much between two, a quarter among eight."""
    times = {r: nccl(launch(REDUCE, SHAPE, H200, r), Hosts()) - NCCL_BEGINS for r in (2, 8)}
    assert times[8] == pytest.approx(times[2] * 7 / 4)


def test_it_pays_for_few_rows_or_few_ranks():
    for m in (1, 16, 64, 256):
        assert pays(ROUNDED, (m, N, K), 2, H200)
    assert pays(ROUNDED, (16, N, K // 4), 8, H200)
    assert not pays(REDUCE, (4096, N, K // 4), 8, H200)
    assert not pays(REDUCE, SHAPE, 1, H200)
    assert not pays(REDUCE, SHAPE, 2, BY_DEVICE["NVIDIA H100 PCIe"])


def test_a_config_is_chosen_without_divided_k():
    for m in (1, 64, 512):
        c = choose(REDUCE, (m, N, K), H200, 2)
        assert c.split_k == 1 and not (c.stream or c.direct or c.pdl)
