"""Random mutants of the IR and of the emitted text: the same ones for the same seed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from itertools import groupby
from random import Random
from typing import Any

from check_mutants import mutate_kernel
from exhibits import exhibit

from gemmgen.families import build
from gemmgen.ir import nodes as ir
from gemmgen.ir.blocks import BLOCKS, Parts
from gemmgen.ir.rewrite import map_stmts, statements

from .mutant import Mutant, original

# Named one by one: a seed draws the same mutants when the gallery grows.
KERNELS = (
    "fp8_block/base",
    "fp8_block/two_wave_multicast_a",
    "fp8_block/n192_multicast_b",
    "fp8_block/n144",
    "fp8_block/n104_f32",
    "fp8_block/m64_n32_f16",
    "fp8_block/n56_flat",
    "fp8/row_scaled",
    "dense/fp8_fast",
    "dense/s8",
    "dense/s8_scaled",
    "dense/n256",
    "dense/two_wave_in_flight",
    "dense/n176_multicast_b",
    "dense/f16_f32",
    "dense/bias_silu",
    "dense/padded_d",
    "dense/unswizzled_ab",
    "dense/wide_k",
)

# What only steers performance: any value is right, so a change of it is no fault.
HINTS = ("unroll",)


def draw(count: int, seed: int, kernels: tuple[str, ...] = KERNELS) -> list[Mutant]:
    """Half of the text, three eighths of the lowered IR, an eighth of a family's; no two alike."""
    makers = (_text, _lowered, _text, _lowered, _text, _lowered, _text, _family)
    found: list[Mutant] = []
    seen: set[tuple[str, str]] = set()
    for i in range(count):
        random = Random(f"{seed}/{i}")
        while True:
            kernel = random.choice(kernels)
            m = makers[i % len(makers)](f"{seed}-{i}", kernel, random)
            if m and (kernel, m.says) not in seen:
                break
        seen.add((kernel, m.says))
        found.append(m)
    return found


# ---- IR ---------------------------------------------------------------------------------------------


def _lowered(number: str, name: str, random: Random) -> Mutant | None:
    kernel = original(name).kernel
    change = mutate_kernel if random.random() < 0.5 else _constant
    made = change(kernel, random)
    if made is None or made[0] == kernel:
        return None
    new, says = made
    return Mutant(id=f"ir-{number}", kernel=name, says=says, ir=lambda _: new)


def _family(number: str, name: str, random: Random) -> Mutant | None:
    """A fault in what a family builds: the passes then size barriers and boxes around it."""
    e = exhibit(name)
    assert e is not None
    kernel = build(e.problem, e.config)
    change = _moved if random.random() < 0.5 else _constant
    made = change(kernel, random)
    if made is None or made[0] == kernel:
        return None
    new, says = made
    return Mutant(id=f"family-{number}", kernel=name, says=says, family=lambda _: new)


def _moved(kernel: ir.Kernel, random: Random) -> tuple[ir.Kernel, str] | None:
    """A statement deleted, doubled, or exchanged with the one after it."""
    victim = random.choice(list(statements(kernel)))
    what = random.choice(("deleted", "doubled", "exchanged with the next"))
    count = 0

    def body(stmts: tuple[ir.Stmt, ...]) -> tuple[ir.Stmt, ...]:
        nonlocal count
        out: list[Placed] = []
        at = None
        for place, s in _placed(stmts):
            inner = replace(s, body=body(s.body)) if isinstance(s, BLOCKS) else s
            if s is victim:
                count += 1
                at = len(out) if at is None else at
                out += [(place, inner)] * {"deleted": 0, "doubled": 2}.get(what, 1)
            else:
                out.append((place, inner))
        if what.startswith("exchanged") and at is not None and at + 1 < len(out):
            (here, s), (there, after) = out[at : at + 2]
            out[at : at + 2] = (here, after), (there, s)
        return _held(stmts, out)

    roles = tuple(replace(r, body=body(r.body)) for r in kernel.roles)
    new = replace(kernel, prologue=body(kernel.prologue), roles=roles)
    return new, f"{type(victim).__name__} {what} ({count} of it)"


