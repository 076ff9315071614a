"""The proof of ranks that add their sums up (docs/adr/0049-reduce-scatter.md): that kernels hold, and each way in which one would not."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
from kernels import DENSE, DENSE_TN, DIRECT, FP8, INT8_BLOCK, PAIRED, QUANTISED, VECTOR

from gemmgen.check import Instance, ProtocolViolation, check, ops
from gemmgen.check.audit import audit
from gemmgen.check.audit_ranks import audit_ranks
from gemmgen.check.footprint import WORKSPACE, merged, spans
from gemmgen.check.history import Run
from gemmgen.check.prove import prove, together
from gemmgen.check.unroll import PAIR, unroller
from gemmgen.check.values import values
from gemmgen.config import Config
from gemmgen.emit import emit
from gemmgen.errors import IRError
from gemmgen.ir import nodes as ir
from gemmgen.ir.blocks import is_if
from gemmgen.ir.collectives import Seat
from gemmgen.ir.dtypes import BF16, F16, S8, S32
from gemmgen.ir.rewrite import map_role, map_stmts, statements
from gemmgen.ir.verify import verify
from gemmgen.link import TextDiffers, link
from gemmgen.pipeline import lower
from gemmgen.problem import Problem
from gemmgen.schedulers import order

SMALL = Config(block_m=64, block_n=64, consumers=1, stages=2)


def scattered(problem):
    return replace(problem, collective="reduce_scatter")


WIRED = scattered(DENSE)
WIRED_BF16, WIRED_F16 = (replace(WIRED, wire=wire) for wire in (BF16, F16))
KINDS = {
    "dense": (DENSE, Config()),
    "multicast": (DENSE, Config(multicast="a")),
    "ping_pong": (DENSE, Config(ping_pong=True, block_m=64)),
    "pieces": (DENSE, Config(block_m=256, block_n=64, d_columns=64)),
    "swapped": (FP8, Config(swap_ab=True, block_m=16, block_n=64, consumers=1)),
    "lanes": (FP8, Config(lane_scales=True)),
    "vector": (VECTOR, Config(block_n=64)),
    "tn": (DENSE_TN, SMALL),
    "pairs": (PAIRED, SMALL),
    "quantised": (QUANTISED, replace(SMALL, block_n=128)),
    "int8": (INT8_BLOCK, replace(SMALL, stages=3)),
    "watched": (DENSE, Config(watchdog=True)),
    "direct": (DENSE, DIRECT),
    "stamped": (DENSE, Config(peek=True)),
    "wire": (WIRED_BF16, Config()),
    "wire_waves": (WIRED_F16, Config(block_m=256, block_n=64, d_columns=64)),
    "wire_four": (
        replace(scattered(FP8), wire=F16),
        Config(swap_ab=True, block_m=8, block_n=64, consumers=1),
    ),
    "wire_twelve": (WIRED_BF16, Config(swap_ab=True, block_m=24)),
}


@cache
def kernel(name):
    problem, config = KINDS[name]
    return lower(scattered(problem), config, stamps=64 * (name == "stamped"))


@pytest.mark.parametrize("name", KINDS)
def test_every_kind_is_proved_and_read_back(name):
    k = kernel(name)
    proof = check(k)
    assert {i.ranks for i in proof.instances} == {1, 2, 3, 4, 8}
    assert "of 1, 2, 3, 4, 8 ranks" in str(proof)
    assert link(k, emit(k)).events > 100


def test_every_instance_of_a_small_ring():
    small = lower(scattered(DENSE), SMALL)
    unrolled = unroller(small, PAIR)
    chosen = together(small.stages, thorough=True)
    assert {(i.ranks, i.ctas) for i in chosen} >= {(2, 1), (2, 2), (4, 2), (8, 1)}
    for instance in chosen:
        prove(unrolled.program(instance))


# ---- kernels and launches that are wrong ---------------------------------------------------------

TWO = Instance(k_blocks=1, tiles=2, ranks=2, epochs=(1, 2, 3, 4))


def found(k, instance=TWO):
    """The property that fails."""
    with pytest.raises(ProtocolViolation) as e:
        prove(unroller(k, PAIR).program(instance))
    return e.value.property.id


def without(cls):
    return map_stmts(kernel("dense"), lambda s: () if isinstance(s, cls) else s)


def sends(order_of):
    def visit(s):
        theirs = isinstance(s, ir.If) and s.when == "theirs"
        return replace(s, body=order_of(s.body)) if theirs else s

    return map_stmts(kernel("dense"), visit)


def test_a_right_one_holds():
    prove(unroller(kernel("dense"), PAIR).program(TWO))


def test_a_flag_before_its_stores_is_found():
    early = ir.Signal(by="raising", owed="owed")
    assert found(sends(lambda body: (body[-1], early, *body[:-1]))) == "P2"


def test_a_flag_that_is_raised_at_once_holds_too():
    """It would only keep the warp until its sums have left."""
    at_once = sends(lambda body: (*body, ir.Signal(by="raising", owed="owed")))
    prove(unroller(at_once, PAIR).program(TWO))


def owing(change, kernel_of="dense"):
    """With other statements instead of those that raise flags, of which there is one in the loop over tiles, then one behind it."""
    places = iter(("inside", "behind"))

    def visit(s):
        return change(s, next(places)) if is_if(s, "owes") else s

    return map_stmts(kernel(kernel_of), visit)


def test_the_last_tile_s_flag_that_is_not_raised_is_found():
    """Where a CTA has no own tile behind it."""
    never = owing(lambda s, place: s if place == "inside" else ())
    prove(unroller(never, PAIR).program(TWO))
    assert found(never, replace(TWO, tiles=1, ctas=2)) == "P1"
    with pytest.raises(ProtocolViolation, match="P1"):
        check(never)


def test_flags_that_are_raised_behind_all_tiles_are_a_deadlock():
    """An own tile waits for those of other ranks, which wait likewise."""
    late = owing(lambda s, place: s if place == "behind" else ())
    assert found(late) in ("P1", "P4")
    assert found(late, replace(TWO, tiles=1)) == "P1"


def test_flags_that_are_raised_behind_the_wait_are_a_deadlock():
    """Of one tile in each rank's rows."""

    def visit(s):
        if is_if(s, "owes"):
            return ()
        if is_if(s, "ours"):
            wait, *rest = s.body
            return replace(s, body=(wait, raised, *rest))
        return s

    (raised, _) = [s for s in statements(kernel("dense")) if is_if(s, "owes")]
    assert found(map_stmts(kernel("dense"), visit), replace(TWO, tiles=1)) == "P1"


