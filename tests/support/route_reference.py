"""Where copies of tokens lie by expert, in NumPy, and routings run by the emulator."""

from __future__ import annotations

import numpy as np

from gemmgen.emulator import GlobalMemory, launch, load
from gemmgen.routing import Routing, source
from gemmgen.runtime.nvrtc import compile_ptx

KINDS = {32: np.int32, 64: np.int64}
POISON = 0xA5
GUARD = 64  # bytes behind each result that must stay as they were


def rows_of(copies, local, alignment):
    """As many as any choice may need."""
    return (copies + min(local, copies) * (alignment - 1)) // alignment * alignment


def reference(chosen, first, local, alignment):
    """(slots, copies, ends) of ids [T, k], one copy after the other."""
    flat = chosen.reshape(-1)
    slots = np.full(flat.size, -1, np.int32)
    copies = np.full(rows_of(flat.size, local, alignment), -1, np.int32)
    ends = np.zeros(local, np.int32)
    row = 0
    for expert in range(local):
        row = -(-row // alignment) * alignment
        for copy in np.flatnonzero(flat == first + expert):
            slots[copy], copies[row] = row, copy
            row += 1
        ends[expert] = row
    return slots.reshape(chosen.shape), copies, ends


def emulate(chosen, first, local, alignment, pitch=None, edit=lambda text: text, **options):
    """What `reference` gives, by the PTX of the kernel, whose text `edit` may change. Ids lie `pitch` apart from token to token, among
    others. What is behind the results must stay as it was."""
    tokens, top = chosen.shape
    bits = 8 * chosen.itemsize
    pitch = pitch or top
    wide = np.full((tokens, pitch), first, chosen.dtype)  # an expert that has rows
    wide[:, :top] = chosen
    flat = wide.reshape(-1)[: (tokens - 1) * pitch + top]
    routing, memory = Routing(bits=bits), GlobalMemory()
    rows = rows_of(chosen.size, local, alignment)
    sizes = {"slots": chosen.size, "copies": rows, "ends": local}
    at = {x: memory.allocate(np.full(4 * n + GUARD, POISON, np.uint8)) for x, n in sizes.items()}
    values = {**at, "chosen": memory.allocate(flat), "n": chosen.size, "top": top, "pitch": pitch}
    values |= {"first": first, "local": local, "alignment": alignment, "rows": rows}
    launch(
        load(compile_ptx(edit(source(routing)), routing.name)).entries[routing.name],
        grid=routing.ctas,
        block=routing.threads,
        shared_bytes=0,
        params=[values[p.name] for p in routing.params],
        memory=memory,
        **options,
    )
    found = []
    for name, n in sizes.items():
        data = memory.read(at[name], 4 * n + GUARD)
        assert (data[4 * n :] == POISON).all(), name
        found.append(data[: 4 * n].view(np.int32))
    return found[0].reshape(chosen.shape), found[1], found[2]
