"""The proof of ranks whose copy engines send their sums (docs/adr/0058-outbox.md): that kernels hold, and each way in which one, or what sends,
would not."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import zip_longest

import pytest
from kernels import DENSE
from scattering import KINDS, PLAIN, SWAPPED, scattered

from gemmgen.check import Instance, ProtocolViolation, check, ops, parcels_meaning
from gemmgen.check.of_ranks import parcelled
from gemmgen.check.ops import EPOCHS, PACKED, SENT
from gemmgen.check.prove import prove
from gemmgen.check.unroll import PAIR, unroller
from gemmgen.emit import emit
from gemmgen.ir import nodes as ir
from gemmgen.ir.blocks import is_if
from gemmgen.ir.collectives import MOST_CHUNKS, Seat
from gemmgen.ir.dtypes import BF16
from gemmgen.ir.rewrite import map_stmts
from gemmgen.link import TextDiffers, link
from gemmgen.pipeline import lower
from gemmgen.schedulers import order

SMALL = replace(PLAIN, stages=2)
TWO = Instance(k_blocks=1, tiles=2, ranks=2, epochs=(1, 2, 3, 4), parcels=2)
ONE = replace(TWO, parcels=1)  # of both tiles
SHARED = replace(ONE, ctas=2)  # which two CTAs pack


@cache
def kernel(name="dense", wire=None, outbox=True):
    problem, config = {**KINDS, "dense": (DENSE, PLAIN), "small": (DENSE, SMALL)}[name]
    return lower(scattered(problem, wire), replace(config, outbox=outbox))


@pytest.mark.parametrize("name", KINDS)
def test_every_kind_is_proved_and_read_back(name):
    k = kernel(name)
    assert k.peers.parcels == MOST_CHUNKS
    proof = check(k)
    assert {i.ranks for i in proof.instances} == {1, 2, 3, 4, 8}
    assert {i.parcels for i in proof.instances if i.ranks > 1} == {1, 2}
    assert link(k, emit(k)).events > 100


def test_rounded_sums_are_proved_too():
    for problem, config in ((DENSE, PLAIN), (DENSE, replace(SWAPPED, block_m=24))):
        k = lower(scattered(problem, BF16), replace(config, outbox=True))
        check(k)
        link(k, emit(k))


@pytest.mark.parametrize(
    "instance", parcelled(SMALL.stages, thorough=True), ids=lambda i: str(i).replace(" ", "_")
)
def test_every_instance_of_a_small_ring(instance):
    prove(unroller(kernel("small"), PAIR).program(instance))


def test_what_the_instances_are_of():
    for thorough in (False, True):
        chosen = parcelled(SMALL.stages, thorough=thorough)
        assert {(i.ranks, i.ctas) for i in chosen} >= {(2, 1), (2, 2), (3, 1), (4, 1), (8, 1)}
        shared = [i for i in chosen if i.ctas > 1 and i.parcels < i.tiles]
        assert shared and any(len(i.epochs) > 2 for i in shared)
        assert any(i.parcels > 1 for i in chosen)
    assert "sent in 2 parcels" in str(TWO) and "sent in 1 parcel," in f"{ONE},"


@pytest.mark.parametrize("size", (1, 2))
def test_parcels_share_out_the_slots(size):
    for tiles in range(1, 6):
        for parcels in range(1, 5):
            i = Instance(k_blocks=1, tiles=tiles, ranks=2, parcels=parcels)
            found = parcels_meaning.slots(i, size)
            assert [x for slots in found for x in slots] == list(range(tiles * size))
            assert len(found) <= parcels and all(found)


# ---- kernels that are wrong ----------------------------------------------------------------------


def found(k, instance=TWO):
    """The property that fails."""
    with pytest.raises(ProtocolViolation) as e:
        prove(unroller(k, PAIR).program(instance))
    return e.value.property.id


EVERY = (TWO, ONE, SHARED)
COUNTING = ir.Signal(by="counting", owed="owed")


@pytest.mark.parametrize("instance", EVERY, ids=str)
def test_a_right_one_holds(instance):
    for epochs in ((1, 2, 3, 4), (7, 8, 9)):
        prove(unroller(kernel(), PAIR).program(replace(instance, epochs=epochs)))


def sends(order_of):
    def visit(s):
        return replace(s, body=order_of(s.body)) if is_if(s, "theirs") else s

    return map_stmts(kernel(), visit)


def owing(change):
    """With other statements instead of those that count, of which there is one in the loop over tiles, then one behind it."""
    places = iter(("inside", "behind"))
    return map_stmts(kernel(), lambda s: change(s, next(places)) if is_if(s, "owes") else s)


@pytest.mark.parametrize("instance", EVERY, ids=str)
def test_a_warp_that_counts_itself_before_it_stores_is_found(instance):
    assert found(sends(lambda body: (body[-1], COUNTING, *body[:-1])), instance) == "P2"


@pytest.mark.parametrize("instance", EVERY, ids=str)
def test_a_warp_that_counts_itself_at_once_holds_too(instance):
    """It would only keep the warp until its sums are in the outbox."""
    prove(unroller(sends(lambda body: (*body, COUNTING)), PAIR).program(instance))


@pytest.mark.parametrize("instance", EVERY, ids=str)
def test_a_warp_that_never_counts_itself_is_a_deadlock(instance):
    never = owing(lambda s, place: ())
    assert found(never, instance) == "P1"
    with pytest.raises(ProtocolViolation, match="P1"):
        check(never)


def test_the_last_tile_that_is_not_counted_is_found():
    """Where a CTA has no own tile behind it."""
    never = owing(lambda s, place: s if place == "inside" else ())
    prove(unroller(never, PAIR).program(TWO))
    assert found(never, replace(ONE, tiles=1, ctas=2)) == "P1"
    with pytest.raises(ProtocolViolation, match="P1"):
        check(never)


@pytest.mark.parametrize("instance", EVERY, ids=str)
def test_a_warp_that_counts_itself_twice_is_found(instance):
    twice = sends(lambda body: (*body, COUNTING, body[-1]))
    assert found(twice, instance) in ("P2", "P4")
    with pytest.raises(ProtocolViolation, match=r"P[24]"):
        check(twice)


@pytest.mark.parametrize("instance", EVERY, ids=str)
def test_a_flag_that_is_raised_where_a_warp_should_count_itself_is_found(instance):
    def visit(s):
        counting = isinstance(s, ir.Signal) and s.by == "counting"
        return replace(s, by="raising") if counting else s

    raising = map_stmts(kernel(), visit)
    assert found(raising, instance) == "P1"
    with pytest.raises(ProtocolViolation, match="P1"):
        check(raising)


@pytest.mark.parametrize("instance", EVERY, ids=str)
def test_a_warp_that_counts_itself_where_a_flag_should_be_raised_is_found(instance):
    """Of a kernel that waits for its other ranks' warps."""

    def visit(s):
        raising = isinstance(s, ir.Signal) and s.by == "raising"
        return replace(s, by="counting") if raising else s

    assert found(map_stmts(kernel(outbox=False), visit), instance) in ("P1", "P2")


