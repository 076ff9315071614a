"""`torch.ops.gemmgen` on the CPU: schemas and implementations, with float64 in the kernels' place."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from torch_reference import (  # noqa: E402
    BY_NAME,
    GEMMS,
    arguments_of,
    by_name,
    every,
    on_cpu,  # noqa: F401
    overload,
)

import gemmgen.torch_ops  # noqa: E402
from gemmgen import ops  # noqa: E402
from gemmgen.config import Config  # noqa: E402
from gemmgen.epilogues import EPILOGUES  # noqa: E402
from gemmgen.errors import ArgumentError  # noqa: E402
from gemmgen.ir.expr import Scalar, arguments  # noqa: E402
from gemmgen.ops import front  # noqa: E402
from gemmgen.torch_ops import OPERATORS, registration  # noqa: E402

REGISTERED = torch.ops.gemmgen
NO_GEMM = {"Launch", "Prepared", "SCALE_BLOCK", "bind", "chosen", "every_m", "limit_sms"}
NO_GEMM |= {"as_tensor", "compiled", "loaded", "prepare", "sm_limit"}
NO_GEMM |= {"is_invariant", "set_invariant", "is_pdl", "set_pdl"}
NO_GEMM |= {"multiply"}  # of a Problem, which no schema takes
NO_GEMM |= {"route", "Routes"}  # registered by itself: test_route.py
NO_GEMM |= {"select"}  # registered by itself: test_select.py
NO_GEMM |= {"combine", "spread", "moe"}  # operators of `gemmgen.torch_ops.copies` and `mixture`
NO_GEMM |= {
    "fp8_mqa_logits",
    "fp8_paged_mqa_logits",
}  # of `gemmgen.torch_ops.logits`, `paged_logits`
NO_GEMM |= {"paired", "prenorm_gemm"}  # of `gemmgen.torch_ops.prenorm`
NO_GEMM |= {"fp8_mqa_top_k", "fp8_paged_mqa_top_k", "top_k"}  # of `gemmgen.torch_ops.top_keys`
NO_GEMM |= {"paged_cache"}  # views of a tensor


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
    assert BY_NAME["gemm"].epilogue_arguments == wanted
    for op in every("quantised"):
        missing = {} if op.scaling == "none" else {"tensor_scaled"}  # its names are the operator's
        assert {*op.epilogues} == {*EPILOGUES} - {*missing}
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


class Planned(Called):
    """In the place of a function of `ops`: a call that is planned, how often, and each launch of it."""

    def __init__(self):
        self.described, self.launched = 0, []

    def describe(self, *args, **given):
        self(*args, **given)
        self.described += 1
        start = lambda: self.launched.append(given) or (0,)  # noqa: E731
        plan = SimpleNamespace(start=start, stream=0)
        kernel = SimpleNamespace(device=0, launch=lambda plan: plan.start())
        result = {"out": given["out"]} if "out" in given else {"a": args[0]}
        return front.Call(
            kernel=kernel, plan=plan, result=result, fresh=(), lasting=True, stream=lambda index: 0
        )


@pytest.fixture
def planned():
    front.KEPT.clear()
    yield Planned()
    front.KEPT.clear()


def test_a_repeated_call_is_launched_at_once(planned):
    a, b, out = torch.ones(2, 8), torch.ones(3, 8), torch.ones(2, 3)
    write = implemented("gemm", planned, "out")
    for _ in range(3):
        assert write(a, b, out=out, epilogue="silu", config='{"stages": 3}') is None
    assert planned.described == 1 and len(planned.launched) == 3
    assert all(x["out"] is out and x["out_dtype"] == "f32" for x in planned.launched)
    for changed in (
        {"out": out.bfloat16()},
        {"epilogue": "none"},
        {"config": ""},
        {"b": b.clone()},
    ):
        before = planned.described
        given = {"b": b, "out": out, "epilogue": "silu", "config": '{"stages": 3}', **changed}
        write(a, given.pop("b"), **given)
        assert planned.described == before + 1


def test_overloads_are_kept_apart(planned):
    """All but what is written looks the same to them."""
    a, b = torch.ones(2, 8), torch.ones(3, 8)
    run, quantised = (implemented("gemm", planned, o) for o in ("", "quantised"))
    for _ in range(2):
        assert run(a, b) is a and quantised(a, b) is a
    assert planned.described == 2
    assert [x.get("out_dtype") for x in planned.launched] == [None, "e4m3"] * 2


@pytest.mark.parametrize("text", ("{", "[]", '{"tile": 1}', '{"stages": 99}'))
def test_configs_are_checked(called, text):
    with pytest.raises(ArgumentError):
        implemented("gemm", called, "")("a", "b", config=text)


def test_every_function_takes_what_its_schema_says():
    """The implementations hand on what torch hands them, by these names."""
    for op in GEMMS:
        for a in overload(op, "")._schema.arguments:
            assert a.name in op.parameters or a.name in op.epilogue_arguments
