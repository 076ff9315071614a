"""GPUs that all store the sum of all (docs/adr/0057-all-reduce.md), run by the emulator: 2, 4 and 8 ranks in one process, whoever is late."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from emulated import prepared
from kernels import DENSE, DENSE_F32, DIRECT, FP8, VECTOR
from reducing import calls_of, judge, launched, reduced, shape_of
from scattering import KINDS, PLAIN, SWAPPED, Slow, node, plain_sums

from gemmgen.codes import decode, encode
from gemmgen.emulator import Deadlock, Eager, IllegalAccess, Race, Random, RoundRobin
from gemmgen.errors import VerificationError
from gemmgen.ir.collectives import WIRES
from gemmgen.ir.dtypes import BF16, F16, F32
from gemmgen.verification import random_normal, ranked

pytestmark = pytest.mark.nvrtc


@pytest.mark.parametrize("ranks", (1, 2, 3, 4, 8))
@pytest.mark.parametrize("problem, config", ((DENSE, PLAIN), (FP8, SWAPPED)), ids=("bf16", "fp8"))
def test_every_rank_has_the_sum(problem, config, ranks):
    judge(problem, config, ranks, calls=3 if ranks < 4 else 2)


@pytest.mark.parametrize("name", KINDS)
def test_every_kind_of_sum(name):
    judge(*KINDS[name], ranks=2)


@pytest.mark.parametrize("ranks", (2, 8))
@pytest.mark.parametrize("name, wire", (("f32", BF16), ("fp8", F16), ("residual", BF16)))
def test_sums_that_are_rounded(name, wire, ranks):
    judge(*KINDS[name], ranks=ranks, calls=1, wire=wire)


@pytest.mark.parametrize("sms", (1, 2))
def test_a_rank_may_have_fewer_ctas_than_tiles(sms):
    judge(DENSE, PLAIN, ranks=3, sms=sms)


SCHEDULES = {
    "in order": RoundRobin(),
    "eager": Eager(),
    **{f"random {seed}": Random(seed=seed) for seed in range(2)},
    **{f"rank {rank} is slow": Slow(rank=rank) for rank in range(2)},
}


def bits(schedule, ranks=2, first=1, wire=None):
    """On rank 0: check_close holds the others against it."""
    problem = reduced(DENSE, wire)
    wholes, got = launched(problem, PLAIN, ranks, 3, random_normal, schedule=schedule, first=first)
    for whole, results in zip(wholes, got, strict=True):
        ranked.check_close(node(ranks), problem, whole, results)
    return [results[0].codes.tobytes() for results in got]


@pytest.mark.parametrize("name", SCHEDULES)
def test_bits_do_not_depend_on_who_is_late(name):
    assert bits(SCHEDULES[name], wire=BF16) == bits(None, wire=BF16)


def test_bits_do_not_depend_on_the_epoch():
    assert bits(None, first=8) == bits(None)


@pytest.mark.parametrize("wire", (None, *WIRES), ids=str)
@pytest.mark.parametrize("ranks", (2, 3, 4))
@pytest.mark.parametrize("problem", (DENSE_F32, replace(VECTOR, d=F32)), ids=("dense", "scaled"))
def test_bits_are_those_of_the_plain_gemms_added_in_order_of_ranks(problem, ranks, wire):
    """Rank 0's first, on every rank, and all of them rounded if any is."""
    of = reduced(problem, wire)
    (whole,), ((*got,),) = launched(of, PLAIN, ranks, 1, random_normal)
    total = np.float32(0)
    for part in plain_sums(problem, PLAIN, ranked.together(of, whole, ranks)):
        sent = encode(part.astype(np.float64), wire) if wire else part
        total = total + (np.float32(decode(sent, wire)) if wire else part)
    wanted = encode(total.astype(np.float64), F32)
    assert all((wanted == np.asarray(x.codes)).all() for x in got)


