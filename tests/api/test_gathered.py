"""GEMMs of several GPUs that gather A, on tensors that only say what they are: what is checked, copied and sent in which order, and what a
launch is told."""

from __future__ import annotations

import gc
import sys
from dataclasses import replace
from functools import partial

import pytest
from fake_streams import Loaded, Status, before, loads, on, streams_fixture  # noqa: F401
from fake_torch import Device, Placed, fake_torch_fixture, of_each_rank  # noqa: F401
from kernels import DENSE, DENSE_F32, DENSE_TN, FP8, INT8_BLOCK, QUANTISED, VECTOR

from gemmgen.config import Config
from gemmgen.errors import ArgumentError, LaunchError, RuntimeUnavailable
from gemmgen.ir import collectives
from gemmgen.ir.collectives import CHUNK, chunks_for
from gemmgen.ops.gathered import AllGather, Inbox, InProcess, all_gather_gemm, inbox_bytes
from gemmgen.ops.ranked import Mailbox
from gemmgen.pipeline import lower

CONFIG = Config(block_m=64, block_n=64, consumers=1)
M, N, K, RANKS = 96, 128, 256, 2
MINE = 7  # the stream that launches are on


@pytest.fixture(autouse=True)
def faked(fake_torch, streams, monkeypatch):
    on(monkeypatch, lambda index: MINE)
    loads(monkeypatch, partial(Loaded, streams), CONFIG)
    return streams


def memory(problem=DENSE, rank=1, ranks=RANKS, size=None):
    size = inbox_bytes(problem, M, K, ranks) if size is None else size
    return InProcess(rank=rank, tensors=of_each_rank(size, rank, ranks))


def box(problem=DENSE, **given):
    return Inbox(memory(problem, **given), Placed(1).device)


def operands(rows=M, dtype="bfloat16"):
    return Placed(rows, K, dtype=dtype), Placed(N, K, dtype=dtype)


def gathers(mine=None, problem=DENSE, **given):
    return AllGather(problem, mine or box(problem), *operands(), **{"config": CONFIG, **given})


# ---- what a launch is told -----------------------------------------------------------------------


def test_a_launch_is_told_whose_it_is_and_which(streams):
    mine = box()
    planned = gathers(mine)
    assert planned.kernel.problem.collective == "all_gather" and planned.shape == (M, N, K)
    assert mine.epoch == 0 and streams.log == []
    for epoch in (1, 2, 3):
        assert planned.launch() is planned.result and mine.epoch == epoch
    told, base = planned.kernel.launched, mine.addresses[1]
    assert [x["epoch"] for x in told] == [1, 2, 3]
    assert {(x["shape_m"], x["ranks"], x["rank"], x["arrivals"]) for x in told} == {(M, 2, 1, base)}
    buffers = [x["matrices"]["a"].pointer for x in told]
    assert buffers[0] == buffers[2] != buffers[1] and {*buffers} <= {
        base + mine.layout.buffer(e) for e in (0, 1)
    }
    a, d = (told[0]["matrices"][x] for x in "ad")
    assert (a.outer, a.inner, a.groups) == (M, K, 2)
    assert (d.outer, d.groups, d.group_stride) == (M, 2, M * d.stride)
    assert planned.result.shape == (2 * M, N)


def test_another_tensor_may_be_written(streams):
    mine = box()
    planned = gathers(mine)
    planned.launch()
    planned.let_go()
    others = [Placed(2 * M, N, dtype="bfloat16") for _ in range(3)]
    for x in others:
        assert planned.launch(x) is x
    told = planned.kernel.launched
    assert [x["matrices"]["d"].pointer for x in told[1:]] == [x.data_ptr() for x in others]
    assert [x["epoch"] for x in told] == [1, 2, 3, 4] and planned.result is None


def test_calls_of_one_inbox_follow_each_other():
    mine = box()
    for _ in range(3):
        assert all_gather_gemm(DENSE, mine, *operands()).shape == (2 * M, N)
    assert mine.epoch == 3


