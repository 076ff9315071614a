"""A CPU in place of the GPU that is fuzzed: gemmgen's own checks and plans, launched by a slow reference.

A launch reads and writes memory by nothing but the plan's addresses and strides, so a harness that gives
functions wrong tensors is found here. Faulty machines are in fuzz_faults.py.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from functools import lru_cache
from types import SimpleNamespace
from unittest import mock

import torch
from fuzz_reference import execute

from gemmgen import ops
from gemmgen.ops import building, calls, coded, epilogue, indexed, logits, outputs, paged_logits
from gemmgen.ops import compute as ops_compute
from gemmgen.ops import depths as ops_depths
from gemmgen.pipeline import lower
from gemmgen.runtime import torch_tensors
from gemmgen.runtime.launch import check_launch
from gemmgen.runtime.tensor_map import check, describe, lying
from gemmgen.runtime.torch_tensors import check_tensor
from gemmgen.target import H200

lowered = lru_cache(maxsize=None)(lower)
# Those that check tensors, which then may be a CPU's.
CHECKING = (calls, coded, ops_compute, ops_depths, epilogue, indexed, logits, outputs, paged_logits)


class Loaded:
    """What `ops` loads: a kernel that the CPU stands in for."""

    machine = None

    def __init__(self, p, config, device):
        self.p, self.kernel, self.device = p, lowered(p, config), device

    def grid(self, shape, groups):
        return 4

    def plan(self, shape, matrices, values, stream):
        check_launch(self.kernel, shape, int(values["groups"]))
        check("d", matrices["d"], self.kernel.buffer("smem_d").dtype.bytes)
        for m in self.kernel.maps:
            describe(self.kernel, m, matrices[m.tensor])
        for x in self.kernel.pointed:
            check(x.tensor, matrices[x.tensor], x.dtype.bytes)
        if self.kernel.pointed:
            values = {**values, **lying(matrices)}
        assert {x.name for x in self.kernel.params} <= {*values}
        return self._startable(shape, matrices, dict(values), stream)

    def moved(self, plan, addresses, stream):
        matrices = {
            name: replace(m, pointer=addresses.get(name, m.pointer))
            for name, m in plan.matrices.items()
        }
        return self._startable(plan.shape, matrices, plan.values | addresses, stream)

    def _startable(self, shape, matrices, values, stream):
        plan = SimpleNamespace(shape=shape, matrices=matrices, values=values, stream=stream)
        plan.start = lambda: self.machine.launch(self.p, plan) or (0,)
        return plan

    def launch(self, plan):
        plan.start()


class Cuda(torch.Tensor):
    """A tensor that says it is on a GPU."""

    @property
    def device(self):
        return torch.device("cuda", 0)


def relaxed(argument, tensor, dtype, shape, device=None, *, contiguous=False):
    if isinstance(tensor, torch.Tensor) and tensor.device.type == "cpu":
        tensor = tensor.as_subclass(Cuda)
        device = None if device is None else torch.device("cuda", 0)
    return check_tensor(argument, tensor, dtype, shape, device, contiguous=contiguous)


class Cpu:
    """A machine without faults. One process, one stream; a graph is a list of launches."""

    device = "cpu"

    def __init__(self):
        self.recorded = None
        Loaded.machine = self
        self.patches = [
            *(mock.patch.object(m, "check_tensor", relaxed) for m in CHECKING),
            mock.patch.object(building, "loaded", lru_cache(Loaded)),
            mock.patch.object(building, "given", lru_cache(Loaded)),
            mock.patch.object(building, "priced_for", lambda device: (H200.device_name, H200)),
            mock.patch.object(calls, "current_stream", lambda device: 0),
            mock.patch.object(calls, "WORKSPACES", SimpleNamespace(of=calls.zeroed)),
            mock.patch.object(calls, "reader_of", lambda device: lambda index: 0),
        ]  # fmt: skip
        for patch in self.patches:
            patch.start()

    def close(self):
        for patch in self.patches:
            patch.stop()
        torch_tensors.torch.cache_clear()
        ops.front.KEPT.clear()

    def function(self, name):
        return getattr(ops, name)

    def launch(self, p, plan):
        if self.recorded is None:
            self.execute(p, plan)
        else:
            self.recorded.append((p, plan))

    def execute(self, p, plan):
        execute(p, plan)

    def wait(self):
        pass

    def streams(self, count):
        return [SimpleNamespace(cuda_stream=i + 1) for i in range(count)]

    def on(self, stream):
        return nullcontext()

    def captured(self, work):
        self.recorded = []
        work()
        graph, self.recorded = self.recorded, None
        return lambda: [self.execute(*launch) for launch in graph]

    def held(self):
        return 0

    taken = held