def test_a_flag_of_the_tile_that_was_just_summed_is_found():
    """Noted before the one before is raised: that one never is."""

    def visit(s):
        if is_if(s, "theirs"):
            return replace(s, body=s.body[:-1])
        if is_if(s, "owes") and next(first):
            noting = ir.If(when="theirs", body=(ir.Signal(by="noting", owed="owed"),))
            return noting, s
        return s

    first = iter((True, False))
    assert found(map_stmts(kernel("dense"), visit)) in ("P1", "P2")


def test_no_flag_is_a_deadlock():
    assert found(owing(lambda s, place: ())) == "P1"


def test_no_wait_is_a_race_with_a_slow_rank():
    assert found(without(ir.AwaitSignals)) == "P2"


def test_sums_that_are_added_before_the_wait_are_found():
    def visit(s):
        if isinstance(s, ir.If) and s.when == "ours":
            wait, add, *rest = s.body
            assert isinstance(wait, ir.AwaitSignals)
            return replace(s, body=(add, wait, *rest))
        return s

    assert found(map_stmts(kernel("dense"), visit)) == "P2"


def test_one_buffer_is_a_race_of_two_calls():
    one = replace(kernel("dense"), peers=replace(kernel("dense").peers, buffers=1))
    assert found(one) == "P2"
    prove(unroller(one, PAIR).program(replace(TWO, epochs=(1,))))


def test_three_buffers_hold():
    prove(
        unroller(
            replace(kernel("dense"), peers=replace(kernel("dense").peers, buffers=3)), PAIR
        ).program(TWO)
    )


def is_epoch(s, by):
    return isinstance(s, ir.Epoch) and s.by == by


def is_passing(s):
    return is_if(s, "cta_leader") and any(is_epoch(x, "passing") for x in s.body)


def passing(change, name="dense"):
    """With other statements instead of that by which a CTA says that it has read the epoch."""
    k = kernel(name)
    assert [is_passing(s) for s in k.consumer.body].count(True) == 1
    return map_stmts(k, lambda s: change(s) if is_passing(s) else s)


def begun(change, name="dense"):
    """With another prologue, of what reads the epoch, the rest, and what says that it is read."""
    (said,) = [s for s in kernel(name).consumer.body if is_passing(s)]
    read, *rest = kernel(name).prologue
    assert is_epoch(read, "reading") and any(isinstance(s, ir.Sync) for s in rest)
    return replace(passing(lambda s: (), name), prologue=change(read, rest, said))


