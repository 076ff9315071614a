"""CUDA tensors that only say what they are, and a torch that knows them."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from types import SimpleNamespace
from typing import Any, ClassVar, NamedTuple

import pytest

from gemmgen.ops import building, front
from gemmgen.pipeline import lower
from gemmgen.runtime import torch_tensors
from gemmgen.runtime.tensor_map import check, describe, lying

DTYPES = (
    "bfloat16",
    "float16",
    "float32",
    "float8_e4m3fn",
    "float8_e5m2",
    "int8",
    "int32",
    "int64",
)


class Device(NamedTuple):
    type: str = "cuda"
    index: int = 0


class Tensor:
    """Shape, strides and address of a CUDA tensor."""

    def __init__(self, *shape: int, dtype: str = "bfloat16", stride: tuple[int, ...] | None = None):
        self.shape, self.dtype = shape, dtype
        self.device = Device()
        self.strides = (shape[-1], 1) if stride is None else stride

    def stride(self, side: int | None = None):
        return self.strides if side is None else self.strides[side]

    def data_ptr(self):
        return 0


class Placed(Tensor):
    """A Tensor with an address of its own: enough for a launch to be planned."""

    made: ClassVar[list[Placed]] = []

    def __init__(self, *shape: int, dtype: str = "float32", stride: tuple[int, ...] | None = None):
        rows = [math.prod(shape[i + 1 :]) for i in range(len(shape))]
        super().__init__(*shape, dtype=dtype, stride=tuple(rows) if stride is None else stride)
        self.made.append(self)
        self.address = len(self.made) << 40

    def data_ptr(self):
        return self.address

    def numel(self):
        return math.prod(self.shape)

    def element_size(self):
        sizes = {"float32": 4, "int32": 4, "int64": 8, "bfloat16": 2, "float16": 2}
        return sizes.get(self.dtype, 1)

    def dim(self):
        return len(self.shape)

    def is_contiguous(self):
        return self.strides == tuple(math.prod(self.shape[i + 1 :]) for i in range(self.dim()))

    def seen(self, shape: tuple[int, ...], stride: tuple[int, ...] | None = None):
        """The same memory."""
        seen = Placed(*shape, dtype=self.dtype, stride=stride)
        seen.address, seen.device = self.address, self.device
        return seen

    def view(self, *shape: Any):
        if isinstance(shape[0], str):
            return self.of(shape[0])
        return self.seen((self.numel(),) if shape == (-1,) else shape)

    def of(self, dtype: str):
        """The same bytes, of another dtype."""
        seen = Placed(*self.shape, dtype=dtype, stride=self.strides)
        if seen.element_size() == self.element_size():
            seen.address, seen.device = self.address, self.device
            return seen
        *lead, columns = self.shape
        found = Placed(*lead, columns * self.element_size(), dtype=dtype)
        assert found.shape[-1] % found.element_size() == 0 and self.is_contiguous()
        found = Placed(*lead, found.shape[-1] // found.element_size(), dtype=dtype)
        found.address, found.device = self.address, self.device
        return found

    def as_strided(self, shape: tuple[int, ...], stride: tuple[int, ...]):
        last = sum((side - 1) * step for side, step in zip(shape, stride, strict=True))
        assert last < self.numel()
        return self.seen(shape, stride)

    def reshape(self, *shape: Any):
        shape = shape[0] if isinstance(shape[0], tuple) else shape
        left = self.numel() // (math.prod(x for x in shape if x != -1) or 1)
        return self.seen(tuple(left if x == -1 else x for x in shape))

    def transpose(self, one: int, other: int):
        def swapped(sides: tuple[int, ...]):
            found = list(sides)
            found[one], found[other] = found[other], found[one]
            return tuple(found)

        return self.seen(swapped(self.shape), swapped(self.strides))

    def narrow(self, dim: int, start: int, length: int):
        part = self.seen((*self.shape[:dim], length, *self.shape[dim + 1 :]), self.strides)
        part.address += start * self.strides[dim] * self.element_size()
        return part

    @property
    def mT(self):
        return self.transpose(-2, -1)

    T = mT

    def __getitem__(self, index):
        """[i], [first:end], or [..., :columns]."""
        if isinstance(index, slice):
            first, end, _ = index.indices(self.shape[0])
            part = self.seen((max(end - first, 0), *self.shape[1:]), self.strides)
            part.address += first * self.strides[0] * self.element_size()
            return part
        if isinstance(index, int):
            part = self.seen(self.shape[1:], self.strides[1:])
            part.address += index * self.strides[0] * self.element_size()
            return part
        return self.seen((*self.shape[:-1], index[1].stop), self.strides)

    def sum(self, dim: int):
        sides = [side for i, side in enumerate(self.shape) if i != dim]
        return Placed(*sides, dtype=self.dtype)

    def __add__(self, other: Any):
        return Placed(*self.shape, dtype=self.dtype)

    def __sub__(self, other: float):
        return self + other

    __mul__ = __add__

    def __setitem__(self, index: Any, value: Any):
        pass

    def contiguous(self):
        return self if self.is_contiguous() else Placed(*self.shape, dtype=self.dtype)

    def zero_(self):
        return self

    def to(self, dtype: str):
        return Placed(*self.shape, dtype=dtype)


def codes(*shape: int, stride: tuple[int, ...] | None = None) -> Placed:
    return Placed(*shape, dtype="float8_e4m3fn", stride=stride)


def bf16(*shape: int) -> Placed:
    return Placed(*shape, dtype="bfloat16")


def of_each_rank(size: int, rank: int, ranks: int) -> tuple[Placed, ...]:
    """Bytes of each rank's GPU, of which this rank's is the first."""
    found = tuple(Placed(size, dtype="uint8") for _ in range(ranks))
    for other, tensor in enumerate(found):
        tensor.device = Device(index=(other - rank) % ranks)
    return found


def makers() -> dict[str, Any]:
    """torch's functions that make tensors."""

    def made(*shape: int, dtype: str = "float32", device: Any = None):
        return Placed(*(shape[0] if shape and isinstance(shape[0], tuple) else shape), dtype=dtype)

    def randint(low: int, high: int, shape: tuple[int, ...], *, device: Any, dtype: str = "int32"):
        return made(shape, dtype=dtype)

    def tensor(values: tuple[int, ...], *, dtype: str, device: Any):
        return made(len(values), dtype=dtype)

    same = dict.fromkeys(("empty", "zeros", "ones", "rand", "randn"), made)
    return {**same, "randint": randint, "tensor": tensor, "uint8": "uint8", "sym_min": min}


