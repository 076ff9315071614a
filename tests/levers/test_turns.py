"""Consumer warpgroups that take tiles in turns: results on the emulator, the pass, the proof, and faults that
must show."""

from __future__ import annotations

from dataclasses import replace

import pytest
from emulated import judged, same_bits
from grouped import PROBLEMS, layout, problem
from kernels import DENSE, FP8, GROUPED, VARIETY, VECTOR

from gemmgen import emulator
from gemmgen.check import ProtocolViolation, check, instances
from gemmgen.check.ops import Instance
from gemmgen.check.prove import Until
from gemmgen.check.unroll import unroller
from gemmgen.config import Config
from gemmgen.families import build
from gemmgen.ir import nodes as ir
from gemmgen.ir.rewrite import map_stmts, statements, walk
from gemmgen.passes.join_parts import join_parts
from gemmgen.passes.take_turns import take_turns
from gemmgen.pipeline import lower
from gemmgen.target import H200

from mutation import rows_turns  # isort: skip
from mutation.mutant import original  # isort: skip

IN_TURNS = [name for name, (_, c) in VARIETY.items() if c.ping_pong]
SHARED = [name for name in VARIETY if name not in IN_TURNS]
WHOLE = ((0, 1, 2, 3),)  # a warpgroup as one agent


def config(**changes) -> Config:
    small = {"block_m": 64, "block_n": 32, "stages": 2, "ping_pong": True}
    return Config(**small | changes)


# ---- results --------------------------------------------------------------------------------


@pytest.mark.nvrtc
@pytest.mark.parametrize("name", PROBLEMS)
def test_results(name):
    """Tails on every side; of one CTA's tiles an odd number: the warpgroups have different numbers of them."""
    assert judged(problem(name, "none"), config(), (140, 75, 300), pad=1, sms=1).exact


@pytest.mark.nvrtc
@pytest.mark.parametrize("consumers", (2, 3))
@pytest.mark.parametrize("depth", (20, 128, 200, 520))
def test_ring_and_turns_meet_at_every_stage(consumers, depth):
    """Fewer K blocks than stages, as many, more than two turns of the ring; tiles for several turns each."""
    for stages in (1, 2, 3):
        c = config(consumers=consumers, stages=stages)
        assert judged(DENSE, c, (130, 100, depth), sms=1).exact


@pytest.mark.nvrtc
@pytest.mark.parametrize("tiles", range(1, 6))
def test_fewer_tiles_than_turns(tiles):
    assert judged(DENSE, config(consumers=3), (64, 32 * tiles, 150), sms=1).exact


@pytest.mark.nvrtc
@pytest.mark.parametrize(
    "changes",
    (
        {"multicast": "a", "in_flight": 1},
        {"multicast": "b", "stages": 3},
        {"swap_ab": True, "block_m": 16, "block_n": 64},
        {"block_m": 128, "in_flight": 1},
        {"block_n": 128, "d_columns": 64},
        {"swizzle_d": 0},
        {"watchdog": True, "pdl": True},
        {"unroll": 4},
    ),
    ids=str,
)
def test_with_other_ways(changes):
    assert judged(DENSE, config(**changes), (140, 140, 300), pad=1, sms=2).exact


@pytest.mark.nvrtc
@pytest.mark.parametrize("grouping", GROUPED)
@pytest.mark.parametrize("name", ("bf16", "fp8_1d1d"))
def test_groups(name, grouping):
    """Groups without rows, or without K blocks, take their turns too."""
    p = problem(name, grouping)
    shape, sizes = (256, 70, 640), (128, 0, 256)
    assert judged(p, config(), shape, layout(p, shape, sizes), sms=1).exact


@pytest.mark.nvrtc
@pytest.mark.parametrize(
    "schedule",
    (emulator.Eager, emulator.Late, lambda: emulator.Random(seed=3)),
    ids=("eager", "late", "random"),
)
def test_whoever_is_late(schedule):
    assert judged(DENSE, config(stages=3), (200, 100, 500), sms=1, schedule=schedule()).exact


@pytest.mark.nvrtc
@pytest.mark.parametrize("p", (DENSE, FP8, VECTOR), ids=lambda p: p.family)
def test_turns_change_no_bit(p):
    """On random data: a tile is summed in the same order."""
    shared = config(ping_pong=False, consumers=1)
    assert same_bits(p, (150, 70, 700), (config(), shared), 3)


# ---- the pass -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", IN_TURNS)
def test_what_the_pass_does(name):
    """A turn around each tile's products, counted, and a barrier for each warpgroup; nothing else."""
    p, c = VARIETY[name]
    built = build(p, c)
    before, after = (join_parts(k, H200) for k in (built, take_turns(built, H200, True)))
    (barrier,) = (b for b in after.barriers if b not in before.barriers)
    assert (barrier.per, barrier.stages) == ("turn", c.consumers)
    inits = [s.barrier for s in walk(after.prologue) if isinstance(s, ir.InitBarrier)]
    assert inits == [b.name for b in after.barriers]
    zero, tiles, *rest = after.consumer.body
    old, *others = before.consumer.body
    assert (
        isinstance(zero, ir.Zero)
        and isinstance(tiles, ir.ForTiles)
        and tiles.of == "turn"
        and rest == others
    )
    (turn,) = after.consumer.locals[len(before.consumer.locals) :]
    assert zero.dst == turn.name
    of_turns = (
        ir.Wait(barrier=barrier.name, per="turn", turn=turn.name),
        ir.NextTurn(turn=turn.name),
    )
    passes = ir.Arrive(barrier=barrier.name, to="next")
    meets = ir.Sync(of="warp")
    empty = bool(before.scheduler.bounds or before.groups.depths)
    at = [i for i, s in enumerate(tiles.body) if s in (*of_turns, passes, meets)]
    first = at[0]
    behind = [first + 2 + i for i in range(2 + empty)]
    assert at == [first, *behind], "around one statement: what has the K loops"
    assert (tiles.body[behind[0]] == meets) == empty, "where no products bring lanes together"
    assert any(isinstance(s, ir.ForK) for s in walk(tiles.body[first + 1 : first + 2]))
    others = [s for i, s in enumerate(tiles.body) if i not in at]
    assert others == [*old.body]
    assert not any(isinstance(s, ir.ForK) for i, s in enumerate(tiles.body) if i != first + 1)
    assert after.roles[1:] == before.roles[1:], "the producer loads all tiles"


