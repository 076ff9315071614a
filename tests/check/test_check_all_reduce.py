"""The proof of ranks that all store the sum of all (docs/adr/0057-all-reduce.md): that kernels hold, and each way in which one would not."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
from collective_kinds import KINDS as EVERY
from kernels import DENSE, DIRECT, FP8, QUANTISED

from gemmgen.check import Instance, ProtocolViolation, check, ops
from gemmgen.check.audit import audit
from gemmgen.check.audit_ranks import audit_alike
from gemmgen.check.footprint import WORKSPACE, merged, spans
from gemmgen.check.of_ranks import alike
from gemmgen.check.prove import prove
from gemmgen.check.unroll import PAIR, unroller
from gemmgen.check.values import values
from gemmgen.config import Config
from gemmgen.emit import emit
from gemmgen.errors import IllegalConfig, IRError
from gemmgen.ir import nodes as ir
from gemmgen.ir.blocks import is_if
from gemmgen.ir.dtypes import BF16, F16
from gemmgen.ir.rewrite import map_stmts
from gemmgen.ir.verify import verify
from gemmgen.link import TextDiffers, link
from gemmgen.pipeline import lower
from gemmgen.schedulers import order

SMALL = Config(block_m=64, block_n=64, consumers=1, stages=2)
WAVES = Config(block_m=256, block_n=64, d_columns=64)
TWELVE = Config(swap_ab=True, block_m=24)


def reduced(problem, wire=None):
    return replace(problem, collective="all_reduce", wire=wire)


KINDS = {
    **EVERY,
    "dense": (DENSE, Config()),
    "multicast": (DENSE, Config(multicast="a")),
    "lanes": (FP8, Config(lane_scales=True)),
    "quantised": (QUANTISED, replace(SMALL, block_n=128)),
    "direct": (DENSE, DIRECT),
    "stamped": (DENSE, Config(peek=True)),
    "waves": (DENSE, WAVES),
    "wire": (reduced(DENSE, BF16), Config()),
    "wire_waves": (reduced(DENSE, F16), WAVES),
    "wire_twelve": (reduced(DENSE, BF16), TWELVE),
}


@cache
def kernel(name):
    problem, config = KINDS[name]
    return lower(reduced(problem, problem.wire), config, stamps=64 * (name == "stamped"))


@pytest.mark.parametrize("name", KINDS)
def test_every_kind_is_proved_and_read_back(name):
    k = kernel(name)
    proof = check(k)
    assert {i.ranks for i in proof.instances} == {1, 2, 3, 4, 8}
    assert all(i.every for i in proof.instances if i.ranks > 1)
    assert "of 1, 2, 3, 4, 8 ranks" in str(proof)
    assert link(k, emit(k)).events > 100


def test_every_instance_of_a_small_ring():
    small = lower(reduced(DENSE), SMALL)
    unrolled = unroller(small, PAIR)
    chosen = alike(small.stages, thorough=True)
    assert {(i.ranks, i.ctas) for i in chosen} >= {(2, 1), (2, 2), (4, 2), (8, 1)}
    for instance in chosen:
        prove(unrolled.program(instance))


def test_sums_are_whole_and_launches_follow_each_other():
    for config, rule in ((Config(split_k=2), "ranks-alone"), (Config(pdl=True), "ranks-overlap")):
        with pytest.raises(IllegalConfig) as e:
            lower(reduced(DENSE), config)
        assert e.value.rule.id == rule


# ---- kernels and launches that are wrong ---------------------------------------------------------

TWO = Instance(k_blocks=1, tiles=2, ranks=2, epochs=(1, 2, 3, 4), every=True)
THREE = replace(TWO, ranks=3, epochs=(1, 2))


def found(k, instance=TWO):
    """The property that fails."""
    with pytest.raises(ProtocolViolation) as e:
        prove(unroller(k, PAIR).program(instance))
    return e.value.property.id


def moved(kinds, change, name="dense"):
    """With the statements of these kinds, which follow each other in the loop over tiles, in another order, or others."""

    def visit(s):
        if not isinstance(s, ir.ForTiles) or not any(isinstance(x, kinds) for x in s.body):
            return s
        at = [i for i, x in enumerate(s.body) if isinstance(x, kinds)]
        body = (*s.body[: at[0]], *change([s.body[i] for i in at]), *s.body[at[-1] + 1 :])
        return replace(s, body=body)

    return map_stmts(kernel(name), visit)


EXCHANGE = (ir.SendPartials, ir.Signal, ir.AwaitSignals, ir.Zero, ir.AddPartials)


def exchange(change, name="dense"):
    return moved(EXCHANGE, change, name)


@pytest.mark.parametrize("instance", (TWO, THREE, replace(TWO, ctas=2)), ids=str)
def test_a_right_one_holds(instance):
    assert [type(s) for s in exchange_of(kernel("dense"))] == list(EXCHANGE)
    prove(unroller(kernel("dense"), PAIR).program(instance))
    prove(unroller(exchange(lambda body: body), PAIR).program(instance))


def exchange_of(k):
    return [
        s
        for x in k.consumer.body
        if isinstance(x, ir.ForTiles)
        for s in x.body
        if isinstance(s, EXCHANGE)
    ]


def test_a_flag_before_its_stores_is_found():
    early = exchange(lambda x: (x[1], x[0], *x[2:]))
    assert found(early) == found(early, THREE) == "P2"


def test_no_flag_is_a_deadlock():
    assert found(exchange(lambda x: (x[0], *x[2:]))) == "P1"


def test_a_flag_behind_the_wait_is_a_deadlock():
    assert found(exchange(lambda x: (x[0], x[2], x[1], *x[3:]))) == "P1"


def test_flags_twice_are_found():
    assert found(exchange(lambda x: (x[0], x[1], x[1], *x[2:]))) in ("P2", "P4", "P10")


def test_no_wait_is_a_race_with_a_slow_rank():
    assert found(exchange(lambda x: (*x[:2], *x[3:]))) == "P2"


def test_a_wait_behind_the_sum_is_found():
    assert found(exchange(lambda x: (*x[:2], *x[3:], x[2]))) == "P2"


def test_one_buffer_is_a_race_of_two_calls():
    one = replace(kernel("dense"), peers=replace(kernel("dense").peers, buffers=1))
    assert found(one, replace(TWO, tiles=1)) == "P2"
    prove(unroller(one, PAIR).program(replace(TWO, epochs=(1,))))
    with pytest.raises(ProtocolViolation, match="P2"):
        check(one)


@pytest.mark.parametrize("epochs", ((1, 1), (1, 3), (1, 2, 2, 3), (2, 1)), ids=str)
def test_epochs_that_do_not_grow_by_one_are_found(epochs):
    assert found(kernel("dense"), replace(TWO, tiles=1, epochs=epochs)) in ("P2", "P4", "P10")


def test_epochs_may_begin_anywhere():
    prove(unroller(kernel("dense"), PAIR).program(replace(TWO, epochs=(7, 8, 9))))


def test_an_epoch_that_is_passed_never_or_twice_is_found():
    def passing(change):
        def visit(s):
            says = is_if(s, "cta_leader") and any(isinstance(x, ir.Epoch) for x in s.body)
            return change(s) if says else s

        return map_stmts(kernel("dense"), visit)

    assert found(passing(lambda s: ())) == found(passing(lambda s: (s, s))) == "P4"


def planted(change, instance=TWO):
    """The property that fails where `change` rewrites operations of the first agent that it does anything to."""
    program = unroller(kernel("dense"), PAIR).program(instance)
    for i, mine in enumerate(program.ops):
        new = tuple(map(change, mine))
        if new != mine:
            every = (*program.ops[:i], new, *program.ops[i + 1 :])
            with pytest.raises(ProtocolViolation) as e:
                prove(replace(program, ops=every))
            return e.value.property.id
    raise AssertionError("nothing was changed")


def flag_elsewhere(kind, by=0, rank=0):
    def change(op):
        bar = op.bar if isinstance(op, ops.Wait) else getattr(op, "bars", ((None,),))[0]
        if not isinstance(op, kind) or bar[0] != ops.EPOCHS:
            return op
        new = bar[0], (bar[1] + rank) % 2, bar[2] ^ by
        return replace(op, bar=new) if isinstance(op, ops.Wait) else replace(op, bars=(new,))

    return change


def test_flags_of_another_tile_rank_or_warp_are_found():
    tile = kernel("dense").peers.flags
    two = replace(TWO, ctas=2)
    assert planted(flag_elsewhere(ops.Wait, by=tile), two) in ("P1", "P2")
    assert planted(flag_elsewhere(ops.Wait, by=1)) in ("P1", "P2", "P4")
    assert planted(flag_elsewhere(ops.Arrive, by=tile), two) in ("P1", "P4")
    assert planted(flag_elsewhere(ops.Arrive, rank=1)) in ("P1", "P4")


def test_a_slot_of_another_tile_is_found():
    """Which another CTA fills."""
    size = kernel("dense").cluster.size

    def change(op):
        if isinstance(op, ops.Write) and isinstance(op.stmt, ir.SendPartials) and op.tile == 0:
            step = len(unroller(kernel("dense"), PAIR).memory.names) * size
            return replace(op, cells=tuple(c + step for c in op.cells))
        return op

    assert planted(change, replace(TWO, ctas=2)) in ("P2", "P10")


@pytest.mark.parametrize("name", KINDS)
def test_sums_are_followed_in_registers(name):
    assert not list(values(kernel(name)))


@pytest.mark.parametrize(
    "change",
    (
        lambda x: (*x[:3], x[4]),  # the own sum twice: it is not forgotten
        lambda x: (*x, x[4]),
        lambda x: x[:4],
        lambda x: (x[3], *x[:3], x[4]),  # forgotten before it is sent
    ),
)
def test_sums_that_are_not_each_rank_s_once_are_found(change):
    assert any(f.property.id == "P10" for f in values(exchange(change)))


def test_a_wave_that_is_not_sent_is_found():
    fewer = map_stmts(
        kernel("waves"), lambda s: () if isinstance(s, ir.SendPartials) and s.wave else s
    )
    assert any(f.property.id == "P10" for f in values(fewer))


@pytest.mark.parametrize("name", ("dense", "waves", "wire", "wire_waves", "wire_twelve"))
def test_a_slot_that_is_too_small_is_found(name):
    k = kernel(name)
    assert found(replace(k, peers=replace(k.peers, slot=k.peers.slot - 1))) == "P2"


@pytest.mark.parametrize("name", ("dense", "wire_twelve"))
def test_who_sends_writes_what_who_adds_reads(name):
    k = kernel(name)
    agents = [a for a in unroller(k).agents if a.role == "consumer"]
    sent, read = (
        sorted(
            {
                x
                for s in exchange_of(k)
                if isinstance(s, of)
                for a in agents
                for x in spans(k, s, a, 0)
            }
        )
        for of in (ir.SendPartials, ir.AddPartials)
    )
    assert sent == read
    assert merged(iter(sent)) == ((WORKSPACE, WORKSPACE + 4 * k.peers.slot),)


def test_what_is_said_at_once_is_not_noted():
    for signal in (ir.Signal(by="telling", owed="acc0"), ir.Signal(by="raising")):
        with pytest.raises(IRError, match="owes"):
            verify(exchange(lambda x, s=signal: (x[0], s, *x[2:])))


# ---- the text ------------------------------------------------------------------------------------

EDITS = {
    "a flag of the GPU's scope": ("st.release.sys.global.u64", "st.release.gpu.global.u64"),
    "a wait of the GPU's scope": ("ld.acquire.sys.global.u64", "ld.acquire.gpu.global.u64"),
    "a flag that releases nothing": ("st.release.sys.global.u64", "st.relaxed.sys.global.u64"),
    "a wait for any epoch": ("(flag) < epoch", "(flag) < 1"),
    "a flag of the epoch before": ("4 + warp), epoch);", "4 + warp), epoch - 1);"),
    "a flag of another sender": ("((back - 1) * (long long)", "(back * (long long)"),
    "a flag at another rank": (
        "raise_epoch(partials[(rank + ranks - back)",
        "raise_epoch(partials[(rank + back)",
    ),
    "a flag of one rank less": ("int back = 1 + lane;", "int back = 2 + lane;"),
    "one buffer": ("int(epoch % 2)", "int(epoch % 1)"),
    "the next tile's flag": (
        "other * (long long)flag_stride + tile.slot",
        "other * (long long)flag_stride + 1 + tile.slot",
    ),
    "another sender's slot": (
        "(back * (long long)tile.slots",
        "((back - 1) * (long long)tile.slots",
    ),
    "another tile's slot": (
        "(back * (long long)tile.slots + tile.slot)",
        "(back * (long long)tile.slots)",
    ),
    "sums sent to another rank": (
        "slot = partials[(rank + ranks - back)",
        "slot = partials[(rank + back)",
    ),
    "an own sum that is not sent": ("back >= 0; --back", "back > 0; --back"),
    "an own sum out of order": ("((from + ranks - rank) % ranks", "(from"),
    "all but the last rank's": ("from < ranks; ++from", "from < ranks - 1; ++from"),
    "all but the first rank's": ("int from = 0;", "int from = 1;"),
    "sums of another's memory": ("slot = partials[tile.owner]", "slot = partials[from]"),
    "the epoch of the launch before": ("slots_stride) + 1;", "slots_stride);"),
    "lanes that have not met": ("ptx::warp_sync();\n", "\n"),
    "a sum that is kept": ("for (auto& r : acc0) r = 0;", ""),
}


@pytest.mark.parametrize("name", EDITS)
def test_text_that_is_not_what_was_proved(name):
    old, new = EDITS[name]
    k = kernel("dense")
    source = emit(k)
    assert old in source
    with pytest.raises(TextDiffers):
        link(k, source.replace(old, new))


# ---- the schedule --------------------------------------------------------------------------------

SHAPE = (200, 200, 300)


def walks(seat, ctas=5):
    k = kernel("dense")
    return [
        list(order(k.scheduler, k.block, k.cluster, SHAPE, ctas, c, seat=seat)) for c in range(ctas)
    ]


def wrong(change, ranks=3):
    """What the audit says where `change` rewrites a rank's walks."""

    def of(seat):
        return change(walks(seat, ctas=2), seat)

    return " ".join(audit_alike(of, kernel("dense").block, SHAPE, ranks))


