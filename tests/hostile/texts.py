"""Text for where a name, an expression, a number or JSON is wanted."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from gemmgen.config import FIELDS, Config
from gemmgen.epilogues import from_json
from gemmgen.ir.dtypes import BF16, F32
from gemmgen.ir.expr import (
    ACC,
    Call,
    Const,
    DeviceScalar,
    Expr,
    PerColumn,
    PerElement,
    PerRow,
    Scalar,
)
from gemmgen.problem import Problem

from .model import Case, call

LONG = 10**5
NAMES = (
    "",
    " ",
    "a b",
    "a\nb",
    "a\r",
    'a"b',
    "a'b",
    "a;b",
    "a*/b",
    "//a",
    "1a",
    "a-b",
    "a.b",
    "ä",
    "𝒂",
    "a\u0301",
    "\u202eabc",
    "a\0b",
    "a" * 65,
    "a" * LONG,
    "${x}",
    "{{ x }}",
    "//% for x in y",
    "../x",
    'x; asm volatile("trap;")',
    "\\",
    "a\\\nb",
    "#include <x>",
    "%n%s",
    "\udcff",
    "x) { while (1); }",
)
KINDS: dict[str, Callable[[str], Expr]] = {
    "per_column": PerColumn,
    "per_row": PerRow,
    "scalar": Scalar,
    "device_scalar": DeviceScalar,
    "per_element": lambda name: PerElement(name, F32),
}
HUGE = 10**400
VALUES: tuple[Any, ...] = ("128", 1.5, -1, [], {}, [[]], float("nan"), float("inf"), 10**30, HUGE)


def _problem(epilogue: Expr) -> Problem:
    return Problem(family="dense", a=BF16, b=BF16, epilogue=epilogue)


def _named() -> tuple[Case, ...]:
    made = (
        (kind, name, partial(lambda of, name: _problem(ACC * of(name)), of, name))
        for kind, of in KINDS.items()
        for name in NAMES
    )
    return tuple(call("names in epilogues", f"{kind} {name!r}", it) for kind, name, it in made)


def deep(count: int) -> Expr:
    e: Expr = ACC
    for _ in range(count):
        e = e + 1.0
    return e


def shared(count: int) -> Expr:
    """2^count leaves in `count` nodes."""
    e: Expr = ACC
    for _ in range(count):
        e = e * e
    return e


def lists(count: int) -> Any:
    data: Any = "acc"
    for _ in range(count):
        data = ["+", data, 1.0]
    return data


def around(count: int) -> Any:
    data: Any = []
    for _ in range(count):
        data = [data]
    return data


EXPRESSIONS = (
    *(call("expressions", f"{n} deep", partial(deep, n)) for n in (100, 1000, LONG)),
    *(call("expressions", f"2^{n} leaves", partial(shared, n)) for n in (12, 60, 1000)),
    *(call("expressions", f"plus {x!r}", partial(lambda x: ACC + x, x)) for x in ("1", None, [], float("nan"), float("inf"), HUGE)),
    *(call("expressions", f"constant {x!r}", partial(Const, x)) for x in (float("nan"), HUGE, "1", None)),
    call("expressions", "an argument that is none", lambda: Call("exp", ("acc",))),
    call("expressions", "an unknown function", lambda: Call("system", (ACC, ACC))),
    *(call("expressions as JSON", f"{n} deep", partial(from_json, lists(n))) for n in (70, 1000, LONG)),
    *(call("expressions as JSON", f"{n} lists", partial(from_json, around(n))) for n in (1, 70, LONG)),
    *(call("expressions as JSON", repr(x)[:50], partial(from_json, x)) for x in (
        None, True, {}, {"+": 1}, float("nan"), float("-inf"), HUGE, -HUGE, "", "ACC", "acc ", "relu\n", [], ["+"], ["+", "acc"],
        ["+", "acc", "acc", "acc"], ["exp"], ["exp", "acc", "acc"], ["system", "acc"], ["__import__", "os"], ["scalar"], ["scalar", 1],
        ["scalar", "a", "b"], ["per_element", "c"], ["per_element", "c", "f64"], ["per_element", "c", 1], ["even"], ["even", "acc", "acc"],
        [["+"], "acc", "acc"], [None, "acc"], b"acc", ("x",) * LONG, "x" * LONG, ["max", *["acc"] * LONG])),
    *(call("expressions as JSON", f"{kind} {name!r}", partial(from_json, [kind, name])) for kind in ("scalar", "per_row") for name in NAMES),
)  # fmt: skip


def _fields() -> tuple[Case, ...]:
    """Every field of a config, with every value that is none of its own."""
    return tuple(
        call("fields of configs", f"{name}={value!r}"[:60], partial(Config.from_json, {name: value}))
        for name in FIELDS
        for value in VALUES
    )  # fmt: skip


def _problems() -> tuple[Case, ...]:
    right = {"family": "dense", "a": "bf16", "b": "bf16"}
    names = ("a", "b", "d", "layout", "epilogue", "grouping")
    texts = [(n, x) for n in names for x in (*NAMES[3:8], "a" * LONG, "\udcff")]
    values = [
        (n, x)
        for n in (
            "family",
            *names,
            "alignment",
            "accumulate",
            "weights",
            "weights_ready",
            "indexed",
            "paged",
            "heads",
        )
        for x in VALUES
    ]
    values = [(n, x) for n, x in values if not (n == "family" and x == "128")]
    values = [(n, x) for n, x in values if not (n == "epilogue" and x in (1.5, -1, 10**30))]
    packed = {"family": "w4a16", "a": "bf16", "b": "bf16"}
    return tuple(
        call("fields of problems", f"{n}={x!r}"[:60], partial(Problem.from_json, right | {n: x}))
        for n, x in (*texts, *values)
    ) + tuple(
        call("fields of problems", f"packed from {x!r}"[:60], partial(Problem.from_json, packed | {"weights": x}))
        for x in (*NAMES, *VALUES, None, "int4_128_bf16 ", "INT4_128_bf16", "int4_128_bf16\n", "int4_128_f16")
    ) + tuple(
        call("fields of problems", f"a field {x!r}"[:60], partial(Problem.from_json, right | {x: 1}))
        for x in NAMES
    )  # fmt: skip


CASES = (*_named(), *EXPRESSIONS, *_fields(), *_problems())
