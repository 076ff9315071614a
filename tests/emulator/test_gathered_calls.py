"""`gemmgen.ops.gathered` from end to end without a GPU: what it asks of the driver is done by the emulator, on the tensors that it was given."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
from collective_kinds import FAMILIES, PLAIN, SCALED, SWAPPED
from emulated import prepared
from fake_streams import Loaded, loads, on, streams_fixture  # noqa: F401
from fake_torch import Device, Placed, fake_torch_fixture  # noqa: F401
from gathered_operands import rest, rows
from kernels import DENSE, DENSE_TN, DENSE_TT, FP8, QUANTISED, VECTOR

from gemmgen.codes import code_type
from gemmgen.emulator import Deadlock, GlobalMemory, Race, launch_ranks
from gemmgen.errors import VerificationError
from gemmgen.ir.dtypes import F32
from gemmgen.ir.expr import BEFORE, fold
from gemmgen.ops.gathered import AllGather, Inbox, InProcess, inbox_bytes
from gemmgen.runtime.torch_tensors import torch_dtype
from gemmgen.verification import exact_integers, gathered
from gemmgen.verification.engines import NumpyEngine
from gemmgen.verification.quantised import Result

pytestmark = pytest.mark.nvrtc

CALLS, SMS, NAN = 3, 3, 0xFF
Verified = SimpleNamespace(engine=NumpyEngine())


class Emulated(Loaded):
    """A kernel that the emulator launches later, with what its stream, and the one beside it, were asked meanwhile."""

    def __init__(self, gpus, p, config, device):
        super().__init__(gpus.streams, p, config, device)
        self.gpus, (self.kernel, self.program) = gpus, prepared(p, config)

    def launch(self, plan):
        super().launch(plan)
        self.gpus.start(self, self.launched[-1])


class Gpus:
    """Some GPUs: their memory, and what they have been asked to launch."""

    def __init__(self, streams, ranks):
        self.streams, self.ranks, self.memory = streams, ranks, GlobalMemory()
        self.started = [[] for _ in range(ranks)]

    def tensor(self, data, rank, dtype, pad=0):
        """[lines, columns], or a vector, of codes as a tensor of a dtype: `pad` elements of NaN between lines. rank: whose alone it is, None for all."""
        lines = data.reshape(-1, data.shape[-1])
        step = 16 // lines.itemsize
        pitch = -(-lines.shape[1] // step) * step + pad
        held = np.full((len(lines), pitch * lines.itemsize), NAN, np.uint8)
        held[:, : lines.shape[1] * lines.itemsize] = np.ascontiguousarray(lines).view(np.uint8)
        strides = (pitch, 1)[-data.ndim :]
        found = Placed(*data.shape, dtype=torch_dtype(dtype), stride=strides)
        found.address = self.memory.allocate(held, alignment=1024, device=rank)
        found.device = Device(index=rank)
        return found

    def shared(self, size):
        data = np.full(size, NAN, np.uint8)
        data[: 8 * 32 * (self.ranks - 1)] = 0  # the flags
        found = []
        for rank in range(self.ranks):
            found.append(Placed(size, dtype="uint8"))
            found[-1].address = self.memory.allocate(data, alignment=1024)
            found[-1].device = Device(index=rank)
        return [InProcess(rank=rank, tensors=tuple(found)) for rank in range(self.ranks)]

    def write(self, tensor, codes):
        """What a kernel would before a launch."""
        for i, line in enumerate(np.ascontiguousarray(codes)):
            at = tensor.address + i * tensor.stride(0) * tensor.element_size()
            data = np.ascontiguousarray(line).view(np.uint8)
            there = self.memory.find(at, data.size, "the host")
            there.data[at - there.address :][: data.size] = data

    def start(self, loaded, told):
        from gemmgen.emulator import Copied, Raised, Started
        from gemmgen.runtime.bind import Bound
        from gemmgen.runtime.emulated import WATCHDOG_BYTES, params
        from gemmgen.runtime.launch import grid

        def job(op):
            return Copied(**op.of) if op.kind == "copy" else Raised(**op.of)

        asked = [x for x in self.streams.log if x.kind in ("copy", "flag")]
        kernel, report = loaded.kernel, np.zeros(WATCHDOG_BYTES, np.uint8)
        bound = Bound(matrices=told["matrices"], values=told)
        launched = Started(
            entry=loaded.program.entry,
            grid=grid(kernel, told["shape"], max(SMS, kernel.cluster.size), told["ranks"]),
            block=kernel.threads,
            shared_bytes=kernel.smem_bytes or 0,
            params=params(kernel, bound, self.memory.allocate(report, device=loaded.device)),
            first=[job(x) for x in asked if x.stream == loaded.device],
            beside=[job(x) for x in asked if x.stream != loaded.device],
        )
        self.streams.log.clear()
        self.started[loaded.device].append(launched)

    def run(self):
        launch_ranks(self.started, memory=self.memory)


@pytest.fixture
def gpus(fake_torch, streams, monkeypatch):
    def of(ranks, config=PLAIN):
        found = Gpus(streams, ranks)
        on(monkeypatch, lambda index: index)  # each device's stream has its number
        loads(monkeypatch, partial(Emulated, found), config)
        return found

    return of


def shape_of(problem, config, ranks):
    """Two tiles along N and M of each rank's rows, and a tail on both sides."""
    columns = 2 * config.block_n - 8 * fold(problem.epilogue)
    return ranks * (2 * config.block_m - 8), columns, 2 * config.block_k_bytes * 8 // problem.a.bits


