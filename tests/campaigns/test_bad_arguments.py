"""Wrong arguments: `tests.bad_arguments` refuses each, covers every public function, and would see one accepted."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from bad_arguments.campaign import FUNCTIONS, campaign, table
from bad_arguments.model import Function, Output, tried, wrong

from gemmgen import ops
from gemmgen.cli.errors_command import KINDS
from gemmgen.compat import deep_gemm, flag_gems
from gemmgen.compat.fused_experts import fused_experts
from gemmgen.errors import ArgumentError, CacheError

DOCS = Path(__file__).parents[2] / "docs/reliability.md"
# What takes nothing, or plain numbers that it computes with; what prepares a kernel from checked arguments.
WITHOUT = {
    *("align", "ceil_div", "get_num_sms", "get_pdl", "get_tc_util", "sm_limit", "is_pdl"),
    *(f"get_{x}_alignment_for_contiguous_layout" for x in ("m", "k", "mk")),
    *("get_theoretical_mk_alignment_for_contiguous_layout", "get_deterministic_algorithms"),
    *("chosen", "loaded", "SCALE_BLOCK", "Launch", "Prepared", "Routes"),
}


@pytest.fixture(name="outcomes", scope="module")
def outcomes_fixture():
    return campaign()


def test_every_wrong_call_is_refused_with_the_right_error(outcomes):
    assert [o for o in outcomes if o.problem] == []
    assert len(outcomes) > 1800


def test_the_documentation_has_todays_table(outcomes):
    said, found = DOCS.read_text(), table(outcomes)
    assert found in said
    assert f"All of {found.split()[-4]} wrong calls are refused" in said


def test_every_public_function_is_there():
    tried_here = {f.call for f in FUNCTIONS} | {ops.bind, ops.is_invariant}
    wanted = [(m, name) for m in (ops, deep_gemm, flag_gems) for name in _public(m)]
    missing = [name for m, name in wanted if getattr(m, name) not in tried_here]
    assert {*missing} <= WITHOUT and fused_experts in tried_here


def _public(module):
    return getattr(module, "__all__", None) or ("w8a8_block_fp8_bmm", "fp8_einsum")


def test_every_case_has_a_published_id():
    known = {kind.id for kind in KINDS}
    cases = [case for f in FUNCTIONS for case in f.wrong]
    assert all(_class(case.id) in known for case in cases)
    assert all(case.argument for case in cases)


def _class(id: str) -> str:
    """Without the rule's."""
    found = re.match(r"GG-[A-Z]\d{3}", id)
    return found[0] if found else ""


def _accepts(x=None, out=None):
    return x


def _raises(error):
    def call(x=None, out=None):
        raise error

    return call


def _writes(x=None, out=None):
    out.zero_()
    raise ArgumentError("x", x, "must be 1")


@pytest.mark.parametrize(
    ("call", "problem"),
    (
        (_accepts, "was not refused"),
        (_raises(TypeError("x")), "TypeError instead of"),
        (_raises(CacheError("x")), "CacheError instead of"),
        (_raises(ArgumentError("y", 1, "must be 2")), "names 'y' instead of 'x'"),
        (_writes, "out was written"),
    ),
)
def test_what_is_not_refused_rightly_is_found(call, problem):
    f = Function(name="f", call=call, right=dict, wrong=(wrong("it", "x", x=2, out=Output(8)),))
    (found,) = tried(Function(**{**vars(f), "runs": False}), [])
    assert problem in found.problem
    assert "| f | 1 | 0 |" in table([found])


def test_an_id_of_another_class_is_found():
    case = wrong("it", "x", x=2)
    case = type(case)(**{**vars(case), "id": "GG-X001"})
    error = ArgumentError("x", 2, "must be 1")
    f = Function(name="f", call=_raises(error), right=dict, wrong=(case,), runs=False)
    assert "id GG-A001 instead of GG-X001" in tried(f, [])[0].problem


def test_a_right_call_that_is_refused_is_found():
    f = Function(name="f", call=_raises(ArgumentError("x", 1, "no")), right=dict, wrong=())
    assert "a right call raised" in tried(f, [])[0].problem


def test_a_launch_in_spite_of_an_error_is_found():
    launches = []

    def call(x):
        launches.append(x)
        raise ArgumentError("x", x, "must be 1")

    f = Function(name="f", call=call, right=dict, wrong=(wrong("it", "x", x=2),), runs=False)
    assert tried(f, launches)[0].problem == "launched"
