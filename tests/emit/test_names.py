"""What users call an epilogue's arguments, beside every name that gemmgen gives: none is another's."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache, reduce
from itertools import permutations
from pathlib import Path

import pytest
from packs import compiles_nothing_fixture, made  # noqa: F401

from gemmgen.config import Config
from gemmgen.epilogues import EPILOGUES, NAME
from gemmgen.gallery import GALLERY, path_of
from gemmgen.ir.argument_names import PREFIXES, group_stride, local, parameter, row_stride
from gemmgen.ir.dtypes import BF16
from gemmgen.ir.expr import ACC, Expr, PerColumn, PerElement, PerRow, Scalar, arguments
from gemmgen.ir.groupings import GROUPINGS
from gemmgen.pack import files
from gemmgen.pipeline import compile_to_source, lower
from gemmgen.problem import Problem

DENSE = Problem(family="dense", a=BF16, b=BF16, layout="tn")
GENERATED = Path(__file__).parents[2] / "generated"  # which `gemmgen emit --check` keeps current
SPELLED = (parameter, row_stride, group_stride, local)
KEYWORDS = [
    "alignas",
    "asm",
    "auto",
    "bool",
    "break",
    "case",
    "char",
    "class",
    "const",
    "constexpr",
    "continue",
    "decltype",
    "default",
    "delete",
    "do",
    "double",
    "else",
    "enum",
    "explicit",
    "extern",
    "false",
    "float",
    "for",
    "friend",
    "goto",
    "if",
    "inline",
    "int",
    "long",
    "namespace",
    "new",
    "noexcept",
    "nullptr",
    "operator",
    "private",
    "public",
    "register",
    "return",
    "short",
    "signed",
    "sizeof",
    "static",
    "struct",
    "switch",
    "template",
    "this",
    "throw",
    "true",
    "try",
    "typedef",
    "typename",
    "union",
    "unsigned",
    "using",
    "virtual",
    "void",
    "volatile",
    "wchar_t",
    "while",
    "and",
    "or",
    "not",
    "xor",
    "__global__",
    "__device__",
    "__shared__",
    "main",
    "defined",
    "NULL",
    "INFINITY",
    "threadIdx",
    "blockIdx",
    "warpSize",
    "printf",
]
PTX = [
    "ld",
    "st",
    "mov",
    "reg",
    "param",
    "pred",
    "tid",
    "ctaid",
    "laneid",
    "WARP_SZ",
    "wgmma",
    "mbarrier",
    "cvta",
    "ret",
    "bra",
]


def identifiers(text):
    """Outside of comments and of text in quotes."""
    bare = re.sub(r'//.*|/\*[\s\S]*?\*/|"(?:[^"\\\n]|\\.)*"', " ", text)
    return set(re.findall(r"[A-Za-z_]\w*", bare))


@cache
def ours():
    """Every identifier of the gallery that is none of a user's, by the kernels that have it."""
    found = {}
    for e in GALLERY:
        theirs = {f(x.name) for f in SPELLED for x in arguments(e.problem.epilogue)}
        for name in identifiers((GENERATED / f"{path_of(e)}.cu").read_text()) - theirs:
            found.setdefault(name, path_of(e))
    return found


def test_no_prefix_begins_another():
    assert not any(x.startswith(y) for x, y in permutations(PREFIXES, 2))
    assert [f("name") for f in SPELLED] == [f"{x}name" for x in PREFIXES]


def test_no_name_of_ours_begins_as_a_user_s_does():
    assert len(ours()) > 300
    taken = {name: where for name, where in ours().items() if name.startswith(PREFIXES)}
    assert not taken


def test_parameters_of_every_grouping_and_family_neither():
    for grouping in GROUPINGS:
        for family, epilogue in (("dense", ACC), ("dense", EPILOGUES["alpha_beta"])):
            p = replace(DENSE, family=family, grouping=grouping, epilogue=epilogue)
            names = [x.name for x in lower(p, Config()).params]
            theirs = {f(x.name) for f in SPELLED for x in arguments(epilogue)}
            assert len(names) == len(set(names))
            assert not [x for x in names if x.startswith(PREFIXES) and x not in theirs]


@pytest.mark.usefixtures("compiles_nothing")
def test_members_of_the_c_arguments_neither():
    p = replace(DENSE, layout="nt", epilogue=EPILOGUES["alpha_beta"], grouping="batched")
    texts = files(made(p, {(2, 64, 64, 64): Config()})).items()
    found = {x for n, t in texts if n.endswith((".c", ".h")) for x in identifiers(t.decode())}
    wanted = {parameter(x) for x in ("alpha", "beta", "c")} | {row_stride("c"), group_stride("c")}
    assert {x for x in found if x.startswith(PREFIXES)} == wanted


def hostile():
    """Names of ours, of C++ and of PTX, and what names of strides are made of."""
    theirs = [x for x in sorted(ours()) if NAME.fullmatch(x)]
    made = [f(x) for f in SPELLED for x in ("c", "c_stride", "d")]
    strides = ("c", "c_stride", "c_stride_g", "stride_c", "_", "__", "_c", "c_", "C", "d_stride_g")
    return list(dict.fromkeys((*KEYWORDS, *PTX, *made, *strides, *theirs)))


def summed(kinds):
    """One epilogue that reads all of them, no deeper than it must be."""
    level = list(kinds)
    while len(level) > 1:
        level = [reduce(Expr.__add__, level[i : i + 2]) for i in range(0, len(level), 2)]
    return ACC + level[0]


@pytest.mark.parametrize("grouping", ("none", "batched"))
@pytest.mark.parametrize("kind", (Scalar, PerColumn, PerRow, PerElement))
def test_every_such_name_is_a_parameter_of_its_own(grouping, kind):
    names = hostile()
    for first in range(0, len(names), 300):
        some = names[first : first + 300]
        p = replace(DENSE, grouping=grouping, epilogue=summed(map(kind, some)))
        found = [x.name for x in lower(p, Config()).params]
        assert len(found) == len(set(found)) and {parameter(x) for x in some} <= {*found}


@pytest.mark.nvrtc
@pytest.mark.parametrize(
    "kinds", ((Scalar,), (PerColumn, PerRow, PerElement, Scalar)), ids=("scalars", "kinds")
)
def test_nvrtc_takes_them(kinds):
    nvrtc = pytest.importorskip("gemmgen.runtime.nvrtc")
    names = hostile()[: 200 if len(kinds) == 1 else 48]
    epilogue = summed(kinds[i % len(kinds)](x) for i, x in enumerate(names))
    a = compile_to_source(replace(DENSE, epilogue=epilogue, grouping="batched"), Config())
    assert f".entry {a.name}(" in nvrtc.compile_ptx(a.source, a.name)
