"""Lanes of a warp that are apart in the emulator: who speaks for whom, and what takes them all."""

from __future__ import annotations

import re

import numpy as np
import pytest
from test_emulator import run
from test_emulator_control import every_schedule

from gemmgen import emulator

# Warp 0 reads 4 bytes per lane; BETWEEN; then ARRIVE. Warp 1 waits for that, and overwrites them.
RELEASE = """
mov.u64 %d1, smem;
cvt.u32.u64 %r1, %d1;
and.b32 %r10, %r60, 31;
shl.b32 %r3, %r10, 2;
add.u32 %r3, %r3, %r1;
add.u32 %r3, %r3, 1024;
setp.ne.u32 %p1, %r60, 0;
setp.ne.u32 %p3, %r10, 0;
setp.gt.u32 %p4, %r10, 15;
setp.gt.u32 %p2, %r60, 31;
@%p2 st.shared.u32 [%r3], %r10;
@!%p1 mbarrier.init.shared::cta.b64 [%r1], COUNT;
bar.sync 0;
@%p2 bra WRITE;
READ
ld.shared.u32 %r5, [%r3];
BETWEEN
ARRIVE
exit;
WRITE:
AGAIN: mbarrier.try_wait.parity.shared::cta.b64 %p5, [%r1], 0;
@!%p5 bra AGAIN;
st.shared.u32 [%r3], 5;
"""
ARRIVE = "mbarrier.arrive.shared::cta.b64 _, [%r1];"
ONE, EACH = f"@!%p3 {ARRIVE}", f"@%p4 bra HIGH; {ARRIVE} exit; HIGH: {ARRIVE}"
MEET = "bar.warp.sync 0xFFFFFFFF;"


def release(arrive: str, between: str = "", count: int = 1, read: str = "", **options):
    body = RELEASE.replace("BETWEEN", between).replace("COUNT", str(count)).replace("READ", read)
    return run(body.replace("ARRIVE", arrive), threads=64, **options)


@every_schedule
def test_one_lane_does_not_speak_for_the_others(schedule):
    with pytest.raises(
        emulator.Race, match=r"written by st\.shared.*not ordered after the read by ld"
    ):
        release(ONE, schedule=schedule())


@every_schedule
@pytest.mark.parametrize("meet", [MEET, "bar.sync 3, 32;", "barrier.cta.sync.aligned 3, 32;"])
def test_it_does_once_they_have_met(meet, schedule):
    release(ONE, meet, schedule=schedule())


@pytest.mark.parametrize(
    "between", ["shfl.sync.idx.b32 %r6, %r5, 0, 31, -1;", "activemask.b32 %r6;"]
)
def test_what_orders_no_memory_is_no_meeting(between):
    with pytest.raises(emulator.Race):
        release(ONE, between)


@every_schedule
def test_each_lane_speaks_for_itself(schedule):
    release(ARRIVE, count=32, schedule=schedule())
    release(EACH, count=32, schedule=schedule())
    with pytest.raises(emulator.Race):  # half of them are not waited for
        release(f"@!%p4 {ARRIVE}", count=16, schedule=schedule())


def test_some_lanes_may_meet_without_the_others():
    half = "@%p4 bra ON; bar.warp.sync 0xFFFF; ON:"
    with pytest.raises(emulator.Race):
        release(ONE, half)
    release(ONE, half, read="@!%p4")


def test_a_lane_that_reads_alone_may_release_alone():
    release(ONE, read="@!%p3")
    other = f"setp.ne.u32 %p6, %r10, 1; @!%p6 {ARRIVE}"
    with pytest.raises(emulator.Race):
        release(other, read="@!%p3")


# Warp 1 writes and arrives; one lane of warp 0 waits for that, or all; all read.
ACQUIRE = """
mov.u64 %d1, smem;
cvt.u32.u64 %r1, %d1;
and.b32 %r10, %r60, 31;
shl.b32 %r3, %r10, 2;
add.u32 %r3, %r3, %r1;
add.u32 %r3, %r3, 1024;
setp.ne.u32 %p1, %r60, 0;
setp.gt.u32 %p2, %r60, 31;
@!%p2 st.shared.u32 [%r3], 7;
@!%p1 mbarrier.init.shared::cta.b64 [%r1], 32;
bar.sync 0;
@%p2 bra WRITE;
ONLY
AGAIN: mbarrier.try_wait.parity.shared::cta.b64 %p5, [%r1], 0;
@!%p5 bra AGAIN;
ON: BETWEEN
ld.shared.u32 %r5, [%r3];
st.global.u32 [%d31], %r5;
exit;
WRITE: st.shared.u32 [%r3], %r10;
mbarrier.arrive.shared::cta.b64 _, [%r1];
"""


