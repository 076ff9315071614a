"""Divergence, warp exchanges, barriers, clusters and deadlocks in the emulator."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from test_emulator import run

from gemmgen import emulator
from gemmgen.emulator.spaces import SHARED_BASE

SCHEDULES = {
    "round robin": emulator.RoundRobin,
    "one by one": partial(emulator.RoundRobin, budget=1),
    "eager": emulator.Eager,
    "late": emulator.Late,
    "random": partial(emulator.Random, seed=7),
}
every_schedule = pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=SCHEDULES)
LOOP = """
mov.u32 %r1, 0;
mov.u32 %r2, %tid.x;
and.b32 %r2, %r2, 7;
AGAIN: setp.ge.u32 %p1, %r1, %r2;
@%p1 bra DONE;
add.u32 %r1, %r1, 1;
bra AGAIN;
DONE: st.global.u32 [%d31], %r1;
activemask.b32 %r3;
st.global.u32 [%d31+4], %r3;
"""


def test_lanes_leave_a_loop_one_by_one_and_meet_again():
    out = run(LOOP, threads=64)
    assert (out[:, 0] == np.arange(64) % 8).all()
    assert (out[:, 1] == 0xFFFFFFFF).all()


def test_both_sides_of_a_branch_run():
    body = """
    setp.lt.u32 %p1, %r60, 40;
    @%p1 bra LOW;
    mov.u32 %r1, 1;
    bra.uni END;
    LOW: mov.u32 %r1, 2;
    END: st.global.u32 [%d31], %r1;
    """
    assert (run(body, threads=96)[:, 0] == np.where(np.arange(96) < 40, 2, 1)).all()


def test_an_indexed_branch():
    body = """
    and.b32 %r1, %r60, 3;
    TARGETS: .branchtargets A, B, C, B;
    brx.idx %r1, TARGETS;
    A: mov.u32 %r2, 10; bra.uni END;
    B: mov.u32 %r2, 20; bra.uni END;
    C: mov.u32 %r2, 30;
    END: st.global.u32 [%d31], %r2;
    """
    assert run(body)[:4, 0].tolist() == [10, 20, 30, 20]


def test_guards_and_early_exit():
    body = """
    setp.gt.u32 %p1, %r60, 3;
    mov.u32 %r1, 5;
    @!%p1 mov.u32 %r1, 6;
    @%p1 exit;
    st.global.u32 [%d31], %r1;
    """
    out = run(body)
    assert out[:5, 0].tolist() == [6, 6, 6, 6, 0xFFFFFFFF]


@pytest.mark.parametrize(
    ("instruction", "want"),
    (
        ("shfl.sync.idx.b32 %r1|%p1, %r60, 5, 31, -1;", [5] * 32),
        ("shfl.sync.up.b32 %r1|%p1, %r60, 1, 0, -1;", [0, *range(31)]),
        ("shfl.sync.down.b32 %r1|%p1, %r60, 1, 31, -1;", [*range(1, 32), 31]),
        ("shfl.sync.bfly.b32 %r1|%p1, %r60, 1, 31, -1;", [i ^ 1 for i in range(32)]),
        ("shfl.sync.idx.b32 %r1|%p1, %r60, 0, 0x181F, -1;", [i // 8 * 8 for i in range(32)]),
        ("elect.sync %r1|%p1, -1;", [0] * 32),
        ("setp.lt.u32 %p2, %r60, 3; vote.sync.ballot.b32 %r1, %p2, -1;", [7] * 32),
        (
            "and.b32 %r2, %r60, 3; match.any.sync.b32 %r1, %r2, -1;",
            [0x11111111 << i % 4 for i in range(32)],
        ),
        (
            "cvt.u64.u32 %d1, %r60; shl.b64 %d1, %d1, 31; match.any.sync.b64 %r1, %d1, -1;",
            [1 << i for i in range(32)],
        ),
        ("match.all.sync.b32 %r1|%p1, 5, -1; @!%p1 mov.u32 %r1, 1;", [0xFFFFFFFF] * 32),
        ("match.all.sync.b32 %r1|%p1, %r60, -1; @%p1 mov.u32 %r1, 1;", [0] * 32),
        (
            "setp.lt.u32 %p2, %r60, 3; vote.sync.any.pred %p1, %p2, -1; selp.b32 %r1, 1, 0, %p1;",
            [1] * 32,
        ),
        (
            "setp.lt.u32 %p2, %r60, 3; vote.sync.all.pred %p1, %p2, -1; selp.b32 %r1, 1, 0, %p1;",
            [0] * 32,
        ),
    ),
)
def test_warp_exchanges(instruction, want):
    assert run(instruction + "st.global.u32 [%d31], %r1;")[:, 0].tolist() == want


def test_lanes_match_among_those_that_take_part():
    """Each warp by itself, and of it who the mask names."""
    body = """
    and.b32 %r9, %r60, 31;
    setp.ge.u32 %p1, %r9, 8;
    @%p1 bra END;
    shr.u32 %r2, %r60, 1;
    match.any.sync.b32 %r1, %r2, 0xFF;
    st.global.u32 [%d31], %r1;
    END:
    """
    out = run(body, threads=64)[:, 0].reshape(2, 32)
    assert (out[:, :8] == [3, 3, 12, 12, 48, 48, 192, 192]).all() and (
        out[:, 8:] == 2**32 - 1
    ).all()


def test_a_guarded_match_waits_for_whom_it_names():
    """Lanes 2 and 3 come later, with others whose guard does not hold."""
    body = """
    setp.lt.u32 %p1, %r60, 4;
    setp.ge.u32 %p2, %r60, 2;
    @%p2 bra LATER;
    MEET: @%p1 match.any.sync.b32 %r1, %r60, 0xF;
    @%p1 st.global.u32 [%d31], %r1;
    bra END;
    LATER: bra MEET;
    END:
    """
    assert run(body)[:5, 0].tolist() == [1, 2, 4, 8, 2**32 - 1]


def test_a_collective_waits_for_lanes_that_took_another_way():
    body = """
    setp.lt.u32 %p1, %r60, 4;
    @%p1 bra SIDE;
    shfl.sync.idx.b32 %r1, %r60, 2, 31, -1;
    st.global.u32 [%d31], %r1;
    exit;
    SIDE: shfl.sync.idx.b32 %r1, %r60, 2, 31, -1;
    st.global.u32 [%d31], %r1;
    """
    with pytest.raises(emulator.Deadlock, match=r"shfl.*waits for the other threads of its warp"):
        run(body)


EXCHANGE = """
mov.u64 %d1, smem;
cvt.u32.u64 %r1, %d1;
shl.b32 %r2, %r60, 2;
add.u32 %r3, %r1, %r2;
st.shared.u32 [%r3], %r60;
SYNC
xor.b32 %r4, %r2, 512;
add.u32 %r4, %r4, %r1;
ld.shared.u32 %r5, [%r4];
st.global.u32 [%d31], %r5;
"""


@every_schedule
@pytest.mark.parametrize("sync", ("bar.sync 0;", "bar.sync 3, 256;", "barrier.cta.sync.aligned 1;"))
def test_a_barrier_orders_shared_memory(sync, schedule):
    out = run(EXCHANGE.replace("SYNC", sync), threads=256, schedule=schedule())
    assert (out[:, 0] == np.arange(256) ^ 128).all()


@every_schedule
def test_without_it_there_is_a_race_whatever_the_schedule(schedule):
    with pytest.raises(
        (emulator.Race, emulator.UninitializedRead), match=r"ld\.shared\.u32 at PTX line"
    ):
        run(EXCHANGE.replace("SYNC", ""), threads=256, schedule=schedule())


def test_two_warpgroups_may_not_meet_at_one_barrier_by_chance():
    body = "setp.lt.u32 %p1, %r60, 128; @%p1 bra FIRST; bar.sync {}, 128; exit; FIRST: bar.sync 1, 128;"
    run(body.format(2), threads=256)
    with pytest.raises(emulator.ProtocolError, match="may arrive at barrier 1 among those"):
        run(body.format(1), threads=256)


def test_too_few_threads_at_a_barrier():
    with pytest.raises(emulator.Deadlock, match="barrier 2: 64 of 128 threads"):
        run("bar.sync 2, 128;", threads=64)


def test_exited_warps_do_not_hold_up_a_barrier_of_all():
    assert (
        run(
            "setp.gt.u32 %p1, %r60, 31; @%p1 exit; bar.sync 0; st.global.u32 [%d31], 1;", threads=96
        )[0, 0]
        == 1
    )


CLUSTER = """
mov.u64 %d1, smem;
cvt.u32.u64 %r1, %d1;
mov.u32 %r2, %cluster_ctarank;
xor.b32 %r3, %r2, 1;
mapa.shared::cluster.u32 %r4, %r1, %r3;
setp.ne.u32 %p1, %r60, 0;
mov.u32 %r9, %tid.x;
setp.ne.u32 %p2, %r9, 0;
BEGUN
@!%p2 st.shared::cluster.u32 [%r4], %r2;
FIRST
@!%p2 ld.shared.u32 %r5, [%r1];
@!%p2 st.global.u32 [%d31], %r5;
"""
SYNC = "barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;"
RELAXED = SYNC.replace("release", "relaxed")
WITHOUT, CLUSTER = CLUSTER.replace("BEGUN", ""), CLUSTER.replace("BEGUN", RELAXED)


@every_schedule
def test_a_cluster_shares_memory(schedule):
    out = run(CLUSTER.replace("FIRST", SYNC), grid=2, cluster=2, schedule=schedule())
    assert (out[0, 0], out[32, 0]) == (1, 0)


@pytest.mark.parametrize("sync", ("", "bar.sync 0;", RELAXED))
def test_less_than_a_cluster_barrier_is_a_race(sync):
    with pytest.raises((emulator.Race, emulator.UninitializedRead)):
        run(CLUSTER.replace("FIRST", sync), grid=2, cluster=2)


def test_another_ctas_memory_is_there_once_it_has_begun():
    with pytest.raises(emulator.ProtocolError, match=r"CTA 1 may not have begun"):
        run(WITHOUT.replace("FIRST", SYNC), grid=2, cluster=2)


READ = """
mov.u64 %d1, smem;
cvt.u32.u64 %r1, %d1;
mov.u32 %r2, %cluster_ctarank;
xor.b32 %r3, %r2, 1;
mapa.shared::cluster.u32 %r4, %r1, %r3;
st.shared.u32 [%r1], %r2;
SYNC
ld.shared::cluster.u32 %r5, [%r4];
st.global.u32 [%d31], %r5;
LAST
"""


def test_another_ctas_memory_is_there_until_it_exits():
    """What reads it arrives behind that, and who exits waits."""
    of_one = READ.replace("SYNC", SYNC)
    body = of_one.replace("LAST", SYNC)
    assert run(body, threads=1, grid=2, cluster=2)[:, 0].tolist() == [1, 0]
    for last in ("", RELAXED):
        with pytest.raises(emulator.ProtocolError, match=r"CTA \d may exit before ld\.shared::c"):
            run(of_one.replace("LAST", last), threads=1, grid=2, cluster=2)


GONE = """
mov.u64 %d1, smem;
cvt.u32.u64 %r1, %d1;
mov.u32 %r2, %cluster_ctarank;
setp.ne.u32 %p1, %r2, 0;
mov.u32 %r9, %tid.x;
setp.ge.u32 %p2, %r9, 32;
@%p1 bra STAYS;
barrier.cluster.arrive.relaxed.aligned;
exit;
STAYS: @%p2 bra LATE;
barrier.cluster.arrive.relaxed.aligned;
bar.arrive 1, 64;
barrier.cluster.wait.acquire.aligned;
ld.shared.u32 %r5, [%r1];
st.global.u32 [%d31], %r5;
exit;
LATE: bar.sync 1, 64;
st.shared.u32 [%r1], 7;
barrier.cluster.arrive.release.aligned;
"""


@every_schedule
def test_who_arrived_at_a_cluster_barrier_and_left_stands_for_nobody_else(schedule):
    """The second warp of CTA 1 comes after the first, and perhaps after CTA 0 has left."""
    out = run(GONE, grid=2, cluster=2, threads=64, schedule=schedule())
    assert (out[64:96, 0] == 7).all()


def test_a_lower_register_count_must_come_first():
    body = """
    shr.u32 %r1, %r60, 7;
    setp.ne.u32 %p1, %r1, 0;
    @%p1 bra MORE;
    setmaxnreg.dec.sync.aligned.u32 {};
    exit;
    MORE: setmaxnreg.inc.sync.aligned.u32 {};
    """
    run(body.format(40, 232), threads=384)
    with pytest.raises(emulator.Deadlock, match=r"setmaxnreg\.inc.*waits for 9216 registers"):
        run(body.format(40, 240), threads=384)


def test_a_spinning_thread_is_reported():
    body = "setp.eq.u32 %p1, %r60, 1; @%p1 exit; LOOP: ld.volatile.global.u32 %r1, [%d30+4]; setp.eq.s32 %p1, %r1, 3; @%p1 exit; bra LOOP;"
    with pytest.raises(emulator.Deadlock, match="it spins"):
        run(body)


def test_a_cta_may_wait_for_one_that_starts_later():
    body = """
    mov.u32 %r1, %ctaid.x;
    setp.eq.u32 %p1, %r1, 0;
    @%p1 bra WAIT;
    st.release.gpu.global.u32 [%d30+4], 3;
    exit;
    WAIT: ld.acquire.gpu.global.u32 %r2, [%d30+4];
    setp.ne.u32 %p2, %r2, 3;
    @%p2 bra WAIT;
    """
    assert run(body, grid=2)[0, 1] == 3


def test_trap():
    with pytest.raises(emulator.Trap, match="CTA 0"):
        run("trap;")


def test_bank_conflicts_are_counted():
    body = "mov.u64 %d1, smem; cvt.u32.u64 %r1, %d1; mad.lo.u32 %r2, %r60, {}, %r1; st.shared.u32 [%r2], %r60;"
    found = []
    for stride in (4, 8, 128):
        run(body.format(stride))
        (site,) = run.stats.sites.values()
        found.append((site.wavefronts, site.conflicts))
    assert found == [(1, 0), (2, 1), (32, 31)]


def test_two_ctas_writing_one_byte_are_a_race():
    with pytest.raises(emulator.Race, match=r"written twice.*CTA 0.*CTA 1"):
        run("st.global.u32 [%d30], %r60;", grid=2)


def test_atomics():
    out = run("atom.global.add.u32 %r1, [%d30+4], 1;", grid=2)
    assert out[0, 1] == (0xFFFFFFFF + 64) & 0xFFFFFFFF


SHARED_WORD = "mov.u64 %d1, smem; cvt.u32.u64 %r1, %d1; "
FIRST_ZEROES = "setp.eq.u32 %p1, %r60, 0; @%p1 st.shared.u32 [%r1], 0; "
ADDS = "atom.shared.add.u32 %r2, [%r1], %r60; "
GIVES = "ld.shared.u32 %r3, [%r1]; st.global.u32 [%d31], %r3;"
BARRIER = "bar.sync 0; "


def test_atomics_of_shared_memory():
    """All threads' numbers are added, in no order."""
    out = run(SHARED_WORD + FIRST_ZEROES + BARRIER + ADDS + BARRIER + GIVES, threads=64)
    assert (out[:, 0] == sum(range(64))).all()


