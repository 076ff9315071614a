"""mbarriers, the copy engine, proxies and wgmma in the emulator, with their planted faults."""

from __future__ import annotations

import re

import numpy as np
import pytest
from test_emulator import run
from test_emulator_control import every_schedule

from gemmgen import emulator
from gemmgen.emulator import GlobalMemory, TensorMap
from gemmgen.emulator.tensor_map import chunks

MAP = (".param .align 64 .b8 map[128]", ".param .u32 x", ".param .u32 y")
# Thread 0 loads a box to smem + 1024 through the barrier at smem; all wait and copy 16 bytes out.
LOAD = """
mov.u64 %d1, smem;
cvt.u32.u64 %r1, %d1;
add.u32 %r2, %r1, 1024;
mov.b64 %d2, map;
cvta.param.u64 %d2, %d2;
ld.param.u32 %r3, [x];
ld.param.u32 %r4, [y];
setp.ne.u32 %p1, %r60, 0;
@%p1 bra READY;
mbarrier.init.shared::cta.b64 [%r1], 1;
fence.mbarrier_init.release.cluster;
READY: bar.sync 0;
@%p1 bra WAIT;
mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r1], BYTES;
cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%r2], [%d2, {%r3, %r4}], [%r1];
WAIT: mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r1], 0;
@!%p2 bra WAIT;
shl.b32 %r5, %r60, 4;
add.u32 %r5, %r5, %r2;
ld.shared.v4.u32 {%r6, %r7, %r8, %r9}, [%r5];
st.global.v4.u32 [%d31], {%r6, %r7, %r8, %r9};
"""


def load_box(body=LOAD, *, x=0, y=0, box=(64, 16), swizzle=0, rows=10, cols=50, **options):
    """Bytes of the box that lands in shared memory, from a rows x cols tensor of bytes."""
    memory = GlobalMemory()
    tensor = np.arange(rows * 64, dtype=np.uint32).astype(np.uint8).reshape(rows, 64)
    m = TensorMap(
        address=memory.allocate(tensor),
        element_bytes=1,
        dims=(cols, rows),
        strides=(64,),
        box=box,
        swizzle=swizzle,
    )
    threads = box[0] * box[1] // 16
    body = body.replace("BYTES", str(box[0] * box[1]))
    values = (m, x & 0xFFFFFFFF, y & 0xFFFFFFFF)
    out = run(body, *values, params=MAP, threads=threads, memory=memory, **options)
    return tensor, out.view(np.uint8).reshape(-1)


@every_schedule
@pytest.mark.parametrize(("x", "y"), ((0, 0), (16, 5), (-16, -3), (208, 0)))
def test_a_load_fills_with_zeros_element_by_element(x, y, schedule):
    tensor, got = load_box(x=x, y=y, schedule=schedule())
    want = np.zeros((16, 64), np.uint8)
    for r in range(16):
        for c in range(64):
            if 0 <= r + y < 10 and 0 <= c + x < 50:
                want[r, c] = tensor[r + y, c + x]
    assert (got.reshape(16, 64) == want).all()


