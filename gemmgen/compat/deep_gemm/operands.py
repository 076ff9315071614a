"""What DeepGEMM's functions share: pairs of tensor and scales, recipes, layouts by stride, what is added."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

from ...errors import ArgumentError
from ...ir.counts import MOST_SIDE
from ...ir.dtypes import BF16, F32, DType
from ...ir.expr import ACC, PerElement
from ...ir.heads import check_columns, heads_of
from ...ops.names import ArgumentNames
from ...runtime.torch_tensors import (
    check_apart,
    check_tensor,
    dtype_of,
    same_memory,
    torch,
    torch_dtype,
)

Pair = tuple[Any, Any]  # tensor, scales
Recipe = tuple[int, int, int] | None  # rows of A and of B, and K, that share a scale
Part = tuple[int, int] | None  # rows and K that share a scale
RECIPES = {(1, 128, 128): ((1, 128), (128, 128)), (1, 1, 128): ((1, 128), (1, 128))}
OUTPUTS = (BF16, F32)

_DENSE = {
    "out": "d",
    **dict.fromkeys(("row_groups", "group_ends", "group_depths"), "grouped_layout"),
    "group_rows": "masked_m",
    "expected_rows": "expected_m",
    "heads": "head_splits",
}
_FP8 = {**_DENSE, "a": "a[0]", "b": "b[0]", "scale_a": "a[1]", "scale_b": "b[1]"}
IN_DENSE = ArgumentNames(names=_DENSE)
IN_FP8 = ArgumentNames(names=_FP8)


@cache
def _outputs() -> dict[Any, DType]:
    return {torch_dtype(t): t for t in OUTPUTS}


def pair(name: str, value: Any) -> Pair:
    """(tensor, scales). Raises ArgumentError."""
    if not isinstance(value, tuple | list) or len(value) != 2:
        raise ArgumentError(name, type(value).__name__, "must be a pair (tensor, scales)")
    for i, t in enumerate(value):
        if not isinstance(t, torch().Tensor):
            raise ArgumentError(f"{name}[{i}]", type(t).__name__, "must be a torch tensor")
    return value[0], value[1]


def turned_pair(name: str, value: Any) -> Pair:
    """The pair's matrices transposed: views."""
    x, scales = pair(name, value)
    return turned(f"{name}[0]", x), turned(f"{name}[1]", scales)


def turned(name: str, t: Any) -> Any:
    """A view of `t` with its last two dimensions exchanged. Raises ArgumentError."""
    if t.dim() < 2:
        raise ArgumentError(f"{name} shape", tuple(t.shape), "must have two dimensions")
    return t.mT


def rows_of_b(recipe: Recipe, recipe_a: Part = None, recipe_b: Part = None) -> int:
    """How many rows of B share a scale: 128 or 1. Raises ArgumentError."""
    if (recipe_a is None) != (recipe_b is None):
        raise ArgumentError("recipe_a, recipe_b", (recipe_a, recipe_b), "go together")
    if recipe_a is None or recipe_b is None:
        whole = (1, 128, 128) if recipe is None else sides("recipe", recipe)
        if whole not in RECIPES:
            raise ArgumentError("recipe", recipe, f"must be one of {[*RECIPES]}, or None")
        return whole[1]
    if recipe is not None:
        raise ArgumentError("recipe", recipe, "must be None beside recipe_a and recipe_b")
    parts = sides("recipe_a", recipe_a), sides("recipe_b", recipe_b)
    if parts not in RECIPES.values():
        allowed = f"must be one of {[*RECIPES.values()]}"
        raise ArgumentError("recipe_a, recipe_b", parts, allowed)
    return int(parts[1][0])


def sides(name: str, recipe: Any) -> tuple[Any, ...]:
    """`recipe` as a tuple. Raises ArgumentError."""
    if not isinstance(recipe, tuple | list):
        raise ArgumentError(name, recipe, "must be a tuple of integers")
    return tuple(recipe)


def only_blocks(recipe: Recipe, recipe_a: Part = None, recipe_b: Part = None) -> None:
    """Raise ArgumentError unless 128 rows of B share a scale."""
    if rows_of_b(recipe, recipe_a, recipe_b) != 128:
        raise ArgumentError("recipe", recipe or (recipe_a, recipe_b), "must be (1, 128, 128)")


def split_heads(splits: Any, b: Any) -> tuple[int, int, int] | None:
    """What `ops` calls heads: none where nothing lies between left and right ones. Raises ArgumentError."""
    whole = sides("head_splits", splits)
    if len(whole) != 3 or whole[1] != 0 or isinstance(whole[1], bool):
        return whole
    left, _, right = whole
    plain = replace(heads_of((left, 1, right)), mid=0)
    if b.dim() == 2:
        check_columns(plain, "b rows", b.shape[0], MOST_SIDE)
    return None


def check_dims(compiled_dims: str) -> None:
    """Every size is an argument of gemmgen's kernels, so that nothing is left to choose. Raises
    ArgumentError for what DeepGEMM would not take either."""
    if not isinstance(compiled_dims, str) or set(compiled_dims) - set("mnk"):
        raise ArgumentError("compiled_dims", compiled_dims, "must be letters of 'mnk'")


def output(d: Any) -> DType:
    """BF16 or F32. Raises ArgumentError."""
    return _outputs().get(getattr(d, "dtype", None)) or dtype_of("d", d, OUTPUTS)


def stored(name: str, t: Any) -> tuple[Any, bool]:
    """BF16 matrices as they lie in memory, contiguous along the last dimension, and whether that turned them.
    As in DeepGEMM the strides say it; a single row or column is not turned. Raises ArgumentError."""
    dtype_of(name, t, (BF16,))
    there = turned(name, t)
    return (t, False) if t.stride(-1) == 1 or t.stride(-2) != 1 else (there, True)


def layout_of(a_turned: bool, b_turned: bool) -> str:
    """gemmgen's name of the layout, of a [M, K] and b [N, K] turned or not."""
    return "nt"[a_turned] + "tn"[b_turned]


def plus(c: Any, d: Any) -> dict[str, Any]:
    """What makes gemmgen's functions add `c`, of D's shape and dtype, perhaps D itself."""
    if c is None:
        return {}
    check_added(c, d)
    return {"epilogue": ACC + PerElement("c", output(d)), "c": c}


def check_added(c: Any, d: Any) -> None:
    """Raise ArgumentError unless `c` is None, D, or apart from it: tiles are written while others read."""
    if c is None:
        return
    dtype_of("c", c, (output(d),))
    if not same_memory(c, d):
        check_apart("c", c, {"d": d})


def nothing_to_sum(a: Any, b: Any, d: Any, c: Any, dtype: DType) -> bool:
    """Whether a side of a [M, K] and b [N, K] is 0; D then is `c`, or 0, as far as it has elements."""
    if 0 not in a.shape and 0 not in b.shape:
        return False
    m, k = check_tensor("a", a, dtype, (None, None))
    n, _ = check_tensor("b", b, dtype, (None, k), a.device)
    check_tensor("d", d, output(d), (m, n), a.device)
    check_added(c, d)
    if c is None:
        d.zero_()
    elif not same_memory(c, d):
        check_tensor("c", c, output(d), (m, n), a.device)
        d.copy_(c)
    return True