def test_a_launch_that_failed_takes_no_epoch_and_waits_for_what_it_sent(streams):
    mine = box()
    planned = gathers(mine)

    def refused(plan):
        raise RuntimeError("refused")

    planned.kernel.launch = refused
    with pytest.raises(RuntimeError):
        planned.launch()
    assert mine.epoch == 0
    (sent,) = (i for i, op in enumerate(streams.log) if op.kind == "flag")
    streams.contexts.append(100)
    streams.asked("kernel", MINE)
    assert sent in before(streams.log)[-1]


def test_a_promise_of_weights_is_of_no_use():
    """Launches follow each other: no config begins while the one before ends."""
    planned = gathers(problem=replace(DENSE, weights_ready=True))
    assert planned.kernel.problem == replace(DENSE, collective="all_gather")


# ---- what is copied and sent, and what waits for what --------------------------------------------


def kinds(log):
    """Indices of the operations that do something, by launch and kind."""
    launches, found = [], {"own": [], "copy": [], "flag": []}
    for i, op in enumerate(log):
        if op.kind == "kernel":
            launches.append({**found, "kernel": i})
            found = {"own": [], "copy": [], "flag": []}
        elif op.kind in ("copy", "flag"):
            own = op.kind == "copy" and not str(op.stream).startswith("side")
            found["own" if own else op.kind].append(i)
    return launches


def check_order(log, launches, ready=()):
    """ready: by launch, what wrote its rows."""
    found, order = kinds(log), before(log)
    assert len(found) == launches
    for e, x in enumerate(found):
        sent = [*x["copy"], *x["flag"]]
        assert sent and max(sent) < x["kernel"], "the host enqueues copies before the kernel"
        assert {*x["own"]} <= order[x["kernel"]]
        assert not any(x["kernel"] in order[i] for i in sent), "copies wait for no kernel of theirs"
        assert not {*sent} & order[x["kernel"]], "the kernel does not wait for all copies"
        for flag in x["flag"]:
            assert {i for i in x["copy"] if i < flag} <= order[flag]
        for i in ready[e : e + 1]:
            assert all(i in order[j] for j in [*sent, *x["own"]])
        for earlier in found[:e]:
            done = {earlier["kernel"], *earlier["copy"], *earlier["flag"]}
            assert all(done <= order[i] for i in [*sent, *x["own"], x["kernel"]])


