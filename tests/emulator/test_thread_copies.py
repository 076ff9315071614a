"""cp.async of threads in the emulator, with its planted faults."""

from __future__ import annotations

import numpy as np
import pytest
from test_emulator import run
from test_emulator_control import every_schedule

from gemmgen import emulator
from gemmgen.emulator import GlobalMemory

# Two copies of each of 64 threads, 16 bytes and 4, groups of their own; each reads what the thread opposite has copied.
COPIES = """
mov.u64 %d1, smem;
cvt.u32.u64 %r1, %d1;
ld.param.u64 %d4, [source];
shl.b32 %r2, %r60, 4;
cvt.u64.u32 %d5, %r2;
add.u64 %d4, %d4, %d5;
add.u32 %r3, %r2, %r1;
cp.async.cg.shared.global.L2::128B [%r3], [%d4], 16;
cp.async.commit_group;
shl.b32 %r4, %r60, 2;
add.u32 %r4, %r4, %r1;
add.u32 %r4, %r4, 1024;
cp.async.ca.shared.global [%r4], [%d4+4], 4;
cp.async.commit_group;
cp.async.wait_group 0;
bar.sync 0;
xor.b32 %r5, %r60, 33;
shl.b32 %r6, %r5, 4;
add.u32 %r6, %r6, %r1;
ld.shared.v4.u32 {%r10, %r11, %r12, %r13}, [%r6];
shl.b32 %r7, %r5, 2;
add.u32 %r7, %r7, %r1;
ld.shared.u32 %r11, [%r7+1024];
st.global.v4.u32 [%d31], {%r10, %r11, %r12, %r13};
"""
WORDS = np.arange(256, dtype=np.uint32).reshape(64, 4)


def copied(change=lambda body: body, **options):
    """What threads read."""
    return both(change, **options)[0]


def both(change, **options):
    """And the 16 bytes that a bulk store leaves."""
    memory = GlobalMemory()
    at = memory.allocate(WORDS.view(np.uint8).reshape(-1).copy())
    stored_at = memory.allocate(np.zeros(16, np.uint8))
    params = (".param .u64 source", ".param .u64 stored")
    body = change(COPIES)
    out = run(body, at, stored_at, params=params, threads=64, memory=memory, **options)
    return out, memory.read(stored_at, 16).view(np.uint32)


@every_schedule
@pytest.mark.parametrize("waits", ("cp.async.wait_group 0;", "cp.async.wait_all;"))
def test_threads_read_what_others_copied(waits, schedule):
    out = copied(lambda s: s.replace("cp.async.wait_group 0;", waits), schedule=schedule())
    assert (out == WORDS[np.arange(64) ^ 33]).all()


@every_schedule
def test_all_is_waited_for_without_a_commit(schedule):
    def change(body):
        last = "cp.async.commit_group;\ncp.async.wait_group 0;"
        assert last in body
        return body.replace(last, "cp.async.wait_all;")

    assert (copied(change, schedule=schedule()) == WORDS[np.arange(64) ^ 33]).all()


@every_schedule
def test_a_store_through_the_async_proxy_reads_what_was_copied_and_fenced(schedule):
    assert (both(stored, schedule=schedule())[1] == WORDS[0]).all()


def stored(body):
    """With a bulk store of what was copied."""
    more = """fence.proxy.async.shared::cta;
    bar.sync 0;
    setp.ne.u32 %p1, %r60, 0;
    @%p1 bra STORED;
    ld.param.u64 %d6, [stored];
    cp.async.bulk.global.shared::cta.bulk_group [%d6], [%r1], 16;
    cp.async.bulk.commit_group;
    cp.async.bulk.wait_group 0;
    STORED: bar.sync 0;"""
    return body.replace("bar.sync 0;", more, 1)


