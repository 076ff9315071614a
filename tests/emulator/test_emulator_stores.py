"""st.async in the emulator: stores to another CTA that complete on an mbarrier there, and their faults."""

from __future__ import annotations

import numpy as np
import pytest
from test_emulator import run

from gemmgen import emulator

# Rank 1 stores 16 bytes per thread behind rank 0's barrier; rank 0 announces them, waits and copies them out.
STORE = """
mov.u32 %r10, %tid.x;
mov.u64 %d1, smem;
cvt.u32.u64 %r1, %d1;
mov.u32 %r2, %cluster_ctarank;
setp.ne.u32 %p1, %r10, 0;
@%p1 bra READY;
mbarrier.init.shared::cta.b64 [%r1], 1;
fence.mbarrier_init.release.cluster;
READY: barrier.cluster.arrive.release.aligned;
barrier.cluster.wait.acquire.aligned;
shl.b32 %r3, %r10, 4;
add.u32 %r3, %r3, %r1;
add.u32 %r3, %r3, 1024;
setp.ne.u32 %p2, %r2, 0;
@%p2 bra SEND;
@!%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r1], 512;
WAIT: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p3, [%r1], 0;
@!%p3 bra WAIT;
ld.shared.v4.u32 {%r6, %r7, %r8, %r9}, [%r3];
st.global.v4.u32 [%d31], {%r6, %r7, %r8, %r9};
bra END;
SEND: mapa.shared::cluster.u32 %r4, %r3, 0;
mapa.shared::cluster.u32 %r5, %r1, 0;
add.u32 %r6, %r10, 100;
st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%r4], {%r10, %r6, %r10, %r6}, [%r5];
END: ret;
"""


def sent(body: str = STORE, **options):
    return run(body, grid=2, cluster=2, **options)


@pytest.mark.parametrize(
    "schedule",
    (None, emulator.Eager(), emulator.Late(), *(emulator.Random(seed=s) for s in range(8))),
    ids=repr,
)
def test_bytes_are_there_once_the_phase_is_over(schedule):
    out = sent(schedule=schedule or emulator.RoundRobin())
    lane = np.arange(32)
    assert (out[:32] == np.stack([lane, lane + 100, lane, lane + 100], 1)).all()
    assert (out[32:] == 0xFFFFFFFF).all()


WAIT = """WAIT: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p3, [%r1], 0;
@!%p3 bra WAIT;
"""
FAULTS = {
    "a wait at CTA scope": (".acquire.cluster.shared::cta", ".shared::cta", emulator.Race, "not ordered after the write"),
    "no wait": (WAIT, "", emulator.EmulatorError, "PTX|CTA"),
    "read before the wait": ("WAIT: mbarrier", "ld.shared.u32 %r6, [%r3];\nWAIT: mbarrier", emulator.EmulatorError, "PTX|CTA"),
    "too few bytes announced": ("], 512;", "], 496;", emulator.EmulatorError, "PTX|CTA"),
    "too many": ("], 512;", "], 528;", emulator.Deadlock, "CTA"),
    "misaligned": ("[%r4], {", "[%r4+4], {", emulator.IllegalAccess, "not aligned"),
    "the barrier elsewhere": ("mapa.shared::cluster.u32 %r5, %r1, 0", "mapa.shared::cluster.u32 %r5, %r1, 1", emulator.ProtocolError, "the barrier is elsewhere"),
    "no barrier there": ("complete_tx::bytes.v4.b32 [%r4], {%r10, %r6, %r10, %r6}, [%r5]", "complete_tx::bytes.v4.b32 [%r4], {%r10, %r6, %r10, %r6}, [%r5+8]", emulator.IllegalAccess, "no mbarrier"),
    "past the end": ("add.u32 %r3, %r3, 1024;", "add.u32 %r3, %r3, 4000;", emulator.IllegalAccess, "CTA"),
    "the same place twice": ("END: ret;", "END: @!%p2 bra OUT;\nst.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%r4], {%r6, %r6, %r6, %r6}, [%r5];\nOUT: ret;", emulator.Race, "CTA"),
    "an unfenced init": ("fence.mbarrier_init.release.cluster;", "", emulator.ProtocolError, "no fence.mbarrier_init"),
    "rank 0 does not wait for the stores": ("@!%p1 mbarrier.arrive.expect_tx", "bra END;\n@!%p1 mbarrier.arrive.expect_tx", emulator.EmulatorError, "exit"),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_show(fault):
    old, new, error, text = FAULTS[fault]
    assert old in STORE
    with pytest.raises(error, match=text):
        sent(STORE.replace(old, new))


@pytest.mark.parametrize("kind", ("b32", "u32", "s32", "f32"))
def test_kinds_and_widths(kind):
    body = STORE.replace("v4.b32 [%r4], {%r10, %r6, %r10, %r6}", f"v2.{kind} [%r4], {{%r10, %r6}}")
    body = body.replace("], 512;", "], 256;").replace(
        "ld.shared.v4.u32 {%r6, %r7, %r8, %r9}, [%r3];", "ld.shared.v2.u32 {%r6, %r7}, [%r3];"
    )
    body = body.replace(
        "st.global.v4.u32 [%d31], {%r6, %r7, %r8, %r9};", "st.global.v2.u32 [%d31], {%r6, %r7};"
    )
    assert (sent(body)[:32, 1] == np.arange(32) + 100).all()


@pytest.mark.parametrize("part", (".mbarrier::complete_tx::bytes", ".shared::cluster"))
def test_other_forms_are_named(part):
    whole = "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes"
    with pytest.raises(emulator.UnsupportedInstruction, match=r"st\.async"):
        sent(STORE.replace(whole, whole.replace(part, "")))
