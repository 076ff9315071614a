"""The two readings of a kernel, its text's and its IR's, and whether they are the same."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import zip_longest

from ..ir import nodes as ir
from ..ir.blocks import BLOCKS
from . import frame
from .display import told
from .errors import TextDiffers, Unreadable
from .expressions import Expr
from .meaning import meaning
from .statements import parsed
from .unit import Entry, Function, Unit, entry, function, struct, unit
from .walk import Env, Event, Walk

OPAQUE = ("Tile", "Scheduler")  # structs of which the link knows only that they are there
# What those read. Other constants are names of numbers, and stand for them where they are used.
SHAPES = ("BLOCK_M", "BLOCK_N", "BLOCK_K", "CLUSTER_M", "CLUSTER_N", "CLUSTER_K", "STAGES")

NOT_COHERENT = re.compile(r"\b__ldg\b|\bldu\b|\bld\.[\w.]*\bnc\b")
COHERENT = "a load that is coherent: the launch before may write until the wait"


@dataclass(frozen=True, kw_only=True)
class Link:
    """A text was held against its IR: so many events of both are the same."""

    events: int
    seconds: float

    def __str__(self) -> str:
        return f"text = IR: {self.events} events"


def link(kernel: ir.Kernel, source: str) -> Link:
    """`source` is what `kernel` says. Raises TextDiffers at the first place where it is not."""
    start = time.perf_counter()
    if kernel.pdl and (found := _not_coherent(source)):
        raise TextDiffers(kernel.name, found[0], COHERENT, found[1])
    meant, text = of_ir(kernel), of_text(source)
    if meant.events != text.events:
        raise differs(kernel, meant, text)
    return Link(events=len(text.events), seconds=time.perf_counter() - start)


def _not_coherent(source: str) -> tuple[str, str] | None:
    """The first load, and its line, of which the compiler or the hardware is told that nobody writes what it reads. In all of the text: the
    readings know nothing of schedulers."""
    for number, line in enumerate(source.split("\n"), 1):
        if NOT_COHERENT.search(line.partition("//")[0]):
            return f"in line {number}", line.strip()
    return None


def from_text(source: str) -> list[Event]:
    return of_text(source).events


def from_ir(kernel: ir.Kernel) -> list[Event]:
    return of_ir(kernel).events


def of_text(source: str) -> Walk:
    """Its last event is ("unreadable", why) where the rest cannot be read."""
    w = Walk({})
    try:
        u = unit(source)
        w.functions = u.ptx
        read(u, w)
    except Unreadable as e:
        w.emit("unreadable", str(e))
    except (RecursionError, ValueError, IndexError, KeyError, TypeError, AttributeError) as e:
        w.emit("unreadable", f"{type(e).__name__}: {e}")
    return w


def of_ir(kernel: ir.Kernel) -> Walk:
    """Its `ats` say for each event of which statement it is, and of which role."""
    u = unit(frame.text(kernel))
    roles = {f"ROLE_{i}": r for i, r in enumerate(kernel.roles)}

    def body(stmts: tuple[ir.Stmt, ...], role: str, w: Walk, env: Env) -> None:
        for s in stmts:
            outer, w.at = w.at, (role, s)
            below = w.below
            if isinstance(s, BLOCKS):
                inside = s.body
                w.below = lambda name, w, env: body(inside, role, w, env)  # noqa: B023
            names = isinstance(s, ir.Epoch) and s.by == "reading"  # what all that follows may name
            w.run(parsed(meaning(kernel, s)), env if names else dict(env))
            w.below, w.at = below, outer

    def below(name: str, w: Walk, env: Env) -> None:
        if name in roles:
            body(roles[name].body, roles[name].name, w, env)
        else:
            body(kernel.prologue, "prologue", w, env)

    w = Walk(u.ptx, below)
    read(u, w)
    return w


# ---- a translation unit -----------------------------------------------------------------------------


def read(u: Unit, w: Walk) -> None:
    for words in u.heads:
        w.emit("head", *words)
    constants: Env = {}
    for name, value in u.constants.items():
        constants[name] = w.value(value, constants)
        if name in SHAPES:
            w.emit("constant", name, constants[name])
    for name, text in u.structs.items():
        if numbers := _numbers(text):
            own: Env = {}
            for field, x in numbers:
                own[field] = w.value(x, constants | own)
            constants |= {f"{name}::{field}": value for field, value in own.items()}
            continue
        w.emit("{", "struct", name)
        if name not in OPAQUE:
            _struct(text, w, constants)
        w.emit("}")
    for name, text in u.others.items():
        w.emit("{", "function", name)
        _function(function(text), w, constants)
        w.emit("}")
    _kernel(entry(u.kernel), w, constants)


def _numbers(text: str) -> list[tuple[str, Expr]]:
    """The fields of a struct that holds named numbers; none of another."""
    s = struct(text)
    named = all(f[1:3] == (("static", "constexpr"), "int") for f in s.fields)
    found = [(name, x) for f in s.fields for name, _, x in f[3]]
    return found if named and not s.methods and s.head == ("struct", s.head[-1]) else []


def _struct(text: str, w: Walk, constants: Env) -> None:
    s = struct(text)
    w.emit("head", *s.head)
    for field in s.fields:
        _, words, of, names = field
        for name, how, x in names:
            w.emit("field", words, of, name, how, None if x is None else w.value(x, {**constants}))
    for f in s.methods:
        w.emit("{", "method", f.name)
        _function(f, w, constants)
        w.emit("}")


def _function(f: Function, w: Walk, constants: Env) -> None:
    w.emit("head", f.words, f.returns, f.templates, f.parameters)
    env = {**constants, **{f"{name}:type": of for of, name, _ in f.parameters}}
    w.run(f.body, _typed(env, ((of, name) for of, name, _ in f.parameters)))


def _kernel(e: Entry, w: Walk, constants: Env) -> None:
    w.emit("head", *e.head)
    w.run(e.body, _typed(dict(constants), e.parameters))


def _typed(env: Env, parameters: Iterable[tuple[str, str]]) -> Env:
    """Parameters whose type says what is done with them."""
    for of, name in parameters:
        of = of.removeprefix("const ")
        if of not in ("int", "uint32_t") and (of in NUMBERS or of.endswith("*")):
            env[name] = ("typed", of, name)
    return env


NUMBERS = ("float", "uint64_t", "bool")


# ---- what differs -----------------------------------------------------------------------------------


def differs(kernel: ir.Kernel, meant: Walk, text: Walk) -> TextDiffers:
    """At the first event that is not the same."""
    pairs = enumerate(zip_longest(meant.events, text.events))
    at = next(i for i, (one, other) in pairs if one != other)
    statement = meant.ats[at] if at < len(meant.ats) else None
    where = [f"in {statement[0]}, {type(statement[1]).__name__}"] if statement else []
    where += [told(b) for b in enclosing(meant.events[:at])]
    one, other = (
        told(w.events[at]) if at < len(w.events) else "nothing more" for w in (meant, text)
    )
    return TextDiffers(kernel.name, "; ".join(where) or "at its beginning", one, other)


def enclosing(events: list[Event]) -> list[Event]:
    """The blocks that are open after `events`."""
    open_: list[Event] = []
    for event in events:
        if event[0] == "{":
            open_.append(event)
        elif event[0] == "}":
            open_.pop()
    return open_
