"""The proof of ranks that send each other their rows (docs/adr/0051-all-gather.md): that kernels hold, and each way in which one would not."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
from kernels import DENSE, DENSE_TN, FP8, INT8_BLOCK, PAIRED, QUANTISED, VECTOR

from gemmgen.check import Instance, ProtocolViolation, check, ops
from gemmgen.check.audit import audit
from gemmgen.check.audit_ranks import audit_gathered
from gemmgen.check.prove import gathered, prove
from gemmgen.check.unroll import PAIR, unroller
from gemmgen.config import Config
from gemmgen.emit import emit
from gemmgen.errors import IllegalConfig
from gemmgen.ir import nodes as ir
from gemmgen.ir.blocks import is_if
from gemmgen.ir.collectives import MOST_CHUNKS, Seat
from gemmgen.ir.rewrite import map_stmts
from gemmgen.ir.syncs import is_fence
from gemmgen.link import TextDiffers, link
from gemmgen.pipeline import lower
from gemmgen.schedulers import order

SMALL = Config(block_m=64, block_n=64, consumers=1, stages=2)


def gathering(problem):
    return replace(problem, collective="all_gather")


KINDS = {
    "dense": (DENSE, Config()),
    "multicast_a": (DENSE, Config(multicast="a")),
    "multicast_b": (DENSE, Config(multicast="b")),
    "ping_pong": (DENSE, Config(ping_pong=True, block_m=64)),
    "pieces": (DENSE, Config(block_m=256, block_n=64, d_columns=64)),
    "swapped": (FP8, Config(swap_ab=True, block_m=16, block_n=64, consumers=1)),
    "peek": (FP8, Config(peek=True)),
    "vector": (VECTOR, Config(block_n=64)),
    "tn": (DENSE_TN, SMALL),
    "pairs": (PAIRED, SMALL),
    "quantised": (QUANTISED, replace(SMALL, block_n=128)),
    "int8": (INT8_BLOCK, replace(SMALL, stages=3)),
    "watched": (DENSE, Config(watchdog=True)),
    "stamped": (DENSE, Config()),
}


@cache
def kernel(name):
    problem, config = KINDS[name]
    return lower(gathering(problem), config, stamps=64 * (name == "stamped"))


@pytest.mark.parametrize("name", KINDS)
def test_every_kind_is_proved_and_read_back(name):
    k = kernel(name)
    proof = check(k)
    assert {i.ranks for i in proof.instances} == {1, 2, 3, 4, 8}
    assert link(k, emit(k)).events > 100


def test_rows_and_their_scales_travel():
    assert kernel("dense").arrivals.tensors == ("a",)
    assert (
        kernel("swapped").arrivals.tensors == kernel("vector").arrivals.tensors == ("a", "scale_a")
    )


def test_every_instance_of_a_small_ring():
    small = lower(gathering(DENSE), SMALL)
    unrolled = unroller(small, PAIR)
    chosen = gathered(small.stages, thorough=True)
    assert {(i.tiles, i.chunks) for i in chosen} >= {(1, 2), (2, 1), (3, 2), (2, 3)}
    for instance in chosen:
        prove(unrolled.program(instance))


REFUSED = {
    "gather-alone": (DENSE, Config(split_k=2)),
    "gather-producer": (FP8, Config(lane_scales=True)),
    "ranks-overlap": (DENSE, Config(pdl=True)),
    "stream-groups": (DENSE, Config(stream=True)),
}


def test_warps_that_load_their_operands_themselves_are_refused():
    few = Config(swap_ab=True, block_m=16, block_n=64, consumers=1, direct=True, stages=2, unroll=2)
    lower(DENSE, few)
    with pytest.raises(IllegalConfig) as e:
        lower(gathering(DENSE), few)
    assert e.value.rule.id == "gather-producer"


@pytest.mark.parametrize("rule", REFUSED)
def test_what_has_no_meaning_is_refused(rule):
    problem, config = REFUSED[rule]
    with pytest.raises(IllegalConfig) as e:
        lower(gathering(problem), config)
    assert e.value.rule.id == rule


# ---- kernels, copies and launches that are wrong -------------------------------------------------

TWO = Instance(k_blocks=1, tiles=2, ranks=2, epochs=(1, 2, 3, 4), chunks=2)


def found(k, instance=TWO):
    """The property that fails."""
    with pytest.raises(ProtocolViolation) as e:
        prove(unroller(k, PAIR).program(instance))
    return e.value.property.id


def waiting(order_of):
    """The dense kernel with what the producer does for each tile, its wait and its loads, in another order."""

    def visit(s):
        if isinstance(s, ir.ForTiles) and is_if(s.body[0], "awaited"):
            return replace(s, body=order_of(*s.body))
        return s

    return map_stmts(kernel("dense"), visit)


def without(drop):
    return map_stmts(kernel("dense"), lambda s: () if drop(s) else s)


def test_a_right_one_holds():
    prove(unroller(kernel("dense"), PAIR).program(TWO))


def test_no_wait_is_a_race_with_a_slow_rank():
    assert found(without(lambda s: isinstance(s, ir.AwaitSignals))) == "P2"


def test_rows_that_are_loaded_before_the_wait_are_found():
    assert found(waiting(lambda wait, loop: (loop, wait))) == "P2"


def test_no_fence_is_found():
    assert found(without(lambda s: is_fence(s, "arrivals"))) == "P7"


def test_a_fence_before_the_wait_is_found():
    assert found(waiting(lambda wait, loop: (replace(wait, body=wait.body[::-1]), loop))) == "P7"


def test_a_fence_of_shared_memory_orders_no_rows():
    def visit(s):
        return replace(s, of="async") if is_fence(s, "arrivals") else s

    assert found(map_stmts(kernel("dense"), visit)) == "P7"


def test_own_rows_are_not_waited_for():
    """Nobody raises a flag for them."""
    program = unroller(kernel("dense"), PAIR).program(Instance(k_blocks=1, tiles=2))
    every = [op for mine in program.ops for op in mine]
    assert not any(isinstance(op, ops.Wait) and op.bar[0] == ops.EPOCHS for op in every)
    prove(program)


def test_a_chunk_is_waited_for_once():
    """Two tiles of one chunk, and two chunks of one tile."""
    for tiles, chunks in ((2, 1), (1, 2)):
        i = Instance(k_blocks=1, tiles=tiles, ranks=2, chunks=chunks)
        program = unroller(kernel("dense"), PAIR).program(i)
        waits = [
            op
            for mine in program.ops
            for op in mine
            if isinstance(op, ops.Wait) and op.bar[0] == ops.EPOCHS
        ]
        assert [op.bar[2] for op in waits] == [chunks - 1] * i.ranks


def test_one_buffer_is_a_race_of_two_calls():
    k = kernel("dense")
    one = replace(k, arrivals=replace(k.arrivals, buffers=1))
    assert found(one) == "P2"
    prove(unroller(one, PAIR).program(replace(TWO, epochs=(1,))))


def test_three_buffers_hold():
    k = kernel("dense")
    prove(unroller(replace(k, arrivals=replace(k.arrivals, buffers=3)), PAIR).program(TWO))


@pytest.mark.parametrize("epochs", ((1, 1), (1, 2, 2, 3), (2, 1)), ids=str)
def test_an_epoch_that_does_not_grow_is_found(epochs):
    assert found(kernel("dense"), replace(TWO, epochs=epochs)) in ("P2", "P4", "P10")


def test_epochs_that_take_a_buffer_twice_are_found():
    assert found(kernel("dense"), replace(TWO, epochs=(1, 3))) == "P2"


def test_epochs_may_begin_anywhere():
    prove(unroller(kernel("dense"), PAIR).program(replace(TWO, epochs=(7, 8, 9))))


def planted(change, instance=TWO, every=False):
    """The property that fails where `change` rewrites the operations of the first agent that it does anything to, or of all."""
    program = unroller(kernel("dense"), PAIR).program(instance)
    new, changed = [], 0
    for agent, mine in zip(program.agents, program.ops, strict=True):
        now = mine if changed and not every else tuple(change(agent, mine))
        changed += now != mine
        new.append(now)
    assert changed
    with pytest.raises(ProtocolViolation) as e:
        prove(replace(program, ops=tuple(new)))
    return e.value.property.id


def each(change):
    """Operation by operation."""
    return lambda agent, mine: map(change, mine)


def test_a_wait_for_another_chunk_is_found():
    """The one before: a rank that sends the tile's own later is read too early."""

    def change(op):
        if isinstance(op, ops.Wait) and op.bar[0] == ops.EPOCHS and op.bar[2]:
            return replace(op, bar=(*op.bar[:2], op.bar[2] - 1))
        return op

    assert planted(each(change)) == "P2"


