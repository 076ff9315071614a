"""Weights that are loaded while the launch before ends, on a GPU: the same bits, launch after launch, that a chain has without."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gemmgen.config import Config
from gemmgen.ops import batched_gemm, bind, fp8_block_gemm, gemm

pytestmark = pytest.mark.gpu

LENGTH = 64
SIDE = 512
ROWS = 16
SMALL = Config(block_m=64, block_n=64, consumers=1, stages=6)
CONFIGS = {
    "small": SMALL,
    "swapped": Config(swap_ab=True, block_m=16, block_n=64, consumers=1, stages=12, unroll=4),
    "multicast a": Config(block_m=128, block_n=64, multicast="a"),
    "multicast b": Config(block_m=128, block_n=64, multicast="b"),
    "split": replace(SMALL, split_k=2),
    "turns": Config(ping_pong=True, stages=3, in_flight=1, block_n=64),
}


def ahead(config):
    return replace(config, pdl=True, weights_ahead=True)


def drawn(*sides):
    torch = pytest.importorskip("torch")
    generator = torch.Generator("cuda").manual_seed(1)
    make = {"generator": generator, "device": "cuda", "dtype": torch.bfloat16}
    return [torch.randn(*s, **make) * SIDE**-0.5 for s in sides]


def chain(x, weights, buffers, **how):
    """x @ W0.T @ W1.T ...: of two buffers each is written while the next launch could start. Every launch has weights of its own."""
    for i, w in enumerate(weights):
        x = gemm(x, w, out=buffers[i % 2], **how)
    return x


@pytest.mark.parametrize("rows", (ROWS, SIDE))
@pytest.mark.parametrize("name", CONFIGS)
def test_a_chain_of_launches(name, rows):
    torch = pytest.importorskip("torch")
    x, *weights = drawn((rows, SIDE), *[(SIDE, SIDE)] * LENGTH)
    buffers = torch.empty_like(x), torch.empty_like(x)
    wanted = chain(x, weights, buffers, config=CONFIGS[name]).clone()
    for _ in range(20):
        for b in buffers:
            b.fill_(float("nan"))  # what is read too early
        found = chain(x, weights, buffers, config=ahead(CONFIGS[name]), weights_ready=True)
        assert torch.equal(found, wanted)


def test_what_is_chosen_in_a_captured_chain():
    torch = pytest.importorskip("torch")
    x, *weights = drawn((ROWS, SIDE), *[(SIDE, SIDE)] * LENGTH)
    buffers = torch.empty_like(x), torch.empty_like(x)
    launch = bind(gemm, x, weights[0], weights_ready=True)
    assert launch.kernel.kernel.pdl and launch.kernel.kernel.name.endswith("ahead")
    wanted = chain(x, weights, buffers).clone()
    chain(x, weights, buffers, weights_ready=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        last = chain(x, weights, buffers, weights_ready=True)
    for _ in range(20):
        graph.replay()
        assert torch.equal(last, wanted)


def test_a_batch():
    torch = pytest.importorskip("torch")
    x, w = drawn((8, ROWS, SIDE), (8, SIDE, SIDE))
    wanted = batched_gemm(batched_gemm(x, w), w)
    y, out = torch.empty_like(x), torch.empty_like(x)
    for _ in range(20):
        y.fill_(float("nan")), out.fill_(float("nan"))
        batched_gemm(x, w, out=y, weights_ready=True)  # lets the next begin before it is done
        batched_gemm(y, w, out=out, weights_ready=True)
        assert torch.equal(out, wanted)


def test_scales_that_the_launch_before_wrote():
    """A's rows and scales are copied just before; B and its scales lie ready. A copy of torch's lets nobody begin before it is
    done: what overlaps is the chain's to show."""
    torch = pytest.importorskip("torch")
    a, b = (x.to(torch.float8_e4m3fn) for x in drawn((ROWS, SIDE), (SIDE, SIDE)))
    blocks = SIDE // 128
    scale_a = torch.rand(blocks, ROWS, device="cuda").T
    scale_b = torch.rand(blocks, blocks, device="cuda")
    how = {"scale_a_layout": "mn"}
    wanted = fp8_block_gemm(a, scale_a, b, scale_b, **how)
    a_now, scale_now = torch.empty_like(a), torch.empty(blocks, ROWS, device="cuda").T
    for _ in range(20):
        a_now.zero_(), scale_now.fill_(float("nan"))
        a_now.copy_(a)
        scale_now.copy_(scale_a)
        found = fp8_block_gemm(a_now, scale_now, b, scale_b, weights_ready=True, **how)
        assert torch.equal(found, wanted)
