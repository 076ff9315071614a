"""On two Hopper GPUs of one host, in one process: a GEMM whose K they divide and whose rows they share out, in one launch of each.

python3 -m pytest -m gpu -q tests/gpu/test_gpu_ranks.py        # add -s for times
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from kernels import DENSE, DENSE_F32, DENSE_TN, FP8
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

from gemmgen.config import Config
from gemmgen.epilogues import EPILOGUES
from gemmgen.errors import ArgumentError, IllegalConfig
from gemmgen.ir.dtypes import BF16, F16
from gemmgen.verification import exact_integers, random_normal, ranked

pytestmark = pytest.mark.gpu
BASE = CONFIGS["base"]
# Of those whose sums copy engines send.
OUTBOXES = {
    "outbox": Config(outbox=True),
    "outbox_wide": Config(block_n=256, stages=3, multicast="b", outbox=True),
    "outbox_ping_pong": Config(block_m=64, block_n=256, ping_pong=True, outbox=True),
}
EVERY = CONFIGS | OUTBOXES


@cache
def mailboxes(m, n, of=""):
    """Of both ranks. of: who uses them: no graph does where copy engines send."""
    from gemmgen.ops.ranked import Mailbox, mailbox_bytes

    memory = shared(mailbox_bytes(m, n, RANKS))
    return [Mailbox(x, f"cuda:{rank}") for rank, x in enumerate(memory)]


def planned(problem, whole, config, boxes=None, **arguments):
    """Both ranks' launches over `whole`. boxes: other mailboxes than these tests'."""
    from gemmgen.ops.ranked import ReduceScatter

    cut = ranked.together(problem, whole, RANKS)
    found = []
    for rank, x in enumerate(cut.handed):
        a, b = x.a, x.b
        a, b = (y.T if turned else y for y, turned in zip((a, b), x.mn_major, strict=True))
        given = dict(arguments)
        if x.scale_a is not None:
            scale_a, scale_b = floats(x.scale_a.T, rank).T, floats(x.scale_b, rank)
            given |= {"scale_a": scale_a, "scale_b": scale_b, "scale_layout": "mn"}
        for name, value in x.arguments.items():
            given[name] = floats(value, rank)
        boxes = boxes or mailboxes(4096, 8192, "outbox" * bool(config and config.outbox))
        operands = tensor(a, problem.a, rank), tensor(b, problem.b, rank)
        found.append(ReduceScatter(problem, boxes[rank], *operands, config=config, **given))
    settle()
    return found


def results(problem, calls):
    settle()
    return [result(problem, x.out) for x in calls]


WIRED = replace(DENSE, collective="reduce_scatter", wire=BF16)
PROBLEMS = {
    "bf16": DENSE,
    "fp8": FP8,
    "bf16_wire_bf16": WIRED,
    "bf16_wire_f16": replace(WIRED, wire=F16),
    "fp8_wire_bf16": replace(FP8, collective="reduce_scatter", wire=BF16),
}


@pytest.mark.parametrize("shape", SHAPES, ids=named)
@pytest.mark.parametrize("config", EVERY)
@pytest.mark.parametrize("name", PROBLEMS)
def test_exact_sums_on_both_ranks(name, config, shape):
    host()
    problem = PROBLEMS[name]
    whole = exact_integers(problem, *shape, 1)
    try:
        calls = planned(problem, whole, EVERY[config])
    except IllegalConfig as e:
        pytest.skip(str(e))
    for order in ((0, 1), (1, 0)):
        for x in calls:
            x.out.zero_()
        launch(calls, order)
        ranked.check_exact(Verified, problem, whole, results(problem, calls))


@pytest.mark.parametrize("chunks", (1, 2, 3, 8, 32))
@pytest.mark.parametrize("config", OUTBOXES)
def test_exact_sums_in_however_many_parcels(config, chunks):
    """One launch after the other, which nobody waits for: each takes the outbox of the one before the last."""
    host()
    whole = exact_integers(DENSE, 1032, 1032, 512, 1)
    calls = planned(DENSE, whole, OUTBOXES[config], chunks=chunks)
    for i in range(20):
        launch(calls, (0, 1) if i % 3 else (1, 0))
    ranked.check_exact(Verified, DENSE, whole, results(DENSE, calls))


@pytest.mark.parametrize("config", (BASE, OUTBOXES["outbox"]), ids=("base", "outbox"))
@pytest.mark.parametrize(
    "problem",
    (DENSE_TN, *(replace(x, epilogue=EPILOGUES["bias"]) for x in (DENSE, WIRED))),
    ids=("tn", "bias", "bias_wire"),
)
def test_layouts_and_epilogues(problem, config):
    host()
    whole = exact_integers(problem, 528, 264, 768, 1)
    calls = planned(problem, whole, config)
    launch(calls)
    ranked.check_exact(Verified, problem, whole, results(problem, calls))


@pytest.mark.parametrize("config", ("base", *OUTBOXES))
@pytest.mark.parametrize("wire", (None, BF16, F16), ids=str)
def test_bits_are_those_of_the_plain_gemms_added_in_order(wire, config):
    """The other rank's rounded, if there is a wire."""
    from gemmgen import ops
    from gemmgen.runtime.torch_tensors import torch_dtype

    torch = host()
    whole = random_normal(DENSE_F32, 512, 1024, 4096, 1)
    problem, config = replace(DENSE_F32, collective="reduce_scatter", wire=wire), EVERY[config]
    try:
        calls = planned(problem, whole, config)
    except IllegalConfig as e:
        pytest.skip(str(e))
    launch(calls)
    got = results(problem, calls)
    ranked.check_close(Verified, problem, whole, got)
    parts = []
    for rank, x in enumerate(ranked.together(DENSE_F32, whole, RANKS).handed):
        with torch.cuda.device(rank):
            a, b = tensor(x.a, DENSE.a, rank), tensor(x.b, DENSE.b, rank)
            parts.append(
                ops.gemm(a, b, out_dtype="f32", config=replace(config, outbox=False)).cpu()
            )
    for rank, x in enumerate(got):
        mine = slice(rank * 256, rank * 256 + 256)
        sent = parts[1 - rank][mine]
        wanted = parts[rank][mine] + (sent.to(torch_dtype(wire)).float() if wire else sent)
        assert (x.codes.view(np.float32) == wanted.numpy()).all()