def test_a_wait_for_another_rank_is_found():
    def change(op):
        if isinstance(op, ops.Wait) and op.bar[0] == ops.EPOCHS:
            return replace(op, bar=(*op.bar[:2], op.bar[2] + 1))
        return op

    assert planted(each(change), replace(TWO, ranks=3, tiles=1, chunks=1)) in ("P1", "P2")


def pushing(change):
    return lambda agent, mine: change(mine) if agent.role == "copies" else mine


def test_a_flag_before_its_rows_is_found():
    def change(mine):
        at = next(i for i, op in enumerate(mine) if isinstance(op, ops.Write))
        return (*mine[:at], mine[at + 1], mine[at], *mine[at + 2 :])

    assert planted(pushing(change)) == "P2"


def test_chunks_in_another_order_are_found():
    """A tile waits for its last: one of several would be there before the others."""

    def change(mine):
        at = next(i for i, op in enumerate(mine) if isinstance(op, ops.Write))
        return (*mine[:at], *mine[at + 2 : at + 4], *mine[at : at + 2], *mine[at + 4 :])

    assert planted(pushing(change), replace(TWO, tiles=1)) in ("P2", "P10")


def test_rows_of_another_chunk_are_found():
    def change(mine):
        first, second = (op for op in mine if isinstance(op, ops.Write))
        cells = {first: second.cells, second: first.cells}
        return tuple(replace(op, cells=cells[op]) if op in cells else op for op in mine)

    assert planted(pushing(change)) == "P2"


