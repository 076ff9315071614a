"""Gradients of the operators of a process group, of 16 bits: a reduce-scatter's is an all-gather, and the other way round."""

from __future__ import annotations

from typing import Any

from ..errors import ArgumentError
from ..ir.collectives import ALL_GATHER, REDUCE_SCATTER
from ..ir.dtypes import DType
from ..runtime.torch_tensors import dtype_of, torch
from .all_reduces import COLLECTIVES
from .collectives import Collective
from .fusing import all_rows
from .operators import HALVES

LINEAR = ("none", "bias")  # epilogues through which gradients go
DY_TIMES = {"t": "nn", "n": "nt"}  # the layout of dy @ B, by how B is stored


def register_gradients(library: Any) -> None:
    """Of those that multiply floating point of 16 bits, and share out rows."""
    for op in COLLECTIVES:
        if op.operands == HALVES and op.collective in BACKWARD:
            register = torch().library.register_autograd
            setup, backward = _setup(op), BACKWARD[op.collective]
            name = f"{library.ns}::{op.name}"
            register(name, backward, setup_context=setup, lib=library)


def _setup(op: Collective) -> Any:
    def setup(ctx: Any, inputs: Any, keyword_only_inputs: Any, output: Any) -> None:
        given = op.bind(tuple(inputs), keyword_only_inputs)
        _check(op, given)
        ctx.save_for_backward(given["a"], given["b"])
        ctx.group, ctx.fuse, ctx.layout = given["group_name"], given["fuse"], given["layout"]
        bias = given["bias"]
        ctx.bias = None if bias is None else (bias.shape, bias.dtype)
        ctx.places = len(op.order), op.order.index("bias")

    return setup


def _check(op: Collective, given: dict[str, Any]) -> None:
    """Raise ArgumentError for what has no gradient here."""
    if given["epilogue"] not in LINEAR:
        allowed = f"must be {' or '.join(LINEAR)} where a gradient is asked for"
        raise ArgumentError("epilogue", given["epilogue"], allowed)
    if given["layout"][0] != "n":
        allowed = "must store A [M, K], as n, where a gradient is asked for"
        raise ArgumentError("layout", given["layout"], allowed)


def _of_scattered(ctx: Any, dy: Any) -> tuple[Any, ...]:
    """dy: of this rank's rows. Both gradients need that of all ranks: it travels once."""
    a, b = ctx.saved_tensors
    of_a, of_b, *_ = ctx.needs_input_grad
    dy = _as(dy, a.dtype)
    da, whole = None, None
    said = {"layout": DY_TIMES[ctx.layout[1]], "fuse": ctx.fuse}
    run = torch().ops.gemmgen.all_gather_gemm
    if of_a and of_b:
        da, whole = run.gathered(dy, b, ctx.group, **said)
    elif of_a:
        da = run(dy, b, ctx.group, **said)
    elif of_b:
        whole = all_rows(dy, ctx.group)
    db = _of_weight(whole, a, ctx.layout) if of_b else None
    return _places(ctx, da, db, dy)


def _of_gathered(ctx: Any, dy: Any) -> tuple[Any, ...]:
    """dy: of all rows. A of all ranks is there before the launch that takes all SMs."""
    a, b = ctx.saved_tensors
    of_a, of_b, *_ = ctx.needs_input_grad
    dy = _as(dy, a.dtype)
    whole = all_rows(a, ctx.group) if of_b else None
    db = _of_weight(dy, whole, ctx.layout) if of_b else None
    da = None
    if of_a:
        said = {"layout": DY_TIMES[ctx.layout[1]], "fuse": ctx.fuse, "wire": _half(a).name}
        da = torch().ops.gemmgen.gemm_reduce_scatter(dy, b, ctx.group, **said)
    return _places(ctx, da, db, dy)


BACKWARD = {ALL_GATHER: _of_gathered, REDUCE_SCATTER: _of_scattered}


def _as(dy: Any, dtype: Any) -> Any:
    """As operands are: of a result in float32 the gradient is rounded."""
    return dy.to(dtype).contiguous()


def _half(x: Any) -> DType:
    return dtype_of("a", x, HALVES)


def _of_weight(dy: Any, a: Any, layout: str) -> Any:
    """Of B as it is stored, of all rows of dy and A."""
    if not len(dy):
        sides = (dy.shape[1], a.shape[1]) if layout[1] == "t" else (a.shape[1], dy.shape[1])
        return dy.new_zeros(sides)
    operands = (dy, a) if layout[1] == "t" else (a, dy)
    return torch().ops.gemmgen.gemm(*operands, layout="tn")


def _places(ctx: Any, da: Any, db: Any, dy: Any) -> tuple[Any, ...]:
    """By position, with that of the bias."""
    count, at = ctx.places
    found = [da, db, *[None] * (count - 2)]
    if ctx.bias is not None and ctx.needs_input_grad[at]:
        shape, dtype = ctx.bias
        found[at] = dy.sum(0, dtype=torch().float32).to(dtype).view(shape)
    return tuple(found)
