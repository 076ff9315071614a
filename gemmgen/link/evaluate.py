"""Values of expressions, by what an expression is."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from .errors import Unreadable
from .expressions import Expr
from .values import Value, binary, cast, kind, unary

if TYPE_CHECKING:
    from .walk import Env, Walk


def _op(w: Walk, x: Expr, env: Env) -> Value:
    return binary(x[1], w.value(x[2], env), w.value(x[3], env))


def _un(w: Walk, x: Expr, env: Env) -> Value:
    v = w.value(x[2], env)
    if x[1] == "*":
        return "element", kind(v).removesuffix("*").strip(), v, 0
    return unary(x[1], v)


def _set(w: Walk, x: Expr, env: Env) -> Value:
    value = w.value(x[3], env)
    w.assign(x[2], x[1], value, env)
    return value


def _step(w: Walk, x: Expr, env: Env) -> Value:
    before = w.value(x[2], env)
    w.assign(x[2], "+=" if x[1] == "++" else "-=", 1, env)
    return before if x[0] == "post" else ("stepped", x[1], before)


def _comma(w: Walk, x: Expr, env: Env) -> Value:
    w.value(x[1], env)
    return w.value(x[2], env)


def _choice(w: Walk, x: Expr, env: Env) -> Value:
    parts = tuple(w.value(i, env) for i in x[1:])
    return ("typed", kind(parts[1]), "?:", *parts)


def _cast(w: Walk, x: Expr, env: Env) -> Value:
    v = w.value(x[2], env)
    if x[1].endswith("*"):
        return v if kind(v) == x[1] else ("cast", x[1], v)
    return cast(x[1], v)


def _index(w: Walk, x: Expr, env: Env) -> Value:
    base, at = w.value(x[1], env), w.value(x[2], env)
    if isinstance(base, tuple) and base[0] == "array":
        return "element", base[1], base[2], at
    return "element", kind(base).removesuffix("*").strip(), base, at


def _member(w: Walk, x: Expr, env: Env) -> Value:
    base = w.value(x[1], env)
    return f"{base}.{x[2]}" if isinstance(base, str) else ("member", base, x[2])


def _call(w: Walk, x: Expr, env: Env) -> Value:
    _, callee, templates, args = x
    if isinstance(callee, tuple) and callee[0] == "str":
        return w.machine.instruction(callee[1], args, env)
    if isinstance(callee, str):
        if callee in w.functions:
            return w.follow(callee, tuple(w.value(t, env) for t in templates), args, env)
        if callee.startswith("$"):
            return w.machine.builtin(callee, args, env)
        known = env.get(callee)
        if isinstance(known, tuple) and known and known[0] == "lambda":
            return _apply(w, known, args, env)
        if callee.startswith("ptx::"):
            raise Unreadable(f"{callee} is not defined")
    name = callee if isinstance(callee, str) else w.value(callee, env)
    return ("call", name, *(w.value(t, env) for t in templates), *(w.value(a, env) for a in args))


def _apply(w: Walk, known: Value, args: tuple[Expr, ...], env: Env) -> Value:
    _, parameters, body, outer = known
    inner = dict(outer)
    for (of, name, count), arg in zip(parameters, args, strict=True):
        known = w.value(arg, env)
        inner[name] = known if count is not None else cast(of, known)
        inner[f"{name}:type"] = of
    was, w.inside = w.inside, w.deep
    value = w.run(body[1], inner)
    w.inside = was
    return value


VALUES: dict[str, Callable[[Walk, Expr, Env], Value]] = {
    "op": _op,
    "un": _un,
    "=": _set,
    "pre": _step,
    "post": _step,
    ",": _comma,
    "?": _choice,
    "cast": _cast,
    "index": _index,
    ".": _member,
    "call": _call,
    "float": lambda w, x, env: x,
    "str": lambda w, x, env: x[1],
    "mem": lambda w, x, env: ("mem", tuple(w.value(i, env) for i in x[1])),
    "list": lambda w, x, env: ("list", tuple(w.value(i, env) for i in x[1])),
    "lambda": lambda w, x, env: ("lambda", x[2], x[3], env),
}
