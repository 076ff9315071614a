"""On a Hopper GPU: `gemmgen.nn` against torch.nn in float64, compiled, in a CUDA graph, and the example."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from mixtures import distance  # noqa: E402

from gemmgen import nn, ops  # noqa: E402

pytestmark = pytest.mark.gpu

BF16 = torch.bfloat16
K, N = 512, 384
EXPERTS, HIDDEN, INTERMEDIATE = 6, 512, 384


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)
    torch._dynamo.reset()


def drawn(*shape):
    return torch.randn(*shape, device="cuda").to(BF16)


def layer(bias=True):
    return torch.nn.Linear(K, N, bias, device="cuda", dtype=BF16)


@pytest.mark.parametrize("tokens", (1, 100, 1000))
@pytest.mark.parametrize("bias", (False, True))
def test_linear_layers(tokens, bias):
    plain, x = layer(bias), drawn(tokens, K)
    exact = copy.deepcopy(plain).double()(x.double())
    fp8, master = nn.Fp8Linear.of(plain), nn.Fp8Linear.of(plain, master=True)
    assert distance(nn.Linear.of(plain)(x), exact) < 0.005
    assert distance(fp8(x), exact) < 0.05
    assert torch.equal(fp8(x), master(x))


def test_a_master_trains():
    plain = layer()
    mine, wide = nn.Fp8Linear.of(plain, master=True), copy.deepcopy(plain).double()
    x, dy = drawn(300, K).requires_grad_(), drawn(300, N)
    x_wide = x.detach().double().requires_grad_()
    found = torch.autograd.grad(mine(x), [x, mine.weight, mine.bias], dy)
    exact = torch.autograd.grad(wide(x_wide), [x_wide, wide.weight, wide.bias], dy.double())
    assert all(distance(a, b) < 0.06 for a, b in zip(found, exact, strict=True))


def experts():
    made = nn.GroupedExperts(EXPERTS, HIDDEN, INTERMEDIATE, device="cuda")
    inward = (EXPERTS, INTERMEDIATE, HIDDEN)
    gate, up = drawn(*inward) / HIDDEN**0.5, drawn(*inward) / HIDDEN**0.5
    down = drawn(EXPERTS, HIDDEN, INTERMEDIATE) / INTERMEDIATE**0.5
    made.put_projections(gate, up, down)
    return made, [x.double() for x in (gate, up, down)]


def exactly(x, weights, expert):
    gate, up, down = (w[expert] for w in weights)
    return (torch.nn.functional.silu(x @ gate.mT) * (x @ up.mT)) @ down.mT


@pytest.mark.parametrize("tokens", (1, 77, 600))
def test_tokens_get_their_experts(tokens):
    made, weights = experts()
    x = drawn(tokens, HIDDEN)
    shares, chosen = torch.rand(tokens, EXPERTS, device="cuda").topk(3)
    exact = torch.zeros(tokens, HIDDEN, dtype=torch.float64, device="cuda")
    for e in range(EXPERTS):
        token, nth = (chosen == e).nonzero(as_tuple=True)
        exact[token] += shares[token, nth, None].double() * exactly(x[token].double(), weights, e)
    y = made(x, chosen, shares)
    assert distance(y, exact) < 0.09
    assert torch.equal(y, made(x, chosen, shares))


def test_sorted_and_masked_rows():
    made, weights = experts()
    counts = torch.tensor([5, 0, 130, 1, 128, 64], device="cuda", dtype=torch.int32)
    packed = drawn(EXPERTS, 130, HIDDEN)
    z = made.masked(packed, counts, expected_rows=50)
    ends, at = [], 0
    for count in counts.tolist():
        at = -(-at // 128) * 128 + count
        ends.append(at)
    x = torch.zeros(at, HIDDEN, device="cuda", dtype=BF16)
    for e, (end, count) in enumerate(zip(ends, counts.tolist(), strict=True)):
        x[end - count : end] = packed[e, :count]
    y = made.contiguous(x, torch.tensor(ends, device="cuda", dtype=torch.int32))
    for e, (end, count) in enumerate(zip(ends, counts.tolist(), strict=True)):
        if count:
            exact = exactly(packed[e, :count].double(), weights, e)
            assert distance(z[e, :count], exact) < 0.09
            assert distance(y[end - count : end], exact) < 0.09


def test_tokens_in_a_cuda_graph():
    """Other choices, the same graph: nothing of it depends on how many rows an expert has."""
    made, _ = experts()
    x, shares = drawn(77, HIDDEN), torch.rand(77, 3, device="cuda")
    chosen = torch.rand(77, EXPERTS, device="cuda").topk(3).indices
    made(x, chosen, shares)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = made(x, chosen, shares)
    for _ in range(3):
        chosen.copy_(torch.randint(EXPERTS, chosen.shape, device="cuda"))
        graph.replay()
        assert torch.equal(y, made(x, chosen, shares))


def test_in_a_cuda_graph():
    """Other tokens, other counts, the same graph."""
    made, _ = experts()
    x, counts = drawn(EXPERTS, 64, HIDDEN), torch.full((EXPERTS,), 9, device="cuda").int()
    made.masked(x, counts)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = made.masked(x, counts)
    x.copy_(drawn(EXPERTS, 64, HIDDEN))
    counts.fill_(33)
    graph.replay()
    expected = made.masked(x, counts)
    assert torch.equal(y[:, :33], expected[:, :33])


def test_compiled():
    plain, x = layer(), drawn(100, K)
    for module in (nn.Linear.of(plain), nn.Fp8Linear.of(plain)):
        assert torch.equal(torch.compile(module, fullgraph=True)(x), module(x))


def test_a_model_is_converted_in_place():
    model = torch.nn.Sequential(layer(), torch.nn.SiLU(), torch.nn.Linear(N, K)).to("cuda", BF16)
    x = drawn(200, K)
    exact = copy.deepcopy(model).double()(x.double())
    assert nn.convert_(model).converted == ("0", "2")
    assert distance(model(x), exact) < 0.07
    q, _ = ops.quantise_blocks(torch.nn.Linear(N, K, device="cuda").weight.detach())
    assert model[2].weight.dtype == q.dtype and model.half()[2].weight.dtype == q.dtype


def test_the_example():
    path = Path(__file__).parents[2] / "examples" / "mlp_moe.py"
    run = subprocess.run(
        [sys.executable, path],
        env={**os.environ, "PYTHONPATH": str(path.parent.parent)},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr
    assert "gemmgen.nn, FP8" in run.stdout
