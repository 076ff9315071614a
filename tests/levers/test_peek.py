"""Consumers that look at the next stage before they wait for it: results on the emulator, the pass, the proof, and
faults that must show."""

from __future__ import annotations

from dataclasses import replace

import pytest
from emulated import judged, same_bits
from grouped import PROBLEMS, layout, problem
from kernels import DENSE, FP8, GROUPED, VARIETY, VECTOR

from gemmgen import emulator
from gemmgen.check import ProtocolViolation, check
from gemmgen.config import Config
from gemmgen.errors import IRError
from gemmgen.families import build
from gemmgen.ir import nodes as ir
from gemmgen.ir.rewrite import map_stmts, statements, walk
from gemmgen.passes.join_parts import join_parts
from gemmgen.passes.peek_ahead import peek_ahead
from gemmgen.pipeline import lower
from gemmgen.target import H200

PEEKING = [name for name, (_, c) in VARIETY.items() if c.peek]


def config(**changes) -> Config:
    small = {"block_m": 64, "block_n": 32, "stages": 2, "consumers": 1, "peek": True}
    return Config(**small | changes)


# ---- results --------------------------------------------------------------------------------


@pytest.mark.nvrtc
@pytest.mark.parametrize("name", PROBLEMS)
def test_results(name):
    """Tails on every side, several tiles of a CTA."""
    assert judged(problem(name, "none"), config(), (140, 75, 300), pad=1, sms=1).exact


@pytest.mark.nvrtc
@pytest.mark.parametrize("stages", (1, 2, 3))
@pytest.mark.parametrize("depth", (20, 128, 200, 520))
def test_the_ring_at_every_stage(stages, depth):
    """Fewer K blocks than stages, as many, more than two turns of the ring; a ring of one stage."""
    assert judged(DENSE, config(stages=stages), (130, 100, depth), sms=1).exact


@pytest.mark.nvrtc
@pytest.mark.parametrize(
    "changes",
    (
        {"consumers": 2, "block_m": 128},
        {"consumers": 3, "block_m": 192},
        {"block_m": 128, "in_flight": 1},
        {"multicast": "a", "in_flight": 1},
        {"multicast": "b", "stages": 3},
        {"swap_ab": True, "block_m": 16, "block_n": 64},
        {"split_k": 2},
        {"watchdog": True, "pdl": True},
    ),
    ids=str,
)
def test_with_other_ways(changes):
    assert judged(DENSE, config(**changes), (140, 140, 300), pad=1, sms=4).exact


@pytest.mark.nvrtc
@pytest.mark.parametrize(
    "changes",
    (
        {"block_m": 128},
        {"block_n": 144},
        {"block_n": 48},
        {"parts": 2, "in_flight": 1},
    ),
    ids=str,
)
def test_where_k_blocks_are_promoted(changes):
    assert judged(FP8, config(**changes), (200, 300, 700), pad=1, sms=2).exact


@pytest.mark.nvrtc
@pytest.mark.parametrize("grouping", GROUPED)
@pytest.mark.parametrize("name", ("fp8_block", "fp8_1d1d"))
def test_groups(name, grouping):
    """Groups without rows, or without K blocks: the next K block is that of a tile some groups on."""
    p = problem(name, grouping)
    shape, sizes = (256, 70, 640), (128, 0, 256)
    assert judged(p, config(), shape, layout(p, shape, sizes), sms=1).exact


@pytest.mark.nvrtc
@pytest.mark.parametrize(
    "schedule",
    (emulator.Eager, emulator.Late, lambda: emulator.Random(seed=3)),
    ids=("eager", "late", "random"),
)
def test_whether_it_is_seen_or_waited_for(schedule):
    """Loads that are there at once, as late as can be, and in between."""
    assert judged(FP8, config(stages=3), (200, 100, 900), sms=1, schedule=schedule()).exact


@pytest.mark.nvrtc
@pytest.mark.parametrize("p", (DENSE, FP8, VECTOR), ids=lambda p: p.family)
def test_a_peek_changes_no_bit(p):
    assert same_bits(p, (150, 70, 700), (config(), config(peek=False)), 3)


# ---- the pass -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PEEKING)
def test_what_the_pass_does(name):
    """Of the consumers' waits on the ring each gives way to one that may be left out, and a peek stands behind the
    release in the same loop; nothing else."""
    built = build(*VARIETY[name])
    before, after = (join_parts(k, H200) for k in (built, peek_ahead(built, H200, True)))
    assert after.roles[1:] == before.roles[1:] and after.prologue == before.prologue
    loops = [s for s in walk(after.consumer.body) if isinstance(s, ir.ForK)]
    assert loops
    for loop in loops:
        assert loop.body[0].seen
        (at,) = (i for i, s in enumerate(loop.body) if isinstance(s, ir.Peek))
        released = [any(isinstance(s, ir.Arrive) for s in walk((x,))) for x in loop.body]
        assert released[at - 1] and not any(released[at:])

    def back(s):
        if isinstance(s, ir.Wait):
            return replace(s, seen="")
        return () if isinstance(s, ir.Peek) or s == ir.Zero(dst="seen") else s

    assert map_stmts(after, back).consumer.body == before.consumer.body


def test_without_it_nothing_changes():
    kernel = build(FP8, Config())
    assert peek_ahead(kernel, H200, False) is kernel


def test_without_pieces_there_is_no_place_to_peek():
    """A family that releases elsewhere is told so, not built with a look that nobody takes."""
    flat = join_parts(build(FP8, Config()), H200)
    with pytest.raises(IRError, match="no Piece"):
        peek_ahead(flat, H200, True)


# ---- the proof ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PEEKING)
def test_the_proof_waits_as_often_as_without(name):
    """And for the same phases, so that all it knows of a kernel without holds for one with."""
    p, c = VARIETY[name]
    with_, without = check(lower(p, c)), check(lower(p, replace(c, peek=False)))
    assert with_.instances == without.instances and with_.operations == without.operations


@pytest.mark.parametrize("name", PEEKING)
def test_what_was_seen_elsewhere_is_not_relied_upon(name):
    """A peek right before the wait has looked at the K block after."""

    def early(s):
        if not isinstance(s, ir.ForK) or not any(isinstance(x, ir.Peek) for x in s.body):
            return s
        rest = tuple(x for x in s.body if not isinstance(x, ir.Peek))
        return replace(s, body=(ir.Peek(barrier="full", dst="seen"), *rest))

    kernel = lower(*VARIETY[name])
    assert any(isinstance(s, ir.Peek) for s in statements(kernel))
    with pytest.raises(ProtocolViolation, match="P2"):
        check(map_stmts(kernel, early))


def test_a_register_that_was_never_set_is_not_relied_upon():
    kernel = lower(*VARIETY["fp8-peek"])
    unset = map_stmts(kernel, lambda s: () if s == ir.Zero(dst="seen") else s)
    with pytest.raises(ProtocolViolation, match="P2"):
        check(unset)