def cuda(patch: pytest.MonkeyPatch) -> SimpleNamespace:
    """torch.cuda, of streams that are known by their raw handles; none is captured."""

    @contextmanager
    def stream(handle: int) -> Iterator[None]:
        with patch.context() as inner:
            inner.setattr(
                sys.modules["torch"]._C, "_cuda_getCurrentRawStream", lambda index: handle
            )
            torch_tensors.stream_reader.cache_clear()
            yield
        torch_tensors.stream_reader.cache_clear()

    return SimpleNamespace(
        ExternalStream=lambda handle, index: handle,
        default_stream=lambda index: 0,
        is_current_stream_capturing=lambda: False,
        stream=stream,
    )


@contextmanager
def faked(patch: pytest.MonkeyPatch) -> Iterator[None]:
    """A torch of nothing but what is above."""

    def forget():
        for cached in ("torch", "torch_dtype", "stream_reader"):
            getattr(torch_tensors, cached).cache_clear()
        front.KEPT.clear()

    module = SimpleNamespace(
        Tensor=Tensor,
        nn=SimpleNamespace(Parameter=Placed),
        _C=SimpleNamespace(_cuda_getCurrentRawStream=lambda index: 0),
        cuda=cuda(patch),
        **{name: name for name in DTYPES},
        **makers(),
    )
    patch.setitem(sys.modules, "torch", module)
    forget()
    yield
    forget()


@pytest.fixture(name="fake_torch", autouse=True)
def fake_torch_fixture(monkeypatch):
    with faked(monkeypatch):
        yield


lowered = lru_cache(lower)


def recorded(patch: pytest.MonkeyPatch) -> list[SimpleNamespace]:
    """What `ops` launches from now on: the problem, the config, the shape, the matrices and the values of each."""
    found: list[SimpleNamespace] = []

    class Loaded:
        def __init__(self, p, config, device):
            self.kernel = lowered(p, config)
            self.asked = {"problem": p, "config": config}
            self.device = device

        def grid(self, shape, groups):
            return 6

        def plan(self, shape, matrices, values, stream):
            check("d", matrices["d"], self.kernel.buffer("smem_d").dtype.bytes)
            for m in self.kernel.maps:
                describe(self.kernel, m, matrices[m.tensor])
            for x in self.kernel.pointed:
                check(x.tensor, matrices[x.tensor], x.dtype.bytes)
            if self.kernel.pointed:
                values = {**values, **lying(matrices)}
            assert {x.name for x in self.kernel.params} <= {*values}
            given = {"shape": shape, "matrices": matrices, "values": values, "stream": stream}
            return self.startable(**self.asked, **given, moved={})

        def moved(self, plan, addresses, stream):
            return self.startable(**vars(plan) | {"moved": addresses, "stream": stream})

        def startable(self, **what):
            plan = SimpleNamespace(**what)
            plan.start = lambda: found.append(plan) or (0,)
            return plan

        def launch(self, plan):
            if plan.start()[0]:
                self.retry(plan)

    patch.setattr(building, "loaded", Loaded)
    patch.setattr(building, "given", Loaded)
    return found


@pytest.fixture(name="launches")
def launches_fixture(fake_torch, monkeypatch):
    return recorded(monkeypatch)
