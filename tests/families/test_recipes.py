"""What a family's sums are is asked in one place, also of a family that a program adds."""

from __future__ import annotations

import ast
from dataclasses import MISSING, fields, replace
from pathlib import Path

import numpy as np
import pytest
from kernels import FP8

from gemmgen.cost import cost
from gemmgen.cost_launch import promotes
from gemmgen.errors import ArgumentError, GemmgenError
from gemmgen.families import FAMILIES, add
from gemmgen.heuristics import choose
from gemmgen.ir.dtypes import E4M3
from gemmgen.pipeline import lower
from gemmgen.problem import depth_step
from gemmgen.recipes import RECIPES, Recipe, recipe
from gemmgen.target import H200
from gemmgen.verification import random_normal
from gemmgen.verification.engines import NumpyEngine
from gemmgen.verification.reference import bound

ROOT = Path(__file__).parents[2] / "gemmgen"
SHAPE = (300, 264, 1024)
PAIR = ((E4M3, E4M3),)
# Who may name a family: its own file, its facts, exhibits, what is measured of each, and functions on tensors, each of
# which is one family's.
NAMING = ("families", "recipes.py", "gallery", "bench", "ops", "torch_ops")


@pytest.fixture(name="added", params=("fp8_block", "fp8_1d1d", "fp8", "dense"))
def added_fixture(request):
    """Two problems: of a family that is one of ours by another name, and of ours."""
    tables = (FAMILIES, RECIPES)
    before = [dict(t) for t in tables]
    add("twin", FAMILIES[request.param], RECIPES[request.param])
    ours = replace(FP8, family=request.param)
    yield replace(ours, family="twin"), ours
    for table, kept in zip(tables, before, strict=True):
        table.clear()
        table.update(kept)


def test_an_added_family_is_chosen_for_priced_and_bounded_as_ours(added):
    """The name alone tells them apart."""
    twin, ours = added
    c = choose(ours, SHAPE, H200)
    assert choose(twin, SHAPE, H200) == c
    assert cost(twin, c, SHAPE, H200) == cost(ours, c, SHAPE, H200)
    assert promotes(twin) == promotes(ours) and depth_step(twin) == depth_step(ours)
    kernels = [lower(p, c) for p in (twin, ours)]
    assert replace(kernels[0], name="") == replace(kernels[1], name="")
    one, other = (random_normal(p, 48, 40, 512, 3) for p in (twin, ours))
    assert one.rows_per_scale == other.rows_per_scale
    engine = NumpyEngine()
    np.testing.assert_array_equal(bound(twin, one, engine), bound(ours, other, engine))


def test_a_name_is_added_once():
    with pytest.raises(ArgumentError, match="dense"):
        add("dense", FAMILIES["fp8"], RECIPES["fp8"])
    assert [*FAMILIES] == [*RECIPES]


def test_no_fact_has_a_default():
    assert all(f.default is MISSING for f in fields(Recipe))
    with pytest.raises(TypeError, match="scale_depth"):
        Recipe(operands=PAIR, promotes=True, scale_rows=1, unroll=1, coded=False)


@pytest.mark.parametrize("rows, depth", [(128, 0), (64, 128), (-1, 128), (0, 64), (1, 256)])
def test_facts_that_fit_nothing_are_refused(rows, depth):
    with pytest.raises(GemmgenError, match=f"scale_rows={rows}, scale_depth={depth}"):
        Recipe(
            operands=PAIR, promotes=True, scale_rows=rows, scale_depth=depth, unroll=1, coded=False
        )


def test_a_family_multiplies_something():
    with pytest.raises(GemmgenError, match="operands"):
        replace(recipe("dense"), operands=())


def test_an_unknown_family_is_named():
    with pytest.raises(ArgumentError, match="'twin': must be one of fp8_block, "):
        recipe("twin")


def test_families_are_named_where_they_may_be():
    """Elsewhere what they are is asked, so that one more is no case of its own."""
    naming = {
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in ROOT.rglob("*.py")
        if path.relative_to(ROOT).parts[0] not in NAMING
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Compare | ast.Dict | ast.Set | ast.Tuple | ast.List)
        for child in ast.iter_child_nodes(node)
        if isinstance(child, ast.Constant) and child.value in ("fp8_block", "fp8_1d1d", "dense")
    }
    assert not naming
