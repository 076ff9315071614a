"""GPUs whose copy engines send each other sums (docs/adr/0058-outbox.md), run by the emulator: several ranks in one process, whoever or whatever
is late."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from types import SimpleNamespace

import numpy as np
import pytest
from emulated import prepared
from kernels import DENSE, FP8, emitted
from scattering import KINDS, PLAIN, SWAPPED, calls_of, node, scattered, shape_of
from scattering import Slow as SlowRank
from test_killed import SOONER, WATCHED, Killed

from gemmgen.emulator import (
    Awaited,
    Deadlock,
    GlobalMemory,
    Race,
    Random,
    RoundRobin,
    Trap,
    launch_ranks,
)
from gemmgen.emulator.schedule import Turn
from gemmgen.errors import VerificationError
from gemmgen.ir.dtypes import BF16, F16
from gemmgen.runtime.inbox import Move, Raise
from gemmgen.runtime.outbox import Await, Parcels, parcels
from gemmgen.runtime.peers import Mailbox, mailbox
from gemmgen.runtime.watchdog import deadlock
from gemmgen.verification import random_normal, ranked

pytestmark = pytest.mark.nvrtc

SENT = replace(PLAIN, outbox=True)


def launched(
    problem, config, ranks, calls=2, *, tail=True, draw=None, edits=(), wire=None, **fields
):
    """Calls that follow each other, of exact integers, or what is drawn, and what each rank stores: right."""
    problem = scattered(problem, wire)
    kernel, program = prepared(problem, config, edits)
    shape = shape_of(problem, config, ranks, tail=tail)
    wholes = calls_of(problem, shape, calls, *[draw] * bool(draw))
    machines = node(ranks, **fields)
    got = ranked.run(machines, program, kernel, problem, wholes, pad=1)
    check = ranked.check_close if draw else ranked.check_exact
    for whole, results in zip(wholes, got, strict=True):
        check(machines, problem, whole, results)
    return machines, got


def sent(config):
    return replace(config, outbox=True)


@pytest.mark.parametrize("ranks", (1, 2, 3, 4))
@pytest.mark.parametrize("problem, config", ((DENSE, PLAIN), (FP8, SWAPPED)), ids=("bf16", "fp8"))
def test_every_rank_has_its_rows_of_the_sum(problem, config, ranks):
    launched(problem, sent(config), ranks, 4 if ranks < 4 else 3)


@pytest.mark.parametrize("chunks", (1, 2, 3, 32))
def test_in_however_many_parcels(chunks):
    launched(DENSE, SENT, 2, 4, chunks=chunks)
    launched(FP8, sent(SWAPPED), 3, chunks=chunks)


@pytest.mark.parametrize("name", KINDS)
def test_every_kind_of_sum(name):
    problem, config = KINDS[name]
    launched(problem, sent(config), 2)


@dataclass(kw_only=True)
class Slow:
    """Operations of copy engines whose text says `of` get a turn only where nothing else can have one, and otherwise every so often."""

    of: str
    every: int = 50
    inner: RoundRobin = field(default_factory=RoundRobin)

    def next(self, groups, pending, turn):
        late = [p for p in pending if self.of in p.text]
        soon = [p for p in pending if p not in late]
        if late and (turn % self.every == 0 or not (groups or soon)):
            return Turn(pending=late[0])
        return self.inner.next(groups, soon, turn)

    def gives_up(self):
        return False


SCHEDULES = {
    "in order": RoundRobin(),
    **{f"random {seed}": Random(seed=seed) for seed in range(3)},
    **{f"rank {rank} is slow": SlowRank(rank=rank) for rank in range(2)},
    **{f"rank {rank} sends late": Slow(of=f"by GPU {rank}") for rank in range(2)},
    "flags are late": Slow(of="a flag"),
}


def bits(config, schedule=None, ranks=2, first=1, wire=None, calls=4, chunks=2):
    given = {"schedule": schedule, "first": first, "chunks": chunks}
    _, got = launched(DENSE, config, ranks, calls, draw=random_normal, wire=wire, **given)
    return [[r.codes.tobytes() for r in results] for results in got]


@pytest.mark.parametrize("name", SCHEDULES)
def test_bits_are_those_of_sums_that_ctas_send_whoever_is_late(name):
    assert bits(SENT, SCHEDULES[name]) == bits(PLAIN)


@pytest.mark.parametrize("wire", (BF16, F16), ids=str)
@pytest.mark.parametrize("ranks, chunks", ((2, 1), (3, 2), (4, 3)))
def test_bits_are_those_of_rounded_sums_that_ctas_send(ranks, chunks, wire):
    given = {"ranks": ranks, "wire": wire, "calls": 2}
    assert bits(SENT, chunks=chunks, **given) == bits(PLAIN, **given)


@pytest.mark.parametrize("first", (2, 8, 2**33))
def test_bits_do_not_depend_on_the_epoch(first):
    assert bits(SENT, first=first) == bits(SENT)


def test_launches_number_themselves():
    machines, _ = launched(DENSE, SENT, 2, 4, first=8)
    assert machines.over == [(11, 0)] * 2


# ---- kernels with a fault ------------------------------------------------------------------------

NOT_THERE = (Race, VerificationError)
FAULTS = {
    "a count that orders nothing": ((("atom.acq_rel.gpu", "atom.relaxed.gpu"),), Race),
    "a count that only releases": ((("atom.acq_rel.gpu", "atom.release.gpu"),), Race),
    "a count that only acquires": ((("atom.acq_rel.gpu", "atom.acquire.gpu"),), Race),
    "a flag that releases nothing": ((("st.release.sys", "st.relaxed.sys"),), Race),
    "a wait that acquires nothing": ((("ld.acquire.sys", "ld.relaxed.sys"),), Race),
    "no wait": ((("while (ptx::seen_epoch(flag) < epoch) {}", ""),), Race),
    "a wait for any epoch": ((("(flag) < epoch", "(flag) < 1"),), NOT_THERE),
    "lanes that do not meet": ((("ptx::warp_sync();\n", "\n"),), Race),
    "one warp fewer": (((" * 4 - 1;", " * 4 - 2;"),), (*NOT_THERE, Deadlock)),
    "one warp more": (((" * 4 - 1;", " * 4;"),), Deadlock),
    "one tile fewer": ((("= min(parcel_tiles,", "= min(parcel_tiles - 1,"),), (*NOT_THERE, Deadlock)),
    "a flag that says nothing": ((("), epoch);\n", "), epoch - 1);\n"),), Deadlock),
    "a parcel's flag beside": ((("tile.slot / parcel_tiles);", "tile.slot / parcel_tiles + 1);"),), Deadlock),
    "a count in the flag's place": (((") + 64, last)", ") + 0, last)"),), (*NOT_THERE, Deadlock)),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_in_the_kernel_is_found(name):
    edits, error = FAULTS[name]
    with pytest.raises(error):
        for schedule in (Slow(of="by GPU 1"), SlowRank(rank=0, every=50)):
            launched(DENSE, SENT, 2, 3, tail=False, edits=edits, sms=2, schedule=schedule, chunks=1)


@pytest.mark.parametrize(("ranks", "rank"), ((2, 1), (3, 0)))
def test_a_rank_that_never_counts_is_named(ranks, rank, monkeypatch):
    """It has launched but once."""
    from gemmgen.runtime import emulated_calls

    killed = Killed(rank)
    monkeypatch.setattr(emulated_calls, "launch_ranks", killed)
    kernel, _ = prepared(scattered(DENSE), sent(WATCHED), SOONER)
    with pytest.raises(Trap):
        launched(DENSE, sent(WATCHED), ranks, edits=SOONER, sms=2)
    others = [r for r in range(ranks) if r != rank]
    found = [x for r in others for x in killed.entries(kernel, r, 1)]
    assert found and {x.stage for x in found} == {rank}
    assert f"nothing came from rank(s) {rank}" in str(deadlock(kernel, found))
    assert not [x for r in others for x in killed.entries(kernel, r, 0)]


def test_without_a_watchdog_they_wait_for_ever(monkeypatch):
    from gemmgen.runtime import emulated_calls

    monkeypatch.setattr(emulated_calls, "launch_ranks", Killed(1))
    with pytest.raises(Deadlock):
        launched(DENSE, SENT, 2)


# ---- what sends ----------------------------------------------------------------------------------


def sending(change, monkeypatch, schedule=None):
    """Three calls in which what each rank sends is changed."""
    pushes = Parcels.pushes
    monkeypatch.setattr(Parcels, "pushes", lambda g, *at: iter(change(list(pushes(g, *at)))))
    launched(DENSE, SENT, 2, 3, tail=False, sms=2, schedule=schedule)


def of(every, kind):
    return [x for x in every if isinstance(x, kind)]


def crossed(every):
    """Each parcel's flag for the other."""
    flags = iter(of(every, Raise)[::-1])
    return [next(flags) if isinstance(x, Raise) else x for x in every]


