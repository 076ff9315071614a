"""Where the largest numbers of rows are, in NumPy, and the kernels that find them run by the emulator."""

from __future__ import annotations

import numpy as np

from gemmgen.codes import code_type, decode, encode
from gemmgen.emulator import GlobalMemory, launch, load
from gemmgen.ir.dtypes import F32
from gemmgen.largest import Largest, source
from gemmgen.runtime.nvrtc import compile_ptx

POISON = 0xA5
GUARD = 64  # bytes behind the result that must stay as they were


def keys_of(x):
    """Integers in the order of numbers, zeros equal, any NaN the largest."""
    bits = (np.asarray(x, np.float32) + np.float32(0)).view(np.uint32)
    keys = np.where(bits >> 31, ~bits, bits | np.uint32(1 << 31))
    return np.where(np.isnan(x), np.uint32(0xFFFFFFFF), keys).astype(np.int64)


def reference(x, count, first=None, end=None, compact=False, keys=None):
    """int32 [rows, count] of float [rows, columns]."""
    rows, columns = x.shape
    keys = columns if keys is None else keys
    found = np.full((rows, count), -1, np.int32)
    for r in range(rows):
        start = 0 if first is None else max(0, int(first[r]))
        stop = max(0, min(keys if end is None else int(end[r]), keys))
        size = max(0, min(stop - start, columns) if compact else stop - start)
        window = keys_of(x[r, :size] if compact else x[r, start : start + size])
        best = np.sort(np.argsort(-window, kind="stable")[:count])
        found[r, : len(best)] = start + best
    return found


def codes_of(x, dtype):
    """Of numbers that it has exactly."""
    if dtype == F32:
        return x.astype(np.float32).view(np.uint32)
    codes = encode(x, dtype).astype(code_type(dtype))
    assert np.array_equal(decode(codes, dtype), x, equal_nan=True)
    return codes


def emulate(
    x, count, first=None, end=None, compact=False, keys=None, *,
    dtype=F32, pitch=None, grid=2, edit=lambda text: text, **options,
):  # fmt: skip
    """The same by the PTX of the kernel, whose text `edit` may change. What is behind the result must stay as it was, and nothing between rows is read as one of theirs."""
    rows, columns = x.shape
    kernel, memory = Largest(x=dtype), GlobalMemory()
    step = kernel.vector
    pitch = pitch or -(-columns // step) * step
    wide = np.full((rows, pitch), np.nan)
    wide[:, :columns] = x
    codes = codes_of(wide, dtype)
    flat = codes.reshape(-1)[: (rows - 1) * pitch + columns]
    size = 4 * rows * count
    found = memory.allocate(np.full(size + GUARD, POISON, np.uint8), alignment=16)
    values = {"x": memory.allocate(flat, alignment=16), "found": found}
    for name, table in (("first", first), ("end", end)):
        values[name] = 0 if table is None else memory.allocate(np.asarray(table, np.int32))
    values |= {"pitch": pitch, "rows": rows, "columns": columns, "count": count}
    values |= {"keys": columns if keys is None else keys, "compact": int(compact)}
    launch(
        load(compile_ptx(edit(source(kernel)), kernel.name)).entries[kernel.name],
        grid=min(grid, kernel.tiles(rows)),
        block=kernel.threads,
        shared_bytes=0,
        params=[values[p.name] for p in kernel.params],
        memory=memory,
        **options,
    )
    raw = memory.read(found, size + GUARD)
    assert (raw[size:] == POISON).all()
    return raw[:size].view(np.int32).reshape(rows, count)