@pytest.mark.parametrize("name", ["fp8-rows-ping-pong", "fp8-1d1d-ping-pong-k_flat"])
def test_lanes_that_do_not_meet_are_found(name):
    """Where a tile has no products one may pass its warp's turn before another has seen it."""
    kernel = lower(*VARIETY[name])
    assert check(kernel).certificate
    wrong = map_stmts(kernel, lambda s: () if s == ir.Sync(of="warp") else s)
    with pytest.raises(ProtocolViolation, match="lanes of the warp have not met"):
        check(wrong)


@pytest.mark.parametrize("name", SHARED)
def test_without_turns_the_pass_does_nothing(name):
    kernel = build(*VARIETY[name])
    assert take_turns(kernel, H200, False) is kernel
    one = kernel.consumer
    assert one.turns == 1 and kernel.consumers * one.slices == one.count
    assert not [
        s
        for s in statements(lower(*VARIETY[name]))
        if isinstance(s, ir.ForTiles) and s.of == "turn"
    ]
    assert all(s.copies == 1 and s.bytes == s.copy_bytes for s in kernel.smem)


@pytest.mark.parametrize("name", IN_TURNS)
def test_each_has_a_copy_of_d_and_a_whole_tile(name):
    p, c = VARIETY[name]
    kernel = lower(p, c)
    alone = lower(p, replace(c, ping_pong=False, consumers=1))
    d, other = kernel.buffer("smem_d"), alone.buffer("smem_d")
    assert (d.copies, other.copies) == (c.consumers, 1)
    assert d.copy_bytes == other.bytes and d.bytes == c.consumers * other.bytes
    assert kernel.consumers == alone.consumers == 1 and kernel.consumer.count == c.consumers
    arrivals = {b.name: b.arrivals for b in kernel.barriers}
    assert arrivals.pop("turns") == 4
    assert arrivals == {b.name: b.arrivals for b in alone.barriers}


# ---- the proof ------------------------------------------------------------------------------


@pytest.mark.parametrize("turns", (2, 3))
def test_instances_give_each_its_third_tile(turns):
    for stages in (1, 2, 5):
        plain, chosen = instances(stages), instances(stages, until=Until(rounds=4, tiles=3 * turns))
        assert {*plain} < {*chosen}
        for k in (1, stages, stages + 1):
            assert Instance(k_blocks=k, tiles=3 * turns) in chosen
        sizes = [i.k_blocks * i.tiles for i in chosen]
        assert sizes == sorted(sizes)


@pytest.mark.parametrize("name", IN_TURNS)
def test_waits_are_those_of_the_warpgroup_s_own_tiles(name):
    """In the order of the ring: the first of a tile after the last of the other's before it."""
    kernel = lower(*VARIETY[name])
    turns, stages, k = kernel.consumer.turns, kernel.stages, kernel.stages + 1
    program = unroller(kernel, WHOLE).program(Instance(k_blocks=k, tiles=3 * turns))
    for agent, ops in zip(program.agents, program.ops, strict=True):
        if agent.role != "consumer":
            continue
        waits = [op for op in ops if type(op).__name__ == "Wait"]
        tiles = range(agent.warpgroup, 3 * turns, turns)
        assert [w.phase for w in waits if w.bar[0] == "turns"] == [
            i - (agent.warpgroup == 0) for i in range(3)
        ]
        assert {w.bar[2] for w in waits if w.bar[0] == "turns"} == {agent.warpgroup}
        found = [(w.bar[2], w.phase) for w in waits if w.bar[0] == "full"]
        blocks = [t * k + i for t in tiles for i in range(k)]
        assert found == [(b % stages, b // stages) for b in blocks]


@pytest.mark.parametrize("name", IN_TURNS)
def test_the_proof_of_every_instance(name):
    kernel = lower(*VARIETY[name])
    proof = check(kernel, thorough=True, split=WHOLE)
    assert {i.tiles for i in proof.instances} >= {1, 2, 3, 3 * kernel.consumer.turns}
    assert proof.certificate.waits > 20


# Who finds each planned fault of the IR (mutation/rows_turns.py) first.
FOUND = {
    "97": "P5",
    "97b": "P5",
    "97c": "P1",
    "97d": "P5",
    "97e": "P2",
    "97f": "P9",
    "97g": "P5",
    "97h": "P1",
    "97i": "P1",
    "97j": "P5",
    "97k": "P5",
}


@pytest.mark.parametrize("row", [m for m in rows_turns.ROWS if m.ir], ids=lambda m: m.id)
def test_a_fault_is_refused(row):
    with pytest.raises(ProtocolViolation) as e:
        check(row.ir(original(row.kernel).kernel))
    assert e.value.property.id == FOUND[row.id]


def test_a_turn_passed_with_the_tile_is_slow_and_right():
    """Nothing is stored while another multiplies, and nothing is wrong."""
    late = rows_turns.passed(lambda s, gone: replace(s, body=(*s.body, gone)))
    assert check(late(lower(*VARIETY["dense-ping-pong"])))
