"""Statements -> events: what is done, in order, with every value in terms of the kernel's parameters, its registers,
the scheduler's tile, the ring and who the thread is.

Functions of `namespace ptx` are followed into their bodies, so that their names mean nothing. An event is a tuple:
("{", ...) and ("}",) around blocks, ("ptx", opcode, operands...) of an instruction that is no mere
computation, ("set", place, operator, value), ("call", ...), ("declare", ...), ("mark", text, numbers...), and words of control.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from ..errors import IRError
from .errors import Unreadable
from .evaluate import VALUES
from .expressions import Expr
from .machine import Machine
from .stale import changed, reads, writes
from .statements import Statement
from .unit import FUNCTION, function
from .values import Value, binary, cast

Event = tuple[Any, ...]
Env = dict[str, Any]
SCALARS = {"int", "uint32_t", "uint64_t", "uint16_t", "float", "auto", "bool", "unsigned"}


class Walk:
    """Over statements. functions: texts of those of `namespace ptx`. below: what `BODY` and other placeholders of
    the IR's side stand for."""

    def __init__(
        self,
        functions: dict[str, str],
        below: Callable[[str, Walk, Env], None] | None = None,
    ) -> None:
        self.functions = functions
        self.below = below
        self.events: list[Event] = []
        self.at: Any = None  # of the IR's side: the statement
        self.ats: list[Any] = []
        self.versions: dict[str, int] = {}  # of what can change: see stale
        self.written: dict[int, set[str]] = {}  # by a loop's body
        self.outputs = 0  # of instructions that do something: each is another value
        self.machine = Machine(self)
        self.inside = -1  # blocks of the function that is followed; -1: none is
        self.deep = 0

    def emit(self, *event: Any) -> None:
        self.events.append(event)
        self.ats.append(self.at)
        name = changed(event)
        if name:
            self.versions[name] = self.versions.get(name, 0) + 1

    def captured(self, work: Callable[[], Value]) -> tuple[Value, tuple[Event, ...]]:
        """The value of `work`, and its events, which are not this walk's."""
        events, ats, self.events, self.ats = self.events, self.ats, [], []
        try:
            value = work()
            return value, tuple(self.events)
        finally:
            self.events, self.ats = events, ats

    # ---- statements ----

    def run(self, body: Iterable[Statement], env: Env) -> Value:
        """The value that a `return` at the end gives, if any."""
        for s in body:
            value = getattr(self, f"_{s[0]}")(s, env)
            if s[0] == "return":
                return value
        return None

    def block(self, head: tuple[Any, ...], body: Statement, env: Env) -> None:
        """`body`, which may run once, never, or often: it changes no value that is known outside."""
        self.emit("{", *head)
        inner = dict(env)
        self.deep += 1
        self.run(body[1] if body[0] == "block" else (body,), inner)
        self.deep -= 1
        for name, value in env.items():
            if inner[name] is not value and inner[name] != value and name not in _declared(body):
                raise Unreadable(f"{name} is changed in a block, and known outside")
        self.emit("}")

    def _block(self, s: Statement, env: Env) -> None:
        inner = dict(env)
        self.run(s[1], inner)
        hidden = _declared(s)
        for name in env:
            if name not in hidden:
                env[name] = inner[name]

    def _expr(self, s: Statement, env: Env) -> None:
        x = s[1]
        if isinstance(x, str):
            if self.below is None:
                raise Unreadable(f"{x} does nothing")
            self.below(x, self, env)
            return
        self.effect(x, env)

    def effect(self, x: Expr, env: Env) -> None:
        """An expression that stands for what it does."""
        if isinstance(x, tuple) and x[0] == ",":
            self.effect(x[1], env)
            self.effect(x[2], env)
            return
        value = self.value(x, env)
        if not isinstance(x, tuple) or x[0] not in ("call", "=", "pre", "post"):
            raise Unreadable(f"a statement that does nothing: {x}")
        if x[0] == "call" and isinstance(value, tuple) and value[0] == "call":
            self.emit("does", *value[1:])

    def _if(self, s: Statement, env: Env) -> None:
        self.block(("if", self.value(s[1], env)), s[2], env)
        if s[3] is not None:
            self.block(("else",), s[3], env)

    def _while(self, s: Statement, env: Env) -> None:
        self.enter(s)
        self.block(("while", *self.captured(lambda: self.value(s[1], env))), s[2], env)

    def enter(self, loop: Statement) -> None:
        """What a loop changes is not what it was before, from its second time on."""
        for name in writes(loop, self.written):
            self.versions[name] = self.versions.get(name, 0) + 1

    def _for(self, s: Statement, env: Env) -> None:
        _, unroll, first, condition, step, body = s
        turns = trips(s, lambda x: self.value(x, env))
        if turns is not None and len(turns) < 2:
            for number in turns:
                self._once(first[3][0][0], number, body, env)
            return
        inner = dict(env)
        head: list[Any] = []
        if first[0] == "declare":
            _, words, of, names = first
            for name, how, x in names:
                head.append((words, of, name, how, None if x is None else self.value(x, inner)))
                inner[name] = name
                inner[f"{name}:type"] = of
        elif first[0] != "empty":
            raise Unreadable("a loop that declares no counter")
        self.enter(s)
        until = self.captured(lambda: None if condition is None else self.value(condition, inner))
        _, steps = self.captured(lambda: None if step is None else self.effect(step, inner))
        self.block(("for", unroll, tuple(head), until, steps), body, inner)

    def _once(self, name: str, number: int, body: Statement, env: Env) -> None:
        """The body of a loop that is run once."""
        counter = {name: number, f"{name}:type": "int"}
        inner = {**env, **counter}
        self.run(body[1] if body[0] == "block" else (body,), inner)
        if inner[name] != number:
            raise Unreadable(f"{name} is changed in the loop that counts with it")
        hidden = _declared(body).union(counter)
        env.update({x: inner[x] for x in env if x not in hidden})

    def _each(self, s: Statement, env: Env) -> None:
        _, unroll, of, name, over, body = s
        inner = dict(env)
        inner[name] = ("ref", env, ("index", over, "$each"))
        self.block(("each", unroll, of, self.value(over, env)), body, inner)

    def _return(self, s: Statement, env: Env) -> Value:
        value = None if s[1] is None else self.value(s[1], env)
        if self.inside < 0:
            self.emit("return", value)
        elif self.deep != self.inside:
            raise Unreadable("a function of namespace ptx returns from inside a block")
        return value

    def _continue(self, s: Statement, env: Env) -> None:
        self.emit("continue")

    def _break(self, s: Statement, env: Env) -> None:
        self.emit("break")

    def _empty(self, s: Statement, env: Env) -> None:
        pass

    def _asm(self, s: Statement, env: Env) -> None:
        self.machine.run(s, env)

    def _declare(self, s: Statement, env: Env) -> None:
        _, words, of, names = s
        for name, how, x in names:
            env[f"{name}:type"] = of
            if how == "array":
                self.emit("declare", words, of, name, None if x is None else self.value(x, env))
                env[name] = ("array", of, name)
            elif how == "=" and (of in SCALARS or of.endswith("*")):
                env[name] = self.bound(cast(of, self.value(x, env)))
            elif how == "" and of in SCALARS:
                env[name] = ("unset", of, name)
            else:
                made = tuple(self.value(i, env) for i in ((x,) if how == "=" else x or ()))
                self.emit("declare", words, of, name, how, *made)
                env[name] = name

    # ---- expressions ----

    def value(self, x: Expr, env: Env) -> Value:
        if isinstance(x, int):
            return x
        if isinstance(x, str):
            found = env.get(x, x)
            if isinstance(found, tuple):
                if found[0] == "ref":
                    return self.value(found[2], found[1])
                if found[0] == "bound":
                    return self.fresh(x, found[1], found[2])
            return found
        return VALUES[x[0]](self, x, env)

    def bound(self, value: Value) -> Value:
        """`value` as it is now."""
        read = {name: self.versions.get(name, 0) for name in reads(value)}
        return ("bound", value, read) if read else value

    def fresh(self, name: str, value: Value, read: dict[str, int]) -> Value:
        if all(self.versions.get(of, 0) == version for of, version in read.items()):
            return value
        if self.below:
            raise IRError(f"the link reads {name} after {', '.join(read)} may have changed")
        return "stale", name, value

    def assign(self, place: Expr, op: str, value: Value, env: Env) -> None:
        """A name whose value is known gets another; all else is an event."""
        known = env.get(place) if isinstance(place, str) else None
        if isinstance(known, tuple) and known and known[0] == "ref":
            self.assign(known[2], op, value, known[1])
        elif known is not None and known != place:
            of = env.get(f"{place}:type", "auto")
            was = self.value(place, env)
            env[place] = self.bound(cast(of, value if op == "=" else binary(op[:-1], was, value)))
        else:
            self.emit("set", self.value(place, env), op, value)

    def follow(
        self, name: str, templates: tuple[Value, ...], args: tuple[Expr, ...], env: Env
    ) -> Value:
        """A call of a function of namespace ptx."""
        f = function(self.functions[name])
        if len(args) != len(f.parameters) or (templates and len(templates) != len(f.templates)):
            raise Unreadable(f"{name} is called with other arguments than it has")
        if f.words != FUNCTION:
            raise Unreadable(f"{name} is {' '.join(f.words)}")
        inner: Env = {of: x for (_, of), x in zip(f.templates, templates, strict=False)}
        for (of, parameter, count), arg in zip(f.parameters, args, strict=True):
            inner[f"{parameter}:type"] = of
            if of.endswith("&"):
                inner[parameter] = ("ref", env, arg)
            else:
                known = self.value(arg, env)
                inner[parameter] = known if count is not None else cast(of, known)
        outer, self.inside = self.inside, self.deep
        value = self.run(f.body, inner)
        self.inside = outer
        return None if f.returns == "void" else cast(f.returns, value)


def trips(loop: Statement, value: Callable[[Expr], Value]) -> range | None:
    """The numbers that a loop counts through, where they are known and it does nothing else."""
    _, _, first, condition, step, _ = loop
    match first, condition, step:
        case (
            ("declare", _, "int", ((name, "=", begin),)),
            ("op", "<", of, end),
            ("pre", "++", steps) | ("=", "+=", steps, _),
        ) if name == of == steps:
            bounds = (value(begin), value(end), value(step[3]) if step[0] == "=" else 1)
            return range(*bounds) if all(isinstance(x, int) for x in bounds) else None
    return None


def _declared(body: Statement) -> set[str]:
    """Names that a block declares itself."""
    inside = body[1] if body[0] == "block" else (body,)
    names = {name for s in inside if s[0] == "declare" for name, _, _ in s[3]}
    return names | {f"{name}:type" for name in names}
