"""On a Hopper GPU: `torch.ops.gemmgen` against `gemmgen.ops`, to the bit, compiled and in CUDA graphs."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch_reference import BY_NAME, GEMMS, arguments_of, described, faked, overload  # noqa: E402

from gemmgen.epilogues import EPILOGUES  # noqa: E402
from gemmgen.torch_ops import fp8_linear, linear  # noqa: E402

pytestmark = pytest.mark.gpu

REGISTERED = torch.ops.gemmgen
FUSED = ("gemm", "fp8_block_gemm", "fp8_block_batched_gemm", "grouped_gemm")


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)
    torch._dynamo.reset()


def eager(op, args, given, **more):
    """What the function of `ops` gives."""
    said = {**given, **more}
    said |= {"epilogue": EPILOGUES[said["epilogue"]]} if "epilogue" in said else {}
    return op.function(*args, **said)


def written(op, given_args, d):
    """Those elements of D, or of its scales, that a launch writes."""
    if op.grouping != "masked":
        return torch.ones_like(d, dtype=torch.bool)
    rows = torch.arange(d.shape[1], device=d.device).unsqueeze(-1)
    return (rows < given_args[-1].view(-1, 1, 1)).expand(d.shape)


def same(op, args, found, expected):
    """Equal to the bit, wherever a launch writes."""
    pairs = zip(*(x if isinstance(x, tuple) else (x,) for x in (found, expected)), strict=True)
    for x, y in pairs:
        inside = written(op, args, x)
        assert described(x) == described(y)
        assert torch.equal(x.float()[inside], y.float()[inside])


def ran(op, name, epilogue="none"):
    args, given = arguments_of(op, epilogue, device="cuda")
    return overload(op, name), args, given


@pytest.mark.parametrize("op", GEMMS, ids=lambda op: op.name)
def test_operators_are_the_functions(op):
    run, args, given = ran(op, "")
    for dtype in op.outputs:
        found = run(*args, **given, out_dtype=dtype)
        same(op, args, found, eager(op, args, given, out_dtype=dtype))
        assert described(faked(run, args, {**given, "out_dtype": dtype})) == described(found)
        out = torch.zeros_like(found)
        overload(op, "out")(*args, out=out, **given)
        same(op, args, out, found)


@pytest.mark.parametrize(
    "op", [x for x in GEMMS if "quantised" in x.overloads], ids=lambda x: x.name
)
def test_quantised_operators_are_the_functions(op):
    run, args, given = ran(op, "quantised")
    found = run(*args, **given)
    same(op, args, found, eager(op, args, given, out_dtype="e4m3"))
    assert described(faked(run, args, given)) == described(found)
    out, scale_out = torch.zeros_like(found[0]), torch.zeros_like(found[1])
    overload(op, "out")(*args, out=out, scale_out=scale_out, **given)
    same(op, args, (out, scale_out), found)


@pytest.mark.parametrize("name", FUSED)
@pytest.mark.parametrize("epilogue", EPILOGUES)
def test_epilogues(name, epilogue):
    op = BY_NAME[name]
    if epilogue not in op.epilogues:
        pytest.skip("reads what the operator calls its own")
    run, args, given = ran(op, "", epilogue)
    found = run(*args, **given)
    same(op, args, found, eager(op, args, given))
    assert described(faked(run, args, given)) == described(found)


@pytest.mark.parametrize("op", GEMMS, ids=lambda op: op.name)
def test_operators_compiled(op):
    for name in op.overloads[:-1]:
        run, args, given = ran(op, name)
        compiled = torch.compile(
            lambda *args, run=run, **given: run(*args, **given), fullgraph=True
        )
        same(op, args, compiled(*args, **given), run(*args, **given))


def block(x, w, bias, gate, scale):
    h = REGISTERED.gemm(x, w, epilogue="bias_silu", bias=bias)
    q, scale_q = REGISTERED.quantise_rows(h * 2)
    return REGISTERED.fp8_block_gemm(
        q, scale_q, gate, scale, scale_a_layout="mn", epilogue="swiglu"
    )


def block_arguments(m):
    x, w = torch.randn(m, 64, device="cuda"), torch.randn(256, 64, device="cuda")
    gate = torch.randn(96, 256, device="cuda").to(torch.float8_e4m3fn)
    vectors = torch.rand(256, device="cuda"), torch.rand(1, 2, device="cuda")
    return x.bfloat16(), w.bfloat16(), vectors[0], gate, vectors[1]


def test_a_compiled_program():
    compiled = torch.compile(block, fullgraph=True, dynamic=True)
    for m in (10, 33, 128, 129):
        args = block_arguments(m)
        assert torch.equal(compiled(*args), block(*args))


def test_a_compiled_program_adds_in_place():
    def run(a, b, out):
        REGISTERED.gemm.out(a, b, out=out, accumulate=True)
        return out * 2

    (a, b), _ = arguments_of(BY_NAME["gemm"], device="cuda")
    one, other = (torch.ones(20, 48, device="cuda") for _ in range(2))
    compiled = torch.compile(run, fullgraph=True)
    assert torch.equal(compiled(a, b, one), run(a, b, other)) and torch.equal(one, other)


def test_a_cuda_graph():
    held = block_arguments(64)
    block(*held)  # compiles and loads
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        d = block(*held)
    for _ in range(3):
        for x, y in zip(held, block_arguments(64), strict=True):
            x.copy_(y)
        graph.replay()
        assert torch.equal(d, block(*held))


def test_cuda_graphs_of_a_compiled_program():
    compiled = torch.compile(block, fullgraph=True, mode="reduce-overhead")
    for _ in range(4):
        args = block_arguments(64)
        assert torch.equal(compiled(*args).clone(), block(*args))


@pytest.mark.parametrize("name", ("gemm", "grouped_gemm", "batched_gemm"))
def test_opcheck(name):
    run, args, given = ran(BY_NAME[name], "")
    torch.library.opcheck(run, args, given)


# ---- linear layers ------------------------------------------------------------------------


def gradients(layer, leaves, dy):
    y = layer(*leaves)
    return y, *torch.autograd.grad(y, leaves, dy.to(y.dtype))


def leaves_of(tokens, n, k):
    drawn = (torch.randn(s, device="cuda").bfloat16() for s in ((tokens, k), (n, k), (n,)))
    return [x.requires_grad_() for x in drawn], torch.randn(tokens, n, device="cuda").bfloat16()


LAYERS = ((linear, 2**-7), (fp8_linear, 0.06))  # with the largest error, of the largest value


@pytest.mark.parametrize(("layer", "allowed"), LAYERS)
@pytest.mark.parametrize("shape", ((1, 144, 160), (130, 144, 160), (512, 1024, 2048)))
def test_linear(layer, allowed, shape):
    leaves, dy = leaves_of(*shape)
    wide = [x.detach().double().requires_grad_() for x in leaves]
    exact = gradients(torch.nn.functional.linear, wide, dy)
    for found, expected in zip(gradients(layer, leaves, dy), exact, strict=True):
        error = (found.double() - expected).abs().max() / expected.abs().max()
        assert found.shape == expected.shape and error < allowed


@pytest.mark.parametrize(("layer", "allowed"), LAYERS)
def test_linear_compiled(layer, allowed):
    compiled = torch.compile(layer, fullgraph=True, dynamic=True)
    for tokens in (37, 48):
        leaves, dy = leaves_of(tokens, 144, 160)
        found, expected = gradients(compiled, leaves, dy), gradients(layer, leaves, dy)
        for x, y in zip(found[:3], expected[:3], strict=True):
            assert torch.equal(x, y)
        # The compiler sums a bias' gradient in its own order.
        assert torch.allclose(found[3].float(), expected[3].float(), rtol=2**-7, atol=2**-7)


@pytest.mark.parametrize(("layer", "allowed"), LAYERS)
def test_no_tokens(layer, allowed):
    leaves, dy = leaves_of(0, 144, 160)
    _, dx, dw, db = gradients(layer, leaves, dy)
    assert dx.shape == (0, 160) and not dw.any() and not db.any()
