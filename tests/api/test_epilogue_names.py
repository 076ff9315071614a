"""An epilogue's name stands for it in every function that takes one: the same launch."""

from __future__ import annotations

import inspect

import pytest
from bad_arguments import coded, coded_blocks, coded_fp8, coded_octets, gemms
from fake_torch import Placed, fake_torch_fixture, launches_fixture  # noqa: F401

from gemmgen import ops
from gemmgen.compat import deep_gemm, flag_gems
from gemmgen.epilogues import EPILOGUES
from gemmgen.problem import Problem


def takes(function):
    """Of one GEMM. Those that hand what they are given to one that does have no signature of their own."""
    return callable(function) and {"a", "epilogue"} <= {*inspect.signature(function).parameters}


PUBLIC = [(m, name) for m in (ops, deep_gemm, flag_gems) for name in getattr(m, "__all__", ())]
TAKING = sorted(name for m, name in PUBLIC if takes(getattr(m, name)))
FUNCTIONS = (
    *gemms.FUNCTIONS,
    *coded.FUNCTIONS,
    *coded_fp8.FUNCTIONS,
    *coded_blocks.FUNCTIONS,
    *coded_octets.FUNCTIONS,
)
RIGHT = {f.name.removeprefix("ops."): f for f in FUNCTIONS}
INT32 = [
    x for x in TAKING if x.startswith("int8") and "block" not in x
]  # whose default output takes none


def test_each_is_called_here():
    assert len(TAKING) > 12 and {*TAKING} <= {*RIGHT}


@pytest.mark.parametrize("name", TAKING)
@pytest.mark.parametrize("epilogue", ("silu", "bias"))
def test_a_name_launches_what_its_expression_does(launches, name, epilogue):
    given = RIGHT[name].right()
    if name in INT32:
        given |= {"out": None, "out_dtype": "bf16"}
    reads = {"bias": _vector(given)} if epilogue == "bias" else {}
    for said in (epilogue, EPILOGUES[epilogue]):
        getattr(ops, name)(**given, epilogue=said, **reads)
    one, other = (x.problem for x in launches)
    assert one == other and one.epilogue == other.epilogue != Problem.epilogue


def _vector(given):
    rows = given["columns"] if "columns" in given else given["b"].shape[-2]
    lead = given["b"].shape[: -3 if "columns" in given else -2]  # packed weights are blocks
    return Placed(*lead, rows)
