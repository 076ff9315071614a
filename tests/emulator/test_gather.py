"""GPUs that send each other rows of A (docs/adr/0051-all-gather.md), run by the emulator: 2, 4 and 8 ranks in one process, whoever or whatever is late."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from types import SimpleNamespace

import numpy as np
import pytest
from collective_kinds import KINDS as EVERY
from collective_kinds import PLAIN, SCALED, SWAPPED
from emulated import prepared
from kernels import DENSE, FP8, VECTOR, emitted

from gemmgen.emulator import (
    Deadlock,
    Eager,
    GlobalMemory,
    IllegalAccess,
    Race,
    Random,
    RoundRobin,
)
from gemmgen.emulator.schedule import Turn
from gemmgen.errors import ArgumentError, VerificationError
from gemmgen.verification import exact_integers, gathered, random_normal

pytestmark = pytest.mark.nvrtc


def gathering(problem):
    return replace(problem, collective="all_gather")


def node(ranks, **fields):
    from gemmgen.runtime.emulated_gather import EmulatedGather

    return EmulatedGather(ranks=ranks, **{"sms": 3, **fields})


def shape_of(problem, config, ranks, tail=True):
    """Two tiles along N and M of each rank's rows, and a tail on every side but K's."""
    k = config.block_k_bytes * 8 // problem.a.bits
    rows = 2 * config.block_m - 8 * tail
    return ranks * rows, 2 * config.block_n - 8 * tail, 2 * k


def calls_of(problem, shape, ranks, count, draw=exact_integers):
    return [gathered.drawn(draw, problem, shape, ranks, seed) for seed in range(count)]


def judge(problem, config, ranks, calls=2, **fields):
    """Exact integers, in calls that follow each other, each to the bit."""
    problem = gathering(problem)
    kernel, program = prepared(problem, config)
    wholes = calls_of(problem, shape_of(problem, config, ranks), ranks, calls)
    machines = node(ranks, **fields)
    got = gathered.run(machines, program, kernel, problem, wholes, pad=1)
    for whole, results in zip(wholes, got, strict=True):
        gathered.check_exact(machines, problem, whole, results)


@pytest.mark.parametrize("ranks", (1, 2, 3, 4, 8))
@pytest.mark.parametrize("problem, config", ((DENSE, PLAIN), (FP8, SWAPPED)), ids=("bf16", "fp8"))
def test_every_rank_has_all_rows(problem, config, ranks):
    judge(problem, config, ranks, calls=3 if ranks < 4 else 2)


@pytest.mark.parametrize("chunks", (1, 2, 3, 7, 32))
def test_in_however_many_chunks(chunks):
    judge(DENSE, PLAIN, 2, chunks=chunks)
    judge(FP8, SWAPPED, 3, chunks=chunks)


KINDS = {**EVERY, "rows": (SCALED, PLAIN)}


@pytest.mark.parametrize("name", KINDS)
def test_every_kind_of_gemm(name):
    judge(*KINDS[name], ranks=2)


@dataclass(kw_only=True)
class Slow:
    """The threads of one GPU, or its copies, get a turn only where nothing else can have one, and otherwise every so often. of: a
    part of the operations' text."""

    rank: int = -1
    of: str = ""
    every: int = 9
    inner: RoundRobin = field(default_factory=RoundRobin)

    def next(self, groups, pending, turn):
        seldom = turn % self.every == 0
        late = [p for p in pending if self.of and self.of in p.text]
        soon = [p for p in pending if p not in late]
        mine = [g for g in groups if g.cta.cluster.origin.device == self.rank]
        rest = [g for g in groups if g not in mine]
        if late and seldom:
            return Turn(pending=late[0])
        if not (rest or soon) and late:
            return self.inner.next(mine, late, turn)
        return self.inner.next(mine if not rest or (seldom and mine) else rest, soon, turn)

    def gives_up(self):
        return False


SCHEDULES = {
    "in order": RoundRobin(),
    "eager": Eager(),
    **{f"random {seed}": Random(seed=seed) for seed in range(2)},
    **{f"rank {rank} is slow": Slow(rank=rank) for rank in range(2)},
    **{f"rank {rank} sends late": Slow(of=f"by GPU {rank}") for rank in range(2)},
    "flags are late": Slow(of="a flag"),
}


def bits(schedule, ranks=2, first=1):
    problem = gathering(DENSE)
    kernel, program = prepared(problem, PLAIN)
    wholes = calls_of(problem, shape_of(problem, PLAIN, ranks), ranks, 3, random_normal)
    machines = node(ranks, schedule=schedule, first=first)
    got = gathered.run(machines, program, kernel, problem, wholes)
    for whole, results in zip(wholes, got, strict=True):
        gathered.check_close(machines, problem, whole, results)
    return [[r.codes.tobytes() for r in results] for results in got]


