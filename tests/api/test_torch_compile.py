"""`torch.ops.gemmgen` under torch's compilers on the CPU, with float64 in the kernels' place."""

from __future__ import annotations

import shutil

import pytest

torch = pytest.importorskip("torch")

import torch._dynamo.testing as testing  # noqa: E402
from torch_reference import (  # noqa: E402
    BY_NAME,
    GEMMS,
    arguments_of,
    by_name,
    on_cpu,  # noqa: F401
    operands,
    overload,
    reference,
)

REGISTERED = torch.ops.gemmgen
TESTS = (
    "test_schema",
    "test_faketensor",
    "test_autograd_registration",
    "test_aot_dispatch_dynamic",
)


@pytest.mark.parametrize("op", GEMMS, ids=by_name)
def test_opcheck(op):
    args, given = arguments_of(op)
    eight_bit = any(t.is_floating_point and t.itemsize == 1 for t in (args[0].dtype,))
    for name in op.overloads:
        chosen = TESTS[1:] if eight_bit or name == "quantised" else TESTS
        more = {}
        if name == "out":
            more = {"out": torch.zeros_like(overload(op, "")(*args, **given))}
        torch.library.opcheck(overload(op, name), args, {**given, **more}, test_utils=chosen)


@pytest.mark.parametrize(
    ("name", "block"), (("quantise_rows", 128), ("quantise_rows", None), ("quantise_blocks", 128))
)
def test_opcheck_of_quantising(name, block):
    run = getattr(REGISTERED, name).default
    torch.library.opcheck(run, (torch.randn(5, 300), block), test_utils=TESTS[1:])


def layer(x, w, bias, gate, scale):
    """A residual gated layer whose inner activations are FP8."""
    h = REGISTERED.gemm(x, w, epilogue="bias_silu", bias=bias, out_dtype="f32")
    q, scale_q = REGISTERED.quantise_rows(h.bfloat16())
    return REGISTERED.fp8_block_gemm(
        q, scale_q, gate, scale, scale_a_layout="mn", epilogue="swiglu"
    )


def layer_arguments(m):
    x, w = torch.randn(m, 64).bfloat16(), torch.randn(256, 64).bfloat16()
    gate = torch.randn(96, 256).to(torch.float8_e4m3fn)
    return x, w, torch.rand(256), gate, torch.rand(1, 2)


@pytest.mark.parametrize("backend", ("eager", "aot_eager", "inductor"))
def test_compile(backend):
    if backend == "inductor" and not shutil.which("g++"):
        pytest.skip("needs g++")
    compiled = torch.compile(layer, backend=backend, fullgraph=True)
    args = layer_arguments(10)
    assert torch.equal(compiled(*args), layer(*args))


@pytest.mark.parametrize("name", ("w4a16_gemm", "w4a16_grouped_gemm", "w8a16_gemm"))
def test_compile_packed_weights(name):
    """Of any number of rows."""
    op = BY_NAME[name]
    counter = testing.CompileCounterWithBackend("aot_eager")

    def run(a, b, given):
        return overload(op, "")(a, b, **given) * 2

    compiled = torch.compile(run, backend=counter, fullgraph=True, dynamic=True)
    for rows in (384, 512):
        (a, b), given = arguments_of(op, shape=(rows, 48, 256))
        assert torch.equal(compiled(a, b, given), run(a, b, given))
    assert counter.frame_count == 1


def test_compile_once_for_every_number_of_rows():
    counter = testing.CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(layer, backend=counter, fullgraph=True, dynamic=True)
    for m in (10, 33, 128, 129):
        args = layer_arguments(m)
        assert torch.equal(compiled(*args), layer(*args))
    assert counter.frame_count == 1


def test_compile_writes_to_out():
    def run(a, b, out):
        REGISTERED.gemm.out(a, b, out=out, accumulate=True)
        return out * 2

    a, b = torch.randn(5, 16).bfloat16(), torch.randn(8, 16).bfloat16()
    one, other = torch.ones(5, 8), torch.ones(5, 8)
    compiled = torch.compile(run, backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(a, b, one), run(a, b, other)) and torch.equal(one, other)
    assert not torch.equal(one, torch.ones(5, 8))


def test_compile_names_what_is_wrong():
    compiled = torch.compile(layer, backend="eager", fullgraph=True)
    x, w, *rest = layer_arguments(10)
    with pytest.raises(Exception, match="K of b"):
        compiled(x, w[:, :56], *rest)


def test_export():
    class Layer(torch.nn.Module):
        def forward(self, *args):
            return layer(*args)

    args = layer_arguments(10)
    rows = torch.export.Dim("rows", min=2, max=4096)
    program = torch.export.export(Layer(), args, dynamic_shapes=(({0: rows}, *[None] * 4),))
    targets = {str(node.target) for node in program.graph.nodes}
    assert {"gemmgen.gemm.default", "gemmgen.fp8_block_gemm.default"} <= targets
    args = layer_arguments(77)
    assert torch.equal(program.module()(*args), layer(*args))


def test_inference_mode():
    args = layer_arguments(10)
    expected = layer(*args)
    with torch.inference_mode():
        assert torch.equal(layer(*args), expected)


def test_the_reference_multiplies():
    """What stands in for the kernels is right, where torch says it too."""
    args, given = arguments_of(BY_NAME["fp8_block_gemm"])
    a, b = operands(BY_NAME["fp8_block_gemm"], BY_NAME["fp8_block_gemm"].bind(args, given))
    d = reference(BY_NAME["fp8_block_gemm"], "")(*args, **given, out_dtype="f32")
    assert torch.equal(d, (a @ b.mT).float())
