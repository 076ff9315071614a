"""Launches that begin while the one before them ends, on a GPU: each reads what the one before wrote."""

from __future__ import annotations

import pytest

from gemmgen.config import Config
from gemmgen.ops import gemm, masked_gemm

pytestmark = pytest.mark.gpu

LENGTH = 64
SIDE = 512
PLAIN = Config(block_m=64, block_n=64, consumers=1, stages=6)
EARLY = Config(block_m=64, block_n=64, consumers=1, stages=6, pdl=True)
SHARED = Config(block_m=128, block_n=64, multicast="a", pdl=True)
DIVIDED = Config(block_m=64, block_n=64, consumers=1, split_k=2, pdl=True)


def tensors():
    torch = pytest.importorskip("torch")
    generator = torch.Generator("cuda").manual_seed(1)
    make = {"generator": generator, "device": "cuda", "dtype": torch.bfloat16}
    scale = SIDE**-0.5  # keeps the size of what goes round
    return torch, torch.randn(SIDE, SIDE, **make), torch.randn(SIDE, SIDE, **make) * scale


def chain(x, weights, config, buffers):
    """x @ W.T @ W.T ...: two buffers in turn, each written while the next launch could start."""
    for i in range(LENGTH):
        x = gemm(x, weights, out=buffers[i % 2], config=config)
    return x


@pytest.mark.parametrize("config", (EARLY, SHARED, DIVIDED))
def test_a_chain_of_launches(config):
    torch, x, weights = tensors()
    buffers = torch.empty_like(x), torch.empty_like(x)
    wanted = chain(x, weights, Config(**vars(config) | {"pdl": False}), buffers).clone()
    for _ in range(20):
        assert torch.equal(chain(x, weights, config, buffers), wanted)


def test_a_captured_chain():
    torch, x, weights = tensors()
    buffers = torch.empty_like(x), torch.empty_like(x)
    wanted = chain(x, weights, PLAIN, buffers).clone()
    chain(x, weights, EARLY, buffers)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        last = chain(x, weights, EARLY, buffers)
    for _ in range(20):
        graph.replay()
        assert torch.equal(last, wanted)


def test_counts_written_by_the_launch_before():
    """The scheduler reads masks that another kernel of the stream has only just written."""
    torch, x, weights = tensors()
    a, b = x.reshape(4, 128, SIDE), torch.stack([weights] * 4)
    out = torch.empty(4, 128, SIDE, dtype=torch.bfloat16, device="cuda")
    counts = torch.zeros(4, dtype=torch.int32, device="cuda")
    for rows in (1, 128, 77, 0, 128):
        out.fill_(7.0)
        counts.fill_(rows)
        masked_gemm(a, b, counts, out=out, config=EARLY)
        wanted = torch.full_like(out, 7.0)
        wanted[:, :rows] = gemm(x, weights, config=PLAIN).reshape(4, 128, SIDE)[:, :rows]
        assert torch.equal(out, wanted)