@pytest.mark.parametrize(
    ("body", "says"),
    (
        (FIRST_ZEROES + ADDS + BARRIER + GIVES, "updated by .* not ordered after the write by"),
        (FIRST_ZEROES + BARRIER + ADDS + GIVES, "not ordered after the (update|read) by"),
        (FIRST_ZEROES + BARRIER + ADDS + FIRST_ZEROES, "written by .* not ordered after the update by"),
        (FIRST_ZEROES + BARRIER + "ld.shared.u32 %r3, [%r1]; " + ADDS, "updated by .* not ordered after the read by"),
    ),
)  # fmt: skip
def test_atomics_are_ordered_with_what_is_no_atomic(body, says):
    with pytest.raises(emulator.Race, match=says):
        run(SHARED_WORD + body, threads=64)


def test_atomics_of_memory_that_has_no_value():
    with pytest.raises(emulator.UninitializedRead):
        run(SHARED_WORD + ADDS)


@pytest.mark.parametrize("order", ("acquire", "release", "acq_rel"))
def test_atomics_of_shared_memory_that_order(order):
    with pytest.raises(emulator.UnsupportedInstruction):
        run(SHARED_WORD + f"atom.{order}.cta.shared.add.u32 %r2, [%r1], 1;")


def test_an_address_of_32_bits_and_its_offset():
    """Are added in 32 bits."""
    low = f"mov.u32 %r2, {2**32 - 64}; ld.shared.u32 %r3, [%r2+{SHARED_BASE + 64}]; "
    out = run(
        SHARED_WORD + "st.shared.u32 [%r1], 7; " + low + "st.global.u32 [%d30], %r3;", threads=1
    )
    assert out[0, 0] == 7


@pytest.mark.parametrize(
    "wrong", ({"threads": 2048}, {"grid": 3, "cluster": 2}, {"shared": 1 << 20}), ids=str
)
def test_launches_are_checked(wrong):
    with pytest.raises(emulator.EmulatorError):
        run("", **wrong)