def test_rows_of_another_launch_are_found():
    def change(mine):
        return tuple(
            replace(op, tile=op.tile + 2) if isinstance(op, ops.Write) else op for op in mine
        )

    assert planted(pushing(change)) == "P10"


def test_a_flag_that_is_not_raised_is_a_deadlock():
    def change(mine):
        return tuple(
            op for op in mine if not (isinstance(op, ops.Arrive) and op.bars[0][0] == ops.EPOCHS)
        )

    assert planted(pushing(change)) == "P1"


def started_early(roles):
    """What begins before the launch before is over."""

    def change(agent, mine):
        if agent.role not in roles:
            return mine
        return tuple(
            ops.WarpSync(stmt=op.stmt, single=True)
            if isinstance(op, ops.Wait) and op.bar[0] == ops.LAUNCH
            else op
            for op in mine
        )

    return planted(change, every=True)


@pytest.mark.parametrize("role", ("copies", "own rows"))
def test_copies_that_begin_early_are_found(role):
    """That the other ranks are done with a buffer is known from the launch in between."""
    assert started_early((role,)) in ("P2", "P10")


def test_own_rows_that_come_beside_the_launch_are_found():
    def change(agent, mine):
        return tuple(op for op in mine if not (isinstance(op, ops.Wait) and op.bar[0] == ops.OWN))

    assert planted(change, every=True) in ("P2", "P10")


# ---- the text ------------------------------------------------------------------------------------

EDITS = {
    "a wait of the GPU's scope": ("ld.acquire.sys.global.u64", "ld.acquire.gpu.global.u64"),
    "a wait that acquires nothing": ("ld.acquire.sys.global.u64", "ld.relaxed.sys.global.u64"),
    "a wait for any epoch": ("(flag) < epoch", "(flag) < 1"),
    "a wait for the epoch before": ("(flag) < epoch", "(flag) + 1 < epoch"),
    "the next chunk's flag": ("arrivals + tile.flag", "arrivals + tile.flag + 1"),
    "a fence of shared memory": ("fence.proxy.async.global", "fence.proxy.async.shared::cta"),
    "no fence": ("ptx::fence_proxy_async_global();\n", "\n"),
    "a chunk that counts as the next": ("arrived[0] = tile.flag + 1", "arrived[0] = tile.flag + 2"),
    "a chunk that is waited for no more": ("tile.flag >= arrived[0]", "tile.flag > arrived[0]"),
}


@pytest.mark.parametrize("name", EDITS)
def test_text_that_is_not_what_was_proved(name):
    old, new = EDITS[name]
    source = emit(kernel("dense"))
    assert old in source
    with pytest.raises(TextDiffers):
        link(kernel("dense"), source.replace(old, new))


# ---- the schedule --------------------------------------------------------------------------------

SHAPE, CHUNK = (200, 200, 300), 96


def walks(seat, ctas=5):
    k = kernel("dense")
    return [
        list(order(k.scheduler, k.block, k.cluster, SHAPE, ctas, c, seat=seat, chunk_rows=CHUNK))
        for c in range(ctas)
    ]


def flaws(change):
    seat = Seat(rank=1, ranks=3)
    changed = [change(walk) for walk in walks(seat)]
    return list(audit_gathered(changed, kernel("dense").block, SHAPE[0], seat, CHUNK))


def every(**fields):
    return lambda walk: [replace(t, **{n: f(t) for n, f in fields.items()}) for t in walk]


CHANGES = {
    "backwards": lambda walk: walk[::-1],
    "rows of A": every(a_row=lambda t: t.a_row + 8),
    "the next flag": every(flag=lambda t: t.flag + 1),
    "the first row's chunk": every(
        flag=lambda t: t.flag // MOST_CHUNKS * MOST_CHUNKS + t.a_row // CHUNK
    ),
    "the rank before": every(flag=lambda t: t.flag - MOST_CHUNKS),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_schedule_that_is_wrong_is_found(change):
    assert not flaws(lambda walk: walk)
    assert flaws(CHANGES[change])


def test_own_rows_come_first_and_others_in_order():
    for ranks in (1, 2, 3, 8):
        for rank in range(ranks):
            (walk,) = walks(Seat(rank=rank, ranks=ranks), 1)
            owners = list(dict.fromkeys(t.group for t in walk))
            assert owners == [(rank + i) % ranks for i in range(ranks)]
            assert all((t.flag < 0) == (t.group == rank) for t in walk)


def test_schedules_of_odd_shapes_hold():
    for name in ("dense", "multicast_a", "multicast_b", "swapped"):
        k = kernel(name)
        for shape in ((1, 1, 1), (129, 257, 64), (8, 2048, 64)):
            assert not list(audit(k.scheduler, k.block, k.cluster, shape, 2 * k.cluster.size))
