"""On two Hopper GPUs of one host, in one process: a GEMM whose K they divide and whose rows they share out, in one launch of each.

python3 -m pytest -m gpu -q tests/gpu/test_gpu_ranks.py        # add -s for times
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from kernels import DENSE, DENSE_F32, DENSE_TN, FP8

from gemmgen.config import Config
from gemmgen.epilogues import EPILOGUES
from gemmgen.errors import IllegalConfig, LaunchError
from gemmgen.verification import exact_integers, random_normal, ranked
from gemmgen.verification.codes import code_type
from gemmgen.verification.engines import NumpyEngine
from gemmgen.verification.quantised import Result

pytestmark = pytest.mark.gpu
RANKS = 2


@cache
def host():
    """torch, where there are two GPUs that can access each other's memory: then they may."""
    torch = pytest.importorskip("torch")
    if torch.cuda.device_count() < RANKS:
        pytest.skip("needs two GPUs")
    for one, other in ((0, 1), (1, 0)):
        if not torch.cuda.can_device_access_peer(one, other):
            pytest.skip("the two GPUs cannot access each other's memory")
        access(one, other)
    return torch


def access(one, other):
    from gemmgen.runtime import driver

    with driver.current(one):
        try:
            driver.call("cuCtxEnablePeerAccess", driver._primary_context(other), 0)
        except LaunchError as e:
            if "ALREADY_ENABLED" not in str(e):
                raise


@cache
def mailboxes(m, n):
    """Of both ranks."""
    from gemmgen.ops.ranked import InProcess, Mailbox, mailbox_bytes

    torch, size = host(), mailbox_bytes(m, n, RANKS)
    tensors = tuple(torch.zeros(size, dtype=torch.uint8, device=f"cuda:{r}") for r in range(RANKS))
    for r in range(RANKS):
        torch.cuda.synchronize(r)
    return [Mailbox(InProcess(rank=r, tensors=tensors), f"cuda:{r}") for r in range(RANKS)]


def tensor(codes, dtype, rank):
    """Codes as a torch tensor of what they stand for."""
    torch = host()
    from gemmgen.runtime.torch_tensors import torch_dtype

    signed = {1: np.int8, 2: np.int16, 4: np.int32}[np.asarray(codes).itemsize]
    made = torch.from_numpy(np.ascontiguousarray(codes).view(signed)).to(f"cuda:{rank}")
    return made.view(torch_dtype(dtype))


def planned(problem, whole, config, **arguments):
    """Both ranks' launches over `whole`."""
    from gemmgen.ops.ranked import ReduceScatter

    torch, cut = host(), ranked.together(problem, whole, RANKS)
    found = []
    for rank, x in enumerate(cut.handed):
        a, b = x.a, x.b
        a, b = (y.T if turned else y for y, turned in zip((a, b), x.mn_major, strict=True))
        given = dict(arguments)
        if x.scale_a is not None:
            scale_a = torch.from_numpy(np.ascontiguousarray(x.scale_a.T)).to(f"cuda:{rank}").T
            scale_b = torch.from_numpy(np.ascontiguousarray(x.scale_b)).to(f"cuda:{rank}")
            given |= {"scale_a": scale_a, "scale_b": scale_b, "scale_layout": "mn"}
        for name, value in x.arguments.items():
            given[name] = torch.from_numpy(np.ascontiguousarray(value)).to(f"cuda:{rank}")
        boxes = mailboxes(4096, 8192)
        operands = tensor(a, problem.a, rank), tensor(b, problem.b, rank)
        found.append(ReduceScatter(problem, boxes[rank], *operands, config=config, **given))
    for rank in range(RANKS):
        torch.cuda.synchronize(rank)
    return found


def launch(calls, order=(0, 1)):
    torch = host()
    for rank in order:
        with torch.cuda.device(rank):
            calls[rank].launch()


def results(problem, calls):
    torch = host()
    for rank in range(RANKS):
        torch.cuda.synchronize(rank)
    signed = {2: torch.int16, 4: torch.int32}[problem.d.bytes]
    codes = [x.out.view(signed).cpu().numpy().view(code_type(problem.d)) for x in calls]
    return [Result(codes=x) for x in codes]


class Verified:
    """What the references are computed with."""

    ranks, engine = RANKS, NumpyEngine()


BASE = Config()
CONFIGS = {
    "chosen": None,
    "base": BASE,
    "wide": Config(block_n=256, stages=3),
    "ping_pong": Config(block_m=64, block_n=256, ping_pong=True),
    "multicast": Config(multicast="b"),
    "swapped": Config(swap_ab=True, block_m=16, block_n=128, stages=6),
    "watched": Config(watchdog=True),
}
SHAPES = ((256, 256, 512), (264, 136, 768), (2048, 1024, 1024), (64, 7168, 2048))