def output(gpus, problem, x, rank):
    """`out`, and `scale_out` if there is one, of what was there before."""
    m, n = x.shape[0], x.shape[1] // fold(problem.epilogue)
    before = x.arguments.get(BEFORE.name)
    codes = np.full((m, n), -1).astype(code_type(problem.d)) if before is None else before
    found = {"out": gpus.tensor(np.asarray(codes), rank, problem.d)}
    if problem.quantised:
        found["scale_out"] = gpus.tensor(np.full((-(-n // 128), m), np.nan, "f4"), rank, F32).T
    return found


def calls(gpus, problem, wholes, boxes, in_place=False, pad=0, **given):
    """By call and rank, an AllGather and its outputs."""

    def placed(x, rank, pad=0):
        if isinstance(x, float):
            return x
        found = gpus.tensor(x.codes, rank, x.dtype, pad)
        return found.T if x.turned else found

    found = []
    for whole in wholes:
        found.append([])
        for rank, x in enumerate(whole):
            read = {name: placed(y, rank) for name, y in rest(problem, x).items()}
            mine = rows(problem, x, rank, gpus.ranks)
            if in_place:
                read |= {"a": None, "rows": x.shape[0] // gpus.ranks}
            else:
                read |= {name: placed(y, rank, pad) for name, y in mine.items()}
                read |= {"scale_layout": "mn"} if x.scale_a is not None else {}
            outputs = output(gpus, problem, x, rank)
            found[-1].append((AllGather(problem, boxes[rank], **read, **outputs, **given), outputs))
    return found


def stored(gpus, problem, outputs):
    """What is in them."""

    def read(t):
        size = t.element_size()
        lines = [
            gpus.memory.read(t.address + i * t.stride(0) * size, t.shape[1] * size)
            for i in range(t.shape[0])
        ]
        return np.stack(lines)

    codes = read(outputs["out"]).view(code_type(problem.d))
    if "scale_out" not in outputs:
        return Result(codes=codes)
    return Result(codes=codes, scales=read(outputs["scale_out"].T).view(np.uint32).T)


def judge(gpus, problem, config=PLAIN, ranks=2, in_place=False, launches=CALLS, **given):
    """Launches that follow each other over one inbox, each of other operands, to the bit."""
    node, shape = gpus(ranks, config), shape_of(problem, config, ranks)
    wholes = [
        gathered.drawn(exact_integers, problem, shape, ranks, seed) for seed in range(launches)
    ]
    memory = node.shared(inbox_bytes(problem, shape[0] // ranks, shape[2], ranks))
    boxes = [Inbox(x, Device(index=rank)) for rank, x in enumerate(memory)]
    made = calls(node, problem, wholes, boxes, in_place, config=config, **given)
    for whole, call in zip(wholes, made, strict=True):
        for rank, (x, _) in enumerate(call):
            if in_place:
                places = x.place() if isinstance(x.place(), tuple) else (x.place(),)
                mine = rows(problem, whole[rank], rank, ranks)
                for place, y in zip(places, mine.values(), strict=True):
                    node.write(place.T if y.turned else place, y.codes)
            x.launch()
    node.run()
    for whole, call in zip(wholes, made, strict=True):
        found = [stored(node, problem, outputs) for _, outputs in call]
        gathered.check_exact(Verified, problem, whole, found)


KINDS = {
    **FAMILIES,
    "bf16": (DENSE, PLAIN),
    "tt": (DENSE_TT, PLAIN),
    "multicast": (DENSE, replace(PLAIN, multicast="b")),
    "fp8": (FP8, SWAPPED),
    "scaled": (SCALED, PLAIN),
    "quantised": (QUANTISED, replace(PLAIN, block_n=128)),
}


@pytest.mark.parametrize("name", KINDS)
def test_every_kind_of_gemm(gpus, name):
    judge(gpus, *KINDS[name], chunks=2)


@pytest.mark.parametrize("ranks", (1, 3, 8))
def test_more_ranks_or_fewer(gpus, ranks):
    judge(gpus, FP8, SWAPPED, ranks=ranks, launches=2 if ranks > 3 else 3)


@pytest.mark.parametrize("chunks", (None, 1, 5, 32))
def test_in_however_many_chunks(gpus, chunks):
    judge(gpus, DENSE, chunks=chunks)


@pytest.mark.parametrize("problem", (DENSE, DENSE_TN), ids=("bf16", "tn"))
def test_lines_that_lie_apart(gpus, problem):
    judge(gpus, problem, pad=24, chunks=3)


@pytest.mark.parametrize(
    "problem, config", ((DENSE, PLAIN), (DENSE_TN, PLAIN), (FP8, SWAPPED), (VECTOR, PLAIN))
)
def test_rows_that_are_written_in_place(gpus, problem, config):
    """Before the first of two launches, which have a buffer each."""
    judge(gpus, problem, config, in_place=True, launches=2, chunks=2)


def skip(nth):
    """Of what each side stream is asked, leave out what comes as this one."""
    return lambda ops: [x for i, x in enumerate(ops) if i != nth]


FAULTS = {
    "a chunk that is not sent": (skip(0), (Race, VerificationError)),
    "a flag that is not raised": (skip(3), Deadlock),
    "flags before their rows": (lambda ops: ops[::-1], Race),
    "flags of the launch before": (
        lambda ops: [
            replace(x, of={**x.of, "value": x.of["value"] - 1}) if x.kind == "flag" else x
            for x in ops
        ],
        Deadlock,
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_what_is_asked_otherwise_is_found(gpus, name, monkeypatch):
    change, error = FAULTS[name]
    start = Gpus.start

    def changed(self, loaded, told):
        asked = [x for x in self.streams.log if x.kind in ("copy", "flag")]
        own = [x for x in asked if x.stream == loaded.device]
        beside = [x for x in asked if x.stream != loaded.device]
        self.streams.log[:] = [*own, *change(beside)]
        start(self, loaded, told)

    monkeypatch.setattr(Gpus, "start", changed)
    with pytest.raises(error):
        judge(gpus, DENSE, chunks=2)