@pytest.mark.parametrize("swizzle", (32, 64, 128))
def test_a_load_swizzles_on_address_bits(swizzle):
    _, plain = load_box(box=(32, 16), rows=16)
    _, got = load_box(box=(32, 16), swizzle=swizzle, rows=16)
    where = chunks(2048, 512, swizzle) - 2048 // 16
    assert (got.reshape(-1, 16)[where] == plain.reshape(-1, 16)).all()
    bits = {32: 1, 64: 3, 128: 7}[swizzle]
    assert where.tolist() == [c ^ (c // 8 & bits) for c in range(32)]


FAULTS = {
    "bytes too many": ("_, [%r1], BYTES", "_, [%r1], 1040", emulator.Deadlock, "16 bytes outstanding"),
    "bytes too few": ("_, [%r1], BYTES", "_, [%r1], 1008", emulator.Deadlock, "-16 bytes outstanding"),
    "wrong parity": ("[%r1], 0;\n@!", "[%r1], 1;\n@!", emulator.Race, "ld.shared.*not ordered after"),
    "no expect": (".expect_tx.shared::cta.b64 _, [%r1], BYTES", ".shared::cta.b64 _, [%r1]", emulator.EmulatorError, "CTA 0"),
    "no fence": ("fence.mbarrier_init.release.cluster;", "", emulator.ProtocolError, "no fence.mbarrier_init"),
    "no barrier": ("bar.sync 0;", "", emulator.EmulatorError, "mbarrier.init|no mbarrier was initialised"),
    "arrives twice": ("WAIT: mb", "@!%p1 mbarrier.arrive.shared::cta.b64 _, [%r1];\nWAIT: mb", emulator.ProtocolError, "one arrival too many"),
    "misaligned": ("%r2, %r1, 1024", "%r2, %r1, 1040", emulator.ProtocolError, "multiple of 128"),
    "no map": ("mov.b64 %d2, map", "mov.b64 %d2, x", emulator.EmulatorError, "map"),
    "barrier as data": ("ld.shared.v4.u32", "ld.shared.u32 %r9, [%r1];\nld.shared.v4.u32", emulator.ProtocolError, "as if it were data"),
    "never written": ("%r5, %r5, %r2", "%r5, %r5, %r2; add.u32 %r5, %r5, 64", emulator.UninitializedRead, "ld.shared"),
    "out of bounds": ("%r5, %r5, %r2", "%r5, %r5, %r2; add.u32 %r5, %r5, 65536", emulator.IllegalAccess, "ld.shared"),
    "exits before": ("WAIT: mb", "WAIT: exit; mb", emulator.ProtocolError, "exit"),
}  # fmt: skip


@every_schedule
@pytest.mark.parametrize("fault", FAULTS)
def test_faulty_loads(fault, schedule):
    old, new, error, message = FAULTS[fault]
    assert old in LOAD
    with pytest.raises(error, match=message) as caught:
        load_box(LOAD.replace(old, new), schedule=schedule())
    assert re.search(r"PTX line \d+|CTA 0 exits", str(caught.value))


def test_a_deadlock_says_who_waits_for_what():
    with pytest.raises(emulator.Deadlock) as caught:
        load_box(LOAD.replace("_, [%r1], BYTES", "_, [%r1], 1040"))
    assert re.search(
        r"CTA 0, warp 0-1 \(64 threads\): mbarrier\.try_wait\S+ at PTX line \d+: waits for parity 0 of "
        r"mbarrier 0x400 of CTA 0: phase 0, 0 of 1 arrivals pending, 16 bytes outstanding",
        str(caught.value),
    )


# Every thread writes 16 bytes; thread 0 stores the box to global memory.
STORE = """
mov.u64 %d1, smem;
cvt.u32.u64 %r1, %d1;
mov.b64 %d2, map;
cvta.param.u64 %d2, %d2;
ld.param.u32 %r3, [x];
ld.param.u32 %r4, [y];
setp.ne.u32 %p1, %r60, 0;
shl.b32 %r5, %r60, 4;
add.u32 %r5, %r5, %r1;
mov.u32 %r6, 0x3f803f80;
st.shared.v4.u32 [%r5], {%r6, %r6, %r6, %r6};
fence.proxy.async.shared::cta;
bar.sync 0;
@%p1 exit;
cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%d2, {%r3, %r4}], [%r1];
cp.async.bulk.commit_group;
cp.async.bulk.wait_group 0;
"""


def store_box(body=STORE, *, x=0, y=0, cols=100, kind="", fill=0xFF, **options):
    """A 128 x 12 tensor of bf16, of which 10 x `cols` are the map's, after storing a 64 x 8 box."""
    memory = GlobalMemory()
    address = memory.allocate(np.full(12 * 256, fill, np.uint8))
    m = TensorMap(
        address=address,
        element_bytes=2,
        dims=(cols, 10),
        strides=(256,),
        box=(64, 8),
        swizzle=128,
        element_type=kind,
    )
    run(body, m, x, y, params=MAP, threads=64, memory=memory, **options)
    return memory.read(address, 12 * 256).view(np.uint16).reshape(12, 128)


@every_schedule
def test_a_store_clips_at_16_bytes(schedule):
    got = store_box(x=64, y=5, schedule=schedule())
    want = np.full((12, 128), 0xFFFF)
    want[5:10, 64:104] = 0x3F80
    assert (got == want).all()


def test_a_reduction_adds():
    body = STORE.replace("cp.async.bulk.tensor", "cp.reduce.async.bulk.tensor").replace(
        "cta.tile", "cta.add.tile"
    )
    assert (store_box(body, kind="bf16", fill=0x3F)[:8, :64] == 0x3FDF + 1).all()
    with pytest.raises(emulator.UnsupportedInstruction, match="of type ''"):
        store_box(body)


STORE_FAULTS = {
    "no proxy fence": ("fence.proxy.async.shared::cta;", "", emulator.Race, "without a fence.proxy.async.*st.shared"),
    "fence too late": ("fence.proxy.async.shared::cta;\nbar.sync 0;", "bar.sync 0;\nfence.proxy.async.shared::cta;", emulator.Race, "without a fence"),
    "no barrier": ("bar.sync 0;", "", (emulator.Race, emulator.UninitializedRead), "cp.async"),
    "fenced by one lane": ("fence.proxy", "@!%p1 fence.proxy", emulator.Race, "without a fence.proxy.async"),
    "no commit": ("cp.async.bulk.commit_group;", "", emulator.ProtocolError, "not committed"),
    "no wait": ("cp.async.bulk.wait_group 0;", "", emulator.ProtocolError, "1 groups not waited for"),
    "reused too early": ("cp.async.bulk.wait_group 0;", "st.shared.u32 [%r1], 0; cp.async.bulk.wait_group 0;", emulator.Race, "st.shared.*not ordered after the read by cp.async"),
}  # fmt: skip


@every_schedule
@pytest.mark.parametrize("fault", STORE_FAULTS)
def test_faulty_stores(fault, schedule):
    old, new, error, message = STORE_FAULTS[fault]
    assert old in STORE
    with pytest.raises(error, match=message):
        store_box(STORE.replace(old, new), schedule=schedule())


def test_a_store_may_be_reused_once_read():
    store_box(STORE.replace("wait_group 0;", "wait_group.read 0; st.shared.u32 [%r1], 0;"))


def test_maps_are_checked():
    good = {"address": 256, "element_bytes": 2, "dims": (8, 8), "strides": (16,), "box": (8, 8)}
    good["swizzle"] = 0
    assert TensorMap(**good).box_bytes == 128
    for wrong in (
        {"strides": (8,)},
        {"box": (8, 257)},
        {"swizzle": 16},
        {"box": (128, 8), "swizzle": 128},
    ):
        with pytest.raises(emulator.EmulatorError):
            TensorMap(**(good | wrong))


MATRICES = """
mov.u64 %d1, smem;
cvt.u32.u64 %r1, %d1;
shl.b32 %r2, %r60, 4;
add.u32 %r2, %r2, %r1;
shl.b32 %r3, %r60, 17;
add.u32 %r3, %r3, 0x10000;
shl.b32 %r4, %r60, 1;
add.u32 %r3, %r3, %r4;
stmatrix.sync.aligned.m8n8.x2.TRANSshared.b16 [%r2], {%r3, %r3};
shl.b32 %r2, %r60, 2;
add.u32 %r2, %r2, %r1;
ld.shared.u32 %r5, [%r2];
st.global.u32 [%d31], %r5;
"""


def test_stmatrix():
    values = np.arange(64).reshape(8, 8)
    plain = run(MATRICES.replace("TRANS", ""))[:, 0].copy().view(np.uint16).reshape(8, 8)
    assert (plain == values).all()
    turned = run(MATRICES.replace("TRANS", "trans."))[:, 0].copy().view(np.uint16).reshape(8, 8)
    assert (turned == values.T).all()


REGISTERS = [f"%f{i}" for i in range(4)]
# A and B are 8 bf16 ones per row of 16; K-major, no swizzle. 128 threads.
PRODUCT = f"""
mov.u64 %d1, smem;
cvt.u32.u64 %r1, %d1;
shl.b32 %r2, %r60, 4;
add.u32 %r2, %r2, %r1;
mov.u32 %r3, 0x3f803f80;
mov.u32 %r4, 0;
st.shared.v4.u32 [%r2], {{%r3, %r3, %r3, %r3}};
add.u32 %r2, %r2, 2048;
st.shared.v4.u32 [%r2], {{%r3, %r3, %r4, %r4}};
fence.proxy.async.shared::cta;
bar.sync 0;
shr.u32 %r5, %r1, 4;
or.b32 %r5, %r5, {64 << 16};
mov.u32 %r6, 8;
mov.b64 %d2, {{%r5, %r6}};
add.u32 %r5, %r5, 128;
mov.b64 %d3, {{%r5, %r6}};
{"".join(f"mov.f32 {r}, 0f40000000;" for r in REGISTERS)}
wgmma.fence.sync.aligned;
setp.ne.u32 %p1, %r3, 0;
wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {{{", ".join(REGISTERS)}}}, %d2, %d3, %p1, 1, 1, 0, 0;
wgmma.commit_group.sync.aligned;
wgmma.wait_group.sync.aligned 0;
st.global.v4.f32 [%d31], {{{", ".join(REGISTERS)}}};
"""
PRODUCT_FAULTS = {
    "no proxy fence": ("fence.proxy.async.shared::cta;", "", emulator.Race, "without a fence.proxy.async"),
    "no barrier": ("bar.sync 0;", "", (emulator.Race, emulator.UninitializedRead), "wgmma"),
    "no wgmma fence": ("wgmma.fence.sync.aligned;", "", emulator.ProtocolError, "no wgmma.fence"),
    "overwritten": ("wgmma.wait_group", "bar.sync 1; st.shared.u32 [%r2], 0; wgmma.wait_group", emulator.Race, "not ordered after the read by wgmma"),
    "a wrong stride": ("mov.u32 %r6, 8;", "mov.u32 %r6, 900;", emulator.EmulatorError, "wgmma"),
    "half a warpgroup": ("wgmma.fence", "setp.gt.u32 %p3, %r60, 63; @%p3 exit; wgmma.fence", emulator.ProtocolError, "aligned: all threads of the warpgroup"),
}  # fmt: skip


@every_schedule
def test_wgmma_multiplies_through_descriptors(schedule):
    out = run(PRODUCT, threads=128, schedule=schedule(), shared=8192).view(np.float32)
    # B's second core matrix is the bytes after its first: rows 0-7 of both hold eight and four ones.
    assert np.isin(out, (2 + 8.0,)).all()


@pytest.mark.parametrize("fault", PRODUCT_FAULTS)
def test_faulty_products(fault):
    old, new, error, message = PRODUCT_FAULTS[fault]
    assert old in PRODUCT
    with pytest.raises(error, match=message):
        run(PRODUCT.replace(old, new), threads=128, shared=8192)


@every_schedule
def test_an_accumulator_read_too_early_is_poison(schedule):
    wait = "wgmma.wait_group.sync.aligned 0;"
    body = PRODUCT.replace(wait, "") + wait
    assert (run(body, threads=128, shared=8192, schedule=schedule()) == 0xFFFFFFFF).all()


# A's four words from global memory, 128 threads; row n of B, bf16 or bytes, selects one element of K: `at` is the word in a row of 32 bytes.
HELD = f"""
mov.u64 %d1, smem;
cvt.u32.u64 %r1, %d1;
ld.param.u64 %d4, [words];
shl.b32 %r2, %r60, 4;
cvt.u64.u32 %d5, %r2;
add.u64 %d4, %d4, %d5;
setp.gt.u32 %p2, %r60, 63;
@%p2 bra STORED;
ld.param.u64 %d6, [selected];
shl.b32 %r3, %r60, 2;
cvt.u64.u32 %d5, %r3;
add.u64 %d6, %d6, %d5;
ld.global.u32 %r4, [%d6];
add.u32 %r3, %r3, %r1;
st.shared.u32 [%r3], %r4;
STORED: fence.proxy.async.shared::cta;
bar.sync 0;
shr.u32 %r5, %r1, 4;
or.b32 %r5, %r5, {8 << 16};
mov.u32 %r6, 8;
mov.b64 %d3, {{%r5, %r6}};
{"".join(f"mov.f32 {r}, 0f00000000;" for r in REGISTERS)}
ld.global.v4.u32 {{%r7, %r8, %r9, %r10}}, [%d4];
wgmma.fence.sync.aligned;
setp.eq.u32 %p1, %r60, %r60;
wgmma.mma_async.sync.aligned.SHAPE {{{", ".join(REGISTERS)}}}, {{%r7, %r8, %r9, %r10}}, %d3, %p1, 1, 1TURN;
wgmma.commit_group.sync.aligned;
wgmma.wait_group.sync.aligned 0;
st.global.v4.f32 [%d31], {{{", ".join(REGISTERS)}}};
"""
SHAPES = {
    "bf16": ("m64n8k16.f32.bf16.bf16", ", 0"),
    "e4m3": ("m64n8k32.f32.e4m3.e4m3", ""),
}


def multiply_held(kind, first, change=lambda body: body, **options):
    """A, [64, 32 bytes of K], and the columns of it that B selects: element `first` + n by row n."""
    shape, turn = SHAPES[kind]
    elements = 16 if kind == "bf16" else 32
    a = np.random.default_rng(1).integers(-4, 5, (64, elements))
    thread, word = np.arange(128)[:, None], np.arange(4)[None, :]
    row = thread // 32 * 16 + thread % 32 // 4 + word % 2 * 8
    column = thread % 4 + word // 2 * 4
    codes = _coded(kind, a).view(np.uint32).reshape(64, 8)
    selected = np.zeros((8, elements), int)
    selected[np.arange(8), first + np.arange(8)] = 1
    tile = _coded(kind, selected).view(np.uint32).reshape(8, 2, 4).transpose(1, 0, 2)
    memory = GlobalMemory()
    at = [memory.allocate(x.copy().view(np.uint8).reshape(-1)) for x in (codes[row, column], tile)]
    params = (".param .u64 words", ".param .u64 selected")
    body = change(HELD.replace("SHAPE", shape).replace("TURN", turn))
    out = run(body, *at, params=params, threads=128, memory=memory, **options).view(np.float32)
    thread, i = np.arange(128)[:, None], np.arange(4)[None, :]
    d = np.empty((64, 8))
    d[thread // 32 * 16 + thread % 32 // 4 + i // 2 * 8, thread % 4 * 2 + i % 2] = out
    return a, d


def _coded(kind, values):
    """Small integers as E4M3 or BF16."""
    if kind == "bf16":
        return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    codes = {0: 0x00, 1: 0x38, 2: 0x40, 3: 0x44, 4: 0x48}
    return np.vectorize(lambda x: codes[abs(x)] | 0x80 * (x < 0))(values).astype(np.uint8)


@every_schedule
@pytest.mark.parametrize(
    ("kind", "first"), (("bf16", 0), ("bf16", 8), ("e4m3", 0), ("e4m3", 8), ("e4m3", 24))
)
def test_wgmma_multiplies_a_that_registers_hold(kind, first, schedule):
    a, d = multiply_held(kind, first, schedule=schedule())
    assert (d == a[:, first : first + 8]).all()


HELD_FAULTS = {
    "A written before it is waited for": ("wgmma.wait_group", "mov.u32 %r9, 7;\nwgmma.wait_group", "the registers of its A are written"),
    "A written behind the fence": ("wgmma.fence.sync.aligned;\nsetp", "wgmma.fence.sync.aligned;\nadd.u32 %r9, %r9, 0;\nsetp", "its D or A is written by"),
    "three registers": ("{%r7, %r8, %r9, %r10}, %d3", "{%r7, %r8, %r9}, %d3", "3 registers of A"),
}  # fmt: skip


@pytest.mark.parametrize("fault", HELD_FAULTS)
def test_faulty_products_of_registers(fault):
    old, new, message = HELD_FAULTS[fault]

    def change(body):
        assert old in body
        return body.replace(old, new)

    with pytest.raises(emulator.EmulatorError, match=message):
        multiply_held("bf16", 0, change, schedule=emulator.Late())
