"""What `torch.vmap` makes of a GEMM: one launch where there is one that computes all, else one for each.

Rows of a batch that share B are more rows of one GEMM. Batches that do not are a batched GEMM. What is left is done one by one,
as torch does it of operators without a rule.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from ..ir.expr import PerElement, PerRow, arguments
from ..runtime.torch_tensors import torch
from .operators import OPERATORS, Operator, Overload

KEY = "FuncTorchBatched"
TWINS = {  # of one GEMM, and of many
    "gemm": "batched_gemm",
    "fp8_block_gemm": "fp8_block_batched_gemm",
    "fp8_gemm": "fp8_batched_gemm",
    "int8_gemm": "int8_batched_gemm",
    "w4a16_gemm": "w4a16_batched_gemm",
    "w4a8_gemm": "w4a8_batched_gemm",
    "w4a8_block_gemm": "w4a8_block_batched_gemm",
    "w8a16_gemm": "w8a16_batched_gemm",
}
OPERANDS = ("a", "b", "scale_a", "scale_b")
Given = dict[str, Any]


def register_batching(library: Any) -> None:
    """In `library`, which defines the operators."""
    for op in OPERATORS:
        for overload in ("", "quantised"):
            if op.name in TWINS and overload in op.overloads:
                library.impl(op.qualified(overload), _rule(library.ns, op, overload), KEY)


def _rule(namespace: str, op: Operator, overload: Overload) -> Callable[..., Any]:
    operators = getattr(torch().ops, namespace)
    one, all_ = (getattr(getattr(operators, x), overload or "default") for x in (op.name, TWINS[op.name]))  # fmt: skip
    functorch = import_module("torch._functorch.autograd_function")
    current = import_module("torch._functorch.pyfunctorch").retrieve_current_functorch_interpreter
    keys = torch()._C.DispatchKeySet(torch()._C.DispatchKey.FuncTorchBatched)

    def rule(*args: Any, **kwargs: Any) -> Any:
        interpreter = current()
        level, size = interpreter.level(), interpreter.batch_size()
        given = dict(zip(op.positional(overload), args, strict=False)) | kwargs
        values, dims = functorch.unwrap_batched(tuple(given.values()), level)
        plain = dict(zip(given, values, strict=True))
        # Of a list of numbers as many of none.
        at = {name: d for name, d in zip(given, dims, strict=True) if isinstance(d, int)}
        moved = plain | {name: plain[name].movedim(d, 0) for name, d in at.items()}
        with torch()._C._ExcludeDispatchKeyGuard(keys):
            if not at:
                return one(**plain)
            if _more_rows(op, moved, at):
                found = _folded(one, moved)
            elif _at_once(op, moved, at, size):
                found = all_(**_for_all(moved, at, size))
            else:
                found = _one_by_one(one, moved, at, size)
        add = torch()._C._functorch._add_batch_dim
        return tuple(add(x, 0, level) for x in found) if isinstance(found, tuple) else add(found, 0, level)  # fmt: skip

    return rule


def _more_rows(op: Operator, given: Given, at: Mapping[str, Any]) -> bool:
    """Whether the batch is of A alone, and nothing is read or made by row."""
    rows = any(isinstance(x, PerRow | PerElement) for x in _reads(op, given))
    return {*at} == {"a"} and "scale_a" not in op.parameters and given.get("layout", "nt")[0] == "n" and not rows  # fmt: skip


def _at_once(op: Operator, given: Given, at: Mapping[str, Any], size: int) -> bool:
    """Whether a batched GEMM reads all of it: nothing but operands, and no number for each of them."""
    numbers = (x for x in at if op.scaling in ("whole", "rows") and given[x].numel() == size)
    return (
        {*at} <= {*OPERANDS}
        and given.get("heads") is None
        and not _reads(op, given)
        and not any(x[:5] == "scale" for x in numbers)
    )


def _reads(op: Operator, given: Given) -> tuple[Any, ...]:
    return arguments(op.epilogue(given.get("epilogue", "none")))


def _folded(one: Callable[..., Any], given: Given) -> Any:
    """a [B, M, K] as more rows."""
    lead = given["a"].shape[:2]
    found = one(**given | {"a": given["a"].reshape(-1, given["a"].shape[-1])})
    if isinstance(found, tuple):
        return tuple(x.unflatten(0, lead) for x in found)
    return found.unflatten(0, lead)


def _for_all(given: Given, at: Mapping[str, Any], size: int) -> Given:
    """Of a batch that all operands have: what is shared is there for each, in rows that the copy engine reads."""
    found = {name: x for name, x in given.items() if name != "heads"}  # which are of one GEMM
    for name in OPERANDS:
        x = given.get(name)
        if isinstance(x, torch().Tensor) and (name[:5] != "scale" or _whole(x, name in at)):
            found[name] = (x if name in at else x.expand(size, *x.shape)).contiguous()
    if "scale_a_layout" in found:
        found["scale_a_layout"] = "row"
    return found


def _whole(scale: Any, batched: bool) -> bool:
    """Whether a scale is of rows or blocks: one number for all stays one."""
    return bool(batched or scale.numel() != 1 or scale.dim() > 1)


def _one_by_one(one: Callable[..., Any], given: Given, at: Mapping[str, Any], size: int) -> Any:
    found = [one(**given | {name: given[name][i] for name in at}) for i in range(size)]
    if isinstance(found[0], tuple):
        return tuple(map(torch().stack, zip(*found, strict=True)))
    return torch().stack(found)
