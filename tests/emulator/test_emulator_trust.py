"""What instructions promise and no more: waits that give up, fences of a state space or scope, clusters by
directive, registers of D between a wgmma.fence and its wgmma."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from test_emulator import PLACE, run, source
from test_emulator_async import LOAD, PRODUCT, STORE, load_box, store_box
from test_emulator_control import CLUSTER, RELAXED, SYNC

from gemmgen import emulator
from gemmgen.emulator import Eager, Late, Random, RoundRobin

IMPATIENT = {
    "round robin": partial(RoundRobin, impatient=True),
    "eager": Eager,
    "late": Late,
    **{f"random {seed}": partial(Random, seed=seed) for seed in (3, 7)},
}
impatient = pytest.mark.parametrize("schedule", IMPATIENT.values(), ids=IMPATIENT)
LOOP = "@!%p2 bra WAIT;"


@impatient
def test_a_wait_that_does_not_loop_is_found(schedule):
    text = r"before that, mbarrier\.try_wait\S+ at PTX line \d+ .* had returned false"
    with pytest.raises((emulator.Race, emulator.UninitializedRead), match=f"(?s)ld.*{text}"):
        load_box(LOAD.replace(LOOP, ""), schedule=schedule())


def test_but_not_where_no_wait_gives_up():
    """The fault that the schedules' impatience is for."""
    tensor, got = load_box(LOAD.replace(LOOP, ""), schedule=RoundRobin())
    assert (got.reshape(16, 64)[:10, :50] == tensor[:, :50]).all()


@impatient
def test_a_wait_that_loops_waits(schedule):
    tensor, got = load_box(schedule=schedule())
    assert (got.reshape(16, 64)[:10, :50] == tensor[:, :50]).all()


def test_the_same_seed_gives_up_alike():
    def turns(seed: int) -> int:
        load_box(schedule=Random(seed=seed, budget=5))
        return run.stats.turns

    assert turns(1) == turns(1)
    assert len({turns(seed) for seed in range(6)}) > 1


# One thread looks at a barrier before and after the phase is over.
LOOK = """
mov.u64 %d1, smem;
cvt.u32.u64 %r1, %d1;
setp.ne.u32 %p1, %r60, 0;
@%p1 exit;
mbarrier.init.shared::cta.b64 [%r1], 1;
mbarrier.test_wait.parity.shared::cta.b64 %p2, [%r1], 0;
mbarrier.arrive.shared::cta.b64 _, [%r1];
mbarrier.KIND.parity.shared::cta.b64 %p3, [%r1], 0;
selp.u32 %r2, 1, 0, %p2;
selp.u32 %r3, 1, 0, %p3;
st.global.v2.u32 [%d31], {%r2, %r3};
"""


@impatient
@pytest.mark.parametrize("kind", ["test_wait", "try_wait"])
def test_neither_is_wrong_about_a_phase(kind, schedule):
    out = run(LOOK.replace("KIND", kind), schedule=schedule())
    assert out[0, :2].tolist() == [0, 1]


FENCE = "fence.proxy.async.shared::cta;"


@pytest.mark.parametrize("spaces", ["", ".shared::cta", ".shared::cluster"])
def test_fences_of_shared_memory(spaces):
    store_box(STORE.replace(FENCE, f"fence.proxy.async{spaces};"))


def test_a_fence_of_another_state_space_orders_nothing():
    with pytest.raises(emulator.Race, match=r"without a fence\.proxy\.async.*st\.shared"):
        store_box(STORE.replace(FENCE, "fence.proxy.async.global;"))
    fence = "fence.mbarrier_init.release.cluster;"
    with pytest.raises(emulator.ProtocolError, match=r"no fence\.mbarrier_init"):
        load_box(LOAD.replace(fence, "fence.proxy.async.global;"))
    load_box(LOAD.replace(fence, "fence.proxy.async.shared::cta;"))


# Rank 1 writes to rank 0's shared memory; rank 0 stores that through the async proxy.
REMOTE = """
mov.u64 %d1, smem;
cvt.u32.u64 %r1, %d1;
mov.u32 %r2, %cluster_ctarank;
mov.u32 %r9, %tid.x;
mov.u32 %r3, 0;
mapa.shared::cluster.u32 %r4, %r1, %r3;
setp.ne.u32 %p1, %r9, 0;
setp.eq.or.u32 %p2, %r2, 0, %p1;
setp.ne.or.u32 %p3, %r2, 0, %p1;
barrier.cluster.arrive.relaxed.aligned;
barrier.cluster.wait.acquire.aligned;
@!%p2 st.shared::cluster.v4.u32 [%r4], {%r9, %r9, %r9, %r9};
FENCE
barrier.cluster.arrive.release.aligned;
barrier.cluster.wait.acquire.aligned;
@%p3 exit;
mov.u32 %r5, 16;
cp.async.bulk.global.shared::cta.bulk_group [%d30], [%r1], %r5;
cp.async.bulk.commit_group;
cp.async.bulk.wait_group 0;
"""


