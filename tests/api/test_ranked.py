"""GEMMs of several GPUs, on tensors that only say what they are: what is checked, and what a launch is told."""

from __future__ import annotations

import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
from fake_torch import Device, Placed, fake_torch_fixture, of_each_rank  # noqa: F401
from kernels import DENSE, DENSE_TN, FP8, QUANTISED

from gemmgen import ops
from gemmgen.config import Config
from gemmgen.errors import ArgumentError
from gemmgen.ir.dtypes import BF16, F16
from gemmgen.ops import building, collective
from gemmgen.ops.ranked import InProcess, Mailbox, ReduceScatter, mailbox_bytes, reduce_scatter
from gemmgen.pipeline import lower
from gemmgen.runtime import driver
from gemmgen.runtime.peers import Mailbox as Layout
from gemmgen.runtime.peers import mailbox

CONFIG = Config(block_m=64, block_n=64, consumers=1)
M, N, K, RANKS = 96, 128, 256, 2


class Loaded:
    """A kernel that is never launched, but says that it was."""

    def __init__(self, p, config, device):
        self.problem, self.kernel, self.launched, self.plans = p, lower(p, config), [], 0

    def plan(self, shape, matrices, values, stream):
        self.plans += 1
        self.shape, self.matrices = shape, matrices
        names = [p.name for p in self.kernel.params]
        values = values | (
            {"watchdog": 1} if self.kernel.watchdog else {}
        )  # the kernel's own report
        assert {*names} <= {*values}
        assert values["groups"] == self.kernel.peers.parts(values["ranks"])
        scalars = [SimpleNamespace(value=values[n]) for n in names]
        return SimpleNamespace(stream=stream, scalars=scalars, names=names)

    def launch(self, plan):
        self.launched.append({n: s.value for n, s in zip(plan.names, plan.scalars, strict=True)})


@pytest.fixture(autouse=True)
def faked(fake_torch, monkeypatch):
    torch = sys.modules["torch"]
    torch.int64, torch.device = "int64", lambda device: device
    monkeypatch.setattr(driver, "let_access", lambda device, other: None)
    monkeypatch.setattr(building, "given", Loaded)
    monkeypatch.setattr(
        building,
        "loaded_choice",
        lambda p, shape, groups, device, split_k: Loaded(p, CONFIG, device),
    )


def memory(rank=1, ranks=RANKS, size=None):
    size = mailbox_bytes(M, N, ranks) if size is None else size
    return InProcess(rank=rank, tensors=of_each_rank(size, rank, ranks))


def box(**given):
    shared = memory(**given)
    return Mailbox(shared, Placed(1).device)


def operands(rows=RANKS * M):
    return Placed(rows, K, dtype="bfloat16"), Placed(N, K, dtype="bfloat16")


def test_a_launch_is_told_whose_it_is():
    """And not which: its rank's memory says so."""
    mine = box()
    planned = ReduceScatter(DENSE, mine, *operands(), config=CONFIG)
    assert planned.kernel.problem.collective == "reduce_scatter" and planned.shape == (M, N, K)
    assert planned.kernel.launched == []
    for _ in range(3):
        assert planned.launch() is planned.out
    told, again, last = planned.kernel.launched
    assert told == again == last and planned.kernel.plans == 1
    assert (told["shape_m"], told["ranks"], told["rank"]) == (M, 2, 1)
    assert told["partials"] == mine.table.data_ptr() and "epoch" not in told
    assert planned.kernel.matrices["a"].outer == 2 * M and planned.kernel.matrices["d"].outer == M


@pytest.mark.parametrize("wire", ("bf16", BF16))
def test_sums_travel_in_what_is_asked_for(wire):
    planned = ReduceScatter(DENSE, box(), *operands(), config=CONFIG, wire=wire)
    assert planned.kernel.problem.wire == BF16 and planned.kernel.kernel.peers.wire == BF16
    given = replace(DENSE, collective="reduce_scatter", wire=F16)
    assert ReduceScatter(given, box(), *operands()).kernel.problem.wire == F16
    assert ReduceScatter(DENSE, box(), *operands()).kernel.problem.wire is None


