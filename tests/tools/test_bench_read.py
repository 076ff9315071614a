"""The kernel that is the floor: its PTX, emulated, reads every vector once; who takes it for what."""

from __future__ import annotations

import numpy as np
import pytest

from gemmgen.bench.read import GRIDS, VECTOR_BYTES, Read, source
from gemmgen.emulator import GlobalMemory, launch, load
from gemmgen.runtime.nvrtc import compile_cubin, compile_ptx

RNG = np.random.default_rng(0)


def read_of(spans, grid=GRIDS[0]):
    threads, ctas, slots = grid
    return Read(spans=spans, threads=threads, ctas_per_sm=ctas, slots=slots)


def emulate(arrays, ctas, grid=(64, 1, 4)):
    """The sums that the kernel leaves of arrays of bytes, last to first in one allocation; between them lie others, which
    must not be read."""
    read, memory, values = read_of(len(arrays), grid), GlobalMemory(), {}
    parts, at = [], 0
    for i, x in reversed([*enumerate(arrays)]):
        beside = RNG.integers(1, 256, -len(x) % 256 + 256, np.uint8)
        values |= {f"x{i}": at, f"vectors{i}": len(x) // VECTOR_BYTES}
        parts += [x, beside]
        at += len(x) + len(beside)
    base = memory.allocate(np.concatenate(parts))
    values |= {f"x{i}": base + values[f"x{i}"] for i in range(len(arrays))}
    sums = np.full(ctas * read.threads // 32, 0xA5A5A5A5, np.uint32)
    values["sums"] = memory.allocate(sums.view(np.uint8))
    launch(
        load(compile_ptx(source(read), read.name)).entries[read.name],
        grid=ctas,
        block=read.threads,
        cluster=1,
        shared_bytes=0,
        params=[values[p.name] for p in read.params],
        memory=memory,
    )
    return memory.read(values["sums"], sums.nbytes).view(np.uint32)


@pytest.fixture
def nvrtc():
    pytest.importorskip("cuda.bindings.nvrtc", exc_type=ImportError)


@pytest.mark.nvrtc
@pytest.mark.parametrize("sizes", [(16,), (16, 16), (4096, 48), (160, 16 * 1001), (48, 64, 8208)])
@pytest.mark.parametrize("ctas", [1, 3])
def test_every_vector_is_read_once(sizes, ctas, nvrtc):
    arrays = [RNG.integers(0, 256, n, np.uint8) for n in sizes]
    want = sum(int(x.view(np.uint32).sum(dtype=np.uint64)) for x in arrays) % (1 << 32)
    assert int(emulate(arrays, ctas).sum(dtype=np.uint64)) % (1 << 32) == want


@pytest.mark.nvrtc
def test_what_is_less_than_a_vector_is_left(nvrtc):
    x = RNG.integers(0, 256, 64, np.uint8)
    assert [*emulate([x[:31]], 1)] == [x[:16].view(np.uint32).sum(dtype=np.uint32), 0]


@pytest.mark.nvrtc
@pytest.mark.parametrize("grid", GRIDS, ids=str)
@pytest.mark.parametrize("spans", [1, 2])
def test_it_compiles_without_spills(spans, grid, nvrtc):
    """And as many CTAs as are launched on an SM fit one."""
    read = read_of(spans, grid)
    cubin = compile_cubin(source(read), read.name)
    assert cubin.stack_bytes == 0
    assert cubin.registers * read.threads * read.ctas_per_sm <= 65536


@pytest.mark.nvrtc
def test_loads_are_wide_and_under_way_together(nvrtc):
    """Nothing is left out, and none waits for the one before."""
    read = read_of(2)
    text = compile_ptx(source(read), read.name)
    assert text.count("ld.global.cs.v4.u32") == read.slots


def test_names_say_what_is_compiled():
    names = {read_of(spans, grid).name for spans in (1, 2) for grid in GRIDS}
    assert len(names) == 2 * len(GRIDS)
    assert source(read_of(2)) == source(read_of(2)) and "x1" in source(read_of(2))
