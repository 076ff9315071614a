"""Activations, and what gated MLPs make of two projections: expressions of expressions, which epilogues are written with."""

from __future__ import annotations

import math
from collections.abc import Callable

from .ir.expr import Call, Const, Expr, lift

ALPHA, LIMIT = 1.702, 7.0  # of gpt-oss: `alpha` of its experts, `swiglu_limit` of its config


def divide(x: Expr, y: Expr) -> Expr:
    """x / y to two units in the last place: a few instructions, where `/` rounds correctly by a call.
    0 where |y| > 2^126."""
    return Call("divide", (x, y))


def relu(x: Expr) -> Expr:
    return Call("max", (x, Const(0.0)))


def silu(x: Expr) -> Expr:
    return divide(x, 1.0 + Call("exp", (x * -1.0,)))


def gelu(x: Expr) -> Expr:
    """x * P(a standard normal variable <= x), by erf."""
    return x * (0.5 + 0.5 * Call("erf", (x * math.sqrt(0.5),)))


def gelu_tanh(x: Expr) -> Expr:
    """x / 2 * (1 + tanh(u)), u = sqrt(2 / pi) * (x + 0.044715 * x^3), as x / (1 + exp(-2 u)): the same
    function, without the cancellation of tanh near -1."""
    minus_2u = x * (-2.0 * math.sqrt(2 / math.pi)) * (1.0 + 0.044715 * (x * x))
    return divide(x, 1.0 + Call("exp", (minus_2u,)))


def clamp(x: Expr, low: Expr | float, high: Expr | float) -> Expr:
    """`x` where it lies in [low, high], else the nearer end; `high` if that is below `low`."""
    return Call("min", (Call("max", (x, lift(low))), lift(high)))


def clamped(g: Expr, u: Expr, alpha: float = ALPHA, limit: float = LIMIT) -> Expr:
    """g * sigmoid(alpha * g) * (u + 1), g at most limit, u within +-limit."""
    g, u = Call("min", (g, Const(limit))), clamp(u, -limit, limit)
    return divide(g, 1.0 + Call("exp", (g * -alpha,))) * (u + 1.0)


# What a gated MLP does with what its gate and its up projection give.
GATES: dict[str, Callable[[Expr, Expr], Expr]] = {
    "swiglu": lambda g, u: silu(g) * u,
    "geglu": lambda g, u: gelu(g) * u,
    "geglu_tanh": lambda g, u: gelu_tanh(g) * u,
    "reglu": lambda g, u: relu(g) * u,
    "swiglu_clamped": clamped,
}