@pytest.mark.parametrize("first", (1, 8, 2**33))
def test_launches_number_themselves(first):
    kernel, program = prepared(reduced(DENSE), PLAIN)
    machines = node(2, first=first)
    wholes = calls_of(reduced(DENSE), shape_of(DENSE, PLAIN, 2), 5)
    got = ranked.run(machines, program, kernel, reduced(DENSE), wholes)
    for whole, results in zip(wholes, got, strict=True):
        ranked.check_exact(machines, reduced(DENSE), whole, results)
    assert machines.over == [(first + 4, 0)] * 2


def test_operands_that_no_tensor_map_loads():
    judge(DENSE, DIRECT, ranks=4)


# ---- faults --------------------------------------------------------------------------------------

FLAG, WAIT = "st.release.sys.global.u64", "ld.acquire.sys.global.u64"
OTHERS = "other * (long long)flag_stride + tile.slot"
# What a kernel would be with a fault, and what finds it.
FAULTS = {
    "a flag that releases nothing": ((FLAG, "st.relaxed.sys.global.u64"), Race),
    "a flag of the GPU's scope": ((FLAG, "st.release.gpu.global.u64"), Race),
    "a wait that acquires nothing": ((WAIT, "ld.relaxed.sys.global.u64"), Race),
    "a wait of the GPU's scope": ((WAIT, "ld.acquire.gpu.global.u64"), Race),
    "no wait": (("while (ptx::seen_epoch(flag) < epoch) {}", ""), Race),
    "a wait for any epoch": (("(flag) < epoch", "(flag) < 1"), (Race, VerificationError)),
    "lanes that do not meet": (("ptx::warp_sync();\n", "\n"), Race),
    "the next tile's flag": (
        (OTHERS, OTHERS.replace("tile.slot", "(tile.slot ^ 1)")),
        (Race, Deadlock),
    ),
    "another tile's slot": (
        ("(back * (long long)tile.slots + tile.slot)", "(back * (long long)tile.slots)"),
        (Race, VerificationError),
    ),
    "sums in the order of each rank's own": (
        ("((from + ranks - rank) % ranks", "(from"),
        VerificationError,
    ),
    "an own sum that is not sent": (("back >= 0; --back", "back > 0; --back"), VerificationError),
    "a sum that is kept": (("for (auto& r : acc0) r = 0;", ""), VerificationError),
    "an epoch that each CTA passes": ((" == gridDim.x - 1)", " >= 0)"), Race),
    "another rank's memory": (
        ("* const slot = partials[tile.owner] + 2", "* const slot = (float*)d + 2"),
        (IllegalAccess, VerificationError, Race),
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_in_the_exchange_is_found(name):
    """Of three ranks, whose sums come in another order nowhere but in random data."""
    edit, error = FAULTS[name]
    problem = reduced(DENSE_F32)

    def judged():
        for rank in range(2):
            slow = Slow(rank=rank, every=50)
            of = launched(problem, PLAIN, 3, 2, random_normal, (edit,), sms=2, schedule=slow)
            for whole, results in zip(*of, strict=True):
                ranked.check_close(node(3), problem, whole, results)

    with pytest.raises(error):
        judged()


def test_a_rank_whose_flags_stay_behind_is_waited_for():
    edit = ("4 + warp), epoch);", "4 + warp), epoch - 1);")
    with pytest.raises(Deadlock):
        launched(reduced(DENSE), PLAIN, 2, edits=(edit,))


def test_ranks_that_differ_in_a_bit_are_told():
    problem = reduced(DENSE_F32)
    (whole,), ((first, second),) = launched(problem, PLAIN, 2, 1, random_normal)
    codes = np.array(second.codes)
    codes[0, 0] ^= 1
    with pytest.raises(VerificationError, match="rank 1 has other bits"):
        ranked.check_close(node(2), problem, whole, [first, replace(second, codes=codes)])