@pytest.mark.parametrize("name", SCHEDULES)
def test_bits_do_not_depend_on_what_is_late(name):
    assert bits(SCHEDULES[name]) == bits(None)


def test_bits_do_not_depend_on_the_epoch():
    assert bits(None, first=8) == bits(None)


@pytest.mark.parametrize("ranks", (2, 4, 8))
@pytest.mark.parametrize(
    "problem, config",
    ((DENSE, PLAIN), (FP8, SWAPPED), (VECTOR, PLAIN)),
    ids=("bf16", "fp8", "1d1d"),
)
def test_bits_are_those_of_the_plain_gemm(problem, config, ranks):
    from gemmgen.runtime.emulated import EmulatedGpu
    from gemmgen.verification.trial import pitches, run

    plain_kernel, plain = prepared(problem, config)
    kernel, program = prepared(gathering(problem), config)
    shape = shape_of(problem, config, ranks)
    (call,) = calls_of(problem, shape, ranks, 1, random_normal)
    ((*got,),) = gathered.run(node(ranks), program, kernel, gathering(problem), [call])
    for whole, result in zip(call, got, strict=True):
        strides = pitches(plain_kernel, whole.shape)
        wanted = run(EmulatedGpu(), plain, problem, whole, strides, 0x5A)
        assert (np.asarray(wanted.codes) == np.asarray(result.codes)).all()


