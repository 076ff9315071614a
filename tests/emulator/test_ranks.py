"""GPUs that add their sums up (docs/adr/0049-reduce-scatter.md), run by the emulator: 2, 4 and 8 ranks in one process, whoever is late."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from emulated import prepared
from kernels import (
    DENSE,
    DENSE_F32,
    DENSE_TN,
    DIRECT,
    FP8,
    VECTOR,
    emitted,
)
from scattering import (
    KINDS,
    PLAIN,
    SWAPPED,
    Slow,
    calls_of,
    judge,
    node,
    plain_sums,
    scattered,
    shape_of,
)

from gemmgen.codes import encode
from gemmgen.emulator import Deadlock, Eager, IllegalAccess, Race, Random, RoundRobin
from gemmgen.errors import ArgumentError, VerificationError
from gemmgen.ir.dtypes import F32
from gemmgen.ops.collective import rows_begin
from gemmgen.runtime.peers import mailbox, row_step
from gemmgen.verification import random_normal, ranked

pytestmark = pytest.mark.nvrtc


@pytest.mark.parametrize("ranks", (1, 2, 3, 4, 8))
@pytest.mark.parametrize("problem, config", ((DENSE, PLAIN), (FP8, SWAPPED)), ids=("bf16", "fp8"))
def test_every_rank_has_its_rows_of_the_sum(problem, config, ranks):
    judge(problem, config, ranks, calls=3 if ranks < 4 else 2)


@pytest.mark.parametrize("name", KINDS)
def test_every_kind_of_sum(name):
    judge(*KINDS[name], ranks=2)


SCHEDULES = {
    "in order": RoundRobin(),
    "eager": Eager(),
    **{f"random {seed}": Random(seed=seed) for seed in range(2)},
    **{f"rank {rank} is slow": Slow(rank=rank) for rank in range(2)},
}


def bits(schedule, ranks=2, first=1):
    problem = scattered(DENSE)
    kernel, program = prepared(problem, PLAIN)
    wholes = calls_of(problem, shape_of(problem, PLAIN, ranks), 3, random_normal)
    machines = node(ranks, schedule=schedule, first=first)
    got = ranked.run(machines, program, kernel, problem, wholes)
    for whole, results in zip(wholes, got, strict=True):
        ranked.check_close(machines, problem, whole, results)
    return [[r.codes.tobytes() for r in results] for results in got]


@pytest.mark.parametrize("name", SCHEDULES)
def test_bits_do_not_depend_on_who_is_late(name):
    assert bits(SCHEDULES[name]) == bits(None)


def test_bits_do_not_depend_on_the_epoch():
    assert bits(None, first=8) == bits(None)


@pytest.mark.parametrize("first", (1, 8, 2**33))
@pytest.mark.parametrize(
    "problem, config", ((DENSE, PLAIN), (DENSE, DIRECT)), ids=("tma", "direct")
)
def test_launches_number_themselves(problem, config, first):
    """Each is told the same, as a replay is; behind it the next one's number is there, and no CTA is counted."""
    kernel, program = prepared(scattered(problem), config)
    assert "epoch" not in {p.name for p in kernel.params}
    machines = node(2, first=first)
    wholes = calls_of(scattered(problem), shape_of(problem, config, 2), 5)
    got = ranked.run(machines, program, kernel, scattered(problem), wholes)
    for whole, results in zip(wholes, got, strict=True):
        ranked.check_exact(machines, scattered(problem), whole, results)
    assert machines.over == [(first + 4, 0)] * 2


@pytest.mark.parametrize("ranks", (2, 3))
@pytest.mark.parametrize("problem", (DENSE_F32, replace(VECTOR, d=F32)), ids=("dense", "scaled"))
def test_bits_are_those_of_the_plain_gemms_added_in_order(problem, ranks):
    """The owner's first, then those of the ranks behind it."""
    kernel, program = prepared(scattered(problem), PLAIN)
    shape = shape_of(problem, PLAIN, ranks)
    (whole,) = calls_of(problem, shape, 1, random_normal)
    parts = plain_sums(problem, PLAIN, ranked.together(problem, whole, ranks))
    ((*got,),) = ranked.run(node(ranks), program, kernel, scattered(problem), [whole])
    rows = shape[0] // ranks
    for owner, result in enumerate(got):
        mine = slice(owner * rows, owner * rows + rows)
        total = parts[owner][mine]
        for other in range(1, ranks):
            total = total + parts[(owner + other) % ranks][mine]
        assert (encode(total.astype(np.float64), F32) == np.asarray(result.codes)).all()