def test_a_mailbox_may_be_too_small_for_32_bits_only():
    half = {"size": mailbox_bytes(4096, 4096, RANKS, "bf16")}
    given = Placed(RANKS * 4096, K, dtype="bfloat16"), Placed(4096, K, dtype="bfloat16")
    reduce_scatter(DENSE, box(**half), *given, wire="bf16")
    with pytest.raises(ArgumentError, match="mailbox_bytes"):
        reduce_scatter(DENSE, box(**half), *given)


def test_a_promise_of_weights_is_of_no_use():
    """Launches follow each other: no config begins while the one before ends."""
    problem = replace(DENSE, weights_ready=True)
    planned = ReduceScatter(problem, box(), *operands(), config=CONFIG)
    assert planned.kernel.problem == replace(DENSE, collective="reduce_scatter")


def test_a_launch_that_failed_may_be_repeated():
    """What did not run has passed no epoch."""
    planned = ReduceScatter(DENSE, box(), *operands(), config=CONFIG)
    launch = planned.kernel.launch

    def refused(plan):
        raise RuntimeError("refused")

    planned.kernel.launch = refused
    with pytest.raises(RuntimeError):
        planned.launch()
    planned.kernel.launch = launch
    assert planned.launch() is planned.out and len(planned.kernel.launched) == 1