def without(cls):
    return map_stmts(kernel(), lambda s: () if isinstance(s, cls) else s)


@pytest.mark.parametrize("instance", EVERY, ids=str)
def test_no_wait_is_a_race_with_a_slow_copy(instance):
    assert found(without(ir.AwaitSignals), instance) == "P2"


@pytest.mark.parametrize("instance", EVERY, ids=str)
def test_sums_that_are_added_before_the_wait_are_found(instance):
    def visit(s):
        if is_if(s, "ours"):
            wait, add, *rest = s.body
            assert isinstance(wait, ir.AwaitSignals) and isinstance(add, ir.AddPartials)
            return replace(s, body=(add, wait, *rest))
        return s

    assert found(map_stmts(kernel(), visit), instance) == "P2"


@pytest.mark.parametrize("instance", EVERY, ids=str)
def test_a_wait_for_warps_rather_than_parcels_is_found(instance):
    def visit(s):
        return replace(s, of="sums") if isinstance(s, ir.AwaitSignals) else s

    of_sums = map_stmts(kernel(), visit)
    assert found(of_sums, instance) in ("P1", "P2")
    with pytest.raises(ProtocolViolation):
        check(of_sums)


@pytest.mark.parametrize("instance", EVERY, ids=str)
def test_one_buffer_is_a_race_of_two_calls(instance):
    one = replace(kernel(), peers=replace(kernel().peers, buffers=1))
    assert found(one, instance) == "P2"
    prove(unroller(one, PAIR).program(replace(instance, epochs=(1,))))


def test_a_slot_that_is_too_small_is_found():
    k = kernel()
    assert found(replace(k, peers=replace(k.peers, slot=k.peers.slot - 1))) == "P2"


@pytest.mark.parametrize("by", (-1, 1))
def test_a_parcel_of_another_number_of_warps_is_found(by):
    """One too few may leave before its last sums, one too many never does."""
    k = kernel()
    wrong = replace(k, peers=replace(k.peers, flags=k.peers.flags + by))
    assert found(wrong, ONE) in (("P2", "P4") if by < 0 else ("P1",))