@every_schedule
def test_zeros_come_in_place_of_bytes_that_are_not_read(schedule):
    """Of the second warp, from where nothing is."""
    lone = "cp.async.ca.shared.global [%r4], [%d4+4], 4;"
    sized = """setp.gt.u32 %p3, %r60, 31;
    selp.u32 %r9, 0, 4, %p3;
    @%p3 mov.u64 %d4, 4096;
    cp.async.ca.shared.global [%r4], [%d4+4], 4, %r9;"""
    out = copied(lambda body: body.replace(lone, sized), schedule=schedule())
    want = WORDS[np.arange(64) ^ 33]
    want[:32, 1] = 0  # what the threads opposite have copied
    assert (out == want).all()


def sized(body, read):
    """With the lone word's copy reading so many bytes."""
    return body.replace("[%d4+4], 4;", f"[%d4+4], 4, {read};")


@pytest.mark.parametrize("read", range(5))
def test_bytes_that_are_not_read_are_zeros(read, monkeypatch):
    words = WORDS * np.uint32(0x01010101)
    monkeypatch.setitem(globals(), "WORDS", words)
    want = words[np.arange(64) ^ 33]
    want[:, 1] &= np.uint32((1 << 8 * read) - 1)
    assert (copied(lambda body: sized(body, read)) == want).all()


def test_no_more_is_read_than_written():
    with pytest.raises(emulator.EmulatorError, match="5 of 4 bytes"):
        copied(lambda body: sized(body, 5))


FAULTS = {
    "nobody waits": ("cp.async.wait_group 0;", "", emulator.Race, "not ordered after the write by cp.async"),
    "the last group is not waited for": ("wait_group 0", "wait_group 1", emulator.Race, r"not ordered after the write by cp.async.ca"),
    "the last copy is in no group": ("cp.async.commit_group;\ncp.async.wait", "cp.async.wait", emulator.Race, r"not ordered after the write by cp.async.ca"),
    "threads do not meet": ("bar.sync 0;", "", emulator.Race, "not ordered after the write by cp.async"),
    "threads meet, then wait": ("cp.async.wait_group 0;\nbar.sync 0;", "bar.sync 0;\ncp.async.wait_group 0;", emulator.Race, "cp.async"),
    "written while it is copied": ("cp.async.wait_group 0;", "st.shared.u32 [%r3], 0;\ncp.async.wait_group 0;", emulator.Race, "written by st.shared"),
    "copied while it is read": ("cp.async.cg", "st.shared.u32 [%r1], 7;\nld.shared.u32 %r9, [%r1];\ncp.async.cg", emulator.Race, "not ordered after"),
    "copied twice": ("cp.async.commit_group;\nshl", "cp.async.cg.shared.global [%r3], [%d4], 16;\ncp.async.commit_group;\nshl", emulator.Race, "cp.async"),
    "never waited for": ("cp.async.wait_group 0;", "exit;", emulator.ProtocolError, "exits with 2 copies that it has not waited for"),
    "not aligned": ("cp.async.cg", "add.u32 %r3, %r3, 4;\ncp.async.cg", emulator.IllegalAccess, "not aligned to 16"),
    "past shared memory": ("cp.async.ca", "add.u32 %r4, %r4, 65536;\ncp.async.ca", emulator.IllegalAccess, "shared addresses"),
    "from where nothing is": ("[%d4+4], 4", "[%d31+65536], 4", emulator.EmulatorError, "cp.async.ca"),
    "4 bytes past the L1": ("cp.async.ca", "cp.async.cg", emulator.UnsupportedInstruction, "of 4 bytes"),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found(fault):
    old, new, error, message = FAULTS[fault]
    assert old in COPIES
    with pytest.raises(error, match=message):
        copied(lambda body: body.replace(old, new, 1), schedule=emulator.Late())


def test_the_async_proxy_needs_a_fence():
    with pytest.raises(emulator.Race, match=r"without a fence\.proxy\.async"):
        copied(lambda body: stored(body).replace("fence.proxy.async.shared::cta;", ""))
