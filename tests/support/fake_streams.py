"""A driver of streams and events that remembers what it was asked, and can tell what happens before what."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest

from gemmgen.config import Config
from gemmgen.ops import building
from gemmgen.pipeline import lower
from gemmgen.runtime import driver, torch_tensors
from gemmgen.runtime.tensor_map import check, describe


@dataclass(frozen=True, kw_only=True)
class Op:
    """What a stream was asked to do: a copy, a flag, a kernel, a record or a wait. of: its arguments, or the event."""

    kind: str
    stream: Any
    of: Any = None


class Status(SimpleNamespace):
    def __bool__(self):
        return self.code != 0


OK = Status(code=0, name="SUCCESS")
KNOWN = Status(code=704, name="PEER_ACCESS_ALREADY_ENABLED")


class Names:
    def __getattr__(self, name):
        return name


class FakeStreams:
    """log: in the order in which the host asked. lacks: attributes that are 0. apart: pairs of devices that do not access each other;
    reached: contexts that may access another's memory."""

    CUresult = SimpleNamespace(CUDA_SUCCESS=OK, CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED=KNOWN)

    def __init__(self):
        self.log, self.contexts, self.lacks = [], [], set()
        self.streams, self.events, self.destroyed = {}, 0, []
        self.apart, self.reached = set(), []

    def __getattr__(self, name):
        if name.startswith("CU"):
            return SimpleNamespace if name == "CUDA_MEMCPY2D" else Names()
        raise AttributeError(name)

    def cuDeviceGet(self, ordinal):
        return OK, ordinal

    def cuDeviceGetAttribute(self, attribute, device):
        return OK, int(attribute not in self.lacks)

    def cuDevicePrimaryCtxRetain(self, device):
        return OK, 100 + device

    def cuCtxGetCurrent(self):
        return OK, self.contexts[-1] if self.contexts else 0

    def cuCtxSetCurrent(self, context):
        self.contexts[-1:] = [context]
        return (OK,)

    def cuCtxPushCurrent(self, context):
        self.contexts.append(context)
        return (OK,)

    def cuCtxPopCurrent(self):
        return OK, self.contexts.pop()

    def cuDeviceCanAccessPeer(self, device, other):
        return OK, int((device, other) not in self.apart)

    def cuCtxEnablePeerAccess(self, context, flags):
        pair = self.contexts[-1], context
        self.reached.append(pair)
        return (KNOWN if self.reached.count(pair) > 1 else OK,)

    def cuCtxGetStreamPriorityRange(self):
        return OK, 0, -5

    def cuStreamCreateWithPriority(self, flags, priority):
        handle = f"side {len(self.streams)}"
        self.streams[handle] = (flags, priority)
        return OK, handle

    def cuStreamDestroy(self, stream):
        self.destroyed.append(stream)
        return (OK,)

    def cuEventCreate(self, flags):
        self.events += 1
        return OK, self.events

    def cuEventDestroy(self, event):
        self.destroyed.append(event)
        return (OK,)

    def cuEventRecord(self, event, stream):
        return self.asked("record", stream, event)

    def cuStreamWaitEvent(self, stream, event, flags):
        return self.asked("wait", stream, event)

    def cuMemcpyAsync(self, to, of, size, stream):
        lines = {"to_pitch": size, "of_pitch": size, "width": size, "height": 1}
        return self.asked("copy", stream, {"to": to, "of": of, **lines})

    def cuMemcpy2DAsync(self, x, stream):
        assert x.srcMemoryType == x.dstMemoryType == "CU_MEMORYTYPE_UNIFIED"
        lines = {"to_pitch": x.dstPitch, "of_pitch": x.srcPitch}
        sides = {"width": x.WidthInBytes, "height": x.Height}
        return self.asked("copy", stream, {"to": x.dstDevice, "of": x.srcDevice, **lines, **sides})

    def cuStreamWriteValue64(self, stream, address, value, flags):
        assert flags == 0  # of a fence before it
        return self.asked("flag", stream, {"flag": address, "value": value})

    def cuStreamWaitValue64(self, stream, address, value, flags):
        assert flags == "CU_STREAM_WAIT_VALUE_GEQ"
        return self.asked("await", stream, {"flag": address, "value": value})

    def cuStreamSynchronize(self, stream):
        self.destroyed.append(("done", stream))
        return (OK,)

    def asked(self, kind: str, stream: Any, of: Any = None) -> tuple[Any]:
        assert self.contexts, "no context is current"
        self.log.append(Op(kind=kind, stream=stream, of=of))
        return (OK,)