@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: "x".join(map(str, s)))
@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("problem", (DENSE, FP8), ids=("bf16", "fp8"))
def test_exact_sums_on_both_ranks(problem, config, shape):
    host()
    whole = exact_integers(problem, *shape, 1)
    try:
        calls = planned(problem, whole, CONFIGS[config])
    except IllegalConfig as e:
        pytest.skip(str(e))
    for order in ((0, 1), (1, 0)):
        for x in calls:
            x.out.zero_()
        launch(calls, order)
        ranked.check_exact(Verified, problem, whole, results(problem, calls))


@pytest.mark.parametrize(
    "problem", (DENSE_TN, replace(DENSE, epilogue=EPILOGUES["bias"])), ids=("tn", "bias")
)
def test_layouts_and_epilogues(problem):
    host()
    whole = exact_integers(problem, 528, 264, 768, 1)
    calls = planned(problem, whole, BASE)
    launch(calls)
    ranked.check_exact(Verified, problem, whole, results(problem, calls))


def test_bits_are_those_of_the_plain_gemms_added_in_order():
    from gemmgen import ops

    torch = host()
    whole = random_normal(DENSE_F32, 512, 1024, 4096, 1)
    calls = planned(DENSE_F32, whole, BASE)
    launch(calls)
    got = results(DENSE_F32, calls)
    parts = []
    for rank, x in enumerate(ranked.together(DENSE_F32, whole, RANKS).handed):
        with torch.cuda.device(rank):
            a, b = tensor(x.a, DENSE.a, rank), tensor(x.b, DENSE.b, rank)
            parts.append(ops.gemm(a, b, out_dtype="f32", config=BASE).cpu())
    for rank, result in enumerate(got):
        mine = slice(rank * 256, rank * 256 + 256)
        wanted = parts[rank][mine] + parts[1 - rank][mine]
        assert (result.codes.view(np.float32) == wanted.numpy()).all()


@pytest.mark.parametrize("slow", (None, 0, 1))
def test_a_thousand_launches_of_changing_operands(slow):
    """One GPU may be far behind the other; two GEMMs take turns in one mailbox."""
    torch = host()
    wholes = [exact_integers(DENSE, 512, n, 512, seed) for seed, n in enumerate((512, 1032))]
    both = [planned(DENSE, x, BASE) for x in wholes]
    for i in range(1000):
        if slow is not None and i % 50 == 0:
            with torch.cuda.device(slow):
                torch.cuda._sleep(2_000_000)
        for calls in both:
            launch(calls, (0, 1) if i % 2 else (1, 0))
        if i % 250 == 249:
            for whole, calls in zip(wholes, both, strict=True):
                ranked.check_exact(Verified, DENSE, whole, results(DENSE, calls))
                for x in calls:
                    x.out.zero_()
                for rank in range(RANKS):
                    torch.cuda.synchronize(rank)


TIMED = ((8192, 8192, 8192), (4096, 7168, 16384), (4096, 4096, 7168), (4096, 7168, 2048))


def microseconds(launches, repeats=30):
    """Of each rank, the mean of so many launches in a row."""
    torch = host()
    for _ in range(3):
        launches()
    ends = []
    for rank in range(RANKS):
        torch.cuda.synchronize(rank)
    for rank in range(RANKS):
        with torch.cuda.device(rank):
            ends.append([torch.cuda.Event(enable_timing=True) for _ in range(2)])
            ends[rank][0].record()
    for _ in range(repeats):
        launches()
    for rank in range(RANKS):
        with torch.cuda.device(rank):
            ends[rank][1].record()
    for rank in range(RANKS):
        torch.cuda.synchronize(rank)
    return [1000 * first.elapsed_time(last) / repeats for first, last in ends]


@pytest.mark.parametrize("shape", TIMED, ids=lambda s: "x".join(map(str, s)))
def test_time_beside_the_gemm_alone(shape):
    """Prints; a launch may not take so long that it must have waited for something else."""
    import gemmgen
    from gemmgen import ops
    from gemmgen.ops.ranked import ReduceScatter

    torch, (m, n, k) = host(), shape
    boxes = mailboxes(4096, 8192)
    tensors = [
        [torch.randn(s, k // RANKS, device=f"cuda:{r}").bfloat16() for s in (m, n)]
        for r in range(RANKS)
    ]
    for name, config in CONFIGS.items():
        if name in ("swapped", "watched"):
            continue
        calls = [ReduceScatter(DENSE, boxes[r], *tensors[r], config=config) for r in range(RANKS)]
        alone = []
        for r in range(RANKS):
            with torch.cuda.device(r):
                alone.append(gemmgen.bind(ops.gemm, *tensors[r], config=config))

        def plain(alone=alone):
            for r in range(RANKS):
                with torch.cuda.device(r):
                    alone[r].launch()

        gemm, fused = microseconds(plain), microseconds(lambda calls=calls: launch(calls))
        print(f"\n{shape} {name}: GEMM {max(gemm):.0f} us, with reduce-scatter {max(fused):.0f} us")
        assert max(fused) < 20 * max(gemm) + 1000
