"""Statements that stand several times one after the other, but for where in D they are: a function in the text, and a
call of it for each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass, replace
from operator import is_
from typing import Any

from ..ir.blocks import Stmt
from ..ir.nodes import Kernel, Registers
from ..ir.rewrite import walk
from ..ir.stores import Evaluate, OfD, StageTile
from .numbers import Counter, Number

PLACES = ("wave", "column", "slot", "offset")  # fields that say where
ARRAYS = ("src", "dst")


@dataclass(frozen=True)
class Repeat:
    """`body` in terms of `parameters`, and what they are each time: numbers, or names of registers. groups: the
    statements that it stands for."""

    name: str
    parameters: tuple[str, ...]
    arrays: tuple[Registers, ...]  # by the parameters' names: the first ones
    body: tuple[Stmt, ...]
    calls: tuple[tuple[int | str, ...], ...]
    groups: tuple[Stmt, ...]

    @property
    def signature(self) -> str:
        """Nothing generic: NVRTC before 13.5 takes a lambda with `auto` for a function of the host."""
        arrays = [f"{r.dtype.cuda} (&{r.name})[{r.count}]" for r in self.arrays]
        numbers = self.parameters[len(arrays) :]
        return ", ".join((*arrays, *(f"int {name}" for name in numbers)))


def stem(name: str) -> str:
    """acc0 -> acc"""
    return name.rstrip("0123456789")


def with_stems(kernel: Kernel) -> Kernel:
    """`kernel` whose registers are also known by what functions call any of them."""
    found = {
        stem(r.name): replace(r, name=stem(r.name)) for role in kernel.roles for r in role.locals
    }
    first, *others = kernel.roles
    return replace(kernel, roles=(replace(first, locals=(*first.locals, *found.values())), *others))


def repeats(kernel: Kernel, body: tuple[Stmt, ...]) -> list[Stmt | Repeat]:
    """`body` with the longest repeats in their functions."""
    found: list[Stmt | Repeat] = []
    shapes, at = [*map(shape, body)], 0
    while at < len(body):
        period, count = longest(body[at:], shapes[at:])
        if count > 1:
            groups = [body[at + i * period : at + (i + 1) * period] for i in range(count)]
            made = repeat(kernel, groups)
            others = sum(isinstance(x, Repeat) and stem(x.name) == made.name for x in found)
            found.append(replace(made, name=f"{made.name}{others + 1}") if others else made)
        else:
            found.append(body[at])
        at += period * count
    return found


def longest(body: tuple[Stmt, ...], shapes: list[Any]) -> tuple[int, int]:
    """Of the beginning of `body`, whose statements have these shapes: how many, and how often one after the other; 1, 1 if it is no repeat."""
    best = (1, 1)
    for period in range(1, len(body) // 2 + 1):
        count = 1
        while shapes[:period] == shapes[count * period : (count + 1) * period]:
            count += 1
        longer = period * (count - 1) > best[0] * (best[1] - 1)
        if longer and any(isinstance(s, OfD | Evaluate) for s in walk(body[:period])):
            best = (period, count)
    return best


def varied(x: Any, of: Callable[[str, Any], Any], name: str = "") -> Any:
    """`x` with `of(field, value)` in place of each value in which repeats may differ; parts that stay are those of `x`."""
    if (name in PLACES and isinstance(x, int)) or (name in ARRAYS and isinstance(x, str)):
        return of(name, x)
    if isinstance(x, tuple):
        made: Any = tuple(varied(i, of) for i in x)
        return x if all(map(is_, made, x)) else made
    if not is_dataclass(x) or isinstance(x, type):
        return x
    before = {f.name: getattr(x, f.name) for f in fields(x)}
    values = {field: varied(v, of, field) for field, v in before.items()}
    return x if all(map(is_, values.values(), before.values())) else replace(x, **values)


def shape(s: Stmt) -> Any:
    """What is the same in repeats of `s`."""
    return varied(s, lambda name, v: stem(v) if isinstance(v, str) else 0)


def holes(group: tuple[Stmt, ...]) -> list[tuple[str, Any]]:
    """The values that `shape` leaves out, in order, by their fields' names."""
    found: list[tuple[str, Any]] = []
    varied(group, lambda name, v: found.append((name, v)) or v)  # type: ignore[func-returns-value]
    return found


def repeat(kernel: Kernel, groups: list[tuple[Stmt, ...]]) -> Repeat:
    """The function of groups of one shape."""
    registers = {r.name: r for role in kernel.roles for r in role.locals}
    columns = list(zip(*map(holes, groups), strict=True))
    vectors = {tuple(v for _, v in c): c[0][0] for c in columns}
    various = [v for v in vectors if len(set(v)) > 1]
    arrays = {
        v: replace(registers[v[0]], name=stem(v[0])) for v in various if isinstance(v[0], str)
    }
    numbers: dict[tuple[int, ...], str] = {}
    for vector in sorted((v for v in various if v not in arrays), key=max):
        if spelled(vector, numbers) is None:
            taken = [x for x in numbers.values() if stem(x) == vectors[vector]]
            numbers[vector] = f"{vectors[vector]}{len(taken) + 1 if taken else ''}"
    values = (value(tuple(v for _, v in c), arrays, numbers) for c in columns)
    body = varied(groups[0], lambda name, v: next(values))
    return Repeat(
        name=called(groups[0]),
        parameters=(*(r.name for r in arrays.values()), *numbers.values()),
        arrays=tuple(arrays.values()),
        body=body,
        calls=tuple(zip(*arrays, *numbers, strict=True)),
        groups=tuple(s for g in groups for s in g),
    )


def called(group: tuple[Stmt, ...]) -> str:
    """What a function of `group` is called."""
    stages = all(isinstance(s, StageTile | Evaluate) for s in group)
    return "stage_piece" if stages else "store_piece"


def value(vector: tuple[Any, ...], arrays: dict[Any, Registers], numbers: dict[Any, str]) -> Any:
    if len(set(vector)) == 1:
        return vector[0]
    return arrays[vector].name if vector in arrays else spelled(vector, numbers)


def spelled(vector: tuple[int, ...], numbers: dict[tuple[int, ...], str]) -> Number | None:
    """`vector` in terms of a parameter, if it is a multiple of one and a constant more."""
    for of, name in numbers.items():
        i = next(i for i, x in enumerate(of) if x != of[0])
        times, rest = divmod(vector[i] - vector[0], of[i] - of[0])
        more = vector[0] - times * of[0]
        if not rest and all(v == times * x + more for v, x in zip(vector, of, strict=True)):
            return Counter(name, times, more)
    return None
