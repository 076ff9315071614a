"""Kernels without tensor maps in the place of those that a GPU loads: recorded, or run by the emulator over torch tensors of the CPU."""

from __future__ import annotations

import ctypes
from functools import cache

from gemmgen.emulator import GlobalMemory, launch, load
from gemmgen.runtime.launch import packed
from gemmgen.runtime.nvrtc import compile_ptx

STREAM = 7
GRID = 5  # CTAs at most: fewer than tiles, so that they loop


class Recorded:
    """A loaded kernel that is not launched."""

    made: list[Recorded]  # by `route`

    def __init__(self, kernel, device):
        self.kernel = kernel
        self.made.append(self)

    def launch(self, values, tiles, stream):
        for p in self.kernel.params:
            packed(p.ctype, p.name, values)
        self.values, self.tiles, self.stream = values, tiles, stream


def emulated(source, sizes, written):
    """Loaded kernels that the emulator runs over the host's memory. sizes(kernel, values): bytes, by the names of
    pointers, that the kernel may touch; written: those of them that it writes."""

    class Emulated(Recorded):
        def launch(self, values, tiles, stream):
            super().launch(values, tiles, stream)
            memory = GlobalMemory()
            ranges = {n: (values[n], size) for n, size in sizes(self.kernel, values).items()}
            for at, size in {*ranges.values()}:
                memory.map(at, ctypes.string_at(at, size))
            launch(
                load(_ptx(source(self.kernel), self.kernel.name)).entries[self.kernel.name],
                grid=min(tiles, GRID),
                block=self.kernel.threads,
                cluster=1,
                shared_bytes=0,
                params=[values[p.name] for p in self.kernel.params],
                memory=memory,
            )
            for at, size in (ranges[n] for n in written if n in ranges):
                ctypes.memmove(at, memory.read(at, size).tobytes(), size)

    return Emulated


@cache
def _ptx(text, name):
    return compile_ptx(text, name)


def route(monkeypatch, module, loaded):
    """Tensors of the CPU go the way of CUDA tensors in `module` of `gemmgen.ops`."""
    loaded.made = []
    monkeypatch.setattr(module, "generated", lambda x: True)
    monkeypatch.setattr(module, "loaded", loaded)
    monkeypatch.setattr(module, "current_stream", lambda device: STREAM)
    return loaded.made