def acquire(only: str = "", between: str = "", **options):
    body = ACQUIRE.replace("ONLY", only).replace("BETWEEN", between)
    return run(body, threads=64, **options)


@every_schedule
def test_what_one_lane_waits_for_the_others_do_not_know(schedule):
    leader = "setp.ne.u32 %p3, %r10, 0; @%p3 bra ON;"
    with pytest.raises(emulator.Race, match=r"ld\.shared|not ordered after the read by ld"):
        acquire(leader, schedule=schedule())
    for only, between in ((leader, MEET), ("", "")):
        out = acquire(only, between, schedule=schedule())
        assert (out[:32, 0] == np.arange(32)).all()


# 128 threads; the first, or half of a warp, may go another way.
ALIGNED = {
    "registers of one thread": ("setp.ne.u32 %p1, %r60, 0; @%p1 bra ON; setmaxnreg.inc.sync.aligned.u32 232; ON: wgmma.fence.sync.aligned;", "warpgroup"),
    "registers of the last thread left": ("setp.ne.u32 %p1, %r60, 0; @%p1 exit; setmaxnreg.inc.sync.aligned.u32 232;", "warpgroup"),
    "registers of one warp": ("setp.gt.u32 %p1, %r60, 31; @%p1 exit; setmaxnreg.inc.sync.aligned.u32 232;", "warpgroup"),
    "a barrier of half a warp": ("setp.gt.u32 %p1, %r60, 15; @%p1 exit; bar.sync 1, 32;", "warp"),
    "a cluster barrier of half a warp": ("setp.gt.u32 %p1, %r60, 15; @%p1 exit; barrier.cluster.arrive.aligned;", "warp"),
    "two barriers for one warp": ("setp.gt.u32 %p1, %r60, 15; @%p1 bra ON; bar.sync 1, 128; exit; ON: bar.sync 1, 128;", "warp"),
    "a matrix of half a warp": ("setp.gt.u32 %p1, %r60, 15; @%p1 exit; mov.u32 %r1, 1024; stmatrix.sync.aligned.m8n8.x1.shared.b16 [%r1], {%r60};", "warp"),
}  # fmt: skip


@every_schedule
@pytest.mark.parametrize("fault", ALIGNED)
def test_aligned_instructions_take_all_threads(fault, schedule):
    body, unit = ALIGNED[fault]
    rule = re.escape(f".aligned: all threads of the {unit} execute it or none")
    with pytest.raises(emulator.ProtocolError, match=rule):
        run(body, threads=128, schedule=schedule())


def test_lanes_may_come_to_an_aligned_instruction_one_after_the_other():
    run("setp.gt.u32 %p1, %r60, 15; @%p1 bra ON; mov.u32 %r1, 1; ON: bar.sync 1, 128;", threads=128)


REDUCED = {
    "max.u32": lambda x: max(x),
    "min.u32": lambda x: min(x),
    "max.s32": lambda x: max(x, key=lambda n: np.uint32(n).view(np.int32)),
    "min.s32": lambda x: min(x, key=lambda n: np.uint32(n).view(np.int32)),
    "add.u32": lambda x: sum(x) % 2**32,
    "and.b32": lambda x: np.bitwise_and.reduce(np.array(x, np.uint32)),
    "or.b32": lambda x: np.bitwise_or.reduce(np.array(x, np.uint32)),
    "xor.b32": lambda x: np.bitwise_xor.reduce(np.array(x, np.uint32)),
}


@pytest.mark.parametrize("how", REDUCED)
def test_all_lanes_get_what_theirs_reduce_to(how):
    """Of two warps each its own; of half a warp that takes part, its own too."""
    numbers = [(n * 2654435761 + 12345) % 2**32 for n in range(64)]
    body = "mul.lo.u32 %r1, %r60, 2654435761; add.u32 %r1, %r1, 12345; "
    whole = run(
        f"{body}redux.sync.{how} %r2, %r1, 0xFFFFFFFF; st.global.u32 [%d31], %r2;", threads=64
    )
    half = run(
        f"{body}setp.gt.u32 %p1, %r60, 15; @%p1 exit; redux.sync.{how} %r2, %r1, 0xFFFF; st.global.u32 [%d31], %r2;"
    )
    first, second = (int(REDUCED[how](numbers[i : i + 32])) for i in (0, 32))
    assert whole[:, 0].tolist() == [first] * 32 + [second] * 32
    assert half[:16, 0].tolist() == [int(REDUCED[how](numbers[:16]))] * 16


@pytest.mark.parametrize("how", ("max.f32", "and.u32", "max.b32", "mul.u32"))
def test_a_reduction_of_no_such_kind(how):
    with pytest.raises(emulator.UnsupportedInstruction):
        run(f"redux.sync.{how} %r2, %r1, 0xFFFFFFFF;")