def early(every):
    """Await, Raise, Move."""
    return [x for i in range(0, len(every), 3) for x in (every[i], every[i + 2], every[i + 1])]


CHANGES = {
    "parcels that are not waited for": (
        lambda x: [y for y in x if not isinstance(y, Await)],
        NOT_THERE,
    ),
    "one that is not": (lambda x: x[1:], NOT_THERE),
    "a flag before its parcel": (early, NOT_THERE),
    "the flag of another parcel": (crossed, NOT_THERE),
    "a parcel that is not sent": (lambda x: x[3:], (*NOT_THERE, Deadlock)),
    "a flag that is not raised": (lambda x: x[:-1], Deadlock),
    "half of a parcel": (
        lambda x: [x[0], replace(x[1], width=x[1].width // 2), *x[2:]],
        NOT_THERE,
    ),
    "the next parcel": (lambda x: [x[0], replace(x[1], of=x[4].of), *x[2:]], NOT_THERE),
    "a wait for a flag that nobody raises": (
        lambda x: [replace(x[0], flag=x[0].flag + 16), *x[1:]],
        Deadlock,
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_parcels_that_are_sent_otherwise_are_found(name, monkeypatch):
    change, error = CHANGES[name]
    with pytest.raises(error):
        for schedule in (None, SlowRank(rank=1, every=50), Slow(of="by GPU 0")):
            with monkeypatch.context() as patch:
                sending(change, patch, schedule)


def test_parcels_that_are_sent_as_they_are_are_right(monkeypatch):
    for schedule in (None, SlowRank(rank=1, every=50), Slow(of="by GPU 0")):
        with monkeypatch.context() as patch:
            sending(lambda every: every, patch, schedule)


def test_parcels_of_the_launch_before_are_found(monkeypatch):
    """Those of the buffer that this launch does not write."""
    right = Parcels.pushes
    monkeypatch.setattr(
        Parcels,
        "pushes",
        lambda g, box, bases, outbox, rank, epoch: right(g, box, bases, outbox, rank, epoch + 1),
    )
    with pytest.raises(NOT_THERE):
        launched(DENSE, SENT, 2, 3, tail=False, sms=2)


@pytest.mark.parametrize("ranks", (2, 3, 8))
@pytest.mark.parametrize("count", (1, 2, 3, 5, 32))
def test_a_launch_sends_every_slot_once(count, ranks):
    """Each parcel behind a wait for its flag, to where its owner has this rank's sums, and a flag there behind it."""
    kernel = emitted(scattered(DENSE), SENT).kernel
    shape = (4 * PLAIN.block_m, 2 * PLAIN.block_n, 64)
    p, box = parcels(kernel, shape, ranks, count), mailbox(kernel, shape, ranks)
    assert p.tiles == 8 and p.slot == 4 * kernel.peers.slot
    assert p.values() == {"parcel_tiles": -(-8 // min(count, 8)), "rank_tiles": 8}
    bases, outbox = [(1 << 24) * (2 + r) for r in range(ranks)], 1 << 24
    into = {}
    for rank in range(ranks):
        for epoch in (1, 2):
            every = list(p.pushes(box, bases, outbox, rank, epoch))
            waits, moves, flags = (of(every, kind) for kind in (Await, Move, Raise))
            assert [type(x) for x in every] == [Await, Move, Raise] * len(moves)
            assert len(moves) == (ranks - 1) * -(-8 // p.each) <= (ranks - 1) * count
            owners = [bases.index(x.flag >> 24 << 24) for x in flags]
            assert list(dict.fromkeys(owners)) == [(rank + 1 + i) % ranks for i in range(ranks - 1)]
            assert sum(x.width * x.height for x in moves) == (ranks - 1) * 8 * p.slot
            for wait, move, flag, owner in zip(waits, moves, flags, owners, strict=True):
                assert wait.flag - outbox == flag.flag - bases[owner] < box.flag_bytes
                assert move.of - outbox == move.to - bases[owner] >= box.flag_bytes
                assert move.to + move.width <= bases[owner] + box.over
                into.setdefault((owner, epoch), []).append((move.to, move.to + move.width))
    for spans in into.values():
        assert all(a[1] <= b[0] for a, b in zip(sorted(spans), sorted(spans)[1:], strict=False))
    for owner in range(ranks):
        first, second = ({x for span in into[owner, e] for x in span} for e in (1, 2))
        assert max(second) <= min(first) or max(first) <= min(second)


# ---- launches of both kinds ----------------------------------------------------------------------


class Mixed:
    """`launch_ranks` where each second launch is of the kernel whose CTAs send. follows: whether those begin behind the copies of the one
    before, as `ReduceScatter` lets them."""

    def __init__(self, follows):
        self.follows = follows
        (self.plain, self.program), (self.sent, _) = (
            prepared(scattered(DENSE), config) for config in (PLAIN, SENT)
        )

    def __call__(self, launches, *, memory, schedule=None):
        names = [p.name for p in self.plain.params]
        assert names == [p.name for p in self.sent.params][: len(names)]
        at, ranks = len(self.plain.maps) + names.index("partials"), len(launches)
        tables = [memory.read(x[0].params[at], 8 * ranks).view(np.uint64) for x in launches]
        boxes = np.array([tables[rank][rank] for rank in range(ranks)], np.uint64)

        def plain(x, rank):
            params = list(x.params[: len(self.plain.maps) + len(names)])
            params[at] = memory.allocate(boxes.view(np.uint8), device=rank)
            given = {"entry": self.program.entry, "params": params, "beside": ()}
            return replace(x, **given, behind=not self.follows)

        mixed = [
            [plain(x, rank) if call % 2 else x for call, x in enumerate(mine)]
            for rank, mine in enumerate(launches)
        ]
        return launch_ranks(mixed, memory=memory, schedule=schedule)


def in_turns(patch, follows, schedule):
    from gemmgen.runtime import emulated_calls

    patch.setattr(emulated_calls, "launch_ranks", Mixed(follows))
    launched(DENSE, SENT, 2, 4, sms=2, schedule=schedule, chunks=1)


@pytest.mark.parametrize("name", SCHEDULES)
def test_launches_of_both_kinds_take_turns_in_one_mailbox(name, monkeypatch):
    in_turns(monkeypatch, True, SCHEDULES[name])


def test_a_cta_s_flag_that_overtakes_a_parcel_s_is_found(monkeypatch):
    """They are the same flags: it says that the parcel of the launch before is there."""
    with pytest.raises((*NOT_THERE, Deadlock)):
        for schedule in (
            Slow(of="by GPU 1"),
            Slow(of="a flag", every=500),
            Slow(of="by GPU", every=5000),
        ):
            in_turns(monkeypatch, False, schedule)


# ---- a copy engine that waits --------------------------------------------------------------------


def engine(memory, *jobs):
    from gemmgen.emulator.copies import Engine
    from gemmgen.emulator.flags import Past

    launch = SimpleNamespace(past=Past(), stats=SimpleNamespace(turns=0), memory=memory.seen_by(0))
    return Engine(launch, jobs)


@pytest.mark.parametrize("there, goes", ((0, False), (6, False), (7, True), (2**40, True)))
def test_a_wait_is_over_when_the_flag_is_the_value_or_more(there, goes):
    memory = GlobalMemory()
    flag = memory.allocate(np.array([there], np.uint64).view(np.uint8), device=0)
    waiting = engine(memory, Awaited(flag=flag, value=7))
    assert bool(waiting.completable()) == goes
    assert str(Awaited(flag=16, value=7)) == "a wait for the flag at 0x10"


def test_what_is_behind_a_wait_waits():
    from gemmgen.emulator import Copied, Raised

    memory = GlobalMemory()
    flag, of_ = (memory.allocate(np.ones(16, np.uint8), device=0) for _ in range(2))
    to = memory.allocate(np.zeros(16, np.uint8))
    copy = Copied(to=to, to_pitch=16, of=of_, of_pitch=16, width=16, height=1)
    waiting = engine(memory, Awaited(flag=flag, value=2**60), copy, Raised(flag=flag, value=2**60))
    assert not waiting.completable() and not waiting.done


def test_an_old_mailbox_may_hold_more_than_a_launch_needs():
    kernel = emitted(scattered(DENSE), SENT).kernel
    small, large = (mailbox(kernel, (m, 64, 64), 2) for m in (64, 640))
    assert isinstance(large, Mailbox) and large.holds(small) and small.flags == large.flags
