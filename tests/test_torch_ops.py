"""`torch.ops.gemmgen` on the CPU: schemas, fakes, compilers, with float64 in the kernels' place."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from torch._subclasses import FakeTensorMode  # noqa: E402
from torch_reference import (  # noqa: E402
    BY_NAME,
    GEMMS,
    arguments_of,
    operands,
    reference,
    register_on_cpu,
)

import gemmgen.torch_ops  # noqa: E402
from gemmgen import ops  # noqa: E402
from gemmgen.config import Config  # noqa: E402
from gemmgen.epilogues import EPILOGUES  # noqa: E402
from gemmgen.errors import ArgumentError  # noqa: E402
from gemmgen.ir.dtypes import BF16  # noqa: E402
from gemmgen.ir.expr import Scalar, arguments  # noqa: E402
from gemmgen.runtime import torch_tensors  # noqa: E402
from gemmgen.torch_ops import OPERATORS, registration  # noqa: E402

REGISTERED = torch.ops.gemmgen
NO_GEMM = {"SCALE_BLOCK", "chosen", "limit_sms", "loaded", "sm_limit"}
TESTS = (
    "test_schema",
    "test_faketensor",
    "test_autograd_registration",
    "test_aot_dispatch_dynamic",
)


@pytest.fixture(autouse=True)
def real_torch():
    for cached in (torch_tensors.torch, torch_tensors.torch_dtype):
        cached.cache_clear()
    register_on_cpu()
    torch.manual_seed(0)
    torch._dynamo.reset()


def overload(op, name):
    return getattr(getattr(REGISTERED, op.name), name or "default")


def every(*names):
    """Operators that have all these overloads."""
    return [op for op in GEMMS if {*names} <= {*op.overloads}]


def by_name(op):
    return op.name


def described(result):
    results = result if isinstance(result, tuple) else (result,)
    return [(tuple(x.shape), x.stride(), x.dtype) for x in results]


def faked(run, args, given):
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:

        def of(x):
            return mode.from_tensor(x) if isinstance(x, torch.Tensor) else x

        return run(*map(of, args), **{name: of(x) for name, x in given.items()})


# ---- what is registered -------------------------------------------------------------------


def test_every_function_is_an_operator():
    assert {*BY_NAME} == {*ops.__all__} - NO_GEMM
    for op in OPERATORS:
        assert {*getattr(REGISTERED, op.name).overloads()} == {o or "default" for o in op.overloads}


def test_schemas(golden):
    names = ("gemm", "fp8_block_grouped_gemm", "fp8_k_grouped_gemm", "int8_gemm", "quantise_rows")
    found = [BY_NAME[n].schema(o) for n in names for o in BY_NAME[n].overloads]
    golden("\n".join(found) + "\n")


def test_the_dispatcher_has_the_schemas_of_the_table():
    for op in OPERATORS:
        for name in op.overloads:
            schema = torch._C.parse_schema(f"gemmgen::{op.schema(name)}")
            assert overload(op, name)._schema == schema


def test_mutations_are_declared():
    for op in GEMMS:
        for name in op.overloads:
            written = {
                a.name for a in overload(op, name)._schema.arguments if a.alias_info is not None
            }
            assert written <= {"out", "scale_out"} and ("out" in written) == (name == "out")


def test_every_epilogue_is_reachable():
    wanted = {x.name: x for e in EPILOGUES.values() for x in arguments(e)}
    found = BY_NAME["gemm"].epilogue_arguments
    assert found == wanted
    kinds = {name: isinstance(x, Scalar) for name, x in wanted.items()}
    for e in EPILOGUES.values():  # one type in the schema per name
        assert all(kinds[x.name] == isinstance(x, Scalar) for x in arguments(e))


def test_importing_again_is_fine():
    before = registration.register()
    importlib.reload(gemmgen.torch_ops)
    assert registration.register() is before


def test_importing_gemmgen_registers_nothing():
    code = "import gemmgen, gemmgen.ops, sys; assert not {'torch', 'gemmgen.torch_ops'} & {*sys.modules}"
    subprocess.run([sys.executable, "-c", code], check=True)


# ---- fakes --------------------------------------------------------------------------------


CASES = [(op, x) for op in GEMMS for x in op.outputs] + [(op, "e4m3") for op in every("quantised")]


@pytest.mark.parametrize(("op", "dtype"), CASES, ids=lambda x: x if isinstance(x, str) else x.name)
def test_fakes_say_what_comes_out(op, dtype):
    args, given = arguments_of(op)
    given |= {"out_dtype": dtype} if dtype != "e4m3" else {}
    run = overload(op, "quantised" if dtype == "e4m3" else "")
    assert described(faked(run, args, given)) == described(run(*args, **given))


@pytest.mark.parametrize("op", every("quantised"), ids=by_name)
def test_fakes_of_epilogues(op):
    for epilogue in EPILOGUES:
        if {x.name for x in arguments(EPILOGUES[epilogue])} & {*op.parameters}:
            continue
        args, given = arguments_of(op, epilogue)
        for name in ("", "quantised"):
            said = {"out_dtype": "bf16"} if not name else {}
            run = overload(op, name)
            found = faked(run, args, given | said)
            assert described(found) == described(run(*args, **given | said)), epilogue


@pytest.mark.parametrize("layout", ("nt", "nn", "tn", "tt"))
@pytest.mark.parametrize("n", (1, 33, 64))
def test_fakes_of_layouts_and_ragged_sides(layout, n):
    a, b = torch.randn(5, 24).bfloat16(), torch.randn(n, 24).bfloat16()
    args = (a.mT if layout[0] == "t" else a, b.mT if layout[1] == "n" else b)
    for run in (REGISTERED.gemm.default, REGISTERED.gemm.quantised):
        found = run(*args, layout=layout)
        assert described(faked(run, args, {"layout": layout})) == described(found)
        assert (found[0] if isinstance(found, tuple) else found).shape == (5, n)


@pytest.mark.parametrize("m", (0, 1, 5))
def test_fakes_of_few_rows(m):
    args = torch.randn(3, m, 24).bfloat16(), torch.randn(3, 33, 24).bfloat16()
    for run in (REGISTERED.batched_gemm.default, REGISTERED.batched_gemm.quantised):
        out = torch_tensors.empty((3, m, 33), BF16, "cpu")
        found = described(faked(run, args, {}))
        assert found[0][0] == (3, m, 33)
        if run is REGISTERED.batched_gemm.default:
            assert found == described(out)


def test_flat_groups():
    op = BY_NAME["fp8_k_grouped_gemm"]
    args, given = arguments_of(op)
    a, b = (torch.cat([x[:, :128].flatten(), x[:, 128:].flatten()]) for x in (args[0], args[2]))
    flat = (a, args[1], b, *args[3:])
    found = overload(op, "")(*flat, **given | {"packing": "flat"})
    assert torch.equal(found, overload(op, "")(*args, **given))
    assert described(faked(overload(op, ""), flat, given | {"packing": "flat"})) == described(found)


REFUSED = (
    ("gemm", {"b": torch.randn(48, 264).bfloat16()}, "K of b"),
    ("gemm", {"b": torch.randn(48, 256)}, "b dtype"),
    ("gemm", {"a": torch.randn(2, 20, 256).bfloat16()}, "a shape"),
    ("gemm", {"out_dtype": "e4m3"}, "out_dtype"),
    ("gemm", {"layout": "xy"}, "layout"),
    ("gemm", {"epilogue": "no such"}, "epilogue"),
    ("gemm", {"epilogue": "bias"}, "bias"),
    ("gemm", {"bias": torch.rand(48)}, "bias"),
    ("gemm", {"epilogue": "bias", "bias": torch.rand(47)}, "elements of bias"),
    ("gemm", {"epilogue": "residual", "c": torch.rand(20, 48)}, "c dtype"),
    (
        "gemm",
        {"b": torch.randn(47, 256).bfloat16(), "epilogue": "swiglu"},
        "columns of the product",
    ),
    ("gemm", {"b": torch.randn(48, 256, device="meta").bfloat16()}, "b device"),
    ("fp8_gemm", {"epilogue": "tensor_scaled"}, "epilogue"),
    ("int8_gemm", {"scale_a": torch.rand(1)}, "scale_a"),
    ("int8_gemm", {"epilogue": "relu"}, "d"),
    ("fp8_block_gemm", {"scale_b": torch.rand(1, 3)}, "scale_b side 1"),
    ("fp8_wgrad_gemm", {"scale_b": torch.rand(1, 2)}, "scale_b side 0"),
    ("fp8_wgrad_gemm", {"c": torch.rand(20, 47)}, "c side 1"),
    ("grouped_gemm", {"row_groups": None}, "row_groups, group_ends"),
    ("grouped_gemm", {"alignment": 7}, "alignment"),
    ("masked_gemm", {"group_rows": torch.zeros(3)}, "group_rows dtype"),
    ("fp8_k_grouped_gemm", {"packing": "loose"}, "packing"),
)


@pytest.mark.parametrize(("name", "changes", "argument"), REFUSED, ids=lambda x: str(x)[:20])
def test_fakes_refuse(name, changes, argument):
    op = BY_NAME[name]
    args, given = arguments_of(op)
    names = [x for x, p in op.parameters.items() if p.kind is p.POSITIONAL_OR_KEYWORD]
    args = tuple(changes.get(x, value) for x, value in zip(names, args, strict=False))
    given |= {x: value for x, value in changes.items() if x not in names}
    with pytest.raises(ArgumentError) as found:
        faked(overload(op, ""), args, given)
    assert found.value.argument == argument


def test_fakes_refuse_a_wrong_out():
    a = torch.randn(5, 16).bfloat16()
    for out, more in ((torch.empty(5, 6), {}), (torch.empty(5, 5).to(torch.float8_e4m3fn), {})):
        with pytest.raises(ArgumentError):
            faked(REGISTERED.gemm.out, (a, a), {"out": out, **more})


# ---- overloads and implementations --------------------------------------------------------


@pytest.mark.parametrize("op", GEMMS, ids=by_name)
def test_functional_is_the_out_variant(op):
    args, given = arguments_of(op)
    for name in op.outputs:
        said = {"out_dtype": name}
        d = overload(op, "")(*args, **given, **said)
        out = torch.zeros_like(d)
        assert overload(op, "out")(*args, out=out, **given) is None
        assert torch.equal(d, out)


@pytest.mark.parametrize("op", every("quantised"), ids=by_name)
def test_quantised_is_the_out_variant(op):
    args, given = arguments_of(op)
    d, scale = overload(op, "quantised")(*args, **given)
    out, scale_out = torch.zeros_like(d), torch.zeros_like(scale)
    overload(op, "out")(*args, out=out, scale_out=scale_out, **given)
    inside = scale_out != 0  # of rows that are written
    assert inside.any() and torch.equal(scale[inside], scale_out[inside])
    assert torch.equal(torch.where(scale_out != 0, d.float(), 0), out.float())


class Called:
    """In the place of a function of `ops`: what it was called with."""

    __name__ = "called"

    def __call__(self, *args, **given):
        self.args, self.given = args, given
        return "result"


@pytest.fixture
def called():
    return Called()


def implemented(name, called, overload):
    op = BY_NAME[name]
    stub = replace(op, function=called)
    stub.__dict__["parameters"] = op.parameters
    return registration.implementation(stub, overload)


def test_a_default_launch_says_nothing_more(called):
    assert implemented("gemm", called, "")("a", "b") == "result"
    assert (called.args, called.given) == (("a", "b"), {})


def test_names_become_epilogues_and_configs(called):
    run = implemented("gemm", called, "quantised")
    config = Config(block_m=64, stages=3)
    run("a", "b", epilogue="bias", bias="x", config=json.dumps(config.to_json()))
    expected = {"epilogue": EPILOGUES["bias"], "bias": "x", "config": config, "out_dtype": "e4m3"}
    assert called.given == expected


def test_out_says_the_dtype(called):
    run = implemented("gemm", called, "out")
    out = torch.empty(2, 2)
    assert run("a", "b", out=out, accumulate=True) is None
    assert called.given == {"out": out, "accumulate": True, "out_dtype": "f32"}
    with pytest.raises(ArgumentError):
        run("a", "b", out=out.to(torch.float8_e4m3fn))


def test_fp8_results_are_the_quantised_overloads(called):
    with pytest.raises(ArgumentError, match="quantised"):
        implemented("gemm", called, "")("a", "b", out_dtype="e4m3")


@pytest.mark.parametrize("text", ("{", "[]", '{"tile": 1}', '{"stages": 99}'))
def test_configs_are_checked(called, text):
    with pytest.raises(ArgumentError):
        implemented("gemm", called, "")("a", "b", config=text)


def test_every_function_takes_what_its_schema_says():
    """The implementations hand on what torch hands them, by these names."""
    for op in GEMMS:
        for a in overload(op, "")._schema.arguments:
            assert a.name in op.parameters or a.name in op.epilogue_arguments


# ---- compilers ----------------------------------------------------------------------------


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


QUANTISE = (
    ("quantise_rows", (128,)),
    ("quantise_rows", (None,)),
    ("quantise_blocks", ()),
)


@pytest.mark.parametrize(("name", "block"), QUANTISE)
@pytest.mark.parametrize("shape", ((5, 300), (2, 130, 128), (1, 1), (2, 2, 3, 7)))
def test_quantising(name, block, shape):
    x, run = torch.randn(shape), getattr(REGISTERED, name).default
    for given in ({}, {"dtype": "s8"}, {"power_of_two": True}):
        q, scale = run(x, *block, **given)
        expected = getattr(ops, name)(x, *block, **given)
        assert torch.equal(q.float(), expected[0].float()) and torch.equal(scale, expected[1])
        assert described(faked(run, (x, *block), given)) == described((q, scale))


@pytest.mark.parametrize(("name", "block"), QUANTISE)
def test_opcheck_of_quantising(name, block):
    run = getattr(REGISTERED, name).default
    torch.library.opcheck(run, (torch.randn(5, 300), *block), test_utils=TESTS[1:])


REFUSED_QUANTISE = (
    ("quantise_rows", (torch.rand(4),), {}, "x shape"),
    ("quantise_rows", (torch.rand(4, 4).double(),), {}, "x dtype"),
    ("quantise_rows", (torch.rand(4, 4), 64), {}, "block"),
    ("quantise_blocks", (torch.rand(4, 4), 64), {}, "block"),
    ("quantise_blocks", (torch.rand(4, 4),), {"dtype": "e5m2"}, "dtype"),
)


@pytest.mark.parametrize(("name", "args", "given", "argument"), REFUSED_QUANTISE)
def test_quantising_refuses_the_same(name, args, given, argument):
    run = getattr(REGISTERED, name).default
    for refused in (lambda: run(*args, **given), lambda: faked(run, args, given)):
        with pytest.raises(ArgumentError) as found:
            refused()
        assert found.value.argument == argument


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


@pytest.mark.parametrize("backend", ("eager", "aot_eager"))
def test_compile(backend):
    compiled = torch.compile(layer, backend=backend, fullgraph=True)
    args = layer_arguments(10)
    assert torch.equal(compiled(*args), layer(*args))


def test_compile_once_for_every_number_of_rows():
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
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