@pytest.mark.parametrize("config", ("base", *OUTBOXES))
@pytest.mark.parametrize("slow", (None, 0, 1))
def test_a_thousand_launches_of_changing_operands(slow, config):
    """One GPU may be far behind the other; two GEMMs, whose sums travel in 32 and in 16 bits, take turns in one mailbox."""
    torch = host()
    problems = (DENSE, WIRED)
    wholes = [exact_integers(DENSE, 512, n, 512, seed) for seed, n in enumerate((512, 1032))]
    both = [planned(p, x, EVERY[config]) for p, x in zip(problems, wholes, strict=True)]
    for i in range(1000):
        if slow is not None and i % 50 == 0:
            with torch.cuda.device(slow):
                torch.cuda._sleep(2_000_000)
        for calls in both:
            launch(calls, (0, 1) if i % 2 else (1, 0))
        if i % 250 == 249:
            for p, whole, calls in zip(problems, wholes, both, strict=True):
                ranked.check_exact(Verified, p, whole, results(p, calls))
                for x in calls:
                    x.out.zero_()
                settle()


@pytest.mark.parametrize("order", ((0, 1), (1, 0)), ids=str)
@pytest.mark.parametrize("name", ("bf16", "fp8", "bf16_wire_bf16"))
def test_replays_beside_other_launches(name, order):
    """A launch that each GPU has captured, a hundred times, with none, one or two others between two replays: over other operands, and
    of another shape, in the same mailboxes."""
    torch = host()
    problem = PROBLEMS[name]
    wholes = [exact_integers(problem, 512, n, 512, seed) for seed, n in enumerate((512, 1032))]
    both = [planned(problem, x, BASE) for x in wholes]
    for calls in both:  # compiled and loaded before
        launch(calls, order)
    settle()
    streams, graphs = ([make(r) for r in range(RANKS)] for make in (_stream, _graph))
    for rank in range(RANKS):
        with torch.cuda.device(rank), torch.cuda.graph(graphs[rank], stream=streams[rank]):
            assert both[0][rank].launch() is both[0][rank].out
    settle()
    for i in range(100):
        for calls in both:
            for x in calls:
                x.out.zero_()
        if i % 10 == 9:
            with torch.cuda.device(order[0]):
                torch.cuda._sleep(2_000_000)
        for rank in order:
            with torch.cuda.device(rank):
                graphs[rank].replay()
        for _ in range(i % 3):
            launch(both[1], order[::-1])
        if i % 3:
            ranked.check_exact(Verified, problem, wholes[1], results(problem, both[1]))
        ranked.check_exact(Verified, problem, wholes[0], results(problem, both[0]))
        if i % 7 == 6:  # of the same object, whose launches go on
            for x in both[0]:
                x.out.zero_()
            launch(both[0], order)
            ranked.check_exact(Verified, problem, wholes[0], results(problem, both[0]))