def scaled(rows, layout="mn", config=CONFIG, out=None):
    scale_a = Placed(K // 128, rows).mT if layout == "mn" else Placed(rows, K // 128)
    a, b = (Placed(x, K, dtype="float8_e4m3fn") for x in (rows, N))
    given = {"scale_a": scale_a, "scale_b": Placed(N // 128, K // 128), "scale_layout": layout}
    return ReduceScatter(FP8, box(), a, b, out, **given, config=config)


def test_scales_and_out_are_passed_on():
    out = Placed(M, N, dtype="bfloat16")
    planned = scaled(2 * M, out=out)
    planned.launch()
    assert planned.out is out and planned.kernel.matrices["d"].pointer == out.data_ptr()
    assert planned.kernel.matrices["scale_a"].inner == 2 * M
    scaled(2 * M, "row", Config(block_m=64, block_n=64, consumers=1, lane_scales=True)).launch()


def test_scales_are_read_in_place_or_refused():
    with pytest.raises(ArgumentError, match="lane_scales") as e:
        scaled(2 * M, "row")
    assert e.value.argument == "scale_layout"


def test_rows_of_a_rank_begin_where_scales_may():
    with pytest.raises(ArgumentError, match="multiple of 4") as e:
        scaled(2 * (M + 2))
    assert e.value.argument == "m"


WRONG = {
    "problem": lambda: reduce_scatter("dense", box(), *operands()),
    "memory": lambda: reduce_scatter(DENSE, "mailbox", *operands()),
    "problem.d": lambda: reduce_scatter(QUANTISED, box(), *operands()),
    "a rows": lambda: reduce_scatter(DENSE, box(), *operands(RANKS * M + 1)),
    "config": lambda: reduce_scatter(DENSE, box(), *operands(), config={}),
    "out shape": lambda: reduce_scatter(
        DENSE, box(), *operands(), Placed(RANKS * M, N, dtype="bfloat16")
    ),
    "scale_layout": lambda: reduce_scatter(DENSE, box(), *operands(), scale_layout="mn"),
    "scale_a": lambda: reduce_scatter(DENSE, box(), *operands(), scale_a=2.0),
    "wire": lambda: reduce_scatter(DENSE, box(), *operands(), wire="f32"),
    "memory ranks": lambda: box(ranks=9, size=1 << 20),
    "memory rank": lambda: box(rank=2),
    "device": lambda: Mailbox(memory(), Device(index=None)),
    "problem.collective": lambda: ops.multiply(
        replace(DENSE, collective="reduce_scatter"), *operands()
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_named(name):
    with pytest.raises(ArgumentError) as e:
        WRONG[name]()
    assert e.value.argument == name


def test_a_mailbox_that_is_too_small_is_refused():
    with pytest.raises(ArgumentError, match="mailbox_bytes") as e:
        reduce_scatter(DENSE, box(size=1 << 14), *operands())
    assert e.value.argument == "memory"


def test_a_launch_is_captured_on_the_stream_that_is(monkeypatch):
    """And waited for on that of launches that are not."""
    planned, waited = ReduceScatter(DENSE, box(), *operands(), config=CONFIG), []
    planned.kernel.wait = lambda plan: waited.append(plan.stream)
    planned.kernel.moved = lambda plan, addresses, stream: SimpleNamespace(
        **{**vars(plan), "stream": stream}
    )
    planned.launch()
    cuda = sys.modules["torch"].cuda
    with cuda.stream(7), monkeypatch.context() as patch:
        patch.setattr(cuda, "is_current_stream_capturing", lambda: True)
        launched, planned.kernel.launch = planned.kernel.launch, lambda p: waited.append(p.stream)
        assert planned.launch() is planned.out
    planned.wait()
    assert waited == [7, 0]
    planned.kernel.launch = launched
    with cuda.stream(5):
        planned.launch()
    planned.wait()
    assert waited == [7, 0, 5]


@pytest.mark.parametrize("ranks", (2, 3, 8))
@pytest.mark.parametrize(
    "config",
    (
        CONFIG,
        Config(),
        Config(block_m=256, block_n=64, multicast="b"),
        Config(block_m=128, block_n=192, stages=3, multicast="a"),
    ),
)
def test_what_is_said_to_be_enough_is(ranks, config):
    kernel = lower(replace(DENSE, collective="reduce_scatter"), config)
    for m, n in ((1, 1), (512, 512), (513, 40), (2048, 7168), (4096, 8192)):
        size = mailbox_bytes(m, n, ranks)
        has = Layout.of(size, ranks)
        assert has.bytes <= size and has.holds(mailbox(kernel, (m, n, 64), ranks))


def test_flags_are_never_short_of_slots():
    small = Config(swap_ab=True, block_m=8, block_n=64, consumers=1)
    for p, ranks in ((DENSE, 2), (DENSE_TN, 8)):
        kernel = lower(replace(p, collective="reduce_scatter"), small)
        has = Layout.of(1 << 22, ranks)
        need = mailbox(kernel, (8, 64, 64), ranks)
        tiles = min(has.flags // kernel.peers.flags, has.words // need.words)
        assert tiles == has.words // need.words


@pytest.mark.parametrize("given", ((0, N, 2), (M, 0, 2), (M, N, 1), (M, N, 9), (M, N, 2.0)))
def test_what_no_mailbox_is_sized_by(given):
    with pytest.raises(ArgumentError):
        mailbox_bytes(*given)


def test_memory_that_lies_anyhow_is_refused():
    shared = memory()
    shared.tensors[0].address += 8
    with pytest.raises(ArgumentError, match="128") as e:
        Mailbox(shared, Placed(1).device)
    assert e.value.argument == "memory address"
    shared = memory()
    shared.tensors[0].strides = (2,)
    with pytest.raises(ArgumentError, match="contiguous") as e:
        Mailbox(shared, Placed(1).device)
    assert e.value.argument == "memory strides of rank 0"


def test_a_launch_is_planned_before_any_rank_waits_for_it():
    planned = ReduceScatter(DENSE, box(), *operands(), config=CONFIG)
    assert planned.kernel.plans == 1
    planned.launch()
    assert planned.kernel.plans == 1


def test_ranks_may_be_watched(monkeypatch):
    """What is chosen, not what is given."""
    monkeypatch.setattr(building, "chosen", lambda p, shape, groups, device, split_k: CONFIG)
    with pytest.raises(ArgumentError, match="true or false"):
        collective.watch_ranks(1)
    try:
        for on in (True, False):
            collective.watch_ranks(on)
            assert ReduceScatter(DENSE, box(), *operands()).kernel.kernel.watchdog is on
            given = ReduceScatter(DENSE, box(), *operands(), config=CONFIG)
            assert not given.kernel.kernel.watchdog
    finally:
        collective.watch_ranks(False)


def test_a_launch_is_waited_for():
    planned, waited = ReduceScatter(DENSE, box(), *operands(), config=CONFIG), []
    planned.kernel.wait = waited.append
    planned.launch()
    planned.wait()
    assert waited == [planned._last.plan]