@pytest.mark.parametrize("name", ("dense", "multicast", "multicast_b", "residual", "orders"))
@pytest.mark.parametrize("ctas", (2, 4, 34))
def test_the_schedule_is_audited(name, ctas):
    k = kernel(name)
    for shape in ((1, 1, 1), SHAPE, (700, 40, 64)):
        assert not list(audit(k.scheduler, k.block, k.cluster, shape, ctas))


def test_schedules_that_are_wrong():
    assert wrong(lambda found, seat: found) == ""
    late = wrong(lambda found, seat: [w[::-1] for w in found] if seat.rank else found)
    assert "may wait for each other" in late
    twice = wrong(lambda found, seat: [*found, found[0]])
    assert "two tiles have one slot" in twice
    other = wrong(
        lambda found, seat: [[replace(t, slot=t.slot ^ bool(seat.rank)) for t in w] for w in found]
    )
    assert "do not number the same tiles alike" in other
    rows = wrong(lambda found, seat: [[replace(t, a_row=t.d_row + 1) for t in w] for w in found])
    assert "is multiplied from row" in rows
    far = wrong(lambda found, seat: [[replace(t, slot=t.slot + t.slots) for t in w] for w in found])
    assert "has slot" in far


def test_ranks_of_other_numbers_of_ctas_do_not_wait_for_each_other():
    """Tiles come in one order everywhere, however many take them."""
    texts = audit_alike(
        lambda seat: walks(seat, ctas=2 + seat.rank), kernel("dense").block, SHAPE, 3
    )
    assert not list(texts)