# ---- what sends ----------------------------------------------------------------------------------


def sent(change, monkeypatch, instance=TWO, launch=None):
    """The property that fails where what one agent does is changed: of every launch, or of one."""
    right = parcels_meaning._pushes

    def pushes(k, i, rank, at, cells):
        every = list(right(k, i, rank, at, cells))
        return change(every) if launch in (None, at) else every

    monkeypatch.setattr(parcels_meaning, "_pushes", pushes)
    return found(kernel(), instance)


def is_wait(op, of):
    return isinstance(op, ops.Wait) and op.bar[0] == of


def is_flag(op):
    return isinstance(op, ops.Arrive) and op.bars[0][0] == EPOCHS


@pytest.mark.parametrize("instance", EVERY, ids=str)
def test_a_parcel_that_is_sent_before_it_is_packed_is_found(instance, monkeypatch):
    def at_once(every):
        return [op for op in every if not is_wait(op, PACKED)]

    assert sent(at_once, monkeypatch, instance) == "P2"


@pytest.mark.parametrize("instance", EVERY, ids=str)
def test_a_flag_before_its_parcel_is_found(instance, monkeypatch):
    def early(every):
        flags, rest = [], []
        for op in reversed(every):
            if is_flag(op):
                flags.append(op)
            else:
                if is_wait(op, PACKED):
                    rest.append(flags.pop())
                rest.append(op)
        return rest[::-1]

    def behind_the_wait(every):
        moved = early(every)
        at = [i for i, op in enumerate(moved) if is_flag(op)]
        assert len(at) == sum(map(is_flag, every)) and all(
            is_wait(moved[i - 1], PACKED) for i in at
        )
        return moved

    assert sent(behind_the_wait, monkeypatch, instance) == "P2"


def test_another_parcel_s_flag_is_found(monkeypatch):
    def crossed(every):
        def other(op):
            name, rank, number = op.bars[0]
            return replace(op, bars=((name, rank, number ^ 1),))

        return [other(op) if is_flag(op) else op for op in every]

    assert sent(crossed, monkeypatch, replace(TWO, ctas=2)) == "P2"


def test_a_wait_for_another_parcel_is_found(monkeypatch):
    def crossed(every):
        def other(op):
            name, rank, number = op.bar
            return replace(op, bar=(name, rank, number ^ 1))

        return [other(op) if is_wait(op, PACKED) else op for op in every]

    assert sent(crossed, monkeypatch, replace(TWO, ctas=2)) == "P2"


def test_a_flag_at_another_rank_is_found(monkeypatch):
    def own(every):
        def other(op):
            name, rank, number = op.bars[0]
            return replace(op, bars=((name, 1 - rank, number),))

        return [other(op) if is_flag(op) else op for op in every]

    assert sent(own, monkeypatch) in ("P1", "P2", "P4")


def test_a_parcel_that_is_half_copied_is_found(monkeypatch):
    """A tile of it is left out."""

    def half(every):
        first = next(i for i, op in enumerate(every) if isinstance(op, ops.Write))
        return [op for i, op in enumerate(every) if i not in (first, first - 1)]

    assert sent(half, monkeypatch, ONE) in ("P2", "P10")


@pytest.mark.parametrize("of", ("flag", "parcel"))
def test_a_parcel_that_is_not_sent_is_a_deadlock(of, monkeypatch):
    def none(every):
        if of == "flag":
            return [op for op in every if not is_flag(op)]
        at = next(i for i, op in enumerate(every) if is_wait(op, PACKED))
        end = next(i for i, op in enumerate(every) if is_flag(op))
        return every[:at] + every[end + 1 :]

    assert sent(none, monkeypatch) == "P1"


def is_sent(op):
    return is_wait(op, SENT)


@pytest.mark.parametrize("instance", EVERY, ids=str)
def test_a_launch_waits_for_the_copies_of_the_one_before_the_last(instance, monkeypatch):
    """Each agent of it, whose outbox that had. Other ranks' parcels of the launch in between say as much, so that what is proved holds
    without."""
    program = unroller(kernel(), PAIR).program(instance)
    for a, mine in zip(program.agents, program.ops, strict=True):
        if a.role != parcels_meaning.PUSHES:
            wanted = [(SENT, a.rank, a.launch - 2)] * (a.launch > 1)
            assert [op.bar for op in mine if is_sent(op)] == wanted
            assert not wanted or any(map(is_sent, mine[:2]))
    monkeypatch.setattr(parcels_meaning, "started", lambda w: None)
    program = unroller(kernel(), PAIR).program(instance)
    assert not [
        op
        for a, mine in zip(program.agents, program.ops, strict=True)
        if a.role != parcels_meaning.PUSHES
        for op in filter(is_sent, mine)
    ]
    prove(program)


