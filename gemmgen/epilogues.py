"""The epilogue library. A new elementwise epilogue is one line in EPILOGUES."""

from __future__ import annotations

import hashlib

from .errors import UnsupportedProblem
from .ir.expr import ACC, Call, Const, Expr, PerColumn, PerRow, Scalar

acc = ACC


def relu(x: Expr) -> Expr:
    return Call("max", (x, Const(0.0)))


def silu(x: Expr) -> Expr:
    return x / (Const(1.0) + Call("exp", (x * -1.0,)))


EPILOGUES: dict[str, Expr] = {
    "none": acc,
    "alpha": acc * Scalar("alpha"),
    "bias": acc + PerColumn("bias"),
    "relu": relu(acc),
    "silu": silu(acc),
    "bias_relu": relu(acc + PerColumn("bias")),
    "bias_silu": silu(acc + PerColumn("bias")),
    "scaled": acc * PerRow("row_scale") * PerColumn("column_scale"),
}


def name_of(e: Expr) -> str:
    """The name `e` has in EPILOGUES; UnsupportedProblem if it has none."""
    for name, known in EPILOGUES.items():
        if known == e:
            return name
    raise UnsupportedProblem(f"the epilogue {e!r} has no name in gemmgen.epilogues.EPILOGUES")


def label_of(e: Expr) -> str:
    """A C-identifier-safe label: the name, or a digest of an expression that has none."""
    try:
        return name_of(e)
    except UnsupportedProblem:
        return "epilogue_" + hashlib.sha256(repr(e).encode()).hexdigest()[:8]
