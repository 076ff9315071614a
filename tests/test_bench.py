"""What `gemmgen bench` measures: the named shapes, and how groups are sized."""

from __future__ import annotations

from dataclasses import replace

import pytest
from kernels import DENSE, FP8

from gemmgen.bench.grouped import calls, reference, rows_of
from gemmgen.bench.shapes import GROUPED, SETS, parse, sizes
from gemmgen.config import Config
from gemmgen.errors import ArgumentError, UnsupportedProblem

BATCHED, MASKED = replace(DENSE, grouping="batched"), replace(FP8, grouping="masked")


def test_shapes_have_groups_where_the_problem_has():
    assert parse("large", DENSE) == SETS["large"]
    assert parse("3x5x7", FP8) == ((3, 5, 7),)
    assert parse("bmm", BATCHED) == GROUPED["bmm"]
    assert parse("2x3x5x7,1x1x1x1", MASKED) == ((2, 3, 5, 7), (1, 1, 1, 1))


@pytest.mark.parametrize(
    ("text", "problem", "allowed"),
    [
        ("bmm", DENSE, "MxNxK"),
        ("large", MASKED, "contiguous, masked, bmm, or GxMxNxK"),
        ("2x3x5x7", DENSE, "MxNxK"),
        ("3x5x7", MASKED, "GxMxNxK"),
        ("2x0x5x7", MASKED, "GxMxNxK"),
        ("2x3x5x-7", MASKED, "GxMxNxK"),
    ],
)
def test_other_shapes_are_refused(text, problem, allowed):
    with pytest.raises(ArgumentError, match=allowed) as e:
        parse(text, problem)
    assert (e.value.argument, e.value.value) == ("--shapes", text)


@pytest.mark.parametrize("groups", range(1, 40))
def test_group_sizes_lie_about_the_mean(groups):
    found = sizes(groups, 1000)
    assert len(found) == groups and min(found) >= 700 and max(found) <= 1300
    assert groups < 4 or abs(sum(found) / groups - 1000) < 5
    assert groups < 4 or len(set(found)) == groups


def test_a_batch_has_equal_groups():
    assert rows_of(BATCHED, 3, 20) == (20, 20, 20)
    assert set(rows_of(MASKED, 6, 20)) == {14, 16, 19, 21, 24, 26}


@pytest.mark.parametrize(
    "problem",
    [
        replace(DENSE, grouping="k_columns"),
        replace(DENSE, grouping="batched", layout="nn"),
        replace(FP8, family="dense", grouping="masked"),
    ],
)
def test_what_has_no_grouped_benchmark(problem):
    with pytest.raises(UnsupportedProblem):
        calls(problem, (2, 16, 16, 16), Config())


def test_references():
    assert reference(BATCHED) == "torch.bmm"
    assert reference(replace(DENSE, grouping="ends")) == "torch.mm, one"
    assert reference(MASKED) == "torch._scaled_mm, one"
