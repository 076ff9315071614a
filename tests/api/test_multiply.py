"""`ops.multiply` takes any problem: what it launches is what the function launches that computes the same."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fake_torch import Placed, fake_torch_fixture, launches_fixture  # noqa: F401
from kernels import DENSE, FP8, VECTOR

from gemmgen import ops
from gemmgen.config import Config
from gemmgen.epilogues import EPILOGUES
from gemmgen.errors import ArgumentError
from gemmgen.ir.dtypes import BF16, F32, S8, S32
from gemmgen.ir.expr import ACC, PerColumn, PerRow
from gemmgen.recipes import recipe

M, N, K, G = 256, 72, 256, 3
CONFIG = Config(block_n=64, stages=2)
E4M3 = "float8_e4m3fn"
BLOCKS = {"scale_a": Placed(M, 2, stride=(1, M)), "scale_b": Placed(1, 2)}
BLOCKS_EACH = {
    "scale_a": Placed(G, M, 2, stride=(2 * M, 1, M)),
    "scale_b": Placed(G, 1, 2),
}
VECTORS = {"scale_a": Placed(M, 2, stride=(1, M)), "scale_b": Placed(N, 2, stride=(1, N))}
COUNTS = Placed(G, dtype="int32")
OF_ROWS = Placed(M, dtype="int32")


def x(*shape, dtype="bfloat16"):
    return Placed(*shape, dtype=dtype)


FP8_ROWS = replace(DENSE, a=FP8.a, b=FP8.b, family="fp8", epilogue=ACC * PerRow("scale_a") * PerColumn("scale_b"))  # fmt: skip
SUMMED = {"scale_a": Placed(M), "scale_b": Placed(N)}
INT8 = replace(DENSE, a=S8, b=S8, d=S32)
# By name: the function, what both are given, then only it; the problem, and its table.
CASES = {
    "gemm": (ops.gemm, {"a": x(M, K), "b": x(N, K), "out": x(M, N)}, {}, DENSE, None),
    "gemm with a bias": (
        ops.gemm,
        {"a": x(M, K), "b": x(N, K), "out": x(M, N), "bias": Placed(N)},
        {"epilogue": EPILOGUES["bias"]},
        replace(DENSE, epilogue=EPILOGUES["bias"]),
        None,
    ),
    "gemm added": (
        ops.gemm,
        {"a": x(M, K), "b": x(N, K), "out": x(M, N, dtype="float32")},
        {"accumulate": True},
        replace(DENSE, d=F32, accumulate=True),
        None,
    ),
    "fp8": (
        ops.fp8_gemm,
        {"a": x(M, K, dtype=E4M3), "b": x(N, K, dtype=E4M3), "out": x(M, N), **SUMMED},
        {},
        FP8_ROWS,
        None,
    ),
    "int8": (
        ops.int8_gemm,
        {"a": x(M, K, dtype="int8"), "b": x(N, K, dtype="int8"), "out": x(M, N, dtype="int32")},
        {},
        INT8,
        None,
    ),
    "fp8 blocks": (
        ops.fp8_block_gemm,
        {"a": x(M, K, dtype=E4M3), "b": x(N, K, dtype=E4M3), "out": x(M, N), **BLOCKS},
        {"scale_a_layout": "mn"},
        FP8,
        None,
    ),
    "fp8 blocks of a batch": (
        ops.fp8_block_batched_gemm,
        {"a": x(G, M, K, dtype=E4M3), "b": x(G, N, K, dtype=E4M3), "out": x(G, M, N), **BLOCKS_EACH},
        {"scale_a_layout": "mn"},
        replace(FP8, grouping="batched"),
        None,
    ),
    "masked": (
        ops.masked_gemm,
        {"a": x(G, M, K), "b": x(G, N, K), "out": x(G, M, N), "expected_rows": 9},
        {"group_rows": COUNTS},
        replace(DENSE, grouping="masked"),
        COUNTS,
    ),
    "rows": (
        ops.grouped_gemm,
        {"a": x(M, K), "b": x(G, N, K), "out": x(M, N)},
        {"row_groups": OF_ROWS},
        replace(DENSE, grouping="rows"),
        OF_ROWS,
    ),
    "ends": (
        ops.grouped_gemm,
        {"a": x(M, K), "b": x(G, N, K), "out": x(M, N)},
        {"group_ends": COUNTS},
        replace(DENSE, grouping="ends"),
        COUNTS,
    ),
    "ends, rows by index": (
        ops.grouped_gemm,
        {"a": x(9, K), "b": x(G, N, K), "out": x(M, N), "rows": OF_ROWS, "top": 3},
        {"group_ends": COUNTS},
        replace(DENSE, grouping="ends", indexed=True),
        COUNTS,
    ),
    "fp8 blocks, rows by index": (
        ops.fp8_block_grouped_gemm,
        {"a": x(9, K, dtype=E4M3), "b": x(G, N, K, dtype=E4M3), "out": x(M, N), "rows": OF_ROWS}
        | {"scale_a": BLOCKS["scale_a"], "scale_b": Placed(G, 1, 2)},
        {"group_ends": COUNTS, "scale_a_layout": "mn"},
        replace(FP8, grouping="ends", indexed=True),
        COUNTS,
    ),
    "along K": (
        ops.k_grouped_gemm,
        {"a": x(K, M), "b": x(K, N), "out": x(G, M, N, dtype="float32")},
        {"group_depths": COUNTS},
        replace(DENSE, d=F32, layout="tn", grouping="k_columns"),
        COUNTS,
    ),
    "fp8 along K": (
        ops.fp8_k_grouped_gemm,
        {"a": x(M, K, dtype=E4M3), "b": x(N, K, dtype=E4M3), "out": x(G, M, N, dtype="float32"), **VECTORS},
        {"group_depths": COUNTS, "packing": "columns", "scale_layout": "mn"},
        replace(VECTOR, d=F32, grouping="k_columns"),
        COUNTS,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_it_launches_what_the_function_launches(name, launches):
    function, both, its, problem, table = CASES[name]
    out = function(**both, **its, config=CONFIG)
    assert out is both["out"]
    layout = {"scale_layout": "mn"} if recipe(problem.family).scaled else {}
    assert ops.multiply(problem, **both, **layout, table=table, config=CONFIG) is out
    one, other = launches
    assert one.problem == other.problem == problem
    assert one.shape == other.shape and one.matrices == other.matrices
    made = "group_maps"  # of each call its own
    assert {**one.values, made: 0} == {**other.values, made: 0}


def test_its_output_is_allocated_but_not_to_be_added_to(launches):
    a, b = x(M, K), x(N, K)
    assert ops.multiply(DENSE, a, b, config=CONFIG).shape == (M, N)
    with pytest.raises(ArgumentError, match="out=None: must be given"):
        ops.multiply(replace(DENSE, d=F32, accumulate=True), a, b, config=CONFIG)


def test_without_any_k_an_epilogue_would_not_be_applied(launches):
    """So it is refused; the sum alone is 0, and what it is added to stays."""
    p = replace(DENSE, d=F32, layout="tn", grouping="k_columns", epilogue=EPILOGUES["bias"])
    given = {"table": COUNTS, "bias": Placed(G, N), "config": CONFIG}
    with pytest.raises(ArgumentError) as e:
        ops.multiply(p, x(0, M), x(0, N), **given)
    assert e.value.argument == "a rows" and not launches


@pytest.mark.parametrize(
    ("argument", "changes"),
    (
        ("problem", {"problem": "dense"}),
        ("table", {"table": COUNTS}),
        ("expected_rows", {"expected_rows": 4}),
        ("expected_groups", {"expected_groups": 1}),
        ("scale_a", {"scale_a": Placed(M)}),
        ("scale_layout", {"scale_layout": "mn"}),
        ("rows", {"rows": OF_ROWS}),
        ("top", {"top": 2}),
    ),
)
def test_what_a_problem_does_not_read_is_refused(argument, changes, launches):
    with pytest.raises(ArgumentError) as e:
        ops.multiply(**{"problem": DENSE, "a": x(M, K), "b": x(N, K), "config": CONFIG} | changes)
    assert e.value.argument == argument and not launches


def test_a_table_that_is_missing_is_named_as_its_grouping_names_it(launches):
    p = replace(DENSE, grouping="masked", d=BF16)
    with pytest.raises(ArgumentError) as e:
        ops.multiply(p, x(G, M, K), x(G, N, K), config=CONFIG)
    assert e.value.argument == "group_rows" and not launches


def test_rows_of_a_problem_by_index_are_needed(launches):
    p = replace(DENSE, grouping="ends", indexed=True)
    with pytest.raises(ArgumentError) as e:
        ops.multiply(p, x(9, K), x(G, N, K), table=COUNTS, config=CONFIG)
    assert e.value.argument == "rows" and not launches


def test_an_epilogue_may_be_given_by_its_name(launches):
    """As the expression of that name; also of the scaled sum."""
    a, b, bias = x(M, K), x(N, K), Placed(N)
    ops.gemm(a, b, epilogue="bias_silu", bias=bias, config=CONFIG)
    q, r = x(M, K, dtype=E4M3), x(N, K, dtype=E4M3)
    ops.fp8_gemm(q, r, scale_a=2.0, epilogue="relu", config=CONFIG)
    ops.fp8_gemm(q, r, scale_a=2.0, epilogue=EPILOGUES["relu"], config=CONFIG)
    assert launches[0].problem.epilogue == EPILOGUES["bias_silu"]
    assert launches[1].problem == launches[2].problem
    with pytest.raises(ArgumentError) as e:
        ops.gemm(a, b, epilogue="sliu", config=CONFIG)
    assert e.value.argument == "epilogue"


def test_the_layout_of_scales_is_never_guessed(launches):
    given = {"a": x(M, K, dtype=E4M3), "b": x(N, K, dtype=E4M3), **BLOCKS, "config": CONFIG}
    with pytest.raises(ArgumentError) as e:
        ops.multiply(FP8, **given)
    assert e.value.argument == "scale_layout" and not launches
