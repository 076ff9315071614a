"""GEMMs of several GPUs whose copy engines send the sums (docs/adr/0058-outbox.md), on tensors that only say what they are: what the driver is
asked, in which order, and what is refused."""

from __future__ import annotations

import gc
import json
import sys
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest
from fake_streams import Loaded, Status, before, loads, on, streams_fixture  # noqa: F401
from fake_torch import Placed, fake_torch_fixture, of_each_rank  # noqa: F401
from kernels import DENSE

from gemmgen.config import Config
from gemmgen.cost_ranks import PARCELS
from gemmgen.errors import ArgumentError, LaunchError, RuntimeUnavailable
from gemmgen.ir.collectives import MOST_CHUNKS
from gemmgen.ir.dtypes import BF16
from gemmgen.ops import building
from gemmgen.ops.ranked import InProcess, Mailbox, ReduceScatter, mailbox_bytes, reduce_scatter
from gemmgen.pipeline import lower
from gemmgen.runtime import driver
from gemmgen.runtime.launch_record import from_json, record_of, to_json
from gemmgen.runtime.peers import Mailbox as Layout
from gemmgen.runtime.peers import mailbox

PLAIN = Config(block_m=64, block_n=64, consumers=1)
CONFIG = replace(PLAIN, outbox=True)
M, N, K, RANKS = 96, 256, 256, 2  # two by four tiles of each rank's rows
TILES = 8
MINE = 7  # the stream that launches are on


@pytest.fixture(autouse=True)
def faked(fake_torch, streams, monkeypatch):
    torch = sys.modules["torch"]
    tables = []

    def tensor(values, *, dtype, device):
        tables.append((Placed(len(values), dtype="float32"), tuple(values)))
        return tables[-1][0]

    monkeypatch.setattr(torch, "tensor", tensor)
    synchronised = []
    current = SimpleNamespace(synchronize=lambda: synchronised.append(True))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: current, raising=False)
    on(monkeypatch, lambda index: MINE)
    loads(monkeypatch, partial(Loaded, streams), CONFIG)
    return SimpleNamespace(tables=tables, synchronised=synchronised)


def box(rank=1, ranks=RANKS, size=None):
    size = mailbox_bytes(M, N, ranks) if size is None else size
    memory = InProcess(rank=rank, tensors=of_each_rank(size, rank, ranks))
    return Mailbox(memory, Placed(1).device)


def operands(ranks=RANKS):
    return Placed(ranks * M, K, dtype="bfloat16"), Placed(N, K, dtype="bfloat16")


def scatters(mine=None, ranks=RANKS, **given):
    mine = mine or box(ranks=ranks)
    return ReduceScatter(DENSE, mine, *operands(ranks), **{"config": CONFIG, **given})


def capture(patch, on):
    patch.setattr(sys.modules["torch"].cuda, "is_current_stream_capturing", lambda: on)


# ---- what a launch is told, and what is sent -----------------------------------------------------