EVERY_WAY = ("dense", "multicast", "ping_pong", "direct")


@pytest.mark.parametrize("name", EVERY_WAY)
def test_an_epoch_is_passed_when_all_have_read_it(name):
    """Wherever that is said, once: at the end of the role, too."""
    for instance in (TWO, replace(TWO, tiles=1, ctas=2)):
        for k in (kernel(name), begun(lambda read, rest, said: (read, *rest, said), name)):
            prove(unroller(k, PAIR).program(instance))
    k = passing(lambda s: (), name)
    (said,) = [s for s in kernel(name).consumer.body if is_passing(s)]
    last = map_role(k, "consumer", lambda r: replace(r, body=(*r.body, said)))
    prove(unroller(last, PAIR).program(TWO))


@pytest.mark.parametrize("name", EVERY_WAY)
def test_an_epoch_that_is_passed_at_the_start_is_found(name):
    """Before all threads have read it."""
    assert found(begun(lambda read, rest, said: (read, said, *rest), name)) == "P4"
    assert found(begun(lambda read, rest, said: (said, read, *rest), name)) == "P4"
    assert found(begun(lambda read, rest, said: (*rest, read, said), name)) == "P4"


@pytest.mark.parametrize("instance", (TWO, replace(TWO, tiles=1, ctas=2)), ids=str)
@pytest.mark.parametrize("name", EVERY_WAY)
def test_an_epoch_that_is_passed_never_or_twice_is_found(name, instance):
    assert found(passing(lambda s: (), name), instance) == "P4"
    assert found(passing(lambda s: (s, s), name), instance) == "P4"
    with pytest.raises(ProtocolViolation, match="P4"):
        check(passing(lambda s: (s, s), name))


def test_an_epoch_that_each_warp_passes_is_found():
    assert found(passing(lambda s: s.body)) == "P4"


@pytest.mark.parametrize("name", ("dense", "multicast"))
def test_an_epoch_that_each_cta_passes_is_found(name, monkeypatch):
    """One that does not count the others."""
    two = replace(TWO, tiles=1, ctas=2)
    monkeypatch.setattr(Run, "_ctas", lambda self, bar: 1)
    assert found(kernel(name), two) == "P4"


def test_ctas_that_share_a_tile_are_counted_one_by_one(monkeypatch):
    """Those of a cluster."""
    monkeypatch.setattr(Run, "_ctas", lambda self, bar: self.program.instance.ctas)
    assert found(kernel("multicast")) == "P4"


def test_an_epoch_is_read_once_by_every_thread():
    read, *rest = kernel("dense").prologue
    inside = ir.If(when="cta_leader", body=(read,))
    for prologue in (rest, (read, read, *rest), (inside, *rest)):
        with pytest.raises(IRError, match="epoch"):
            verify(replace(kernel("dense"), prologue=tuple(prologue)))


@pytest.mark.parametrize("epochs", ((1, 1), (1, 2, 2, 3), (2, 1)), ids=str)
def test_an_epoch_that_does_not_grow_is_found(epochs):
    assert found(kernel("dense"), replace(TWO, epochs=epochs)) in ("P2", "P4", "P10")


def test_epochs_that_take_a_buffer_twice_are_found():
    assert found(kernel("dense"), replace(TWO, epochs=(1, 3))) == "P2"


def test_epochs_may_begin_anywhere():
    prove(unroller(kernel("dense"), PAIR).program(replace(TWO, epochs=(7, 8, 9))))


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


def elsewhere(by):
    """A flag so many further on: `peers.flags` is the next tile's."""

    def change(op):
        if isinstance(op, ops.Wait) and op.bar[0] == ops.EPOCHS:
            name, rank, number = op.bar
            return replace(op, bar=(name, rank, number ^ by))
        return op

    return change


def test_a_wait_for_the_next_chunk_is_found():
    """Where another CTA sends that: one sends its chunks in order, and the last says enough."""
    assert planted(elsewhere(kernel("dense").peers.flags), replace(TWO, ctas=2)) == "P2"


def test_a_wait_for_another_warp_is_found():
    assert planted(elsewhere(1)) in ("P1", "P2", "P4")


def test_a_flag_at_another_rank_is_found():
    def change(op):
        if isinstance(op, ops.Arrive) and op.bars[0][0] == ops.EPOCHS:
            name, rank, number = op.bars[0]
            return replace(op, bars=((name, 1 - rank, number),))
        return op

    assert planted(change) in ("P1", "P4")