def test_copies_that_overtake_those_of_the_launch_before_are_found(monkeypatch):
    def at_once(every):
        return [op for op in every if not is_sent(op)]

    assert sent(at_once, monkeypatch) in ("P2", "P4")


def test_copies_may_outlive_their_launch():
    """Its end is not theirs; that of the one after the next is."""
    program = unroller(kernel(), PAIR).program(TWO)
    pushing = [a for a in program.agents if a.role == parcels_meaning.PUSHES]
    assert len(pushing) == TWO.ranks * len(TWO.epochs)
    for a in pushing:
        mine = program.ops[program.agents.index(a)]
        assert not [op for op in mine if is_wait(op, ops.LAUNCH)]
        ends = [op for op in mine if isinstance(op, ops.Arrive) and op.bars[0][0] == SENT]
        assert ends == [mine[-1]]


# ---- the text ------------------------------------------------------------------------------------

EDITS = {
    "a count that orders nothing": ("atom.acq_rel.gpu", "atom.relaxed.gpu"),
    "a count that releases only": ("atom.acq_rel.gpu", "atom.release.gpu"),
    "a count that does not wrap": ("global.inc.u32", "global.add.u32"),
    "one warp fewer": (" * 4 - 1;", " * 4 - 2;"),
    "one warp more": (" * 4 - 1;", " * 4;"),
    "whole parcels only": ("min(parcel_tiles, rank_tiles -", "min(parcel_tiles, rank_tiles +"),
    "another warp's count raises the flag": ("last) == last)", "last) == 0)"),
    "a count in the flag's place": (") + 64, last)", ") + 0, last)"),
    "a count in another parcel's flag": (") + 64, last)", ") + 2, last)"),
    "the flag of another parcel": (
        "owed[1] / parcel_tiles), epoch)",
        "owed[1] / parcel_tiles + 1), epoch)",
    ),
    "a flag of the epoch before": ("parcel_tiles), epoch)", "parcel_tiles), epoch - 1)"),
    "a flag at another rank": (
        "raise_epoch(partials[(rank + ranks - owed[0])",
        "raise_epoch(partials[(rank + owed[0])",
    ),
    "a flag of another sender": (
        "((owed[0] - 1) + 1) * (long long)flag_stride - 64 + owed[1] / parcel_tiles), epoch)",
        "(owed[0] + 1) * (long long)flag_stride - 64 + owed[1] / parcel_tiles), epoch)",
    ),
    "a flag that is not released": ("st.release.sys.global.u64", "st.relaxed.sys.global.u64"),
    "a wait for another parcel": ("tile.slot / parcel_tiles)", "tile.slot / parcel_tiles + 1)"),
    "a wait for the warp's flag": ("tile.slot / parcel_tiles)", "tile.slot * 4 + warp)"),
    "a wait for the epoch before": ("(flag) < epoch", "(flag) + 1 < epoch"),
    "a parcel that stays owed": ("owed[0] = 0;", ""),
    "lanes that have not met": ("ptx::warp_sync();\n", "\n"),
    "all but the last rank": ("other < ranks - 1", "other < ranks - 2"),
}


@pytest.mark.parametrize("name", EDITS)
def test_text_that_is_not_what_was_proved(name):
    old, new = EDITS[name]
    source = emit(kernel())
    assert old in source
    with pytest.raises(TextDiffers):
        link(kernel(), source.replace(old, new))


# ---- the schedule --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ("dense", "multicast_a", "orders", "fp8"))
@pytest.mark.parametrize("ranks", (2, 3))
def test_slots_are_numbered_in_the_order_in_which_tiles_come(name, ranks):
    """So that the tiles of a parcel are those that are there first."""
    k = kernel(name)
    size, shape = k.cluster.size, (700, 500, 300)
    for rank in range(ranks):
        walks = [
            list(
                order(
                    k.scheduler,
                    k.block,
                    k.cluster,
                    shape,
                    2 * size,
                    c,
                    seat=Seat(rank=rank, ranks=ranks),
                )
            )
            for c in range(2 * size)
        ]
        came = [t for turn in zip_longest(*walks) for t in turn if t is not None]
        owners = list(dict.fromkeys(t.owner for t in came))
        assert owners == [(rank + 1 + i) % ranks for i in range(ranks)]
        for owner in owners:
            slots = [t.slot for t in came if t.owner == owner]
            assert slots == list(range(came[0].slots)) and len(slots) > 4 * size
