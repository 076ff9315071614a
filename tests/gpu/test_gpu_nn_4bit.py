"""On a Hopper GPU: layers of 4 bits against their dequantised weights in float64, compiled, in a CUDA graph, and the example."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import four_bits  # noqa: E402
from example_runs import on_a_gpu  # noqa: E402
from four_bits import FORMS  # noqa: E402
from mixtures import distance  # noqa: E402
from roundings import of_length  # noqa: E402

from gemmgen import formats, nn, ops  # noqa: E402

pytestmark = pytest.mark.gpu

N, K = 200, 512
EXPERTS, HIDDEN, INNER = 6, 512, 384
# Roundings: of a linear layer its result; of an expert gate, up, their product and the result; of tokens their sums, too. Weights are
# the numbers that they were packed to.
LINEAR, MASKED, TOKENS = 1, 4, 5


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)
    torch._dynamo.reset()


def on_device(form, *shape):
    return four_bits.packed(*FORMS[form], *shape).to("cuda")


def drawn(form, *shape):
    return torch.randn(*shape, device="cuda").to(FORMS[form][1])


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("rows", (1, 16, 300))
@pytest.mark.parametrize("biased", (False, True))
def test_a_linear_layer(form, rows, biased):
    weights, x = on_device(form, N, K), drawn(form, rows, K)
    bias = torch.randn(N, device="cuda") if biased else None
    layer = nn.Linear4bit.from_packed(weights, bias)
    y = layer(x)
    exact = x.double() @ four_bits.exact(weights).mT + (bias.double() if biased else 0.0)
    assert distance(y, exact) < of_length(x.dtype, LINEAR)
    assert torch.equal(torch.compile(layer, fullgraph=True)(x), y)


@pytest.mark.parametrize("rows", (1, 16, 300))
@pytest.mark.parametrize("biased", (False, True))
def test_a_linear_layer_by_fp8(rows, biased):
    weights = four_bits.packed(formats.MXFP4, torch.float8_e4m3fn, N, K).to("cuda")
    x = torch.randn(rows, K, device="cuda").bfloat16()
    bias = torch.randn(N, device="cuda") if biased else None
    layer = nn.Linear4bit.from_packed(weights, bias)
    y, (q, scale) = layer(x), ops.quantise_rows(x, None)
    codes = q.double() * scale.double()[:, None]
    exact = codes @ four_bits.exact(weights).mT + (bias.double() if biased else 0.0)
    assert distance(y, exact) < of_length(x.dtype, LINEAR)
    assert torch.equal(torch.compile(layer, fullgraph=True)(x), y)


@pytest.mark.parametrize("tokens", (1, 77, 600))
def test_experts_by_fp8(tokens):
    """As `ops.moe` computes them, to the bit, which is compared with float64; masked rows as quantised ones."""
    shapes = (EXPERTS, 2 * INNER, HIDDEN), (EXPERTS, HIDDEN, INNER)
    weights = [four_bits.packed(formats.MXFP4, torch.float8_e4m3fn, *s).to("cuda") for s in shapes]
    made, exact = nn.Experts4bit.from_packed(*weights), [*map(four_bits.exact, weights)]
    x = torch.randn(tokens, HIDDEN, device="cuda").bfloat16()
    shares, chosen = torch.rand(tokens, EXPERTS, device="cuda").topk(3)
    given = {f"w{i}": w.blocks for i, w in enumerate(weights, 1)}
    given |= {f"scale_w{i}": w.factors for i, w in enumerate(weights, 1)}
    said = {"packed": weights[0].weights, "activations": weights[0].activations}
    y = ops.moe(x, chosen=chosen, weights=shares, **given, **said)
    assert torch.equal(made(x, chosen, shares), y)
    rows = torch.randn(EXPERTS, 40, HIDDEN, device="cuda").bfloat16()
    counts = torch.tensor([40, 0, 1, 17, 40, 3], device="cuda").int()
    found, none = made.masked(rows, counts), [0.0] * EXPERTS
    for e, count in enumerate(counts.tolist()):
        some = exactly(rows[e, :count].double(), exact, (none, none), e, "swiglu")
        assert not count or distance(found[e, :count], some) < 0.09


def experts(form, activation="swiglu"):
    weights = on_device(form, EXPERTS, 2 * INNER, HIDDEN), on_device(form, EXPERTS, HIDDEN, INNER)
    biases = [torch.randn(x.shape[:2], device="cuda") / 8 for x in weights]
    given = dict(zip(("gate_up_bias", "down_bias"), biases, strict=True))
    made = nn.Experts4bit.from_packed(*weights, **given, activation=activation)
    return made, [*map(four_bits.exact, weights)], [b.double() for b in biases]


def exactly(x, weights, biases, expert, activation):
    both = x @ weights[0][expert].mT + biases[0][expert]
    gate, up = both[:, ::2], both[:, 1::2]
    if activation == "swiglu_clamped":
        gate, up = gate.clamp(max=7.0), up.clamp(-7.0, 7.0) + 1
        gate = gate * torch.sigmoid(1.702 * gate)
    else:
        gate = torch.nn.functional.silu(gate)
    return (gate * up) @ weights[1][expert].mT + biases[1][expert]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("tokens", (1, 77, 600))
@pytest.mark.parametrize("activation", ("swiglu", "swiglu_clamped"))
def test_tokens_get_their_experts(form, tokens, activation):
    made, weights, biases = experts(form, activation)
    x = drawn(form, tokens, HIDDEN)
    shares, chosen = torch.rand(tokens, EXPERTS, device="cuda").topk(3)
    exact = torch.zeros(tokens, HIDDEN, dtype=torch.float64, device="cuda")
    for e in range(EXPERTS):
        token, nth = (chosen == e).nonzero(as_tuple=True)
        found = exactly(x[token].double(), weights, biases, e, activation)
        exact[token] += shares[token, nth, None].double() * found
    y = made(x, chosen, shares)
    assert distance(y, exact) < of_length(x.dtype, TOKENS)
    assert torch.equal(y, made(x, chosen, shares))


def test_masked_rows():
    made, weights, biases = experts("mxfp4")
    x, counts = drawn("mxfp4", EXPERTS, 40, HIDDEN), torch.tensor([5, 0, 40, 1, 33, 2]).int()
    y = made.masked(x, counts.cuda(), expected_rows=10)
    for e, count in enumerate(counts.tolist()):
        exact = exactly(x[e, :count].double(), weights, biases, e, "swiglu")
        assert not count or distance(y[e, :count], exact) < of_length(x.dtype, MASKED)


def test_tokens_in_a_cuda_graph():
    """Other choices, the same graph."""
    made, *_ = experts("mxfp4", "swiglu_clamped")
    x, shares = drawn("mxfp4", 20, HIDDEN), torch.rand(20, 3, device="cuda")
    chosen = torch.rand(20, EXPERTS, device="cuda").topk(3).indices
    made(x, chosen, shares)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = made(x, chosen, shares)
    for _ in range(3):
        chosen.copy_(torch.randint(EXPERTS, chosen.shape, device="cuda"))
        x.normal_()
        graph.replay()
        assert torch.equal(y, made(x, chosen, shares))


def test_the_example():
    assert on_a_gpu("w4a16.py").count("gemmgen, 4 bits") == 2
