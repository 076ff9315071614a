"""On two Hopper GPUs of one host, in one process: a GEMM whose K they divide, and of which each stores the sum of both.

python3 -m pytest -m gpu -q tests/gpu/test_gpu_all_reduce.py        # add -s for times
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from random import Random

import pytest
from kernels import DENSE, DENSE_F32, DENSE_TN, FP8
from two_gpus import (
    CONFIGS,
    RANKS,
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

from gemmgen.epilogues import EPILOGUES
from gemmgen.errors import CompileError, IllegalConfig
from gemmgen.ir.dtypes import BF16, F16
from gemmgen.verification import exact_integers, random_normal, ranked

pytestmark = pytest.mark.gpu
BASE = CONFIGS["base"]
MOST = 1024, 8192  # rows and columns of the mailboxes
SHAPES = ((1, 7168, 512), (16, 4096, 1024), (72, 136, 768), (264, 1032, 512), (512, 7168, 1024))
TIMED = ((1, 7168, 16384), (16, 7168, 16384), (64, 7168, 16384), (256, 4096, 7168))


@cache
def mailboxes():
    """Of both ranks."""
    from gemmgen.ops.all_reduced import Mailbox, all_reduce_bytes

    memory = shared(all_reduce_bytes(*MOST, RANKS))
    return [Mailbox(x, f"cuda:{rank}") for rank, x in enumerate(memory)]


def reduced(problem, wire=None):
    return replace(problem, collective="all_reduce", wire=wire)


def planned(problem, whole, config):
    """Both ranks' launches over `whole`."""
    from gemmgen.ops.all_reduced import AllReduce

    cut, found = ranked.together(problem, whole, RANKS), []
    for rank, x in enumerate(cut.handed):
        a, b = (y.T if t else y for y, t in zip((x.a, x.b), x.mn_major, strict=True))
        given = {name: floats(value, rank) for name, value in x.arguments.items()}
        if x.scale_a is not None:
            scale_a, scale_b = floats(x.scale_a.T, rank).T, floats(x.scale_b, rank)
            given |= {"scale_a": scale_a, "scale_b": scale_b, "scale_layout": "mn"}
        operands = tensor(a, problem.a, rank), tensor(b, problem.b, rank)
        found.append(AllReduce(problem, mailboxes()[rank], *operands, config=config, **given))
    settle()
    return found


def results(problem, calls):
    settle()
    return [result(problem, x.out) for x in calls]


def check(problem, whole, calls):
    """To the bit, and the same bits on both."""
    ranked.check_exact(Verified, problem, whole, results(problem, calls))


PROBLEMS = {
    "bf16": reduced(DENSE),
    "fp8": reduced(FP8),
    "bf16_wire_bf16": reduced(DENSE, BF16),
    "bf16_wire_f16": reduced(DENSE, F16),
    "fp8_wire_bf16": reduced(FP8, BF16),
}


@pytest.mark.parametrize("shape", SHAPES, ids=named)
@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("name", PROBLEMS)
def test_exact_sums_on_both_ranks(name, config, shape):
    host()
    problem = PROBLEMS[name]
    if problem.a == FP8.a and shape[0] % 4:
        pytest.skip("A's scales begin at 16 bytes")
    whole = exact_integers(problem, *shape, 1)
    try:
        calls = planned(problem, whole, CONFIGS[config])
    except (IllegalConfig, CompileError) as e:  # one of FP32 sums would spill
        pytest.skip(str(e).splitlines()[0])
    for order in ((0, 1), (1, 0)):
        for x in calls:
            x.out.zero_()
        launch(calls, order)
        check(problem, whole, calls)


@pytest.mark.parametrize("seed", range(60))
def test_random_shapes(seed):
    """Of configs that the model chooses."""
    host()
    random = Random(seed)
    name = random.choice([*PROBLEMS])
    problem = PROBLEMS[name]
    m = random.choice((4 * random.randint(1, 16), 4 * random.randint(1, 150)))
    shape = m, 8 * random.randint(1, 256), 256 * random.randint(1, 12)
    whole = exact_integers(problem, *shape, seed)
    calls = planned(problem, whole, None)
    for _ in range(3):
        launch(calls)
    check(problem, whole, calls)


@pytest.mark.parametrize(
    "problem",
    (
        reduced(DENSE_TN),
        *(reduced(replace(DENSE, epilogue=EPILOGUES["bias"]), w) for w in (None, BF16)),
    ),
    ids=("tn", "bias", "bias_wire"),
)
def test_layouts_and_epilogues(problem):
    host()
    whole = exact_integers(problem, 264, 264, 768, 1)
    calls = planned(problem, whole, BASE)
    launch(calls)
    check(problem, whole, calls)