def test_a_launch_finds_its_outbox_in_the_table(streams, faked):
    mine = box(rank=1, ranks=3)
    planned = scatters(mine, ranks=3)
    planned.launch()
    (told,) = planned.kernel.launched
    tables = {t.data_ptr(): values for t, values in faked.tables}
    held = mine.outbox.memory
    assert held.numel() == mine.layout.bytes and faked.synchronised == [True]
    assert told["partials"] == mine.outbox.table.data_ptr() != mine.table.data_ptr()
    assert tables[told["partials"]] == (held.data_ptr(), mine.addresses[1], held.data_ptr())
    assert (told["parcel_tiles"], told["rank_tiles"]) == (TILES // PARCELS, TILES)
    assert (told["shape_m"], told["ranks"], told["rank"]) == (M, 3, 1) and "epoch" not in told


def test_launches_of_other_configs_have_none(streams):
    mine = box()
    planned = scatters(mine, config=PLAIN)
    planned.launch()
    assert planned.kernel.launched[0]["partials"] == mine.table.data_ptr()
    assert "outbox" not in vars(mine) and streams.streams == {}
    assert [op.kind for op in streams.log] == ["kernel"]


def test_launches_of_one_mailbox_have_one_outbox(streams, faked):
    mine = box()
    both = [scatters(mine, chunks=n) for n in (1, 3)]
    for _ in range(2):
        for x in both:
            x.launch()
    assert len(streams.streams) == 1 == len(faked.synchronised) and mine.epoch == 4
    assert len({x.kernel.launched[0]["partials"] for x in both}) == 1


@pytest.mark.parametrize(
    "chunks, parcels", ((1, 1), (2, 2), (3, 3), (8, 8), (32, 8), (None, PARCELS))
)
def test_what_is_asked_of_the_driver_in_which_order(streams, chunks, parcels):
    """The event of the launch before the last, the kernel, each parcel's wait, copy and flag, and the launch's own event."""
    planned = scatters(chunks=chunks)
    assert streams.log == []
    sides = planned.mailbox.outbox.sender
    assert [*streams.streams.values()] == [("CU_STREAM_NON_BLOCKING", -5)]
    for epoch in (1, 2, 3):
        streams.log.clear()
        planned.launch()
        assert planned.mailbox.epoch == epoch
        kinds = [op.kind for op in streams.log]
        assert kinds == ["wait", "kernel", *("await", "copy", "flag") * parcels, "record"]
        wait, kernel, *sent, record = streams.log
        assert wait.stream == kernel.stream == MINE
        assert {op.stream for op in (*sent, record)} == {sides.stream}
        assert wait.of == record.of == sides.events[epoch % 2]
        assert {op.of["value"] for op in sent if op.kind != "copy"} == {epoch}
    assert len({*sides.events}) == 2


def test_each_parcel_is_copied_to_where_it_lies_in_the_outbox(streams):
    mine = box(rank=1, ranks=3)
    planned = scatters(mine, ranks=3, chunks=3)
    slot = 4 * planned.kernel.kernel.peers.slot
    base, buffers = mine.outbox.memory.data_ptr(), []
    for epoch in (1, 2, 3):
        streams.log.clear()
        planned.launch()
        waits, copies, flags = (
            [op.of for op in streams.log if op.kind == k] for k in ("await", "copy", "flag")
        )
        owners = [max(a for a in mine.addresses if a <= x["flag"]) for x in flags]
        assert owners == [mine.addresses[r] for r in (2, 2, 2, 0, 0, 0)]
        assert [x["width"] for x in copies] == [3 * slot, 3 * slot, 2 * slot] * 2
        for wait, copy, flag, owner in zip(waits, copies, flags, owners, strict=True):
            assert wait["flag"] - base == flag["flag"] - owner
            assert copy["of"] - base == copy["to"] - owner
        firsts = [x["of"] - base for x in copies]
        assert firsts[1] - firsts[0] == firsts[2] - firsts[1] == 3 * slot
        assert min(firsts) >= mine.layout.buffer(epoch)
        assert max(firsts) + 2 * slot <= mine.layout.buffer(epoch) + 4 * mine.layout.words
        assert len({x["flag"] for x in flags}) == 6
        buffers.append(firsts)
    assert buffers[0] == buffers[2] != buffers[1]


def test_rounded_sums_are_half_as_many_bytes(streams):
    sizes = []
    for wire in (None, BF16):
        streams.log.clear()
        scatters(wire=wire, chunks=1).launch()
        sizes += [op.of["width"] for op in streams.log if op.kind == "copy"]
    assert sizes[0] == 2 * sizes[1]


def launched(streams, patch, count=6):
    """On two streams in turns, of two objects."""
    mine = box()
    both = [scatters(mine, chunks=n) for n in (2, 1)]
    for i in range(count):
        on(patch, lambda index, stream=MINE + i // 2 % 2: stream)
        both[i % 2].launch()
    return both


def check_order(log):
    """Copies of a launch behind those of the one before, and a launch behind those of the one before the last, but for the kernel
    not behind its own."""
    order, launches, sent = before(log), [], []
    for i, op in enumerate(log):
        if op.kind == "kernel":
            launches.append(i)
            sent.append([])
        elif op.kind in ("await", "copy", "flag"):
            sent[-1].append(i)
    for e, kernel in enumerate(launches):
        assert sent[e] and min(sent[e]) > kernel
        for i in sent[e]:
            assert kernel not in order[i], "copies wait for what it says, not for its end"
            assert {j for j in sent[e] if j < i} <= order[i]
            assert all({*x} <= order[i] for x in sent[:e])
        for x in sent[: max(e - 1, 0)]:
            assert {*x} <= order[kernel]
        assert not {*sent[e - 1] * (e > 0)} & order[kernel], "copies may outlive their launch"


def test_what_waits_for_what(streams, monkeypatch):
    launched(streams, monkeypatch)
    check_order(streams.log)


@pytest.mark.parametrize("gone", ("wait", "record"))
def test_an_event_left_out_is_found(streams, monkeypatch, gone):
    launched(streams, monkeypatch)
    with pytest.raises(AssertionError):
        check_order([replace(x, kind="nothing") if x.kind == gone else x for x in streams.log])


# ---- what fails ----------------------------------------------------------------------------------


def test_a_kernel_that_fails_to_launch_leaves_no_pushes(streams):
    """And takes no epoch: what is launched next has its."""
    planned = scatters(chunks=1)
    launch = planned.kernel.launch

    def refused(plan):
        raise RuntimeError("refused")

    planned.kernel.launch = refused
    with pytest.raises(RuntimeError):
        planned.launch()
    assert [op.kind for op in streams.log] == ["wait"] and planned.mailbox.epoch == 0
    streams.log.clear()
    planned.kernel.launch = launch
    assert planned.launch() is planned.out and planned.mailbox.epoch == 1
    kinds = ["wait", "kernel", "await", "copy", "flag", "record"]
    assert [op.kind for op in streams.log] == kinds
    assert streams.log[2].of["value"] == 1


@pytest.mark.parametrize("kind", ("cuMemcpyAsync", "cuEventRecord"))
def test_a_kernel_that_runs_has_its_epoch(streams, monkeypatch, kind):
    """Whatever fails behind it: it has passed it."""
    planned = scatters(chunks=1)
    monkeypatch.setattr(streams, kind, lambda *given: (Status(code=1, name="LOST"),))
    with pytest.raises(LaunchError):
        planned.launch()
    assert planned.mailbox.epoch == len(planned.kernel.launched) == 1


@pytest.mark.parametrize("chunks", (1, 2, 32))
def test_chunks_are_of_an_outbox(chunks):
    with pytest.raises(ArgumentError, match="outbox") as e:
        scatters(config=PLAIN, chunks=chunks)
    assert (e.value.argument, e.value.value) == ("chunks", chunks)


@pytest.mark.parametrize("chunks", (0, 33, -1, True, 2.0, "2"))
def test_chunks_out_of_range(chunks):
    with pytest.raises(ArgumentError, match="from 1 to 32") as e:
        scatters(chunks=chunks)
    assert (e.value.argument, e.value.value) == ("chunks", chunks)


def test_a_capture_is_refused(streams, monkeypatch):
    """Nothing is launched, and the mailbox may go on."""
    planned = scatters()
    with monkeypatch.context() as patch:
        capture(patch, True)
        with pytest.raises(ArgumentError, match="replay") as e:
            planned.launch()
    assert e.value.argument == "config.outbox"
    assert streams.log == [] and planned.mailbox.epoch == 0
    planned.launch()
    assert planned.mailbox.epoch == 1


def test_a_mailbox_that_a_graph_uses_is_refused(streams, monkeypatch):
    """Its replays are not counted here."""
    mine = box()
    plain, planned = scatters(mine, config=PLAIN), scatters(mine)
    planned.launch()
    with monkeypatch.context() as patch:
        capture(patch, True)
        plain.launch()
    streams.log.clear()
    for _ in range(2):
        with pytest.raises(ArgumentError, match="CUDA graph") as e:
            planned.launch()
        assert e.value.argument == "config.outbox"
    assert streams.log == []
    plain.launch()
    assert "kernel" in {op.kind for op in streams.log}
    with pytest.raises(ArgumentError):
        planned.launch()


def test_an_outbox_is_refused_before_any_is_made(monkeypatch):
    """While a graph is captured nothing may be allocated for it."""
    mine = box()
    with monkeypatch.context() as patch:
        capture(patch, True)
        with pytest.raises(ArgumentError, match="replay"):
            scatters(mine)
    mine.launched(), setattr(mine, "epoch", None)
    with pytest.raises(ArgumentError, match="CUDA graph"):
        scatters(mine)
    assert "outbox" not in vars(mine)


@pytest.fixture
def chosen(monkeypatch):
    """What is chosen where none is given has an outbox."""
    monkeypatch.setattr(building, "chosen", lambda *given: CONFIG)


def test_what_was_chosen_is_captured_without_its_outbox(chosen, streams, monkeypatch):
    """And launched so from then on, for graphs number the mailbox's launches."""
    planned = scatters(config=None)
    assert planned.kernel.kernel.peers.parcels
    planned.launch()
    assert {"kernel", "await", "flag"} <= {op.kind for op in streams.log}
    with monkeypatch.context() as patch:
        capture(patch, True)
        for _ in range(2):
            streams.log.clear()
            planned.launch()
            assert [op.kind for op in streams.log] == ["kernel"]
    assert planned.mailbox.epoch is None
    streams.log.clear()
    planned.launch()
    assert [op.kind for op in streams.log] == ["kernel"]


@pytest.mark.parametrize("when", ("captured", "after a graph", "no stream writes flags"))
def test_what_is_chosen_has_no_outbox_where_none_can_be_used(when, chosen, streams, monkeypatch):
    mine = box()
    with monkeypatch.context() as patch:
        if when == "captured":
            capture(patch, True)
        elif when == "after a graph":
            mine.epoch = None
        else:
            patch.setattr(driver, "attribute", lambda *given: 0)
        planned = scatters(mine, config=None)
        assert not planned.kernel.kernel.peers.parcels
        planned.launch()
    assert [op.kind for op in streams.log] == ["kernel"] and "outbox" not in vars(mine)


def test_epochs_are_counted_over_launches_of_all_configs(streams):
    mine = box()
    plain, planned = scatters(mine, config=PLAIN), scatters(mine, chunks=1)
    said = []
    for epoch, x in enumerate((plain, planned, plain, plain, planned, planned), 1):
        streams.log.clear()
        x.launch()
        assert mine.epoch == epoch
        values = {op.of["value"] for op in streams.log if op.kind in ("await", "flag")}
        assert values == ({epoch} if x is planned else set())
        said += values
    assert said == [2, 5, 6]


def test_a_device_whose_streams_write_no_flags_is_refused(streams):
    streams.lacks.add("CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS")
    with pytest.raises(RuntimeUnavailable, match="CAN_USE_64_BIT_STREAM_MEM_OPS"):
        scatters()
    scatters(config=PLAIN).launch()


def test_an_outbox_is_let_go_when_its_copies_are_done(streams):
    mine = box()
    scatters(mine).launch()
    events = mine.outbox.sender.events
    del mine
    gc.collect()
    assert streams.destroyed == [("done", "side 0"), "side 0", *events]


def test_another_tensor_may_be_written(streams):
    planned = scatters()
    planned.let_go()
    for _ in range(2):
        out = Placed(M, N, dtype="bfloat16")
        assert planned.launch(out) is out
        assert planned.kernel.launched[-1]["matrices"]["d"].pointer == out.data_ptr()
    assert planned.mailbox.epoch == 2


def test_once():
    mine = box()
    out = reduce_scatter(DENSE, mine, *operands(), config=CONFIG, chunks=4)
    assert out.shape == (M, N) and mine.epoch == 1


@pytest.mark.parametrize("wire", (None, BF16), ids=str)
@pytest.mark.parametrize("ranks", (2, 3, 8))
@pytest.mark.parametrize(
    "config",
    (
        CONFIG,
        Config(outbox=True),
        Config(block_m=256, block_n=64, multicast="b", outbox=True),
        Config(swap_ab=True, block_m=8, block_n=64, consumers=1, outbox=True),
    ),
)
def test_what_is_said_to_be_enough_is(config, ranks, wire):
    kernel = lower(replace(DENSE, collective="reduce_scatter", wire=wire), config)
    for m, n in ((1, 1), (8, 64), (512, 512), (513, 40), (2048, 7168), (4096, 8192)):
        size = mailbox_bytes(m, n, ranks, wire)
        need, has = mailbox(kernel, (m, n, 64), ranks), Layout.of(size, ranks)
        assert has.bytes <= size and has.holds(need)
        assert need.flags >= 2 * MOST_CHUNKS  # of parcels, and counts


def test_what_is_kept_of_a_kernel_says_that_copy_engines_send():
    for config, parcels in ((CONFIG, MOST_CHUNKS), (PLAIN, 0)):
        record = record_of(lower(replace(DENSE, collective="reduce_scatter"), config))
        assert from_json(json.loads(json.dumps(to_json(record)))) == record
        assert record.peers.parcels == parcels


def test_an_all_reduce_has_no_outbox():
    from gemmgen.errors import IllegalConfig
    from gemmgen.ops.all_reduced import AllReduce

    with pytest.raises(IllegalConfig, match="outbox-sums"):
        AllReduce(DENSE, box(size=1 << 24), *operands(), config=CONFIG)