def before(log: list[Op]) -> list[set[int]]:
    """By operation, which others are over when it begins: those before it on its stream, and what events make that wait for."""
    last: dict[Any, int] = {}
    recorded: dict[Any, int] = {}
    found: list[set[int]] = []
    for i, op in enumerate(log):
        mine = set()
        if op.stream in last:
            mine |= {last[op.stream]} | found[last[op.stream]]
        if op.kind == "wait" and op.of in recorded:
            mine |= {recorded[op.of]} | found[recorded[op.of]]
        found.append(mine)
        last[op.stream] = i
        if op.kind == "record":
            recorded[op.of] = i
    return found


class Loaded:
    """A kernel that says on its stream that it was launched, and remembers as what."""

    def __init__(self, streams, p, config, device):
        self.streams, self.device = streams, device
        self.problem, self.kernel, self.launched = p, lower(p, config), []

    def plan(self, shape, matrices, values, stream):
        for m in self.kernel.maps:
            describe(self.kernel, m, matrices[m.tensor])
        check("d", matrices["d"], self.kernel.buffer("smem_d").dtype.bytes)
        names = [p.name for p in self.kernel.params]
        assert {*names} <= {*values, "watchdog"}
        scalars = [SimpleNamespace(value=values.get(n, 0)) for n in names]
        of = {"scalars": scalars, "names": names, "matrices": matrices, "shape": shape}
        return SimpleNamespace(stream=stream, **of)

    def moved(self, plan, addresses, stream):
        at = {
            name: replace(x, pointer=addresses.get(name, x.pointer))
            for name, x in plan.matrices.items()
        }
        return SimpleNamespace(**{**vars(plan), "stream": stream, "matrices": at})

    def launch(self, plan):
        self.streams.asked("kernel", plan.stream)
        told = {n: s.value for n, s in zip(plan.names, plan.scalars, strict=True)}
        self.launched.append({**told, "matrices": plan.matrices, "shape": plan.shape})


def loads(patch: pytest.MonkeyPatch, loaded: Callable[..., Any], config: Config) -> None:
    """What `ops` loads from now on: of a config that is given, or of this one."""
    patch.setattr(building, "given", loaded)
    patch.setattr(
        building,
        "loaded_choice",
        lambda p, shape, groups, device, split_k: loaded(p, config, device),
    )


def on(patch: pytest.MonkeyPatch, current: Callable[[int], int]) -> None:
    """The fake torch's current stream on each device."""
    torch = sys.modules["torch"]
    patch.setattr(torch._C, "_cuda_getCurrentRawStream", current)
    patch.setattr(torch, "device", lambda device: device, raising=False)
    patch.setattr(torch, "int64", "int64", raising=False)
    torch_tensors.stream_reader.cache_clear()


@contextmanager
def faked(patch: pytest.MonkeyPatch) -> Iterator[FakeStreams]:
    fake = FakeStreams()
    patch.setattr(driver, "driver", lambda: fake)
    driver._primary_context.cache_clear()
    yield fake
    driver._primary_context.cache_clear()


@pytest.fixture(name="streams")
def streams_fixture(monkeypatch):
    with faked(monkeypatch) as fake:
        yield fake