def test_a_fence_of_its_own_memory_does_not_order_writes_to_anothers():
    for spaces in ("", ".shared::cluster"):
        out = run(REMOTE.replace("FENCE", f"fence.proxy.async{spaces};"), grid=2, cluster=2)
        assert not out[0].any()
    for fence in ("", FENCE, "fence.proxy.async.global;"):
        with pytest.raises(emulator.Race, match=r"fence\.proxy\.async .*\.shared::cluster"):
            run(REMOTE.replace("FENCE", fence), grid=2, cluster=2)


@pytest.mark.parametrize("fence", ["fence.acq_rel.cluster;", "fence.acq_rel.gpu;", "fence.sc.sys;"])
def test_a_relaxed_arrival_publishes_what_was_fenced(fence):
    out = run(CLUSTER.replace("FIRST", fence + RELAXED), grid=2, cluster=2)
    assert (out[0, 0], out[32, 0]) == (1, 0)


@pytest.mark.parametrize("fence", ["fence.acq_rel.cta;", "fence.mbarrier_init.release.cluster;"])
def test_not_by_a_fence_of_too_narrow_a_scope_or_of_inits(fence):
    with pytest.raises((emulator.Race, emulator.UninitializedRead)):
        run(CLUSTER.replace("FIRST", fence + RELAXED), grid=2, cluster=2)


DIRECTIVES = ".explicitcluster\n.reqnctapercluster 2, 1, 1\n"
SIZE = f"{PLACE}mov.u32 %r1, %cluster_nctarank; st.global.u32 [%d31], %r1;"


def launched(directives: str, **options):
    text = source(SIZE, cluster=2)
    assert DIRECTIVES in text
    memory = emulator.GlobalMemory()
    out = memory.allocate(np.zeros(16 * 64, np.uint8))
    entry = emulator.load(text.replace(DIRECTIVES, directives)).entries["k"]
    emulator.launch(
        entry, grid=2, block=32, shared_bytes=1024, params=(out,), memory=memory, **options
    )
    return int(memory.read(out, 4).view(np.uint32)[0])


def test_clusters_are_those_of_the_directive():
    assert launched(DIRECTIVES) == launched(DIRECTIVES, cluster=2) == 2
    assert launched("") == 1
    assert launched("", cluster=2) == launched(".maxclusterrank 2\n", cluster=2) == 2
    assert launched(".explicitcluster\n", cluster=2) == 2


@pytest.mark.parametrize(
    ("directives", "options", "text"),
    [
        (DIRECTIVES, {"cluster": 1}, "cluster=1: the kernel is compiled for 2"),
        (".maxclusterrank 1\n", {"cluster": 2}, "cluster=2: at most 1"),
        (".explicitcluster\n", {}, "the launch must say"),
    ],
)
def test_launches_of_other_clusters(directives, options, text):
    with pytest.raises(emulator.EmulatorError, match=text):
        launched(directives, **options)


def test_a_kernel_without_the_directive_has_no_peers():
    text = "CTA rank 1 in a cluster of 1"
    with pytest.raises(emulator.IllegalAccess, match=text):
        run(CLUSTER.replace("FIRST", SYNC), grid=2, cluster=1)


BEFORE = "wgmma.fence.sync.aligned;"
WRITTEN = {
    "a constant": f"{BEFORE} mov.f32 %f1, 0f3F800000;",
    "a sum": f"{BEFORE} add.f32 %f1, %f1, %f1;",
    "in a branch": f"{BEFORE} setp.ne.u32 %p3, %r60, %r60; @%p3 bra ON; add.f32 %f1, %f1, %f1; ON:",
    "under a guard": f"{BEFORE} setp.eq.u32 %p3, %r60, %r60; @%p3 mov.f32 %f1, 0f3F800000;",
    "moved": f"{BEFORE} add.f32 %f9, %f1, %f1; mov.f32 %f1, %f9;",
}
RIGHT = {
    "before the fence": f"mov.f32 %f1, 0f40000000; {BEFORE}",
    "a move": f"mov.f32 %f9, 0f40000000; {BEFORE} mov.f32 %f1, %f9;",
    "not of D": f"{BEFORE} add.f32 %f9, %f1, %f1;",
    "fenced again": f"{BEFORE} mov.f32 %f1, 0f40000000; {BEFORE}",
    "passed by": f"{BEFORE} setp.eq.u32 %p3, %r60, %r60; @%p3 bra ON; add.f32 %f1, %f1, %f1; ON:",
}


@pytest.mark.parametrize("fault", WRITTEN)
def test_d_is_not_written_after_the_fence(fault):
    with pytest.raises(
        emulator.ProtocolError, match=r"its D or A is written by .* after the wgmma"
    ):
        run(PRODUCT.replace(BEFORE, WRITTEN[fault]), threads=128, shared=8192)


@pytest.mark.parametrize("way", RIGHT)
def test_d_may_be_written_before_it(way):
    out = run(PRODUCT.replace(BEFORE, RIGHT[way]), threads=128, shared=8192).view(np.float32)
    assert (out == 10).all()
