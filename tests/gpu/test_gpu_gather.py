"""On two Hopper GPUs of one host, in one process: a GEMM whose rows of A each has a half of, and sends the other while both multiply.

python3 -m pytest -m gpu -q tests/gpu/test_gpu_gather.py        # add -s for times
"""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pytest
from gathered_operands import rest, rows
from kernels import DENSE, DENSE_F32, DENSE_TN, DENSE_TT, FP8, INT8_BLOCK, PAIRED, QUANTISED, VECTOR
from two_gpus import (
    CONFIGS,
    RANKS,
    SHAPES,
    TIMED,
    Verified,
    floats,
    host,
    launch,
    microseconds,
    named,
    result,
    settle,
    shared,
    tensor,
)

from gemmgen.codes import code_type
from gemmgen.epilogues import EPILOGUES
from gemmgen.errors import IllegalConfig
from gemmgen.ir.dtypes import F16, S8, S32
from gemmgen.problem import Problem
from gemmgen.verification import exact_integers, gathered, random_normal

pytestmark = pytest.mark.gpu
BASE = CONFIGS["base"]


def inboxes(problem, m, k):
    """Of both ranks, for launches of up to M rows of both."""
    from gemmgen.ops.gathered import Inbox, inbox_bytes

    memory = shared(inbox_bytes(problem, m // RANKS, k, RANKS))
    return [Inbox(x, f"cuda:{rank}") for rank, x in enumerate(memory)]


def drawn(problem, shape, seed=1, draw=exact_integers):
    host()
    return gathered.drawn(draw, problem, shape, RANKS, seed)


def on(rank, x, pad=0):
    """Lines on a GPU, `pad` elements between them."""
    if isinstance(x, float):
        return x
    if x.codes.ndim == 1:
        return floats(x.codes, rank)
    codes = np.pad(x.codes, ((0, 0), (0, pad)))
    found = tensor(codes.view(code_type(x.dtype)), x.dtype, rank)[:, : x.codes.shape[1]]
    return found.T if x.turned else found


def own(problem, x, rank, pad=0):
    """A rank's rows of A, and their scales."""
    return {name: on(rank, y, pad) for name, y in rows(problem, x, rank, RANKS).items()}


def planned(problem, whole, boxes, config, chunks=None, pad=0, in_place=False):
    """Both ranks' launches over `whole`."""
    from gemmgen.ops.gathered import AllGather

    found = []
    for rank, x in enumerate(whole):
        given = {name: on(rank, y) for name, y in rest(problem, x).items()}
        if in_place:
            given |= {"a": None, "rows": x.shape[0] // RANKS}
        else:
            given |= own(problem, x, rank, pad)
            given |= {"scale_layout": "mn"} if x.scale_a is not None else {}
        found.append(AllGather(problem, boxes[rank], chunks=chunks, config=config, **given))
    settle()
    return found


def clear(calls):
    for x in calls:
        for y in x.result if isinstance(x.result, tuple) else (x.result,):
            y.zero_()
    settle()


def results(problem, calls):
    settle()
    pairs = [x.result if isinstance(x.result, tuple) else (x.result,) for x in calls]
    return [result(problem, *x) for x in pairs]


def judge(problem, whole, calls, launches=3):
    """Each of several launches that follow each other, whoever is first, to the bit."""
    for i in range(launches):
        clear(calls)
        launch(calls, (0, 1) if i % 2 else (1, 0))
        gathered.check_exact(Verified, problem, whole, results(problem, calls))


@pytest.mark.parametrize("shape", SHAPES, ids=named)
@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("problem", (DENSE, FP8), ids=("bf16", "fp8"))
def test_exact_sums_on_both_ranks(problem, config, shape):
    whole = drawn(problem, shape)
    boxes = inboxes(problem, shape[0], shape[2])
    for chunks in (1, 2, 5):
        try:
            calls = planned(problem, whole, boxes, CONFIGS[config], chunks)
        except IllegalConfig as e:
            pytest.skip(str(e))
        assert calls[0].chunks == chunks
        judge(problem, whole, calls, launches=2)


def test_as_many_chunks_as_there_are_flags():
    whole = drawn(DENSE, (4096, 512, 512))
    judge(DENSE, whole, planned(DENSE, whole, inboxes(DENSE, 4096, 512), BASE, chunks=32))


KINDS = {
    "f16": replace(DENSE, a=F16, b=F16, d=F16),
    "f32": DENSE_F32,
    "bias": replace(DENSE, epilogue=EPILOGUES["bias"]),
    "residual": replace(FP8, epilogue=EPILOGUES["residual"]),
    "pairs": PAIRED,
    "vector": VECTOR,
    "int8_block": INT8_BLOCK,
    "int8": Problem(family="dense", a=S8, b=S8, d=S32),
    "scaled": Problem(family="fp8", a="e4m3", b="e4m3", epilogue="scaled"),
    "quantised": QUANTISED,
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_gemm(kind):
    problem, shape = KINDS[kind], (528, 272, 768)
    whole = drawn(problem, shape)
    judge(problem, whole, planned(problem, whole, inboxes(problem, 528, 768), None, chunks=2))


@pytest.mark.parametrize("problem", (DENSE, FP8, VECTOR), ids=("bf16", "fp8", "vector"))
def test_rows_that_are_written_in_place(problem):
    """Each launch reads rows that were written for it alone."""
    shape = (528, 272, 768)
    boxes = inboxes(problem, shape[0], shape[2])
    wholes = [drawn(problem, shape, seed) for seed in range(2)]
    wholes[1] = tuple(
        replace(x, b=y.b, scale_b=y.scale_b) for x, y in zip(wholes[1], wholes[0], strict=True)
    )
    calls = planned(problem, wholes[0], boxes, BASE, chunks=2, in_place=True)
    for i in (0, 1, 1, 0, 1):
        clear(calls)
        for rank, x in enumerate(calls):
            places = x.place() if isinstance(x.place(), tuple) else (x.place(),)
            mine = own(problem, wholes[i][rank], rank)
            for place, written in zip(places, mine.values(), strict=True):
                place.copy_(written)
        settle()
        launch(calls)
        gathered.check_exact(Verified, problem, wholes[i], results(problem, calls))


@pytest.mark.parametrize("problem", (DENSE_F32, FP8), ids=("bf16", "fp8"))
@pytest.mark.parametrize("config", ("base", "swapped", "ping_pong"))
def test_bits_are_those_of_the_plain_gemm(problem, config):
    from gemmgen import ops

    torch, shape = host(), (528, 520, 2048)
    whole = drawn(problem, shape, draw=random_normal)
    calls = planned(problem, whole, inboxes(problem, 528, 2048), CONFIGS[config], chunks=3)
    launch(calls)
    settle()
    for rank, x in enumerate(whole):
        with torch.cuda.device(rank):
            given = {name: on(rank, y) for name, y in rest(problem, x).items()}
            given |= {name: on(rank, y) for name, y in rows(problem, x, 0, 1).items()}
            given |= {"scale_layout": "mn"} if x.scale_a is not None else {}
            wanted = ops.multiply(problem, config=CONFIGS[config], **given)
            assert torch.equal(calls[rank].result, wanted)


def test_launches_of_other_streams_take_turns():
    """Rows are written where the next launch reads them, on its stream: that waits for this rank's launches, wherever they were. A changes its
    sign from launch to launch; launches of a stream have a D of their own, of which every one is compared."""
    torch, shape = host(), (1024, 512, 1024)
    whole, boxes = drawn(DENSE, shape), inboxes(DENSE, 1024, 1024)
    turns = [planned(DENSE, whole, boxes, BASE, chunks=2, in_place=True) for _ in range(3)]
    mine = [own(DENSE, x, rank)["a"] for rank, x in enumerate(whole)]
    for rank, x in enumerate(turns[0]):
        x.place().copy_(mine[rank])
    settle()
    launch(turns[0])
    gathered.check_exact(Verified, DENSE, whole, results(DENSE, turns[0]))
    wanted = [x.result.clone() for x in turns[0]]
    streams = [[torch.cuda.Stream(rank) for _ in turns] for rank in range(RANKS)]
    wrong = [torch.zeros(len(turns), dtype=torch.int64, device=x.device) for x in wanted]
    settle()
    for i in range(60):
        sign, turn = (-1) ** i, i % len(turns)
        for rank in (0, 1) if i % 4 < 2 else (1, 0):
            x = turns[turn][rank]
            with torch.cuda.device(rank), torch.cuda.stream(streams[rank][turn]):
                torch.mul(mine[rank], sign, out=x.place())
                x.launch()
                wrong[rank][turn] += (x.result != sign * wanted[rank]).sum()
    for rank in range(RANKS):
        with torch.cuda.device(rank):
            for stream in streams[rank]:
                torch.cuda.current_stream().wait_stream(stream)
    settle()
    assert [x.tolist() for x in wrong] == [[0] * len(turns)] * RANKS


@pytest.mark.parametrize("slow", (None, 0, 1))
def test_a_thousand_launches_of_changing_operands(slow):
    """One GPU may be far behind the other. Two GEMMs take turns in one inbox; after each launch A changes its sign, and with it D, of which every
    launch's is compared."""
    torch, boxes = host(), inboxes(DENSE, 768, 768)
    shapes = ((512, 512, 512), (768, 264, 768))
    wholes = [drawn(DENSE, x, seed) for seed, x in enumerate(shapes)]
    both = [
        planned(DENSE, x, boxes, BASE, chunks) for x, chunks in zip(wholes, (3, 1), strict=True)
    ]
    for whole, calls in zip(wholes, both, strict=True):
        launch(calls)
        gathered.check_exact(Verified, DENSE, whole, results(DENSE, calls))
    wanted = [[x.result.clone() for x in calls] for calls in both]
    wrong = [torch.zeros((), dtype=torch.int64, device=f"cuda:{rank}") for rank in range(RANKS)]
    settle()
    for i in range(1000):
        if slow is not None and i % 50 == 0:
            with torch.cuda.device(slow):
                torch.cuda._sleep(2_000_000)
        for calls, d in zip(both, wanted, strict=True):
            launch(calls, (0, 1) if i % 2 else (1, 0))
            for rank, x in enumerate(calls):
                with torch.cuda.device(rank):
                    wrong[rank] += (x.result != d[rank]).sum()
                    x.a.neg_()
                    d[rank].neg_()
    settle()
    assert [int(x) for x in wrong] == [0, 0]


# What the driver copies line by line between GPUs comes last: see docs/adr/0051-all-gather.md.


@pytest.mark.parametrize("problem, pad", ((DENSE, 64), (DENSE_TN, 0), (DENSE_TT, 32)))
def test_rows_that_are_no_one_piece_of_memory(problem, pad):
    whole = drawn(problem, (528, 272, 768))
    boxes = inboxes(problem, 528, 768)
    for chunks in (1, 3):
        judge(problem, whole, planned(problem, whole, boxes, BASE, chunks, pad))


def fill(calls, written):
    """Both places of each rank."""
    for _ in range(2):
        for x, a in zip(calls, written, strict=True):
            x.place().copy_(a)
        settle()
        launch(calls)


def host_microseconds(calls, repeats=10):
    """Of the one thread that launches both ranks': less is not to be seen here."""
    settle()
    begin = time.perf_counter()
    for _ in range(repeats):
        launch(calls)
    took = time.perf_counter() - begin
    settle()
    return took / repeats * 1e6


@pytest.mark.parametrize("shape", TIMED, ids=named)
def test_time_beside_the_gemm_alone(shape):
    """Prints, of M rows of both ranks and N columns of both; a launch may not take so long that it must have waited for something else."""
    import gemmgen
    from gemmgen import ops
    from gemmgen.ops.gathered import AllGather

    torch, (m, n, k) = host(), shape
    mine, columns = m // RANKS, n // RANKS
    boxes = inboxes(DENSE, m, k)
    gpus = [f"cuda:{rank}" for rank in range(RANKS)]
    a = [torch.randn(mine, k, device=gpu).bfloat16() for gpu in gpus]
    b = [torch.randn(columns, k, device=gpu).bfloat16() for gpu in gpus]
    every = [torch.cat([x.to(gpu) for x in a]) for gpu in gpus]
    for name in ("chosen", "base", "wide", "ping_pong", "multicast"):
        config, alone = CONFIGS[name], []
        for rank in range(RANKS):
            with torch.cuda.device(rank):
                alone.append(gemmgen.bind(ops.gemm, every[rank], b[rank], config=config))

        def plain(alone=alone):
            for rank in range(RANKS):
                with torch.cuda.device(rank):
                    alone[rank].launch()

        def copied(alone=alone):
            for rank in range(RANKS):
                other = 1 - rank
                with torch.cuda.device(rank):
                    theirs = every[rank][other * mine : other * mine + mine]
                    theirs.copy_(a[other], non_blocking=True)
            plain(alone)

        gemm, serial = max(microseconds(plain)), max(microseconds(copied))
        print(f"\n{named(shape)} {name}: GEMM {gemm:.0f} us, behind a copy {serial:.0f} us")
        for chunks in (None, 1, 2, 4, 8):
            took = {}
            for how in ("copied", "in place"):
                first = (a if how == "copied" else (None, None), b)
                given = {"chunks": chunks, "config": config}
                given |= {} if how == "copied" else {"rows": mine}
                calls = [
                    AllGather(DENSE, boxes[rank], *(x[rank] for x in first), **given)
                    for rank in range(RANKS)
                ]
                if how == "in place":
                    fill(calls, a)
                settle()
                took[how] = max(microseconds(lambda calls=calls: launch(calls)))
            said = ", ".join(f"own rows {how} {us:.0f} us" for how, us in took.items())
            least = host_microseconds(calls)
            many = f"{chunks or f'{calls[0].chunks} (the default)'} chunks"
            print(f"    with all-gather in {many}: {said}; to launch both {least:.0f} us")
            assert max(took.values()) < 20 * gemm + 1000
