"""What a combination must write, in NumPy, and combinations run by the emulator."""

from __future__ import annotations

import numpy as np
from cast_reference import codes_of, floats

from gemmgen.combining import source
from gemmgen.emulator import GlobalMemory, launch, load
from gemmgen.ir.dtypes import BF16, F16, F32
from gemmgen.runtime.nvrtc import compile_ptx

BITS = {BF16: np.uint16, F16: np.uint16, F32: np.uint32}
GRID = 3  # CTAs: fewer than tiles, so that they loop


def reference(y, slots, weights, add, c):
    """Bits of out [tokens, columns]; y, weights and add, which may be None, are bit patterns."""
    wide, by = floats(y, c.y), floats(weights, c.weights)
    start = np.float32(0) if add is None else floats(add, c.y)
    out = np.empty((len(slots), y.shape[1]), np.float32)
    out[:] = start
    with np.errstate(all="ignore"):
        for t, row in enumerate(slots):
            for slot, weight in zip(row, by[t], strict=True):
                if 0 <= slot < len(y):
                    out[t] = out[t] + weight * wide[slot]
        return codes_of(out, c.y).view(BITS[c.y])


def same(found, wanted, dtype):
    """The same bits, but for those of a NaN."""
    nan = np.isnan(floats(wanted, dtype))
    return np.array_equal(nan, np.isnan(floats(found, dtype))) and np.array_equal(
        found[~nan], wanted[~nan]
    )


def placed(memory, rows, pitch, offset=0, beside=-1):
    """The address of `rows`, `pitch` elements apart, `offset` elements into an allocation of nothing but `beside`: NaN."""
    parent = np.full(offset + len(rows) * pitch + 16, beside, rows.dtype.str.replace("u", "i"))
    for i, row in enumerate(rows):
        parent[offset + i * pitch :][: len(row)] = row.view(parent.dtype)
    return memory.allocate(parent) + offset * parent.itemsize


def emulate(y, slots, weights, add, c, *, beside=0, offset=0, grid=GRID, text=None):
    """Bits of out as `reference` gives them, by the combination's PTX.

    beside: elements between a row's end and the next row, of all that is read. offset: of y and what is added, from
    where they are aligned. What is behind out must stay as it was. text: in place of the combination's source.
    """
    memory = GlobalMemory()
    tokens, top = slots.shape
    rows, columns = y.shape
    given = {"y": (y, offset), "weights": (weights, 0)}
    given |= {} if add is None else {"add": (add, offset)}
    pitches = {name: x.shape[1] + beside for name, (x, _) in given.items()}
    values = {name: placed(memory, x, pitches[name], at) for name, (x, at) in given.items()}
    size = tokens * columns
    out = memory.allocate(np.full(size + 16, 0x5A5A, BITS[c.y]))
    values = {"add": 0, "add_stride": 0} | values | {"out": out}
    pitches["slots"] = top + beside
    values["slots"] = placed(memory, slots, top + beside, beside=0)  # which is a row's number
    values |= {f"{name}_stride": pitch for name, pitch in pitches.items()}
    values |= {"rows": rows, "tokens": tokens, "top": top, "columns": columns}
    launch(
        load(compile_ptx(text or source(c), c.name)).entries[c.name],
        grid=grid,
        block=c.threads,
        cluster=1,
        shared_bytes=0,
        params=[values[p.name] for p in c.params],
        memory=memory,
    )
    found = memory.read(out, (size + 16) * c.y.bytes).view(BITS[c.y])
    assert (found[size:] == 0x5A5A).all()
    return found[:size].reshape(tokens, columns)
