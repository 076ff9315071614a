"""Two Hopper GPUs of one host, in one process: what tests of GEMMs that they compute together share."""

from __future__ import annotations

import time
from functools import cache

import numpy as np
import pytest

from gemmgen.codes import code_type
from gemmgen.config import Config
from gemmgen.verification.engines import NumpyEngine
from gemmgen.verification.quantised import Result

RANKS = 2
SECONDS = 60  # that launches may take until they count as stuck
CONFIGS = {
    "chosen": None,
    "base": Config(),
    "wide": Config(block_n=256, stages=3),
    "ping_pong": Config(block_m=64, block_n=256, ping_pong=True),
    "multicast": Config(multicast="b"),
    "swapped": Config(swap_ab=True, block_m=16, block_n=128, stages=6),
    "watched": Config(watchdog=True),
}
SHAPES = ((256, 256, 512), (264, 136, 768), (2048, 1024, 1024), (64, 7168, 2048))
TIMED = ((8192, 8192, 8192), (4096, 7168, 16384), (4096, 4096, 7168), (4096, 7168, 2048))


class Verified:
    """What the references are computed with."""

    ranks, engine = RANKS, NumpyEngine()


def named(shape):
    return "x".join(map(str, shape))


@cache
def host():
    """torch, where there are two GPUs that can access each other's memory."""
    torch = pytest.importorskip("torch")
    if torch.cuda.device_count() < RANKS:
        pytest.skip("needs two GPUs")
    for one, other in ((0, 1), (1, 0)):
        if not torch.cuda.can_device_access_peer(one, other):
            pytest.skip("the two GPUs cannot access each other's memory")
    return torch


def shared(size):
    """Bytes of both GPUs, all zero, as each rank sees them."""
    from gemmgen.ops.collective import InProcess

    torch = host()
    tensors = tuple(torch.zeros(size, dtype=torch.uint8, device=f"cuda:{r}") for r in range(RANKS))
    settle()
    return [InProcess(rank=r, tensors=tensors) for r in range(RANKS)]


def settle():
    """Wait for what is queued on both GPUs' current streams. Launches that wait for each other for ever end the run: nothing after them
    would begin."""
    torch, last = host(), time.monotonic() + SECONDS
    for rank in range(RANKS):
        with torch.cuda.device(rank):
            done = torch.cuda.Event()
            done.record()
        while not done.query():
            if time.monotonic() > last:
                pytest.exit(f"GPU {rank} is not done after {SECONDS} s: a launch is stuck")
            time.sleep(0.0005)
        torch.cuda.synchronize(rank)


def tensor(codes, dtype, rank):
    """Codes as a torch tensor of what they stand for."""
    torch = host()
    from gemmgen.runtime.torch_tensors import torch_dtype

    signed = {1: np.int8, 2: np.int16, 4: np.int32}[np.asarray(codes).itemsize]
    made = torch.from_numpy(np.ascontiguousarray(codes).view(signed)).to(f"cuda:{rank}")
    return made.view(torch_dtype(dtype))


def floats(values, rank):
    return host().from_numpy(np.ascontiguousarray(values)).to(f"cuda:{rank}")


def launch(calls, order=(0, 1)):
    """Where one cannot be launched the others wait for it, and so would all that follows: then the run ends."""
    torch = host()
    for started, rank in enumerate(order):
        with torch.cuda.device(rank):
            try:
                calls[rank].launch()
            except Exception as e:
                if started:
                    pytest.exit(f"GPU {order[0]} waits for GPU {rank}: {e}")
                raise


def result(problem, out, scales=None):
    """What a launch that is over has stored."""
    torch = host()
    signed = {1: torch.int8, 2: torch.int16, 4: torch.int32}[problem.d.bytes]
    codes = np.ascontiguousarray(out.view(signed).cpu().numpy()).view(code_type(problem.d))
    if scales is None:
        return Result(codes=codes)
    return Result(codes=codes, scales=np.ascontiguousarray(scales.cpu().numpy()).view(np.uint32))


def microseconds(launches, repeats=30):
    """Of each rank, the mean of so many launches in a row."""
    torch = host()
    for _ in range(3):
        launches()
    settle()
    ends = []
    for rank in range(RANKS):
        with torch.cuda.device(rank):
            ends.append([torch.cuda.Event(enable_timing=True) for _ in range(2)])
            ends[rank][0].record()
    for _ in range(repeats):
        launches()
    for rank in range(RANKS):
        with torch.cuda.device(rank):
            ends[rank][1].record()
    settle()
    return [1000 * first.elapsed_time(last) / repeats for first, last in ends]