@pytest.mark.parametrize("wire", (None, BF16, F16), ids=str)
def test_bits_are_those_of_the_plain_gemms_added_in_order(wire):
    """Rank 0's first, both rounded if there is a wire."""
    from gemmgen import ops
    from gemmgen.runtime.torch_tensors import torch_dtype

    torch = host()
    whole = random_normal(DENSE_F32, 256, 1024, 4096, 1)
    problem = reduced(DENSE_F32, wire)
    calls = planned(problem, whole, BASE)
    launch(calls)
    got = results(problem, calls)
    ranked.check_close(Verified, problem, whole, got)
    wanted = 0.0
    for rank, x in enumerate(ranked.together(problem, whole, RANKS).handed):
        with torch.cuda.device(rank):
            a, b = tensor(x.a, DENSE.a, rank), tensor(x.b, DENSE.b, rank)
            part = ops.gemm(a, b, out_dtype="f32", config=BASE).cpu()
        wanted = wanted + (part.to(torch_dtype(wire)).float() if wire else part)
    for x in got:
        assert (x.codes.view("float32") == wanted.numpy()).all()


@pytest.mark.parametrize("slow", (None, 0, 1))
def test_a_thousand_launches_of_changing_operands(slow):
    """One GPU may be far behind the other; two all-reduces and a reduce-scatter take turns in one mailbox."""
    from test_gpu_ranks import planned as scattered

    torch = host()
    problems = PROBLEMS["bf16"], PROBLEMS["bf16_wire_bf16"]
    wholes = [exact_integers(DENSE, 64, n, 512, seed) for seed, n in enumerate((512, 1032))]
    both = [planned(p, x, BASE) for p, x in zip(problems, wholes, strict=True)]
    rows = exact_integers(DENSE, 256, 512, 512, 2)
    third = scattered(DENSE, rows, BASE, boxes=mailboxes())
    for i in range(1000):
        if slow is not None and i % 50 == 0:
            with torch.cuda.device(slow):
                torch.cuda._sleep(2_000_000)
        for calls in (*both, third):
            launch(calls, (0, 1) if i % 2 else (1, 0))
        if i % 250 == 249:
            for p, whole, calls in zip(problems, wholes, both, strict=True):
                check(p, whole, calls)
            ranked.check_exact(Verified, DENSE, rows, [result(DENSE, x.out) for x in third])
            for x in (*both[0], *both[1], *third):
                x.out.zero_()
            settle()


@pytest.mark.parametrize("name", ("bf16", "fp8", "bf16_wire_bf16"))
def test_replays_of_a_graph(name):
    """Of three launches in a row, a hundred times, beside others in the same mailboxes."""
    torch = host()
    problem = PROBLEMS[name]
    wholes = [exact_integers(problem, 64, n, 512, seed) for seed, n in enumerate((512, 1032))]
    both = [planned(problem, x, BASE) for x in wholes]
    for calls in both:  # compiled and loaded before
        launch(calls)
    settle()
    graphs = []
    for rank in range(RANKS):
        with torch.cuda.device(rank):
            graphs.append(torch.cuda.CUDAGraph())
            with torch.cuda.graph(graphs[rank], stream=torch.cuda.Stream(rank)):
                for _ in range(3):
                    both[0][rank].launch()
    settle()
    for i in range(100):
        if i % 10 == 9:
            for x in (*both[0], *both[1]):
                x.out.zero_()
            with torch.cuda.device(i % 2):
                torch.cuda._sleep(2_000_000)
        for rank in (0, 1) if i % 2 else (1, 0):
            with torch.cuda.device(rank):
                graphs[rank].replay()
        launch(both[1])
        if i % 10 == 9:
            for whole, calls in zip(wholes, both, strict=True):
                check(problem, whole, calls)


@pytest.mark.parametrize("shape", TIMED, ids=named)
def test_time_beside_the_gemm_alone(shape):
    """Prints; a launch may not take so long that it must have waited for something else."""
    import gemmgen
    from gemmgen import ops
    from gemmgen.ops.all_reduced import AllReduce

    torch, (m, n, k) = host(), shape
    tensors = [
        [torch.randn(s, k // RANKS, device=f"cuda:{r}").bfloat16() for s in (m, n)]
        for r in range(RANKS)
    ]
    calls, wired = (
        [AllReduce(DENSE, mailboxes()[r], *tensors[r], wire=wire) for r in range(RANKS)]
        for wire in (None, "bf16")
    )
    alone = []
    for r in range(RANKS):
        with torch.cuda.device(r):
            alone.append(gemmgen.bind(ops.gemm, *tensors[r]))

    def plain():
        for r in range(RANKS):
            with torch.cuda.device(r):
                alone[r].launch()

    gemm = max(microseconds(plain))
    fused, halved = (max(microseconds(lambda calls=c: launch(calls))) for c in (calls, wired))
    print(f"\n{shape}: GEMM {gemm:.1f} us, all-reduce {fused:.1f} us, of BF16 sums {halved:.1f} us")
    assert max(fused, halved) < 20 * gemm + 1000
