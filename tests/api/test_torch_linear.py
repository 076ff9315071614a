"""`torch_ops.linear` and `fp8_linear` on the CPU against float64, with float64 in the kernels' place."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch_reference import on_cpu  # noqa: E402, F401

from gemmgen import ops  # noqa: E402
from gemmgen.errors import ArgumentError  # noqa: E402
from gemmgen.torch_ops import fp8_linear, linear  # noqa: E402

N, K = 144, 160
LAYERS = (linear, fp8_linear)
BF16, F32 = torch.bfloat16, torch.float32


def leaf(*shape, dtype=BF16):
    return torch.randn(shape).to(dtype).requires_grad_()


def gradients(layer, leaves, dy):
    """y, and what each leaf gets."""
    y = layer(*leaves)
    return y, *torch.autograd.grad(y, [x for x in leaves if x is not None], dy.to(y.dtype))


def wide(leaves):
    return [None if x is None else x.detach().double().requires_grad_() for x in leaves]


def error(found, exact):
    """Largest error, of the largest value."""
    return ((found.double() - exact).abs().max() / exact.abs().max()).item()


def dequantised(q, scale, rows=1):
    scale = scale.double().repeat_interleave(128, -1)[..., : q.shape[-1]]
    return q.double() * scale.repeat_interleave(rows, -2)[: q.shape[-2]]


@pytest.mark.parametrize("lead", ((), (1,), (37,), (2, 3, 16)))
@pytest.mark.parametrize("bias", (None, BF16, F32))
@pytest.mark.parametrize(("layer", "allowed"), ((linear, 2**-8), (fp8_linear, 0.05)))
def test_gradients(layer, allowed, lead, bias):
    leaves = (leaf(*lead, K), leaf(N, K), None if bias is None else leaf(N, dtype=bias))
    dy = torch.randn(*lead, N).bfloat16()
    exact = gradients(torch.nn.functional.linear, wide(leaves), dy)
    for found, expected in zip(gradients(layer, leaves, dy), exact, strict=True):
        assert found.shape == expected.shape and error(found, expected) < allowed
    for x, found in zip(
        (x for x in leaves if x is not None), gradients(layer, leaves, dy)[1:], strict=True
    ):
        assert found.dtype == x.dtype


@pytest.mark.parametrize("tokens", (1, 130, 144))
def test_fp8_quantises_as_it_says(tokens):
    """Each product is that of the operands quantised as documented, rounded once."""
    x, w = leaf(tokens, K), leaf(N, K)
    dy = torch.randn(tokens, N).bfloat16()
    y, dx, dw = gradients(fp8_linear, (x, w), dy)
    q = dequantised(*ops.quantise_blocks(w.detach()), rows=128)
    by_row = dequantised(*ops.quantise_rows(x.detach()))
    by_token = [dequantised(*ops.quantise_rows(t.detach().mT)) for t in (dy, x)]
    assert torch.equal(y, (by_row @ q.mT).float().bfloat16())
    assert torch.equal(dx, (dequantised(*ops.quantise_rows(dy)) @ q).float().bfloat16())
    assert torch.equal(dw, (by_token[0] @ by_token[1].mT).float().bfloat16())


@pytest.mark.parametrize("layer", LAYERS)
def test_only_what_is_asked_for(layer):
    x, w = torch.randn(5, K).bfloat16(), leaf(N, K)
    (dw,) = torch.autograd.grad(layer(x, w).sum(), [w])
    assert dw.shape == w.shape
    assert not layer(x, w.detach()).requires_grad


@pytest.mark.parametrize("layer", LAYERS)
def test_no_tokens(layer):
    x, w, b = leaf(0, K), leaf(N, K), leaf(N)
    y, dx, dw, db = gradients(layer, (x, w, b), torch.randn(0, N))
    assert y.shape == (0, N) and dx.shape == (0, K)
    assert not dw.any() and not db.any()


@pytest.mark.parametrize("layer", LAYERS)
def test_strided_operands(layer):
    """Of turned and sliced tensors, and of a gradient that is one number everywhere."""
    x = torch.randn(K, 2 * 24).bfloat16().mT[::2]
    w = torch.randn(K, N).bfloat16().mT.requires_grad_()
    strided = torch.autograd.grad(layer(x, w).sum(), [w])
    (dense,) = torch.autograd.grad(layer(x.contiguous(), w).sum(), [w])
    assert torch.equal(strided[0], dense)


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("backend", ("eager", "aot_eager"))
def test_compile(layer, backend):
    def loss(x, w, b):
        return torch.nn.functional.silu(layer(x, w, b)).float().square().sum()

    compiled = torch.compile(loss, backend=backend, fullgraph=True, dynamic=True)
    for tokens in (37, 48):
        leaves = leaf(tokens, K), leaf(N, K), leaf(N)
        found = torch.autograd.grad(compiled(*leaves), leaves)
        expected = torch.autograd.grad(loss(*leaves), leaves)
        assert all(torch.equal(x, y) for x, y in zip(found, expected, strict=True))


@pytest.mark.parametrize("layer", LAYERS)
def test_no_second_derivative(layer):
    x, w = leaf(5, K), leaf(N, K)
    (dx,) = torch.autograd.grad(layer(x, w).square().sum(), [x], create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        dx.sum().backward()


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize(
    ("x", "w", "b", "argument"),
    (
        (leaf(5, K, dtype=F32), leaf(N, K), None, "x dtype"),
        (leaf(5, K), leaf(N, K, dtype=F32), None, "weight dtype"),
        (leaf(5, K), leaf(N + 1, K), None, "weight shape"),
        (leaf(5, K), leaf(K), None, "weight shape"),
        (leaf(5, K + 16), leaf(N, K), None, "x shape"),
        (leaf(5, K), leaf(N, K), leaf(N + 1), "bias shape"),
        (leaf(5, K), leaf(N, K), leaf(N).double(), "bias dtype"),
    ),
)
def test_refused(layer, x, w, b, argument):
    with pytest.raises(ArgumentError) as found:
        layer(x, w, b)
    assert found.value.argument == argument
