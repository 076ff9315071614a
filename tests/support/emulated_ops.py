"""`gemmgen.ops` over torch tensors of the CPU: every kernel by the emulator, with what a GPU would find in memory, NaN in all that is new."""

from __future__ import annotations

import ctypes
from contextlib import contextmanager
from functools import cache
from types import SimpleNamespace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from gemmgen import casts, combining, largest, pairing, routing, selecting, spreading
from gemmgen.emulator import GlobalMemory, launch, load
from gemmgen.ir.exchange import PARTIALS
from gemmgen.ops import (
    building,
    calls,
    casting,
    coded,
    compute,
    depths,
    epilogue,
    front,
    indexed,
    logits,
    outputs,
    paged_logits,
    quantise,
    top_scores,
)
from gemmgen.ops import combining as ops_combining
from gemmgen.ops import pairing as ops_pairing
from gemmgen.ops import routing as ops_routing
from gemmgen.ops import selecting as ops_selecting
from gemmgen.ops import spreading as ops_spreading
from gemmgen.ops import top_keys as ops_top_keys
from gemmgen.pipeline import compile_to_source
from gemmgen.runtime import torch_tensors
from gemmgen.runtime.bind import Bound
from gemmgen.runtime.emulated import SMS, params
from gemmgen.runtime.launch import check_launch, grid, lying
from gemmgen.runtime.nvrtc import compile_ptx
from gemmgen.runtime.torch_tensors import dtype_of
from gemmgen.target import H200
from gemmgen.torch_ops import compute_on_cpu

PLAIN = {
    ops_combining: combining,
    ops_pairing: pairing,
    ops_routing: routing,
    ops_selecting: selecting,
    ops_spreading: spreading,
    ops_top_keys: largest,
    casting: casts,
}

MAPS, ALIGNED = 1 << 17, 512  # bytes, more than launches of a test derive


@pytest.fixture(autouse=True)
def real_torch():
    """For a test file that imports it: no test before left another torch, and none after gets what is kept of these."""
    for cached in (torch_tensors.torch, torch_tensors.torch_dtype):
        cached.cache_clear()
    torch.manual_seed(0)
    yield
    front.KEPT.clear()


@contextmanager
def computing_on_cpu():
    """Inside, operators over tensors of the CPU compute there."""
    compute_on_cpu()
    try:
        yield
    finally:
        compute_on_cpu(False)


@pytest.fixture(autouse=True)
def computed_on_cpu(real_torch):
    """For a test file that imports it and `real_torch`."""
    with computing_on_cpu():
        yield


class Memory(TorchDispatchMode):
    """What tensors are made lies in memory that kernels see. launched: their names."""

    def __init__(self, *tensors):
        super().__init__()
        self.storages, self.launched = {}, []
        for x in tensors:
            self.keep(x)

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        if isinstance(out, torch.Tensor):
            if "empty" in str(function):
                ctypes.memset(
                    out.untyped_storage().data_ptr(), 0xFF, out.untyped_storage().nbytes()
                )
            self.keep(out)
        return out

    def keep(self, x):
        storage = x.untyped_storage()
        if storage.nbytes():
            self.storages[storage.data_ptr()] = storage

    def run(self, name, entry, **how):
        self.launched.append(name)
        memory = GlobalMemory()
        for at, storage in self.storages.items():
            memory.map(at, ctypes.string_at(at, storage.nbytes()))
        launch(entry, memory=memory, **how)
        for at, storage in self.storages.items():
            ctypes.memmove(at, memory.read(at, storage.nbytes()).tobytes(), storage.nbytes())


@cache
def entry(source, name):
    return load(compile_ptx(source, name)).entries[name]


def plain(memory, source):
    """A loaded kernel without tensor maps."""

    def loaded(kernel, device):
        def start(values, tiles, stream):
            memory.run(
                kernel.name,
                entry(source(kernel), kernel.name),
                grid=getattr(kernel, "ctas", min(tiles, SMS)),
                block=kernel.threads,
                shared_bytes=0,
                params=[values[p.name] for p in kernel.params],
            )

        return SimpleNamespace(launch=start)

    return loaded


class Gemm:
    """A loaded kernel of a GEMM, whose plans `memory` runs."""

    memory: Memory
    device = 0

    def __init__(self, p, config, device):
        made = compile_to_source(p, config)
        self.kernel, self.source = made.kernel, made.source

    def grid(self, shape, groups=1):
        return grid(self.kernel, shape, max(SMS, self.kernel.cluster.size), groups)

    def plan(self, shape, matrices, values, stream):
        kernel, groups = self.kernel, int(values["groups"])
        check_launch(kernel, shape, groups)
        bound = Bound(matrices=matrices, values={**values, **lying(matrices)})

        def start():
            self.memory.run(
                kernel.name,
                entry(self.source, kernel.name),
                grid=self.grid(shape, groups),
                block=kernel.threads,
                shared_bytes=kernel.smem_bytes or 0,
                params=params(kernel, bound, 0, self.maps(values), sums=values.get(PARTIALS, 0)),
                overlaps=kernel.pdl,
                ready=[],
            )
            return (0,)

        return SimpleNamespace(start=start, stream=stream)

    def maps(self, values):
        """Where it derives tensor maps: at a multiple of what a GPU's allocator begins at, and a CPU's does not."""
        if "group_maps" not in values:
            return 0
        room = torch.empty(MAPS + ALIGNED, dtype=torch.uint8)
        self.memory.keep(room)
        return -(-room.data_ptr() // ALIGNED) * ALIGNED

    def launch(self, plan):
        plan.start()


def checked(argument, tensor, dtype, shape, device=None, *, contiguous=False):
    """`check_tensor` of tensors of the CPU."""
    dtype_of(argument, tensor, (dtype,))
    got = tuple(tensor.shape)
    assert all(w in (None, g) for g, w in zip(got, shape, strict=True)), argument
    assert not contiguous or got[-1] <= 1 or tensor.stride(-1) == 1, argument
    return got


def emulated(patch, memory):
    """What `ops` launches from now on `memory` runs."""
    for module, kernels in PLAIN.items():
        patch.setattr(module, "loaded", plain(memory, kernels.source))
    for module in (*PLAIN, calls):
        patch.setattr(module, "current_stream", lambda device: 0)
    for module in (quantise, *(x for x in PLAIN if x is not casting)):
        patch.setattr(module, "generated", lambda x: True)
    asking = (calls, coded, compute, depths, epilogue, indexed, logits, outputs, paged_logits)
    for module in (*asking, top_scores):
        patch.setattr(module, "check_tensor", checked)
    patch.setattr(calls, "WORKSPACES", SimpleNamespace(of=calls.zeroed))
    patch.setattr(calls, "reader_of", lambda device: lambda index: 0)
    patch.setattr(building, "loaded", type("Loaded", (Gemm,), {"memory": memory}))
    patch.setattr(building, "priced_for", lambda device: (H200.device_name, H200))
    front.KEPT.clear()
