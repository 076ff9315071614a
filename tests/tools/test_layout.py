"""Shared-memory layouts, executed: what TMA writes is what wgmma reads, what the epilogue writes is D.

Addresses come from the emitted text (tests/support/device.py runs it); the hardware's side, TMA's swizzle,
wgmma's descriptors, register fragments and stmatrix, is written down here from the PTX ISA.
"""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from device import SMEM_BASE, WAVE, Kernel, constants, fragment
from kernels import (
    DENSE,
    DENSE_F16,
    DENSE_F32,
    DENSE_NN,
    DENSE_TN,
    DENSE_TT,
    FP8,
    VARIETY,
    VECTOR,
    emitted,
)

from gemmgen.config import Config
from gemmgen.epilogues import EPILOGUES
from gemmgen.errors import IllegalConfig
from gemmgen.target import H200

SWIZZLES = (None, 128, 64, 32, 0)


# ---- the hardware -------------------------------------------------------------------------


def swizzled(address, span: int):
    """The address the hardware uses: 16-byte chunks exclusive-ored with the 128-byte line number."""
    bits = {128: 3, 64: 2, 32: 1, 0: 0}[span]
    return address ^ ((address >> 7 & (1 << bits) - 1) << 4)


def box_addresses(start: int, inner_bytes: int, outer: int, span: int):
    """Where byte (o, i) of a TMA box lies."""
    if span:
        assert inner_bytes == span, "a swizzled box is exactly as wide as its span"
        assert start % (8 * span) == 0 or outer == 1, "a swizzled box starts where its pattern does"
    o, i = np.mgrid[:outer, :inner_bytes]
    return swizzled(start + o * inner_bytes + i, span)