def test_replays_in_a_row():
    """Nobody waits between them: of a graph with three launches."""
    torch = host()
    whole = exact_integers(DENSE, 512, 512, 512, 1)
    calls = planned(DENSE, whole, BASE)
    launch(calls)
    settle()
    graphs = [_graph(r) for r in range(RANKS)]
    for rank in range(RANKS):
        with torch.cuda.device(rank), torch.cuda.graph(graphs[rank], stream=_stream(rank)):
            for _ in range(3):
                calls[rank].launch()
    for x in calls:
        x.out.zero_()
    settle()
    for _ in range(100):
        for rank in range(RANKS):
            with torch.cuda.device(rank):
                graphs[rank].replay()
    ranked.check_exact(Verified, DENSE, whole, results(DENSE, calls))


def test_no_graph_has_a_launch_whose_sums_copy_engines_send():
    """It is refused before anything is launched, and what follows is right. So is a mailbox that a graph has used."""
    torch = host()
    whole = exact_integers(DENSE, 512, 512, 512, 1)
    boxes = mailboxes(512, 512, "refused")
    plain, calls = (planned(DENSE, whole, c, boxes) for c in (BASE, OUTBOXES["outbox"]))
    for x in (plain, calls):
        launch(x)
    settle()
    for rank in range(RANKS):
        with (
            torch.cuda.device(rank),
            pytest.raises(ArgumentError, match="replay"),
            torch.cuda.graph(_graph(rank), stream=_stream(rank)),
        ):
            calls[rank].launch()
    for x in calls:
        x.out.zero_()
    settle()
    launch(calls)
    ranked.check_exact(Verified, DENSE, whole, results(DENSE, calls))
    for rank in range(RANKS):
        with torch.cuda.device(rank), torch.cuda.graph(_graph(rank), stream=_stream(rank)):
            plain[rank].launch()
        with pytest.raises(ArgumentError, match="CUDA graph"):
            calls[rank].launch()


@pytest.mark.parametrize("slow", (None, 0, 1))
def test_launches_of_both_kinds_take_turns_in_one_mailbox(slow):
    """Copies of one may outlive it, and the next one's CTAs raise flags themselves."""
    torch = host()
    wholes = [exact_integers(DENSE, 1032, n, 512, seed) for seed, n in enumerate((512, 1032))]
    boxes, configs = mailboxes(2048, 2048, "mixed"), (OUTBOXES["outbox"], BASE)
    both = [planned(DENSE, x, c, boxes) for x, c in zip(wholes, configs, strict=True)]
    for i in range(300):
        if slow is not None and i % 50 == 0:
            with torch.cuda.device(slow):
                torch.cuda._sleep(2_000_000)
        for calls in both if i % 3 else both[::-1]:
            launch(calls, (0, 1) if i % 2 else (1, 0))
        if i % 50 == 49:
            for whole, calls in zip(wholes, both, strict=True):
                ranked.check_exact(Verified, DENSE, whole, results(DENSE, calls))
                for x in calls:
                    x.out.zero_()
                settle()


def _stream(rank):
    return host().cuda.Stream(rank)


def _graph(rank):
    with host().cuda.device(rank):
        return host().cuda.CUDAGraph()


@pytest.mark.parametrize("shape", TIMED, ids=named)
def test_time_beside_the_gemm_alone(shape):
    """Prints; a launch may not take so long that it must have waited for something else."""
    import gemmgen
    from gemmgen import ops
    from gemmgen.ops.ranked import ReduceScatter

    torch, (m, n, k) = host(), shape
    tensors = [
        [torch.randn(s, k // RANKS, device=f"cuda:{r}").bfloat16() for s in (m, n)]
        for r in range(RANKS)
    ]
    for name, config in EVERY.items():
        if name in ("swapped", "watched"):
            continue
        sent = bool(config and config.outbox)
        boxes = mailboxes(4096, 8192, "outbox" * sent)
        single = replace(config, outbox=False) if config else None
        calls, wired = (
            [
                ReduceScatter(DENSE, boxes[r], *tensors[r], config=config, wire=wire)
                for r in range(RANKS)
            ]
            for wire in (None, "bf16")
        )
        alone = []
        for r in range(RANKS):
            with torch.cuda.device(r):
                alone.append(gemmgen.bind(ops.gemm, *tensors[r], config=single))

        def plain(alone=alone):
            for r in range(RANKS):
                with torch.cuda.device(r):
                    alone[r].launch()

        gemm = max(microseconds(plain))
        fused, halved = (
            max(microseconds(lambda calls=calls: launch(calls))) for calls in (calls, wired)
        )
        text = (
            f"GEMM {gemm:.0f} us, with reduce-scatter {fused:.0f} us, of BF16 sums {halved:.0f} us"
        )
        print(f"\n{shape} {name}: {text}")
        assert max(fused, halved) < 20 * gemm + 1000