# What a kernel would be with a fault, and what finds it. (A single buffer is the proof's to find: the emulator does not order writes after
# reads of global memory.)
WAIT, FENCE = "ld.acquire.sys.global.u64", "ptx::fence_proxy_async_global();\n"
FAULTS = {
    "a wait that acquires nothing": ((WAIT, "ld.relaxed.sys.global.u64"), Race),
    "a wait of the GPU's scope": ((WAIT, "ld.acquire.gpu.global.u64"), Race),
    "no wait": (("while (ptx::seen_epoch(flag) < epoch) {}", ""), Race),
    "a wait for any epoch": (("(flag) < epoch", "(flag) < 1"), (Race, VerificationError)),
    "no fence": ((FENCE, "\n"), Race),
    "a fence of shared memory": (
        ("fence.proxy.async.global", "fence.proxy.async.shared::cta"),
        Race,
    ),
    "the chunk before": (
        ("(min(row + BLOCK_M, rows) - 1) / chunk_rows", "row / chunk_rows / 2"),
        Race,
    ),
    "the first row's chunk": (
        ("(min(row + BLOCK_M, rows) - 1) / chunk_rows", "row / chunk_rows"),
        Race,
    ),
    "every chunk is seen with the first": (
        ("arrived[0] = tile.flag + 1", "arrived[0] = tile.flag + 9"),
        Race,
    ),
    "another rank's rows": (
        ("tile.a_row, tile.group)", "tile.a_row, (tile.group + 1) % ranks)"),
        (Race, VerificationError),
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_in_the_wait_is_found(name):
    edit, error = FAULTS[name]
    problem = gathering(DENSE)
    kernel, program = prepared(problem, PLAIN, (edit,))
    wholes = calls_of(problem, shape_of(problem, PLAIN, 2), 2, 3)

    def judged():
        for schedule in (Slow(of="by GPU 1", every=50), Slow(rank=0, every=50)):
            machines = node(2, sms=1, schedule=schedule, chunks=3)
            got = gathered.run(machines, program, kernel, problem, wholes)
            for whole, results in zip(wholes, got, strict=True):
                gathered.check_exact(machines, problem, whole, results)

    with pytest.raises(error):
        judged()


def test_a_fence_before_the_wait_is_found():
    problem = gathering(DENSE)
    wait = "while (ptx::seen_epoch(flag) < epoch) {}"
    edits = ((FENCE, "\n"), (wait, f"ptx::fence_proxy_async_global(); {wait}"))
    kernel, program = prepared(problem, PLAIN, edits)
    wholes = calls_of(problem, shape_of(problem, PLAIN, 2), 2, 1)
    with pytest.raises(Race, match=r"through the async proxy, with no fence\.proxy\.async"):
        gathered.run(node(2), program, kernel, problem, wholes)


def test_rows_of_another_epoch_are_waited_for():
    """Nobody raises the flag that says the next one."""
    problem = gathering(DENSE)
    kernel, program = prepared(problem, PLAIN, (("(flag) < epoch", "(flag) < epoch + 1"),))
    with pytest.raises(Deadlock):
        gathered.run(
            node(2), program, kernel, problem, calls_of(problem, shape_of(problem, PLAIN, 2), 2, 1)
        )


# ---- what brings the rows ------------------------------------------------------------------------


def pushed(change, monkeypatch, ranks=2):
    """Two calls in which what each rank sends is changed."""
    from gemmgen.runtime import inbox

    pushes = inbox.Gathering.pushes
    monkeypatch.setattr(inbox.Gathering, "pushes", lambda g, *at: change(list(pushes(g, *at))))
    problem = gathering(DENSE)
    kernel, program = prepared(problem, PLAIN)
    wholes = calls_of(problem, shape_of(problem, PLAIN, ranks), ranks, 2)
    machines = node(ranks)
    got = gathered.run(machines, program, kernel, problem, wholes)
    for whole, results in zip(wholes, got, strict=True):
        gathered.check_exact(machines, problem, whole, results)


CHANGES = {
    "flags before their rows": (lambda x: x[::-1], Race),
    "a chunk that is not sent": (lambda x: x[1:], (Race, VerificationError)),
    "a flag that is not raised": (lambda x: x[:-1], Deadlock),
    "half of a chunk": (
        lambda x: [replace(x[0], height=x[0].height // 2), *x[1:]],
        (Race, VerificationError),
    ),
    "rows of the next chunk": (lambda x: [replace(x[0], of=x[2].of), *x[1:]], (VerificationError)),
}


@pytest.mark.parametrize("name", CHANGES)
def test_rows_that_are_sent_otherwise_are_found(name, monkeypatch):
    change, error = CHANGES[name]
    pushed(lambda x: x, monkeypatch)
    monkeypatch.undo()
    with pytest.raises(error):
        pushed(change, monkeypatch)


def test_a_rank_sends_to_the_one_that_needs_its_rows_next():
    from gemmgen.runtime.inbox import Inbox, Raise
    from gemmgen.runtime.inbox import gathering as gathers
    from gemmgen.runtime.tensor_map import Matrix

    kernel = emitted(gathering(DENSE), PLAIN).kernel
    g = gathers(kernel, {"a": Matrix(pointer=1 << 20, outer=100, inner=64, stride=64)}, 100, 4, 3)
    bases, box = [(1 << 24) * (1 + r) for r in range(4)], Inbox(ranks=4, size=1 << 20)
    for rank in range(4):
        sent = list(g.pushes(bases, box, rank, 1))
        flags = [x.flag for x in sent if isinstance(x, Raise)]
        to = [bases.index(f >> 24 << 24) for f in flags]
        assert list(dict.fromkeys(to)) == [(rank - 1 - i) % 4 for i in range(3)]
        assert len(flags) == 9 and g.chunk_rows == 34
    every = [
        x.flag for rank in range(4) for x in g.pushes(bases, box, rank, 1) if isinstance(x, Raise)
    ]
    assert len({*every}) == len(every)


def test_own_rows_may_lie_where_they_are_read():
    from gemmgen.runtime.inbox import gathering as gathers
    from gemmgen.runtime.tensor_map import Matrix

    kernel = emitted(gathering(FP8), PLAIN).kernel
    own = {
        "a": Matrix(pointer=0, outer=100, inner=256, stride=256),
        "scale_a": Matrix(pointer=0, outer=2, inner=100, stride=100),
    }
    g = gathers(kernel, own, 100, 2, 1)
    there = g.matrices(1 << 20)
    at = {
        name: replace(own[name], pointer=x.pointer + x.group_stride * size)
        for (name, x), size in zip(there.items(), (1, 4), strict=True)
    }
    assert not list(replace(g, own=at).own_moves(1 << 20, 1))
    assert len(list(g.own_moves(1 << 20, 1))) == 2


@pytest.mark.parametrize(
    "name, ranks, chunks",
    (("ranks", 9, 2), ("ranks", True, 2), ("chunks", 2, 33), ("chunks", 2, 0)),
)
def test_what_there_are_no_flags_for_is_refused(name, ranks, chunks):
    from gemmgen.runtime.inbox import gathering as gathers
    from gemmgen.runtime.tensor_map import Matrix

    own = {"a": Matrix(pointer=16, outer=64, inner=64, stride=64)}
    with pytest.raises(ArgumentError) as e:
        gathers(emitted(gathering(DENSE), PLAIN).kernel, own, 64, ranks, chunks)
    assert e.value.argument == name


def test_a_gpu_copies_what_it_may_access():
    """Its own memory, and what all may access; nobody else's."""
    from gemmgen.emulator.copies import Copied, Engine
    from gemmgen.emulator.flags import Past

    memory = GlobalMemory()
    mine, theirs = (memory.allocate(np.arange(64, dtype=np.uint8), device=d) for d in (0, 1))
    shared = memory.allocate(np.zeros(64, np.uint8))
    launch = SimpleNamespace(past=Past(), stats=SimpleNamespace(turns=0), memory=memory.seen_by(0))

    def copied(of):
        Engine(launch, ()).do(Copied(to=shared, to_pitch=32, of=of, of_pitch=16, width=8, height=2))

    copied(mine)
    lines = memory.read(shared, 64).reshape(2, 32)
    assert (lines[:, :8] == np.arange(32).reshape(2, 16)[:, :8]).all() and not lines[:, 8:].any()
    with pytest.raises(IllegalAccess, match="memory of GPU 1"):
        copied(theirs)