def test_a_launch_that_begins_early_is_found():
    """What orders two uses of a buffer passes through the end of a launch."""

    def change(op):
        if isinstance(op, ops.Wait) and op.bar[0] == ops.LAUNCH:
            return ops.WarpSync(stmt=op.stmt)
        return op

    program = unroller(kernel("dense"), PAIR).program(TWO)
    every = tuple(tuple(map(change, mine)) for mine in program.ops)
    with pytest.raises(ProtocolViolation) as e:
        prove(replace(program, ops=every))
    assert e.value.property.id == "P2"


def test_a_tile_that_the_wrong_rank_stores_is_found():
    def visit(s):
        return (
            replace(s, when={"theirs": "ours", "ours": "theirs"}.get(s.when, s.when))
            if isinstance(s, ir.If)
            else s
        )

    with pytest.raises((ProtocolViolation, AssertionError, IndexError)):
        prove(unroller(map_stmts(kernel("dense"), visit), PAIR).program(TWO))


@pytest.mark.parametrize("name", KINDS)
def test_sums_are_followed_in_registers(name):
    assert not list(values(kernel(name)))


def test_sums_that_are_added_twice_are_found():
    twice = map_stmts(kernel("dense"), lambda s: (s, s) if isinstance(s, ir.AddPartials) else s)
    assert any(f.property.id == "P10" for f in values(twice))


def test_a_wave_that_is_not_sent_is_found():
    k = kernel("pieces")
    fewer = map_stmts(k, lambda s: () if isinstance(s, ir.SendPartials) and s.wave else s)
    assert any(f.property.id == "P10" for f in values(fewer))


@pytest.mark.parametrize(
    "name", ("dense", "pieces", "wire", "wire_waves", "wire_four", "wire_twelve")
)
def test_a_slot_that_is_too_small_is_found(name):
    """Tiles would lie over each other."""
    k = kernel(name)
    assert found(replace(k, peers=replace(k.peers, slot=k.peers.slot - 1))) == "P2"


def test_slots_of_half_the_size_hold_no_more_than_rounded_sums():
    wide = replace(kernel("dense"), peers=kernel("wire").peers)
    wide = replace(wide, peers=replace(wide.peers, wire=None))
    assert found(wide) == "P2"


@pytest.mark.parametrize("name", ("wire_four", "wire_twelve", "wire"))
def test_who_sends_writes_what_who_adds_reads(name):
    """To the byte, and each byte of the slot is some warp's."""
    k = kernel(name)
    of = {
        x: [s for s in statements(k) if isinstance(s, x)] for x in (ir.SendPartials, ir.AddPartials)
    }
    sent, read = (
        sorted({span for s in of[x] for agent in consumers(k) for span in spans(k, s, agent, 0)})
        for x in of
    )
    assert sent == read
    assert merged(iter(sent)) == ((WORKSPACE, WORKSPACE + 4 * k.peers.slot),)


def consumers(k):
    return [a for a in unroller(k).agents if a.role == "consumer"]


def test_integers_are_not_rounded():
    whole = lower(scattered(Problem(family="dense", a=S8, b=S8, d=S32)), SMALL)
    with pytest.raises(IRError, match="FP32"):
        verify(replace(whole, peers=replace(whole.peers, wire=BF16)))


# ---- the text ------------------------------------------------------------------------------------