def wgmma_addresses(descriptor: int, rows: int):
    """Where byte (row, k) of a K-major operand of `rows` rows and 32 bytes of K lies."""
    start, leading, stride = ((descriptor >> at & 0x3FFF) << 4 for at in (0, 16, 32))
    assert descriptor >> 49 & 7 == 0, "base offset: the pattern starts at an aligned address"
    assert descriptor & ~(0x3FFF | 0x3FFF << 16 | 0x3FFF << 32 | 3 << 62) == 0
    span = {0: 0, 1: 128, 2: 64, 3: 32}[descriptor >> 62]
    r, k = np.mgrid[:rows, :32]
    if not span:
        return start + r // 8 * stride + k // 16 * leading + r % 8 * 16 + k % 16
    assert leading == 16, "ignored, but canonically 1"
    return swizzled(start + r // 8 * stride + r % 8 * span + k, span)


def mn_major_addresses(descriptor: int, rows: int):
    """Where byte (row, k) of an MN-major operand of `rows` elements of M or N and 16 of K lies.

    PTX ISA, strides of MN-major matrices: with a swizzle the leading offset leads to the next span of
    M or N and the stride to the next 8 of K; without one it is the other way round.
    """
    start, leading, stride = ((descriptor >> at & 0x3FFF) << 4 for at in (0, 16, 32))
    assert descriptor >> 49 & 7 == 0, "base offset: the pattern starts at an aligned address"
    span = {0: 0, 1: 128, 2: 64, 3: 32}[descriptor >> 62]
    next_mn, next_k = (leading, stride) if span else (stride, leading)
    width = span or 16
    r, byte = np.mgrid[:rows, :32]
    k, along = byte // 2, r * 2 + byte % 2
    at = start + along // width * next_mn + k // 8 * next_k + k % 8 * width + along % width
    return swizzled(at, span)


# ---- the kernel ---------------------------------------------------------------------------


def compiled(problem, **changes):
    """The artifact, at as little cost in shared memory as the change allows."""
    return emitted(problem, Config(**{"stages": 2} | changes))


def leaders(kernel):
    """The first thread of each consumer warpgroup, and the producer's."""
    return [128 * w for w in range(kernel.consumers)], 128 * kernel.consumers


def loaded(artifact, buffer: str, k_block: int) -> np.ndarray:
    """Shared memory of rank 0, each byte tagged with its (row << 32 | byte in the row) of the stored
    matrix; -1 is unwritten."""
    kernel, device = artifact.kernel, Kernel(artifact.source)
    smem = kernel.buffer(buffer)
    tags = np.full(SMEM_BASE + kernel.smem_bytes, -1, np.int64)
    _, producer = leaders(kernel)
    for rank in range(kernel.cluster.size):
        for call in device.run(producer, rank=rank):
            multicast = call.name == "tma_load_multicast"
            if not call.name.startswith("tma_load") or not (multicast or rank == 0):
                continue
            dst, name, _, inner, outer = call.args[:5]
            if call.k != k_block or kernel.map(name).smem != buffer:
                continue
            assert not multicast or call.args[5] == (1 << kernel.cluster.size) - 1
            width, height = kernel.map(name).box
            at = box_addresses(dst, width * smem.dtype.bytes, height, smem.swizzle)
            assert (tags[at] == -1).all(), "a byte loaded twice"
            row, byte = np.mgrid[:height, : width * smem.dtype.bytes]
            tags[at] = row + outer << 32 | byte + inner * smem.dtype.bytes
    return tags


def check_operands(artifact):
    kernel, device, k_block = artifact.kernel, Kernel(artifact.source), 1
    k_bytes = kernel.block.k * kernel.instr.a.bytes
    memory = {name: loaded(artifact, name, k_block) for name in ("smem_a", "smem_b")}
    sides = {"smem_a": kernel.block.m, "smem_b": kernel.block.n}
    seen = {name: np.zeros((sides[name], k_bytes), int) for name in memory}
    turned = dict(zip(memory, artifact.problem.mn_major, strict=True))
    shared, other = sides if not artifact.config.swap_ab else reversed(sides)
    consumers, _ = leaders(kernel)
    for w, thread in enumerate(consumers):
        calls = [c for c in device.run(thread) if c.name == "mma" and c.k == k_block]
        steps = Counter()
        for call in calls:
            wave = sum(steps.values()) // (k_bytes // 32)
            step = steps[wave]
            steps[wave] += 1
            a_row = (wave * kernel.consumers + w) * 64
            for name, first, rows in ((shared, a_row, 64), (other, 0, sides[other])):
                read = mn_major_addresses if turned[name] else wgmma_addresses
                at = read(call.args[1 if name == shared else 2], rows)
                row, k = np.mgrid[first : first + rows, step * 32 : step * 32 + 32]
                expected = row << 32 | k + k_block * k_bytes
                if turned[name]:  # the stored matrix's rows are K
                    expected = (k + k_block * k_bytes) // 2 << 32 | row * 2 + k % 2
                assert (memory[name][at] == expected).all(), (name, w, wave, step)
                seen[name][row, k] += 1
    assert (seen[shared] == 1).all(), "every byte of A is multiplied once"
    assert (seen[other] == sides[shared] // 64).all(), "every byte of B meets all rows"


@pytest.mark.parametrize("block_k_bytes", (32, 64, 128, 256))
@pytest.mark.parametrize("swizzle", SWIZZLES)
def test_wgmma_reads_what_tma_wrote(swizzle, block_k_bytes):
    if swizzle and block_k_bytes % swizzle:
        with pytest.raises(IllegalConfig) as e:
            compiled(DENSE, block_k_bytes=block_k_bytes, swizzle_ab=swizzle)
        assert e.value.rule.id == "swizzle-width"
        return
    common = {"block_k_bytes": block_k_bytes, "swizzle_ab": swizzle}
    for changes in (
        {"block_n": 8},
        {"block_n": 136, "raster": "n"},
        {"block_m": 64, "consumers": 1, "block_n": 40},
        {"block_m": 256, "block_n": 48},
        {"block_n": 112, "multicast": "b"},
        {"block_n": 24, "multicast": "a", "stages": 3},
    ):
        check_operands(compiled(DENSE, **common, **changes))


@pytest.mark.parametrize("block_k_bytes", (32, 128, 256))
@pytest.mark.parametrize("swizzle", SWIZZLES)
@pytest.mark.parametrize("problem", (DENSE_NN, DENSE_TN, DENSE_TT), ids=lambda p: p.layout)
def test_wgmma_reads_what_tma_wrote_mn_major(problem, swizzle, block_k_bytes):
    for changes in (
        {"block_n": 64},
        {"block_m": 256, "block_n": 192, "in_flight": 1},
        {"block_m": 64, "consumers": 1, "block_n": 40},
        {"block_m": 128, "consumers": 1, "block_n": 128, "multicast": "a"},
        {"block_n": 96, "multicast": "b"},
        {"block_n": 16, "multicast": "b"},
    ):
        widths = [changes["block_n"] * 2] * problem.mn_major[1]
        widths += [block_k_bytes] * (problem.mn_major != (True, True))
        config = {"block_k_bytes": block_k_bytes, "swizzle_ab": swizzle, "stages": 2, **changes}
        try:
            check_operands(compiled(problem, **config))
        except IllegalConfig as e:
            ragged = bool(swizzle) and any(width % swizzle for width in widths)
            rules = ("swizzle-width",) if ragged else ("smem-capacity", "tma-loads")
            assert e.rule.id in rules, changes


SWAPPED = (
    {"block_m": 8, "block_n": 64, "consumers": 1},
    {"block_m": 40, "block_n": 128},
    {"block_m": 64, "block_n": 256},
    {"block_m": 16, "block_n": 192, "consumers": 1},
    {"block_m": 56, "block_n": 128, "multicast": "b"},
    {"block_m": 32, "block_n": 128, "multicast": "a"},
)


@pytest.mark.parametrize("swizzle", SWIZZLES)
@pytest.mark.parametrize(
    "problem", (DENSE, DENSE_NN, DENSE_TN, DENSE_TT, FP8), ids=lambda p: f"{p.family}-{p.layout}"
)
def test_wgmma_reads_what_tma_wrote_swapped(problem, swizzle):
    for changes in SWAPPED:
        try:
            check_operands(compiled(problem, swap_ab=True, swizzle_ab=swizzle, **changes))
        except IllegalConfig as e:
            width = changes["block_m"] * 2 if problem.mn_major[0] else 128
            ragged = "swizzle-width" if swizzle and width % swizzle else ""
            sliced = "multicast-slice" if problem is FP8 and "multicast" in changes else ""
            boxes = "tma-loads" if swizzle == 0 else ""
            assert e.rule.id in (ragged, sliced, boxes), changes


@pytest.mark.parametrize("swizzle", SWIZZLES)
@pytest.mark.parametrize("multicast", ("none", "a", "b"))
def test_wgmma_reads_what_tma_wrote_fp8(swizzle, multicast):
    for n, m, consumers in ((144, 128, 2), (64, 128, 1)):
        check_operands(
            compiled(
                FP8,
                block_m=m,
                block_n=n,
                consumers=consumers,
                swizzle_ab=swizzle,
                multicast=multicast,
            )
        )


@pytest.mark.parametrize("multicast", ("none", "a"))
@pytest.mark.parametrize(
    ("block_m", "consumers"), ((64, 1), (128, 1), (128, 2), (256, 2), (192, 3))
)
def test_each_thread_reads_the_scales_of_its_rows(block_m, consumers, multicast):
    artifact = compiled(FP8, block_m=block_m, block_n=32, consumers=consumers, multicast=multicast)
    kernel, device = artifact.kernel, Kernel(artifact.source)
    tags = loaded(artifact, "smem_scale_a", k_block=1)
    for thread in range(128 * consumers):
        reads = [
            c.args[0] for c in device.run(thread) if c.name == "load_shared_float" and c.k == 1
        ]
        warpgroup, warp, lane = thread // 128, thread // 32 % 4, thread % 32
        for i, address in enumerate(reads):
            row = (i // 2 * consumers + warpgroup) * 64 + fragment(i % 2 * 2, warp, lane)[0]
            assert tags[address] == 1 << 32 | row * 4, "row 1 of the map (the K block), column row"
        assert len(reads) == 2 * kernel.block.m // (64 * consumers)


@pytest.mark.parametrize("problem", (FP8, VECTOR), ids=lambda p: p.family)
def test_each_thread_reads_the_scales_of_its_rows_swapped(problem):
    """Of A, those of its columns; of B, where its rows have their own, those of its rows."""
    for changes in SWAPPED[:3]:
        artifact = compiled(problem, swap_ab=True, **changes)
        kernel, device = artifact.kernel, Kernel(artifact.source)
        consumers, waves = kernel.consumers, kernel.block.n // 64 // kernel.consumers
        of_a = loaded(artifact, "smem_scale_a", k_block=1)
        for thread in range(128 * consumers):
            calls = [c for c in device.run(thread) if c.name.startswith("load_shared") and c.k == 1]
            warpgroup, warp, lane = thread // 128, thread // 32 % 4, thread % 32
            pairs = [c.args[0] for c in calls if c.name == "load_shared_floatx2"]
            assert len(pairs) == kernel.block.m // 8
            for i, address in enumerate(pairs):
                column = fragment(4 * i, warp, lane)[1]
                assert (of_a[address], of_a[address + 4]) == (
                    1 << 32 | 4 * column,
                    1 << 32 | 4 * column + 4,
                )
            singles = [c.args[0] for c in calls if c.name == "load_shared_float"]
            assert len(singles) == (2 * waves if problem is VECTOR else 0)
            of_b = loaded(artifact, "smem_scale_b", k_block=1) if singles else None
            for i, address in enumerate(singles):
                row = (i // 2 * consumers + warpgroup) * 64 + fragment(i % 2 * 2, warp, lane)[0]
                assert of_b[address] == 1 << 32 | row * 4


# ---- the epilogue -------------------------------------------------------------------------


STORES = (
    "store_matrix",
    "store_shared",
    "store_element",
    "tma_store",
    "bulk_store",
    "piece_store",
    "global_store",
)


def stores(artifact, shape=None, at=(0, 0), end=None) -> list[list]:
    """By consumer thread: what it stores of the tile at `at` of a D of `shape` (default: one tile), of a
    group that ends at row `end`."""
    kernel, device = artifact.kernel, Kernel(artifact.source)
    m, n = shape or (kernel.block.m, kernel.block.n)
    sizes = {"shape_m": m, "shape_n": n, "d_stride": n}
    tile = [{"k_blocks": 1, "d_row": at[0], "d_col": at[1], "d_end": m if end is None else end}]
    address = dict.fromkeys(("load_shared_float", "load_shared_uint16_t"), lambda address: address)
    return [
        [
            c
            for c in device.run(t, tiles=tile, returns=address, **sizes)
            if c.name.startswith(STORES)
        ]
        for t in range(128 * kernel.consumers)
    ]


def staged(artifact, calls) -> tuple[dict[int, tuple[int, int]], int]:
    """{shared address: (row, column) of the D tile} after every thread wrote its registers, and
    how many stmatrix phases met a bank twice."""
    consumers, swapped = artifact.kernel.consumers, artifact.config.swap_ab
    out: dict[int, tuple[int, int]] = {}
    conflicts = 0

    def put(address, register, thread):
        wave, index = divmod(register, WAVE)
        row, column = fragment(index, thread // 32 % 4, thread % 32)
        assert address not in out, "two elements at one address"
        at = (wave * consumers + thread // 128) * 64 + row, column
        out[address] = at[::-1] if swapped else at

    for first in range(0, 128 * consumers, 32):
        warp = range(first, first + 32)
        writes = [[c for c in calls[t] if c.name.startswith(STORES[:3])] for t in warp]
        for same in zip(*writes, strict=True):  # one call of all 32 lanes
            assert len({c.name for c in same}) == 1
            if same[0].name == "store_shared_floatx2":
                for thread, call in zip(warp, same, strict=True):
                    address, *values = call.args
                    assert address % 8 == 0
                    for i, value in enumerate(values):
                        put(address + 4 * i, value, thread)
                continue
            if same[0].name == "store_element_f32":
                conflicts += len({c.args[0] // 4 % 32 for c in same}) < 32
                for thread, call in zip(warp, same, strict=True):
                    put(*call.args, thread)
                continue
            matrices = len(same[0].args) - 1
            assert same[0].name == f"store_matrix{'_transposed' * swapped}_x{matrices}"
            for matrix in range(matrices):
                rows = [same[8 * matrix + r].args[0] for r in range(8)]
                assert all(address % 16 == 0 for address in rows)
                conflicts += len({address // 16 % 8 for address in rows}) < 8
                for lane in range(32):  # lane holds columns 2 (lane % 4) + {0, 1} of row lane / 4
                    for half, value in enumerate(same[lane].args[1 + matrix]):
                        at = lane // 4, lane % 4 * 2 + half
                        row, column = at[::-1] if swapped else at
                        put(rows[row] + column * 2, value, warp[lane])
    return out, conflicts


def stored(artifact, calls, memory, shape) -> tuple[np.ndarray, np.ndarray]:
    """D as the stores leave it, (row, column) tags, and how often each element was written."""
    kernel = artifact.kernel
    d = kernel.buffer("smem_d")
    (m, n), size = shape, d.dtype.bytes
    result, times = np.full((m, n, 2), -1), np.zeros((m, n), int)

    def put(row, column, address):
        result[row, column] = memory[int(address)]
        times[row, column] += 1

    for call in (c for of_thread in calls for c in of_thread):
        if call.name.startswith("tma_store"):  # the hardware drops what lies outside the map
            name, src, column, row, *_ = call.args
            inner, outer = kernel.map(name).box
            edge = n // kernel.map(name).clip * kernel.map(name).clip
            assert column < edge, "a box wholly outside the map costs and stores nothing"
            box = box_addresses(src, inner * size, outer, d.swizzle)[:, ::size]
            for o, i in np.argwhere(
                (np.mgrid[row : row + outer] < m)[:, None]
                & (np.mgrid[column : column + inner] < edge)
            ):
                put(row + o, column + i, box[o, i])
        if call.name == "bulk_store":
            dst, src, count = call.args
            assert src % 16 == 0 and count % 16 == 0
            for i in range(count // size):
                put(*divmod(dst + i, n), src + i * size)
        if call.name == "piece_store":
            dst, src = call.args
            assert src % 16 == 0
            for i in range(16 // size):
                put(*divmod(dst + i, n), src + i * size)
        if call.name == "global_store":
            put(*divmod(call.args[0], n), call.args[1])
    return result, times


def check_epilogue(artifact) -> int:
    """The number of conflicting stmatrix phases."""
    calls = stores(artifact)
    memory, conflicts = staged(artifact, calls)
    m, n = artifact.kernel.block.m, artifact.kernel.block.n
    assert len(memory) == m * n
    result, times = stored(artifact, calls, memory, (m, n))
    assert (times == 1).all(), "every element leaves once"
    assert (result == np.moveaxis(np.mgrid[:m, :n], 0, 2)).all()
    return conflicts


@pytest.mark.parametrize("block_n", range(8, 257, 8))
def test_epilogue_is_a_bijection_onto_d(block_n):
    for problem in (DENSE, DENSE_F32):
        for swizzle in SWIZZLES:
            row_bytes = block_n * problem.d.bytes
            changes = {"block_m": 64, "consumers": 1, "block_n": block_n, "swizzle_d": swizzle}
            if swizzle and row_bytes % swizzle:
                with pytest.raises(IllegalConfig) as e:
                    compiled(problem, **changes)
                assert e.value.rule.id == "swizzle-width"
                continue
            conflicts = check_epilogue(compiled(problem, **changes))
            if swizzle in (None, 0, widest(row_bytes)):  # 0 is padded
                assert not conflicts


def widest(row_bytes: int) -> int:
    return max((s for s in (128, 64, 32) if row_bytes % s == 0), default=0)


@pytest.mark.parametrize("problem", (DENSE, DENSE_F16, DENSE_F32), ids=lambda p: p.d.name)
@pytest.mark.parametrize("swizzle", (None, 0))
def test_epilogue_of_many_warpgroups_and_waves(problem, swizzle):
    for m, n, consumers in ((128, 64, 2), (128, 48, 1), (256, 72, 2), (256, 40, 1)):
        changes = {"block_m": m, "block_n": n, "consumers": consumers, "swizzle_d": swizzle}
        assert check_epilogue(compiled(problem, **changes)) == 0


@pytest.mark.parametrize("block_m", range(8, 65, 8))
def test_epilogue_is_a_bijection_onto_d_swapped(block_m):
    for problem in (DENSE, DENSE_F32, replace(DENSE_F32, grouping="masked")):
        for swizzle in SWIZZLES:
            changes = {"swap_ab": True, "block_m": block_m, "swizzle_d": swizzle}
            conflicts = check_epilogue(compiled(problem, block_n=64, consumers=1, **changes))
            if swizzle in (None, 128) or (swizzle == 0 and problem is DENSE):
                assert not conflicts, (problem, swizzle)


@pytest.mark.parametrize("problem", (DENSE, DENSE_F16, DENSE_F32), ids=lambda p: p.d.name)
@pytest.mark.parametrize("swizzle", (None, 0))
def test_epilogue_of_many_warpgroups_and_waves_swapped(problem, swizzle):
    for m, n, consumers in ((16, 128, 2), (24, 128, 1), (64, 256, 2), (8, 192, 1)):
        changes = {"block_m": m, "block_n": n, "consumers": consumers, "swizzle_d": swizzle}
        check_epilogue(compiled(problem, swap_ab=True, **changes))


@pytest.mark.parametrize("problem", (DENSE, DENSE_F32), ids=lambda p: p.d.name)
@pytest.mark.parametrize("swizzle", (None, 32, 0))
@pytest.mark.parametrize("consumers", (1, 2))
def test_ragged_edges_of_d_swapped(problem, swizzle, consumers):
    changes = {"swap_ab": True, "block_m": 24, "block_n": 128, "swizzle_d": swizzle}
    artifact = compiled(problem, consumers=consumers, **changes)
    m, n = artifact.kernel.block.m, artifact.kernel.block.n
    memory, _ = staged(artifact, stores(artifact))
    for rows, columns in ((1, 1), (m, 8), (23, 7), (9, 65), (17, 64), (m, n - 1), (8, 100), (m, n)):
        shape = m + rows, n + columns  # the tile starts at (m, n)
        calls = stores(artifact, shape, at=(m, n))
        result, times = stored(artifact, calls, memory, shape)
        assert (times[m:, n:] == 1).all() and times.sum() == rows * columns
        assert (result[m:, n:] == np.moveaxis(np.mgrid[:rows, :columns], 0, 2)).all()


def test_bank_conflicts_are_counted():
    """The counter itself can fail: 128-byte rows without their swizzle conflict."""
    artifact = compiled(DENSE, block_m=64, consumers=1, block_n=64)
    plain = replace(artifact, source=artifact.source.replace(">> 7 & 7) << 4", ">> 7 & 0) << 4"))
    assert plain != artifact
    assert staged(artifact, stores(artifact))[1] == 0
    assert staged(plain, stores(plain))[1] > 0


@pytest.mark.parametrize("problem", (DENSE, DENSE_F32), ids=lambda p: p.d.name)
@pytest.mark.parametrize("swizzle", (None, 32, 0))
@pytest.mark.parametrize("consumers", (1, 2))
def test_ragged_edges_of_d(problem, swizzle, consumers):
    """A tile over D's corner: every element inside comes once, nothing outside is touched."""
    artifact = compiled(problem, block_n=48, consumers=consumers, swizzle_d=swizzle)
    m, n = artifact.kernel.block.m, artifact.kernel.block.n
    memory, _ = staged(artifact, stores(artifact))
    for rows, columns in (
        (1, 1),
        (m, 8),
        (63, 7),
        (65, 9),
        (70, 41),
        (m, n - 1),
        (100, 33),
        (m, n),
    ):
        shape = m + rows, n + columns  # the tile starts at (m, n)
        calls = stores(artifact, shape, at=(m, n))
        result, times = stored(artifact, calls, memory, shape)
        assert (times[m:, n:] == 1).all() and times.sum() == rows * columns
        assert (result[m:, n:] == np.moveaxis(np.mgrid[:rows, :columns], 0, 2)).all()


@pytest.mark.parametrize("problem", (DENSE, DENSE_F32), ids=lambda p: p.d.name)
@pytest.mark.parametrize("swizzle", (None, 32, 0))
@pytest.mark.parametrize("swap_ab", (False, True))
def test_a_tile_in_which_a_group_ends(problem, swizzle, swap_ab):
    """The rows that the group has come once, those of the next group never."""
    sides = {"block_m": 24, "block_n": 128} if swap_ab else {"block_m": 256, "block_n": 48}
    masked = replace(problem, grouping="ends")
    artifact = compiled(masked, swap_ab=swap_ab, swizzle_d=swizzle, stages=2, **sides)
    m, n = artifact.kernel.block.m, artifact.kernel.block.n
    memory, _ = staged(artifact, stores(artifact))
    for rows, columns in ((0, n), (1, 1), (m // 4, 8), (m // 4 + 1, 7), (m - 1, n - 3), (m, n)):
        shape = 3 * m, n + columns  # the tile starts at (m, n)
        calls = stores(artifact, shape, at=(m, n), end=m + rows)
        result, times = stored(artifact, calls, memory, shape)
        own = slice(m, m + rows), slice(n, None)
        assert (times[own] == 1).all() and times.sum() == rows * columns
        assert (result[own] == np.moveaxis(np.mgrid[:rows, :columns], 0, 2)).all()


@pytest.mark.parametrize("swizzle", (None, 0))
def test_a_tile_leaves_its_neighbours_alone(swizzle):
    """A whole tile whose right neighbour is the ragged one."""
    artifact = compiled(DENSE, block_n=48, swizzle_d=swizzle)
    memory, _ = staged(artifact, stores(artifact))
    calls = stores(artifact, (150, 48 + 5))
    _, times = stored(artifact, calls, memory, (150, 48 + 5))
    assert (times[:128, :48] == 1).all() and times.sum() == 128 * 48


@pytest.mark.parametrize("swizzle", (None, 0))
@pytest.mark.parametrize("at", ((0, 128), (128, 0), (256, 256)))
def test_a_tile_outside_d_stores_nothing(swizzle, at):
    artifact = compiled(DENSE, swizzle_d=swizzle)
    calls = stores(artifact, (128, 125), at)
    memory, _ = staged(artifact, stores(artifact))
    assert stored(artifact, calls, memory, (128, 125))[1].sum() == 0


# ---- promotion ----------------------------------------------------------------------------


class Loaded(int):
    """What a lane holds of B's scales: the address it loaded, of its own K block. The others of its warp loaded the
    same row's."""


@pytest.mark.parametrize(
    ("block_n", "columns", "parts"),
    (
        (64, (0, 64, 192), 1),
        (128, (0, 128), 1),
        (144, (0, 144, 288, 1008), 1),
        (160, (160, 480), 1),
        (192, (0, 192), 1),
        (256, (0, 1024), 2),
        (192, (0, 192), 2),
        (144, (0, 144, 288, 1008), 2),
        (96, (0, 96, 192, 288), 2),
    ),
)
@pytest.mark.parametrize(("block_m", "consumers"), ((128, 2), (128, 1)))
def test_promotion_scales_each_element_by_its_own_scales(
    block_n, columns, parts, block_m, consumers
):
    """With every partial sum 1, D is the sum over K blocks of scale_a[row, k] * scale_b[block, k]."""
    if block_n > 128 and consumers == 1:
        block_m = 64
    tile = {"block_m": block_m, "block_n": block_n, "parts": parts}
    artifact = compiled(FP8, consumers=consumers, stages=3, **tile)
    kernel, device = artifact.kernel, Kernel(artifact.source)
    random, k_blocks = np.random.default_rng(0), 5
    scale_a = random.integers(1, 100, (block_m, k_blocks))
    scale_b = random.integers(1, 100, (12, k_blocks))
    buffer = kernel.buffer("smem_scale_a")

    def one(thread, column):
        fill = iter(range(2 * kernel.block.m // (64 * consumers) * k_blocks))

        def row_scale(address):  # a thread reads the same number of scales in every K block
            k = next(fill) * k_blocks // (2 * kernel.block.m // (64 * consumers) * k_blocks)
            stage, at = divmod(address - SMEM_BASE - buffer.offset, buffer.stage_bytes)
            assert stage == k % 3
            return int(scale_a[at // 4, k])

        calls = device.run(
            thread,
            tiles=[{"k_blocks": k_blocks, "b_row": column, "d_col": column}],
            registers=lambda array, i: 1,
            returns={"load_shared_float": row_scale},
            __ldg=Loaded,
            __shfl_sync=lambda mask, x, lane: (
                int(scale_b[x // 1000, lane]) if isinstance(x, Loaded) else x
            ),
            scale_b=0,
            scale_b_stride_n=1000,
            scale_b_stride_k=1,
            shape_n=12 * 128,
        )
        stores = [c.args[1:] for c in calls if c.name.startswith("store_matrix")]
        return [value for pairs in stores for pair in pairs for value in pair]

    for column in columns:
        for thread in range(0, 128 * consumers, 5):
            values = one(thread, column)
            assert len(values) == kernel.block.m // (64 * consumers) * block_n // 2
            for index, value in enumerate(values):
                wave, register = divmod(index, block_n // 2)
                row, col = fragment(register, thread // 32 % 4, thread % 32)
                row += (wave * consumers + thread // 128) * 64
                assert value == scale_a[row] @ scale_b[(column + col) // 128]


@pytest.mark.parametrize(("problem", "consumers"), ((DENSE, 2), (DENSE_F32, 1)))
def test_epilogue_vectors_are_read_at_the_elements_row_and_column(problem, consumers):
    """Every wgmma result 1: D holds row_scale[row] * column_scale[column], clamped at the edge."""
    scaled = replace(problem, epilogue=EPILOGUES["scaled"])
    artifact = compiled(scaled, block_m=128, block_n=40, consumers=consumers)
    device = Kernel(artifact.source)
    (row, col), (m, n) = (256, 80), (300, 95)
    for thread in range(128 * consumers):
        calls = device.run(
            thread,
            tiles=[{"k_blocks": 1, "d_row": row, "d_col": col}],
            registers=lambda array, i: 1,
            arg_row_scale=1000,
            arg_column_scale=1000_000,
            __ldg=lambda at: at,
            shape_m=m,
            shape_n=n,
        )
        values = [v for c in calls if c.name.startswith("store_matrix") for v in c.args[1:]]
        values = [v for pair in values for v in pair]
        values += [v for c in calls if c.name.startswith("store_shared") for v in c.args[1:]]
        for index, value in enumerate(values):
            wave, register = divmod(index, 40 // 2)
            at = fragment(register, thread // 32 % 4, thread % 32)
            d_row = min(row + (wave * consumers + thread // 128) * 64 + at[0], m - 1)
            assert value == (1000 + d_row) * (1000_000 + min(col + at[1], n - 1))
        assert len(values) == 40 // 2 * 2 // consumers


@pytest.mark.parametrize(("problem", "consumers"), ((DENSE, 2), (DENSE_F32, 1)))
def test_a_residual_is_read_at_the_elements_row_and_column(problem, consumers):
    """Every wgmma result 0: D holds C's addresses, by pairs, clamped at the edge."""
    artifact = compiled(
        replace(problem, epilogue=EPILOGUES["residual"]),
        block_m=128,
        block_n=40,
        consumers=consumers,
    )
    device = Kernel(artifact.source)
    (row, col), (m, n), stride = (256, 80), (300, 95), 1000
    for thread in range(128 * consumers):
        calls = device.run(
            thread,
            tiles=[{"k_blocks": 1, "d_row": row, "d_col": col}],
            registers=lambda array, i: 0,
            arg_c=1000_000,
            row_stride_c=stride,
            __ldg=lambda at: at,
            shape_m=m,
            shape_n=n,
        )
        values = [v for c in calls if c.name.startswith("store_matrix") for v in c.args[1:]]
        values = [v for pair in values for v in pair]
        values += [v for c in calls if c.name.startswith("store_shared") for v in c.args[1:]]
        for index, value in enumerate(values):
            wave, register = divmod(index, 40 // 2)
            at = fragment(register, thread // 32 % 4, thread % 32)
            d_row, d_col = row + (wave * consumers + thread // 128) * 64 + at[0], col + at[1]
            c_row, c_col = divmod(value - 1000_000, stride)
            assert c_row == min(d_row, m - 1)
            assert c_col == d_col if d_col < n else n - 1 <= c_col <= n
        assert len(values) == 40 // 2 * 2 // consumers


# ---- the map of shared memory -------------------------------------------------------------


@pytest.mark.parametrize("name", VARIETY)
def test_shared_memory_map(name):
    artifact = emitted(*VARIETY[name])
    kernel, named = artifact.kernel, constants(artifact.source)
    parts = []
    for s in kernel.smem:
        size = s.rows * (s.cols + s.pad) * s.dtype.bytes
        pattern = {128: 1024, 64: 512, 32: 256, 0: 128}[s.swizzle]
        assert s.offset % pattern == 0, s.name
        assert s.stages == 1 or size % pattern == 0, f"stage 1 of {s.name} is misaligned"
        parts.append((s.offset, size * s.stages * s.copies))
        part = s.name.removeprefix("smem_").upper()
        own = f" + worker * {s.stages} * Shared::{part}_STAGE_BYTES" * (s.copies > 1)
        place = f"const uint32_t {s.name} = smem_base + Shared::{part}{own};"
        assert artifact.source.count(place) == 1
        assert (named[part], named[f"{part}_STAGE_BYTES"]) == (s.offset, size)
    for b in kernel.barriers:
        assert b.offset % 8 == 0
        parts.append((b.offset, 8 * b.stages))
        part = b.name.upper()
        assert f"const uint32_t {b.name} = smem_base + Shared::{part};" in artifact.source
        assert named[part] == b.offset
    parts.sort()
    for (at, size), (following, _) in itertools.pairwise(parts):
        assert at + size == following, "no overlap, no gap"
    assert parts[0][0] == 0 and sum(parts[-1]) == kernel.smem_bytes
    assert kernel.smem_bytes == sum(size for _, size in parts) <= H200.smem_bytes
