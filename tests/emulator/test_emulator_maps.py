"""Tensor maps edited on the device, and copies by several lanes, in the emulator."""

from __future__ import annotations

import numpy as np
import pytest
from test_emulator import run

from gemmgen import emulator
from gemmgen.emulator import GlobalMemory, TensorMap
from gemmgen.emulator.tensor_map import place

PARAMS = (".param .align 64 .b8 map[128]", ".param .u64 edited", ".param .u64 target")
# The map is copied to shared memory, moved to `target` with 4 rows, and put at `edited`; a box of 64
# bytes by 8 rows is then stored through it.
EDIT = """
mov.u64 %d1, smem;
cvt.u32.u64 %r1, %d1;
add.u32 %r2, %r1, 1024;
ld.param.u64 %d3, [edited];
ld.param.u64 %d4, [target];
shl.b32 %r5, %r60, 4;
add.u32 %r6, %r5, %r1;
mov.u32 %r7, 0x01010101;
st.shared.v4.u32 [%r6], {%r7, %r7, %r7, %r7};
fence.proxy.async.shared::cta;
mov.b64 %d2, map;
cvta.param.u64 %d2, %d2;
and.b32 %r5, %r5, 127;
cvt.u64.u32 %d5, %r5;
add.u64 %d2, %d2, %d5;
ld.v4.u32 {%r8, %r9, %r10, %r11}, [%d2];
add.u32 %r6, %r5, %r2;
setp.gt.u32 %p1, %r60, 7;
@!%p1 st.shared.v4.u32 [%r6], {%r8, %r9, %r10, %r11};
bar.sync 0;
setp.ne.u32 %p2, %r60, 0;
mov.u32 %r12, 4;
@!%p2 tensormap.replace.tile.global_address.shared::cta.b1024.b64 [%r2], %d4;
@!%p2 tensormap.replace.tile.global_dim.shared::cta.b1024.b32 [%r2], 1, %r12;
tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned [%d3], [%r2], 128;
fence.proxy.tensormap::generic.acquire.gpu [%d3], 128;
@%p2 exit;
mov.u32 %r13, 0;
cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%d3, {%r13, %r13}], [%r1];
cp.async.bulk.commit_group;
cp.async.bulk.wait_group 0;
"""


def edited(body):
    """Bytes [8, 64] of the tensor that the map was moved to."""
    memory = GlobalMemory()
    first, second = (memory.allocate(np.zeros(512, np.uint8)) for _ in range(2))
    place = memory.allocate(np.zeros(128, np.uint8))
    m = TensorMap(
        address=first, element_bytes=1, dims=(64, 8), strides=(64,), box=(64, 8), swizzle=0
    )
    run(body, m, place, second, params=PARAMS, memory=memory)
    assert not memory.read(first, 512).any()
    return memory.read(second, 512).reshape(8, 64)


def test_an_edited_map():
    got = edited(EDIT)
    assert (got[:4] == 1).all()
    assert not got[4:].any()


def test_an_edited_map_needs_its_fence():
    with pytest.raises(emulator.Race, match=r"no fence\.proxy\.tensormap"):
        edited(EDIT.replace("fence.proxy.tensormap::generic.acquire.gpu [%d3], 128;", ""))


@pytest.mark.parametrize(("column", "fits"), [(0, True), (8, True), (1, False), (-4, False)])
def test_boxes_begin_at_multiples_of_16_bytes(column, fits):
    """An H200 stops with an illegal instruction otherwise."""
    m = TensorMap(
        address=4096, element_bytes=2, dims=(64, 8), strides=(128,), box=(32, 8), swizzle=64
    )
    if fits:
        assert place(m, (column, 0), store=False).addresses[0] == 4096 + 2 * column
        return
    with pytest.raises(emulator.IllegalAccess, match="multiple of 16 bytes"):
        place(m, (column, 0), store=False)


def test_a_map_that_makes_no_sense():
    with pytest.raises(emulator.ProtocolError, match="address a multiple of 16"):
        edited(EDIT.replace("mov.u32 %r12, 4;", "mov.u32 %r12, 4; add.u64 %d4, %d4, 8;"))


LINES = """
mov.u64 %d1, smem;
cvt.u32.u64 %r1, %d1;
add.u32 %r2, %r1, 512;
ld.param.u64 %d2, [from];
setp.ne.u32 %p1, %r60, 0;
setp.gt.u32 %p3, %r60, 3;
@!%p1 mbarrier.init.shared::cta.b64 [%r1], 1;
@!%p1 fence.mbarrier_init.release.cluster;
bar.sync 0;
@!%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r1], 64;
bar.warp.sync -1;
shl.b32 %r3, %r60, 4;
add.u32 %r4, %r3, %r2;
cvt.u64.u32 %d3, %r3;
add.u64 %d3, %d3, %d2;
mov.u32 %r5, 16;
@!%p3 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r4], [%d3], %r5, [%r1];
WAIT: mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r1], 0;
@!%p2 bra WAIT;
@!%p3 ld.shared.v4.u32 {%r6, %r7, %r8, %r9}, [%r4];
@!%p3 st.global.v4.u32 [%d31], {%r6, %r7, %r8, %r9};
"""


def test_each_lane_copies_its_own_bytes():
    memory = GlobalMemory()
    data = np.arange(16, dtype=np.uint32).reshape(4, 4)
    out = run(LINES, memory.allocate(data), params=(".param .u64 from",), memory=memory)
    assert (out[:4] == data).all()
    assert run.stats.bytes_loaded == 64