def launched(streams, patch, count=5):
    """Launches of two GEMMs, on two streams, each behind what writes its rows."""
    mine = box()
    both, ready = [gathers(mine, chunks=3), gathers(mine, chunks=1)], []
    for i in range(count):
        stream = MINE + (i // 2) % 2
        on(patch, lambda index, stream=stream: stream)
        streams.contexts.append(100)
        ready.append(len(streams.log))
        streams.asked("writes rows", stream)
        both[i % 2].launch()
    return ready


def test_copies_begin_and_end_where_they_should(streams, monkeypatch):
    ready = launched(streams, monkeypatch)
    check_order(streams.log, 5, ready)
    assert {op.stream for op in streams.log} == {MINE, MINE + 1, "side 0"}
    assert streams.streams == {"side 0": ("CU_STREAM_NON_BLOCKING", -5)}


@pytest.mark.parametrize("left_out", range(4))
def test_an_event_left_out_is_found(streams, monkeypatch, left_out):
    """Of those of a launch: to wait for the launch before, for the rows, for what was sent, and to say that the launch is over."""
    ready = launched(streams, monkeypatch)
    over, rows, sent = dict.fromkeys(op.of for op in streams.log if op.kind == "wait")
    gone = (("wait", over), ("wait", rows), ("wait", sent), ("record", over))[left_out]
    log = [x if (x.kind, x.of) != gone else replace(x, kind="nothing") for x in streams.log]
    with pytest.raises(AssertionError):
        check_order(log, 5, ready)


def test_a_kernel_enqueued_before_its_copies_is_found(streams, monkeypatch):
    ready = launched(streams, monkeypatch)
    log = list(streams.log)
    kernel = next(i for i, op in enumerate(log) if op.kind == "kernel")
    flag = max(i for i in range(kernel) if log[i].kind == "flag")
    log[kernel], log[flag] = log[flag], log[kernel]
    with pytest.raises(AssertionError):
        check_order(log, 5, ready)


@pytest.mark.parametrize("chunks, flags", ((1, 1), (2, 2), (5, 5), (32, 32), (None, 1)))
def test_rows_are_sent_in_so_many_chunks(streams, chunks, flags):
    planned = gathers(chunks=chunks)
    assert planned.chunks == flags
    planned.launch()
    sent = [op for op in streams.log if op.stream == "side 0" and op.kind in ("copy", "flag")]
    assert [op.kind for op in sent] == ["copy", "flag"] * flags
    assert sum(op.of["width"] for op in sent if op.kind == "copy") == M * K * 2
    assert {op.of["value"] for op in sent if op.kind == "flag"} == {1}
    assert planned.kernel.launched[0]["chunk_rows"] == -(-M // flags)


def test_as_many_chunks_as_are_large_enough():
    sizes = (1, CHUNK - 1, CHUNK, 2 * CHUNK - 1, 2 * CHUNK, 5 * CHUNK, 100 * CHUNK)
    assert [chunks_for(x) for x in sizes] == [1, 1, 1, 1, 2, 5, 32]


def test_chunks_are_counted_in_bytes(monkeypatch):
    monkeypatch.setattr(collectives, "CHUNK", M * K // 2)
    assert gathers().chunks == 4 and scaled().chunks == 2


def scaled(p=FP8, mine=None, **given):
    a, b = (Placed(x, K, dtype="float8_e4m3fn") for x in (M, N))
    scale_b = Placed(N // 128, K // 128) if p == FP8 else Placed(K // 128, N).mT
    given = {
        "scale_a": Placed(K // 128, M).mT, "scale_b": scale_b, "scale_layout": "mn", **given
    }  # fmt: skip
    return AllGather(p, mine or box(p), a, b, **{"config": CONFIG, **given})


@pytest.mark.parametrize("problem", (FP8, VECTOR), ids=("fp8", "vector"))
def test_scales_are_sent_first_and_whole(streams, problem):
    planned = scaled(problem, chunks=2)
    planned.launch()
    sent = [op for op in streams.log if op.stream == "side 0" and op.kind in ("copy", "flag")]
    assert [op.kind for op in sent] == ["copy", "copy", "flag", "copy", "flag"]
    assert [op.of["width"] for op in sent[:2]] == [M * K // 128 * 4, M * K // 2]
    assert planned.kernel.launched[0]["matrices"]["scale_a"].groups == 2


def test_lines_that_lie_apart_are_copied_line_by_line(streams):
    """Rows of a wider matrix; and columns of A, of which a chunk has a part of each line."""
    wide = Placed(M, K, dtype="bfloat16", stride=(K + 64, 1))
    AllGather(DENSE, box(), wide, operands()[1], config=CONFIG).launch()
    own, sent = (op.of for op in streams.log if op.kind == "copy")
    for lines in (own, sent):
        assert (lines["width"], lines["height"]) == (2 * K, M)
        assert (lines["to_pitch"], lines["of_pitch"]) == (2 * K, 2 * K + 128)
    streams.log.clear()
    a, b = Placed(K, M, dtype="bfloat16"), Placed(K, N, dtype="bfloat16")
    AllGather(DENSE_TN, box(DENSE_TN), a, b, chunks=2, config=CONFIG).launch()
    own, *sent = (op.of for op in streams.log if op.kind == "copy")
    assert (own["width"], own["height"]) == (2 * M * K, 1)
    assert [(x["width"], x["height"], x["to_pitch"]) for x in sent] == [(M, K, 2 * M)] * 2


def test_every_rank_is_sent_to_and_the_one_that_needs_it_next_first(streams):
    mine = box(rank=1, ranks=4)
    gathers(mine, chunks=2).launch()
    flags = [op.of["flag"] for op in streams.log if op.kind == "flag"]
    assert [max(x for x in mine.addresses if x <= f) for f in flags] == [
        mine.addresses[r] for r in (0, 0, 3, 3, 2, 2)
    ]


def test_a_rank_alone_sends_nothing(streams):
    planned = gathers(box(ranks=1, rank=0))
    planned.launch()
    assert [op.kind for op in streams.log if op.kind in ("copy", "flag", "kernel")] == [
        "copy",
        "kernel",
    ]
    assert planned.result.shape == (M, N)


# ---- rows in place -------------------------------------------------------------------------------


@pytest.mark.parametrize("problem", (DENSE, FP8, VECTOR, DENSE_TN))
def test_rows_in_place_are_sent_from_where_they_are_read(streams, problem):
    eight = problem.a.bytes == 1
    mine = box(problem)
    sides = (K, N) if problem.layout == "tn" else (N, K)
    b = Placed(*sides, dtype="float8_e4m3fn" if eight else "bfloat16")
    given = {"scale_b": Placed(N // 128, K // 128)} if problem == FP8 else {}
    given |= {"scale_b": Placed(K // 128, N).mT} if problem == VECTOR else {}
    planned = AllGather(problem, mine, None, b, rows=M, config=CONFIG, **given)
    for _ in range(3):
        streams.log.clear()
        a, *scale = planned.place() if eight else (planned.place(),)
        planned.launch()
        told = planned.kernel.launched[-1]["matrices"]["a"]
        assert a.data_ptr() == told.pointer + told.group_stride * problem.a.bytes  # of rank 1
        assert a.shape == ((K, M) if problem.layout == "tn" else (M, K))
        copies = [op for op in streams.log if op.kind == "copy"]
        assert {op.stream for op in copies} == {"side 0"}
        assert [op.of["of"] for op in copies] == [x.data_ptr() for x in (*scale, a)]
        for x in scale:
            assert x.shape == (M, K // 128) and x.stride(0) == 1
    assert len({x["matrices"]["a"].pointer for x in planned.kernel.launched}) == 2


def test_rows_are_written_when_the_launch_that_read_their_place_is_over(streams, monkeypatch):
    """On whatever stream."""
    mine = box()
    planned = AllGather(DENSE, mine, None, operands()[1], rows=M, config=CONFIG)
    for _ in range(2):
        planned.place()
        planned.launch()
    streams.log.clear()
    on(monkeypatch, lambda index: MINE + 1)
    planned.place()
    assert [(op.kind, op.stream, op.of) for op in streams.log] == [
        ("wait", MINE + 1, mine.sender._over)
    ]


def test_a_kernel_that_runs_has_its_epoch(streams, monkeypatch):
    planned, record = gathers(), streams.cuEventRecord

    def lost(*given):
        over = any(op.kind == "kernel" for op in streams.log)
        return (Status(code=1, name="LOST"),) if over else record(*given)

    monkeypatch.setattr(streams, "cuEventRecord", lost)
    with pytest.raises(LaunchError):
        planned.launch()
    assert planned.inbox.epoch == len(planned.kernel.launched) == 1


@pytest.mark.parametrize("ranks", (0, 9, 2.0, True))
def test_ranks_are_counted(ranks):
    with pytest.raises(ArgumentError, match="ranks"):
        inbox_bytes(DENSE, M, K, ranks)


def test_what_rows_in_place_do_not_take():
    mine, (a, b) = box(), operands()
    for given, name in (
        ({"a": a, "rows": M}, "a"),
        ({"a": None}, "rows"),
        ({"a": None, "rows": 2.0}, "rows"),
        ({"a": None, "rows": 0}, "rows"),
        ({"a": None, "rows": M, "scale_layout": "mn"}, "scale_layout"),
        ({"a": None, "rows": M + 1}, "memory"),
    ):
        with pytest.raises(ArgumentError) as e:
            AllGather(DENSE, mine, given.pop("a"), b, config=CONFIG, **given)
        assert e.value.argument == name
    with pytest.raises(ArgumentError, match="place"):
        gathers().place()
    with pytest.raises(ArgumentError, match="AllGather"):
        all_gather_gemm(DENSE, mine, None, b, rows=M)


# ---- what is wrong -------------------------------------------------------------------------------

WRONG = {
    "problem": lambda: all_gather_gemm("dense", box(), *operands()),
    "memory": lambda: all_gather_gemm(DENSE, Mailbox(memory(), Placed(1).device), *operands()),
    "a rows": lambda: all_gather_gemm(DENSE, box(), *operands(0)),
    "config": lambda: all_gather_gemm(DENSE, box(), *operands(), config={}),
    "chunks": lambda: all_gather_gemm(DENSE, box(), *operands(), chunks=33),
    "out shape": lambda: gathers(out=Placed(M, N, dtype="bfloat16")),
    "out dtype": lambda: gathers(out=Placed(2 * M, N, dtype="float16")),
    "scale_layout": lambda: gathers(scale_layout="mn"),
    "scale_a": lambda: gathers(scale_a=2.0),
    "scale_out": lambda: gathers(scale_out=Placed(2, 2)),
    "bias": lambda: gathers(problem=replace(DENSE, epilogue="bias")),
    "grouping": lambda: gathers(problem=replace(DENSE, grouping="batched")),
    "a row stride": lambda: all_gather_gemm(
        DENSE, box(), Placed(M, K, dtype="bfloat16", stride=(0, 1)), operands()[1]
    ),
    "scale_a row stride": lambda: scaled(scale_a=Placed(K // 128, M, stride=(M + 1, 1)).mT),
    "memory ranks": lambda: box(ranks=9, size=1 << 20),
    "memory rank": lambda: box(rank=2),
    "device": lambda: Inbox(memory(), Device(index=None)),
    "m": lambda: inbox_bytes(DENSE, 0, K, 2),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_named(name):
    with pytest.raises(ArgumentError) as e:
        WRONG[name]()
    assert e.value.argument == ("collective" if name == "grouping" else name)


def test_scales_row_by_row_are_refused():
    with pytest.raises(ArgumentError, match="'mn'") as e:
        scaled(scale_a=Placed(M, K // 128), scale_layout="row")
    assert e.value.argument == "scale_layout"


def test_an_inbox_that_is_too_small_is_refused():
    with pytest.raises(ArgumentError, match="inbox_bytes") as e:
        gathers(box(size=inbox_bytes(DENSE, M, K, 2) - 256))
    assert e.value.argument == "memory"


def test_what_lies_in_the_inbox_is_refused():
    mine = box()
    inside = mine.memory.tensors[1][4096 : 4096 + 2 * M * K].view("bfloat16").view(M, K)
    with pytest.raises(ArgumentError, match="memory") as e:
        AllGather(DENSE, mine, inside, operands()[1], config=CONFIG)
    assert e.value.argument == "a"
    out = mine.memory.tensors[1][4096 : 4096 + 4 * M * N].view("bfloat16").view(2 * M, N)
    with pytest.raises(ArgumentError, match="memory") as e:
        gathers(mine, out=out)
    assert e.value.argument == "out"


def test_memory_that_begins_anywhere_is_refused():
    shared = memory(size=1 << 20)
    shared.tensors[0].address += 64
    with pytest.raises(ArgumentError, match="128") as e:
        Inbox(shared, Placed(1).device)
    assert e.value.argument == "memory address"


def test_a_device_whose_streams_write_no_flags_is_refused(streams):
    streams.lacks.add("CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS")
    with pytest.raises(RuntimeUnavailable, match="CAN_USE_64_BIT_STREAM_MEM_OPS"):
        box()


def on_two_devices():
    shared = memory()
    shared.tensors[0].device, shared.tensors[1].device = Device(index=4), Device(index=0)
    return shared


def test_gpus_of_one_process_may_access_each_other(streams):
    for _ in range(2):
        Inbox(on_two_devices(), Placed(1).device)
    assert streams.reached == [(100, 104)] * 2 and streams.contexts == [100]
    streams.apart.add((0, 4))
    with pytest.raises(RuntimeUnavailable, match="memory of device 4"):
        Inbox(on_two_devices(), Placed(1).device)


def test_memory_of_another_device_is_refused():
    with pytest.raises(ArgumentError) as e:
        Inbox(on_two_devices(), Device(index=1))
    assert e.value.argument == "memory device of rank 1"
    shared = memory()
    shared.tensors[0].device = Device(type="cpu", index=None)
    with pytest.raises(ArgumentError) as e:
        Inbox(shared, Placed(1).device)
    assert e.value.argument == "memory device of rank 0"


@pytest.mark.parametrize(("rank", "others"), ((0, (1, 2)), (1, (0, 1)), (1, (0, 2))))
def test_two_ranks_on_one_gpu_are_refused(rank, others, streams):
    """Also where neither is this one."""
    shared = memory(rank=rank, ranks=3)
    one, two = others
    shared.tensors[one].device = shared.tensors[two].device = Device(
        index=0 if rank in others else 5
    )
    with pytest.raises(ArgumentError, match=f"own, which rank {one} is on") as e:
        Inbox(shared, Placed(1).device)
    assert e.value.argument == f"memory device of rank {two}" and streams.reached == []


def test_a_graph_is_not_captured(monkeypatch):
    planned = gathers()
    monkeypatch.setattr(sys.modules["torch"].cuda, "is_current_stream_capturing", lambda: True)
    with pytest.raises(ArgumentError, match="captured"):
        planned.launch()
    assert planned.inbox.epoch == 0


def test_a_stream_is_destroyed_with_its_inbox(streams):
    mine = box()
    del mine
    gc.collect()
    assert streams.destroyed == ["side 0", 1, 2, 3]


# ---- what is said to be enough, is ---------------------------------------------------------------


@pytest.mark.parametrize("problem", (DENSE, DENSE_F32, DENSE_TN, FP8, INT8_BLOCK, VECTOR))
@pytest.mark.parametrize("ranks", (1, 2, 3, 8))
def test_as_many_bytes_as_are_said_are_enough(problem, ranks):
    from gemmgen.runtime.inbox import Inbox as Layout
    from gemmgen.runtime.inbox import gathering, needed
    from gemmgen.runtime.tensor_map import Matrix

    kernel = lower(replace(problem, collective="all_gather"), CONFIG)
    for m, k in ((1, 1), (96, 256), (129, 1000), (4096, 7168)):
        a = (k, m) if problem.layout == "tn" else (m, k)
        sides = {"a": a, "scale_a": (-(-k // 128), m)}
        own = {n: Matrix(pointer=0, outer=x[0], inner=x[1], stride=x[1]) for n, x in sides.items()}
        g = gathering(kernel, own, m, ranks, 1)
        size = inbox_bytes(problem, m, k, ranks)
        assert Layout.of(size, ranks).size == needed(g)
        assert size <= inbox_bytes(problem, m + 1, k, ranks)
        assert size <= inbox_bytes(problem, m, k + 1, ranks)


def test_an_fp8_output_has_scales_of_all_rows():
    config = Config(block_m=64, block_n=128, consumers=1)
    planned = gathers(problem=QUANTISED, bias=Placed(N), config=config)
    out, scales = planned.launch()
    assert out.shape == (2 * M, N) and scales.shape == (2 * M, 1)
    told = planned.kernel.launched[0]
    assert told["scale_d"] == scales.data_ptr() and told["scale_d_stride_g"] == M
