"""From a problem to its launch: the operands, block scales and table of groups that its recipe and grouping ask for.

The public functions each say a problem in arguments of their own; `multiply` takes any.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from ..config import Config
from ..errors import ArgumentError
from ..ir.counts import MOST_SIDE
from ..ir.dtypes import S32
from ..ir.expr import fold
from ..ir.groupings import GROUPINGS
from ..ir.heads import check_columns
from ..ir.squares import check_columns as check_squares
from ..problem import Problem
from ..recipes import recipe
from ..runtime.torch_tensors import check_tensor
from . import coded, depths, invariance
from .calls import SIDES, a_scales, block_scales, operand_shape, run, vector_scales
from .epilogue import Shape, Values
from .front import front
from .indexed import Taken, asked, of_product
from .told import ALONE, ToldGroups, summed_of


@dataclass(frozen=True, kw_only=True)
class Scales:
    """Of operands, as a function was given them. argument: what it calls their layout."""

    a: Any
    b: Any
    layout: Any
    argument: str = "scale_layout"


def of_blocks(scale_a: Any, scale_b: Any, scale_a_layout: str) -> Scales:
    """Of functions in which only A's scales have a layout: B's are blocks'."""
    return Scales(a=scale_a, b=scale_b, layout=scale_a_layout, argument="scale_a_layout")


EXPECTED = ("masked", "ends")  # groups whose tensors may have room for more rows than they have


@front
def multiply(
    problem: Problem,
    a: Any,
    b: Any,
    out: Any = None,
    *,
    scale_a: Any = None,
    scale_b: Any = None,
    scale_layout: str | None = None,
    scale_out: Any = None,
    squares: Any = None,
    table: Any = None,
    rows: Any = None,
    top: int = 1,
    expected_rows: int | None = None,
    expected_groups: int | None = None,
    columns: int | None = None,
    config: Config | None = None,
    invariant: bool | None = None,
    **arguments: Any,
) -> Any:
    """`out = problem.epilogue(A @ B)` of any problem, also of a family or an epilogue that a program adds.

    a, b: of `problem`'s dtypes, as its layout and grouping store them: a [M, K], b [N, K] for "nt", one group; see
    the function of `gemmgen.ops` that computes the same. Flat groups along K are given as [M, sum K] and [N, sum K].
    scale_a, scale_b: float32, of a family whose operands have scales, [M, ceil(K/128)] and [ceil(N/128), ceil(K/128)]
    or [N, ceil(K/128)]; else what the epilogue reads by these names. scale_layout, where operands have scales:
    "mn", A's (and B's, if it has one per row) contiguous along M (N), or "row", any strides.
    table: int32 on the device, of a grouping that reads one: group_rows, row_groups, group_ends or group_depths.
    rows, top: of a problem with indexed=True, which needs rows; as of `grouped_gemm`.
    expected_rows, expected_groups: as of `masked_gemm` and `grouped_gemm`. columns: as of `w4a16_gemm`, whose b is packed.
    squares: float32 [M], of a problem with squares=True, allocated if None; the result is then (out, squares), as of `prenorm_gemm`.
    out: as of the others, of a problem with heads as of `fp8_block_gemm`; allocated if None, but if the problem accumulates, which adds to it. scale_out, config,
    invariant, arguments, the result, errors: as of `fp8_block_gemm`.
    """
    if not isinstance(problem, Problem):
        raise ArgumentError("problem", problem, "must be a gemmgen.Problem")
    if problem.collective != Problem.collective:
        allowed = f"must be {Problem.collective}: see gemmgen.ops.ranked and gemmgen.ops.gathered"
        raise ArgumentError("problem.collective", problem.collective, allowed)
    if problem.compact:
        allowed = "must be false: see gemmgen.ops.fp8_mqa_logits"
        raise ArgumentError("problem.compact", problem.compact, allowed)
    if problem.paged:
        allowed = "must be false: see gemmgen.ops.fp8_paged_mqa_logits"
        raise ArgumentError("problem.paged", problem.paged, allowed)
    scales = Scales(a=scale_a, b=scale_b, layout=scale_layout)
    return compute(
        problem, config, a, b, out, arguments | read_by_epilogue(problem, scales), scales,
        table=table, expected_rows=expected_rows, expected_groups=expected_groups,
        scale_out=scale_out, squares=squares, invariant=invariant, by_index=asked(problem, rows, top), columns=columns,
    )  # fmt: skip


