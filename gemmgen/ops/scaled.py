"""Problems whose sum is scaled as a whole, per tensor, row or column: FP8 and INT8."""

from __future__ import annotations

from typing import Any

from .. import recipes
from ..epilogues import named
from ..ir.dtypes import BF16, F16, F32, FP8, S8, DType
from ..ir.expr import ACC, Argument, DeviceScalar, Expr, PerColumn, PerRow, Scalar, of
from ..problem import Problem, check_sums
from ..runtime.torch_tensors import dtype_of
from .calls import output_dtype

Scales = tuple[Any, Any]  # scale_a, scale_b


def fp8_problem(
    a: Any,
    b: Any,
    scales: Scales,
    accurate: bool,
    out_dtype: str,
    epilogue: Expr | str,
    arguments: dict[str, Any],
    grouping: str = Problem.grouping,
) -> tuple[Problem, dict[str, Any]]:
    """What an FP8 function computes, and what its epilogue reads. Raises ArgumentError."""
    expression, given = _scaled(scales, epilogue, arguments)
    p = Problem(
        family=recipes.FP8 if accurate else recipes.DENSE,
        a=dtype_of("a", a, FP8),
        b=dtype_of("b", b, FP8),
        d=output_dtype(out_dtype),
        epilogue=expression,
        grouping=grouping,
    )
    return p, given


def int8_problem(
    scales: Scales,
    out_dtype: str,
    epilogue: Expr | str,
    arguments: dict[str, Any],
    grouping: str = Problem.grouping,
) -> tuple[Problem, dict[str, Any]]:
    """What an INT8 function computes, and what its epilogue reads. Raises ArgumentError."""
    expression, given = _scaled(scales, epilogue, arguments)
    d = output_dtype(out_dtype, ("s32", "bf16", "f16", "f32", "e4m3"))
    check_sums("out_dtype", S8, d, expression, "scale_a, scale_b and an epilogue")
    p = Problem(family=recipes.DENSE, a=S8, b=S8, d=d, epilogue=expression, grouping=grouping)
    return p, given


def halves_problem(
    family: str,
    a: Any,
    scale_b: Any,
    weights: str,
    out_dtype: str | None,
    epilogue: Expr | str,
    arguments: dict[str, Any],
    grouping: str = Problem.grouping,
) -> tuple[Problem, dict[str, Any]]:
    """What a function of packed weights computes with an A of 16 bits, as `coded_problem`. out_dtype: None: a's."""
    dtype = dtype_of("a", a, (BF16, F16))
    d = dtype.name if out_dtype is None else out_dtype
    scales = (None, scale_b)
    return coded_problem(family, dtype, scales, weights, d, epilogue, arguments, grouping)


def coded_problem(
    family: str,
    dtype: DType,
    scales: Scales,
    weights: str,
    out_dtype: str,
    epilogue: Expr | str,
    arguments: dict[str, Any],
    grouping: str = Problem.grouping,
) -> tuple[Problem, dict[str, Any]]:
    """What a function of packed weights computes with an A of `dtype`, and what its epilogue reads. Raises ArgumentError."""
    expression, given = _scaled(scales, epilogue, arguments)
    p = Problem(
        family=family,
        a=dtype,
        b=dtype,
        d=output_dtype(out_dtype, ("bf16", "f16", "f32")),
        weights=weights,
        epilogue=expression,
        grouping=grouping,
    )
    return p, given


def _scaled(
    scales: Scales, epilogue: Expr | str, arguments: dict[str, Any]
) -> tuple[Expr, dict[str, Any]]:
    """`epilogue` of the product times the scales given, and its arguments."""
    expression: Expr = ACC
    given = dict(arguments)
    for name, scale, vector in zip(
        ("scale_a", "scale_b"), scales, (PerRow, PerColumn), strict=True
    ):
        if scale is not None:
            expression, given[name] = expression * _scale_leaf(name, scale, vector), scale
    return of(named(epilogue), expression), given


def _scale_leaf(name: str, scale: Any, vector: type[Argument]) -> Argument:
    if isinstance(scale, int | float):
        return Scalar(name)
    if (dtype_of(name, scale, (F32,)) and scale.dim() == 0) or tuple(scale.shape) == (1,):
        return DeviceScalar(name)
    return vector(name)