EDITS = {
    "a flag of the GPU's scope": ("st.release.sys.global.u64", "st.release.gpu.global.u64"),
    "a wait of the GPU's scope": ("ld.acquire.sys.global.u64", "ld.acquire.gpu.global.u64"),
    "a flag that releases nothing": ("st.release.sys.global.u64", "st.relaxed.sys.global.u64"),
    "a wait for any epoch": ("(flag) < epoch", "(flag) < 1"),
    "a wait for the epoch before": ("(flag) < epoch", "(flag) + 1 < epoch"),
    "a flag of the epoch before": ("4 + warp), epoch);", "4 + warp), epoch - 1);"),
    "a flag of the tile that is being summed": ("+ owed[1] * 8", "+ tile.slot * 8"),
    "a flag of another sender": ("((owed[0] - 1) * (long long)", "(owed[0] * (long long)"),
    "a flag at another rank": ("partials[(rank + ranks - owed[0])", "partials[(rank + owed[0])"),
    "a flag that stays owed": ("owed[0] = 0;", ""),
    "a flag that is not owed to the next rank": (
        "owed[0] = tile.place + 1",
        "owed[0] = tile.place",
    ),
    "a flag that is never owed": ("if (owed[0] != 0)", "if (owed[0] == 0)"),
    "one buffer": ("int(epoch % 2)", "int(epoch % 1)"),
    "the next tile's flag": (
        "other * (long long)flag_stride + tile.slot",
        "other * (long long)flag_stride + 1 + tile.slot",
    ),
    "another sender's slot": (
        "(tile.place * (long long)tile.slots",
        "((tile.place + 1) * (long long)tile.slots",
    ),
    "the epoch of the launch before": ("slots_stride) + 1;", "slots_stride);"),
    "an epoch that is cached": ("ld.global.u64", "ld.global.nc.u64"),
    "an epoch elsewhere": ("load_epoch(partials[rank] + 2", "load_epoch(partials[0] + 2"),
    "an epoch in a buffer": ("+ 2 * slots_stride) + 1;", "+ 1 * slots_stride) + 1;"),
    "an epoch that each CTA passes": (" == gridDim.x - 1)", " >= 0)"),
    "an epoch that the first CTA passes": (" == gridDim.x - 1)", " == 0)"),
    "a count that wraps too late": ("+ 2, gridDim.x - 1)", "+ 2, gridDim.x)"),
    "a count in the epoch's place": ("+ 2, gridDim.x - 1)", "+ 0, gridDim.x - 1)"),
    "a count that orders nothing": ("atom.acq_rel.gpu", "atom.relaxed.gpu"),
    "a count that does not wrap": ("global.inc.u32", "global.add.u32"),
    "an epoch that is passed by two": ("slots_stride, epoch);", "slots_stride, epoch + 1);"),
    "lanes that have not met": ("ptx::warp_sync();\n", "\n"),
    "all but the last rank": ("other < ranks - 1", "other < ranks - 2"),
}


# The same of sums that are rounded: twelve of a thread are 16 bytes and 8.
WIRE_EDITS = {
    "another rounding": ("cvt.rn.bf16x2.f32", "cvt.rz.bf16x2.f32"),
    "another dtype": ("cvt.rn.bf16x2.f32", "cvt.rn.f16x2.f32"),
    "halves that are exchanged": ("pack_bf16(acc0[0], acc0[1])", "pack_bf16(acc0[1], acc0[0])"),
    "a sum that is left out": ("pack_bf16(acc0[2], acc0[3])", "pack_bf16(acc0[2], acc0[2])"),
    "the other half": ("acc0[1] += ptx::high_bf16(a)", "acc0[1] += ptx::low_bf16(a)"),
    "a half that keeps the other's bits": ("pair & 0xFFFF0000", "pair"),
    "8 bytes of a thread where 16 lie": (" - threadIdx.x % 128 * 2", ""),
    "8 bytes over the 16 before": ("slot + 512 - threadIdx", "slot - threadIdx"),
    "slots of the full size": (" * 1536 + warpgroup", " * 3072 + warpgroup"),
}


@pytest.mark.parametrize("name", (*EDITS, *WIRE_EDITS))
def test_text_that_is_not_what_was_proved(name):
    old, new = (EDITS | WIRE_EDITS)[name]
    k = kernel("wire_twelve" if name in WIRE_EDITS else "dense")
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
        return change(walks(seat), seat)

    return " ".join(audit_ranks(of, kernel("dense").block, SHAPE, ranks))


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("ctas", (2, 4, 34))
def test_the_schedule_is_audited(name, ctas):
    k = kernel(name)
    for shape in ((1, 1, 1), SHAPE, (700, 40, 64)):
        assert not list(audit(k.scheduler, k.block, k.cluster, shape, ctas))


def test_schedules_that_are_wrong():
    assert wrong(lambda found, seat: found) == ""
    early = wrong(lambda found, seat: [walk[::-1] for walk in found])
    assert "before it has sent" in early
    twice = wrong(lambda found, seat: [*found, found[0]])
    assert "computes a tile twice" in twice
    other = wrong(
        lambda found, seat: [[replace(t, slot=t.slot ^ seat.rank) for t in w] for w in found]
    )
    assert "do not number the same tiles alike" in other
    rows = wrong(lambda found, seat: [[replace(t, a_row=t.d_row) for t in w] for w in found])
    assert "is multiplied from row" in rows
    place = wrong(lambda found, seat: [[replace(t, place=t.place and 0) for t in w] for w in found])
    assert "is sent to place" in place


def test_each_rank_begins_with_the_next_one_s_rows():
    for rank in range(3):
        first = walks(Seat(rank=rank, ranks=3))[0][0]
        assert (first.owner, first.place) == ((rank + 1) % 3, 1)