def compute(
    p: Problem,
    config: Config | None,
    a: Any,
    b: Any,
    out: Any,
    given: dict[str, Any],
    scales: Scales | None = None,
    *,
    table: Any = None,
    expected_rows: int | None = None,
    expected_groups: int | None = None,
    scale_out: Any = None,
    squares: Any = None,
    invariant: bool | None = None,
    weights_ready: bool = False,
    whole_k: bool = False,
    by_index: Taken | None = None,
    columns: int | None = None,
) -> Any:
    """Check all that `p` reads, and plan its launch. scales: None for a recipe without. table: as of `multiply`.
    given: what the epilogue reads, by name. whole_k: products are added up in the order of K, whatever the shape, as by
    one CTA. weights_ready: as of `fp8_block_gemm`. by_index: of a problem whose rows come so.
    columns: N, of packed weights. Raises ArgumentError."""
    if weights_ready is not Problem.weights_ready:
        p = replace(p, weights_ready=weights_ready)
    g = GROUPINGS[p.grouping]
    if p.form:
        shape, b = coded.sides(p, a, b, columns), coded.rows_of(b)
    else:
        coded.check_none(p, columns)
        shape = depths.sides(p, a, b) if g.depths else operand_shape(p, a, b)
    check_columns(p.gaps, f"b {SIDES[p.mn_major[1]]}", shape[1], MOST_SIDE)
    if p.squares:
        check_squares(shape[1] // fold(p.epilogue) - 1)
    of_rows, shape, told = of_product(by_index, a, shape)
    expected = {"expected_rows": expected_rows, "expected_groups": expected_groups}
    groups = _groups(p, a, b, shape, table, expected)
    deep = (groups.count if g.summed else 1) * shape[2]
    if not deep:
        lead = (groups.count,) * g.outputs
        return depths.of_nothing(p, out, given, (*lead, *shape[:2]), a.device)
    split_k = (
        1
        if whole_k
        else invariance.split_of(p, shape[1], summed_of(p, shape[2], groups), invariant)
    )
    groups = replace(groups, split_k=split_k)
    tensors, values = scales_of(p, of_rows, b, scales)
    values |= told
    if g.depths == "flat":
        values |= {"a": a.data_ptr(), "b": b.data_ptr()}
    return run(
        p, config, a, b, out, shape, tensors, values, given,
        groups=groups, scale_out=scale_out, squares=squares,
    )  # fmt: skip


def read_by_epilogue(p: Problem, s: Scales) -> dict[str, Any]:
    """By name, the scales that are given where operands have none: an epilogue's. Raises ArgumentError for their layout."""
    sums = recipe(p.family)
    if s.layout is not None and not sums.scaled:
        allowed = f"is of operands with scales, which {p.family} has not"
        raise ArgumentError(s.argument, s.layout, allowed)
    read = {"scale_a": (sums.scaled, s.a), "scale_b": (sums.scales_b, s.b)}
    return {name: x for name, (has, x) in read.items() if not has and x is not None}


def scales_of(p: Problem, a: Any, b: Any, s: Scales | None) -> tuple[dict[str, Any], Values]:
    """As `run` takes them."""
    r = recipe(p.family)
    if s is None or not r.scaled:
        return {}, {}
    if not r.scales_b:
        return a_scales(a, s.a, s.layout, s.argument)
    read = block_scales if r.scales_blocks else vector_scales
    return read(a, s.a, b, s.b, s.layout, s.argument)


def _groups(
    p: Problem, a: Any, b: Any, shape: Shape, table: Any, expected: dict[str, int | None]
) -> ToldGroups:
    """How many, what the device is told of them, and what as far as the host knows have rows, and how many."""
    g = GROUPINGS[p.grouping]
    for name, number in expected.items():
        _check_expected(p, name, number)
    if not g.table:
        if table is not None:
            raise ArgumentError("table", type(table).__name__, f"grouping {p.grouping} reads none")
        return ToldGroups(count=b.shape[0]) if g.rows else ALONE
    entries = shape[0] if p.grouping == "rows" else None if g.depths else b.shape[0]
    (entries,) = check_tensor(g.table, table, S32, (entries,), a.device, contiguous=True)
    count = b.shape[0] if g.columns else entries
    told = {g.table: table.data_ptr()}
    if g.depths:
        return ToldGroups(count=count, table=told)
    rows, filled = expected["expected_rows"], min(expected["expected_groups"] or count, count)
    if rows is None:
        rows = shape[0] if g.rows else max(1, -(-shape[0] // max(1, filled)))
    return ToldGroups(count=count, filled=filled, rows=min(rows, shape[0]), table=told)


def _check_expected(p: Problem, name: str, number: int | None) -> None:
    if number is None:
        return
    if p.grouping not in EXPECTED:
        allowed = f"is of groups {' and '.join(EXPECTED)}, not {p.grouping}"
        raise ArgumentError(name, number, allowed)
    if not isinstance(number, int) or number < 1:
        raise ArgumentError(name, number, "must be a positive integer")