# What a kernel would be with a fault, and what finds it. (A single buffer is the proof's to find: the emulator does not order writes after reads of
# global memory.)
FLAG, WAIT = "st.release.sys.global.u64", "ld.acquire.sys.global.u64"
MET = "ptx::warp_sync();\n"
FAULTS = {
    "a flag that releases nothing": ((FLAG, "st.relaxed.sys.global.u64"), Race),
    "a flag of the GPU's scope": ((FLAG, "st.release.gpu.global.u64"), Race),
    "a wait that acquires nothing": ((WAIT, "ld.relaxed.sys.global.u64"), Race),
    "a wait of the GPU's scope": ((WAIT, "ld.acquire.gpu.global.u64"), Race),
    "no wait": (("while (ptx::seen_epoch(flag) < epoch) {}", ""), Race),
    "a wait for any epoch": (("(flag) < epoch", "(flag) < 1"), (Race, VerificationError)),
    "lanes that do not meet": ((MET, "\n"), Race),
    "the next chunk's flag": (
        (
            "other * (long long)flag_stride + tile.slot",
            "other * (long long)flag_stride + (tile.slot ^ 1)",
        ),
        Race,
    ),
    "a flag of the tile beside": (("owed[1] = tile.slot;", "owed[1] = tile.slot ^ 1;"), Race),
    "an epoch that each CTA passes": ((" == gridDim.x - 1)", " >= 0)"), Race),
    "an epoch that nobody passes": ((" == gridDim.x - 1)", " == gridDim.x)"), Race),
    "a count that does not wrap": (("global.inc.u32", "global.add.u32"), Race),
    "an epoch of another rank": (("load_epoch(partials[rank]", "load_epoch(partials[0]"), Race),
    "another rank's memory": (
        ("* const slot = partials[tile.owner] + 2", "* const slot = (float*)d + 2"),
        (IllegalAccess, VerificationError, Race),
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_in_the_exchange_is_found(name):
    edit, error = FAULTS[name]
    problem = scattered(DENSE)
    kernel, program = prepared(problem, PLAIN, (edit,))
    wholes = calls_of(problem, shape_of(problem, PLAIN, 2, tail=False), 3)

    def judged():
        for rank in range(2):
            machines = node(2, sms=2, schedule=Slow(rank=rank, every=50))
            got = ranked.run(machines, program, kernel, problem, wholes)
            for whole, results in zip(wholes, got, strict=True):
                ranked.check_exact(machines, problem, whole, results)

    with pytest.raises(error):
        judged()


def test_a_rank_whose_flags_stay_behind_is_waited_for():
    problem = scattered(DENSE)
    kernel, program = prepared(problem, PLAIN, (("4 + warp), epoch);", "4 + warp), epoch - 1);"),))
    with pytest.raises(Deadlock):
        ranked.run(
            node(2), program, kernel, problem, calls_of(problem, shape_of(problem, PLAIN, 2), 1)
        )


def test_memory_that_is_no_mailbox_belongs_to_one_gpu():
    from gemmgen.emulator import GlobalMemory

    memory = GlobalMemory()
    own, shared = (
        memory.allocate(np.zeros(64, np.uint8), device=0),
        memory.allocate(np.zeros(64, np.uint8)),
    )
    for device in (0, 1):
        memory.seen_by(device).find(shared, 4, "somebody")
    memory.seen_by(0).find(own, 4, "somebody")
    with pytest.raises(IllegalAccess, match="memory of GPU 0, to which GPU 1 has no access"):
        memory.seen_by(1).find(own, 4, "somebody")


def test_rows_begin_where_boxes_may():
    steps = {DENSE: 1, FP8: 4, DENSE_TN: 8}
    for problem, step in steps.items():
        kernel = emitted(scattered(problem), PLAIN).kernel
        assert row_step(kernel) == rows_begin(problem) == step
        if step > 1:
            with pytest.raises(ArgumentError, match=f"m=.*multiple of {step}"):
                mailbox(kernel, (step + 1, 64, 64), 2)
        mailbox(kernel, (3 * step, 64, 64), 2)


@pytest.mark.parametrize("ranks", (0, 9, True, "2", 2.0))
def test_ranks_are_those_of_one_host(ranks):
    with pytest.raises(ArgumentError, match="ranks"):
        mailbox(emitted(scattered(DENSE), PLAIN).kernel, (64, 64, 64), ranks)


def test_a_mailbox_holds_what_needs_no_more():
    kernel = emitted(scattered(DENSE), PLAIN).kernel
    small, large = (mailbox(kernel, (m, 64, 64), 4) for m in (64, 640))
    assert large.holds(small) and not small.holds(large) and small.bytes < large.bytes
    assert not large.holds(mailbox(kernel, (64, 64, 64), 2))