# A statement, which of a body it is or is held by, and by which of its parts.
Placed = tuple[tuple[int, str], ir.Stmt]


def _placed(stmts: tuple[ir.Stmt, ...]) -> Iterator[Placed]:
    """The statements of a body one after the other, also those that parts hold."""
    for i, s in enumerate(stmts):
        names = [f.name for f in fields(s)] if isinstance(s, Parts) else []
        yield from (((i, name), x) for name in names for x in getattr(s, name))
        if not names:
            yield (i, ""), s


def _held(stmts: tuple[ir.Stmt, ...], placed: list[Placed]) -> tuple[ir.Stmt, ...]:
    """The body of `placed`: what parts held of `stmts`, they hold again."""
    out: list[ir.Stmt] = []
    for i, group in groupby(placed, key=lambda x: x[0][0]):
        held, parts = list(group), stmts[i]
        if isinstance(parts, Parts):
            names = [f.name for f in fields(parts)]
            by_name = {n: tuple(s for (_, at), s in held if at == n) for n in names}
            out.append(replace(parts, **by_name))
        else:
            out += [s for _, s in held]
    return tuple(out)


def _constant(kernel: ir.Kernel, random: Random) -> tuple[ir.Kernel, str] | None:
    """One value of one statement or resource wrong."""
    tables = {"smem": kernel.smem, "barriers": kernel.barriers, "maps": kernel.maps}
    if random.random() < 0.2:
        name = random.choice(list(tables))
        nodes = list(tables[name])
        i = random.randrange(len(nodes))
        made = _perturbed(nodes[i], random)
        if made is None:
            return None
        nodes[i], says = made
        return replace(kernel, **{name: tuple(nodes)}), f"{nodes[i].name}: {says}"
    victim = random.choice([s for s in statements(kernel) if _values(s)] or [None])
    made = _perturbed(victim, random) if victim else None
    if made is None:
        return None
    new, says = made
    return map_stmts(kernel, lambda s: new if s is victim else s), f"{type(new).__name__}: {says}"


def _values(node: Any) -> list[str]:
    """The fields of a node that hold numbers or coordinates."""
    return [
        f.name
        for f in fields(node)
        if f.name not in HINTS and f.name != "body" and _numeric(getattr(node, f.name))
    ]


def _numeric(v: Any) -> bool:
    if isinstance(v, tuple):
        return bool(v) and all(map(_numeric, v))
    return isinstance(v, int | ir.Coord) or v in OTHER


OTHER = {
    "block": "tile",
    "tile": "block",
    "first": "next",
    "next": "first",
    "inc": "dec",
    "dec": "inc",
    "full": "empty",
    "empty": "full",
    "acc0": "acc1",
    "acc1": "acc0",
    "smem_a": "smem_b",
    "smem_b": "smem_a",
    "map_a": "map_b",
    "map_b": "map_a",
}


def _perturbed(node: Any, random: Random) -> tuple[Any, str] | None:
    names = _values(node)
    if not names:
        return None
    name = random.choice(names)
    old = getattr(node, name)
    if name == "name":
        return None
    new = _other(old, random)
    try:
        return replace(node, **{name: new}), f"{name} {_short(old)} -> {_short(new)}"
    except Exception:
        return None


def _other(v: Any, random: Random) -> Any:
    if isinstance(v, bool):
        return not v
    if isinstance(v, int):
        steps = [v + 1, v - 1, v * 2, v + 8, v - 8, v + 64, 0, v // 2]
        if v >= 1 << 32:  # a descriptor: one bit of it
            steps = [v ^ 1 << bit for bit in (16, 17, 32, 33, 36, 37, 62, 63)]
        return random.choice([x for x in steps if x != v])
    if isinstance(v, tuple):
        i = random.randrange(len(v))
        return (*v[:i], _other(v[i], random), *v[i + 1 :])
    if is_dataclass(v):
        name = random.choice(("scale", "offset", "rank_step"))
        return replace(v, **{name: _other(getattr(v, name), random)})  # type: ignore[type-var]
    return OTHER[v]


def _short(v: Any) -> str:
    if isinstance(v, ir.Coord):
        return f"{v.base}*{v.scale}+{v.offset}+rank*{v.rank_step}"
    if isinstance(v, tuple):
        return "(" + ", ".join(map(_short, v)) + ")"
    return hex(v) if isinstance(v, int) and v >= 1 << 32 else str(v)


# ---- text -------------------------------------------------------------------------------------------

OPERATORS = {
    "+": "-",
    "-": "+",
    "*": "+",
    "/": "*",
    "%": "/",
    "<": "<=",
    "<=": "<",
    "==": "!=",
    "!=": "==",
    "&&": "||",
    "^": "|",
    "&": "|",
    ">>": "<<",
    "<<": ">>",
    "+=": "-=",
    "?": "&&",
}
OPERATOR = re.compile(r"(?<= )(?:" + "|".join(map(re.escape, OPERATORS)) + r")(?= )")
INTEGER = re.compile(r"(?<![\w.])\d+(?![\w.])")
CALL = re.compile(r"\(([^(){}]*,[^(){}]*)\)")


def _text(number: str, name: str, random: Random) -> Mutant | None:
    """One line of code that a template wrote: deleted, or with an operator, number or argument wrong."""
    source = original(name).source
    start = source.index("struct alignas(64) TensorMap")
    lines = source[start:].splitlines(keepends=True)
    at = random.randrange(len(lines))
    code = lines[at].split("//")[0]
    if not code.strip() or code.lstrip().startswith("#"):
        return None
    change = random.choice((_delete, _operator, _operator, _number, _number, _arguments))
    made = change(lines, at, code, random)
    if made is None:
        return None
    new, what = made
    changed = source[:start] + "".join(new)
    says = f"{' '.join(code.split())[:110]}: {what}"
    return Mutant(id=f"text-{number}", kernel=name, says=says, text=lambda _: changed)


Lines = list[str]
Made = tuple[Lines, str] | None


def _delete(lines: Lines, at: int, code: str, _: Random) -> Made:
    """A whole statement: on to the line that ends it."""
    before = next((x for x in lines[at - 1 :: -1] if x.strip()), "").split("//")[0].rstrip()
    if before and not before.endswith((";", "{", "}", ":")) and "#pragma" not in before:
        return None
    end = next((i for i in range(at, min(at + 9, len(lines))) if _ends(lines[i])), None)
    if end is None or any(x.rstrip().endswith("{") for x in lines[at : end + 1]):
        return None
    return [*lines[:at], *lines[end + 1 :]], "deleted"


def _ends(line: str) -> bool:
    return line.split("//")[0].rstrip().endswith(";")


def _operator(lines: Lines, at: int, code: str, random: Random) -> Made:
    found = list(OPERATOR.finditer(code))
    if not found:
        return None
    m = random.choice(found)
    return _put(lines, at, m, OPERATORS[m[0]])


def _number(lines: Lines, at: int, code: str, random: Random) -> Made:
    found = list(INTEGER.finditer(code))
    if not found:
        return None
    m = random.choice(found)
    n = int(m[0])
    return _put(
        lines, at, m, str(random.choice([x for x in (n + 1, n - 1, 2 * n) if x != n and x >= 0]))
    )


def _arguments(lines: Lines, at: int, code: str, random: Random) -> Made:
    found = [m for m in CALL.finditer(code) if len(set(_parts(m[1]))) > 1]
    if not found:
        return None
    m = random.choice(found)
    parts = _parts(m[1])
    i = random.randrange(len(parts) - 1)
    parts[i], parts[i + 1] = parts[i + 1], parts[i]
    return _put(lines, at, m, f"({', '.join(parts)})")


def _parts(text: str) -> list[str]:
    return [p.strip() for p in text.split(",")]


def _put(lines: Lines, at: int, m: re.Match[str], new: str) -> Made:
    changed = lines[at][: m.start()] + new + lines[at][m.end() :]
    if changed == lines[at]:
        return None
    return [*lines[:at], changed, *lines[at + 1 :]], f"{m[0]} at {m.start()} -> {new}"
