"""asm statements -> events: the PTX instructions that they hold, on the values of their operands.

Registers that a block declares go: an instruction that only computes becomes part of the value it writes, and a
branch back while a predicate does not hold becomes ("until", instruction). What an instruction writes stands in its
operands as `$` and the register's type: `$pred`, `$b32`, or of an operand of the statement its constraint, `$r`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from .assembly import MEMORY, PURE, VOLATILE, Instruction, early, instructions, needs, whole
from .errors import Unreadable
from .expressions import Expr
from .statements import Statement
from .values import Value, kind, plain, terms

if TYPE_CHECKING:
    from .walk import Env, Walk

# What a register of a constraint's kind may hold.
FITS = {
    "r": ("int", "uint32_t", "bool", "unsigned"),
    "f": ("float",),
    "l": ("uint64_t", "long long"),
    "h": ("uint16_t",),
}


class Machine:
    """What a walk asks of instructions."""

    def __init__(self, walk: Walk) -> None:
        self.walk = walk

    def run(self, s: Statement, env: Env) -> None:
        _, volatile, text, outs, ins, clobbers = s
        kept = VOLATILE if volatile else PURE
        for name, _ in clobbers:
            if name != "memory":
                raise Unreadable(f"an asm statement clobbers {name!r}")
            kept = MEMORY if volatile else PURE
        if not text or text.startswith("//"):
            self._nothing(text, volatile, outs, ins, env)
            return
        operands = [*self._outputs(outs, env), *(self._input(c, x, env) for c, x in ins)]
        found = tuple(_once(i, operands) if kept == PURE else i for i in instructions(text))
        for i in found:
            if (PURE, VOLATILE, MEMORY).index(i.needs) > (PURE, VOLATILE, MEMORY).index(kept):
                lacks = "is not volatile" if kept == PURE else 'does not clobber "memory"'
                raise Unreadable(f"the asm statement of {i.opcode} {lacks}")
        written = self._execute(found, operands)
        for n, (constraint, place) in enumerate(outs):
            if "&" not in constraint and early(found, n, len(outs)):
                raise Unreadable(f"operand %{n} is written before all that is read: {text!r}")
            if constraint[0] == "=":
                if n not in written:
                    raise Unreadable(f"operand %{n} is never written: {text!r}")
                self.walk.assign(place, "=", written[n], env)

    def _nothing(self, text: str, volatile: bool, outs: Any, ins: Any, env: Env) -> None:
        """A text without instructions: what goes through it comes out unknown to the compiler; a comment may name
        numbers."""
        named = text.startswith("//") and all(constraint == "n" for constraint, _ in ins)
        if not volatile or (ins and not named):
            raise Unreadable(f"an asm statement that keeps nothing: {text!r}")
        for constraint, place in outs:
            if constraint[0] != "+":
                raise Unreadable("an asm statement that writes nothing to what it says it writes")
            before = self.walk.value(place, env)
            self._fits(constraint[1:], place, before, env)
            self.walk.assign(place, "=", ("opaque", before), env)
        if text or not outs:
            self.walk.emit("mark", text, *(self.walk.value(number, env) for _, number in ins))

    # ---- operands ----

    def _outputs(self, outs: Any, env: Env) -> list[Value]:
        if outs and outs[0][0][0] == "+":
            return self._array(outs, env)
        found: list[Value] = []
        for n, (constraint, place) in enumerate(outs):
            if constraint[0] != "=":
                raise Unreadable(f'"{constraint}" as an output of an asm statement')
            letter = constraint[1:].removeprefix("&")  # written before all inputs are read
            self._fits(letter, place, None, env)
            found.append(("out", letter, n))
        return found

    def _array(self, outs: Any, env: Env) -> list[Value]:
        """Registers of one array, all read and written: the first stands for all."""
        (constraint, (_, array, *_)), n = outs[0], len(outs)
        if outs != tuple((constraint, ("index", array, i)) for i in range(n)):
            raise Unreadable(f"{n} operands of an asm statement that are not an array's registers")
        base = self.walk.value(array, env)
        self._fits(constraint[1:], ("index", array, 0), None, env)
        return [("all", base[2], n)] * n

    def _input(self, constraint: str, x: Expr, env: Env) -> Value:
        v = self.walk.value(x, env)
        if constraint == "n":
            if not isinstance(v, int):
                raise Unreadable("an immediate operand that is no number")
            return v
        self._fits(constraint, x, v, env)
        return plain(v)

    def _fits(self, constraint: str, x: Expr, v: Value, env: Env) -> None:
        of = self._type(x, v, env)
        if of.endswith("*"):
            right = constraint == "l"
        else:
            right = of in FITS.get(constraint, ())
        if not right:
            raise Unreadable(f'a {of} as an operand of kind "{constraint}"')

    def _type(self, x: Expr, v: Value, env: Env) -> str:
        """As declared."""
        if isinstance(x, str) and f"{x}:type" in env:
            return str(env[f"{x}:type"]).replace(" &", "")
        if isinstance(x, tuple) and x[0] == "index" and isinstance(x[1], str):
            return str(env.get(f"{x[1]}:type", "int"))
        if isinstance(x, tuple) and x[0] == "cast":
            return str(x[1])
        return kind(v)

    # ---- instructions ----

    def _execute(self, found: tuple[Instruction, ...], operands: list[Value]) -> dict[int, Value]:
        """Emits what does something; the values that operands get."""
        registers: dict[str, Value] = {}
        written: dict[int, Value] = {}
        labels: dict[str, tuple[int, int]] = {}
        for at, i in enumerate(found):
            if i.label:
                labels[i.label] = at, len(self.walk.events)
            if i.opcode == "bra":
                self._back(found, at, labels, registers)
                continue
            outs: list[tuple[int | str, str]] = []
            parts = tuple(
                self._resolve(x, n == 0, operands, registers, outs)
                for n, x in enumerate(i.operands)
            )
            event: tuple[Any, ...] = ("ptx", i.opcode, *parts)
            if i.predicate:
                if any(where not in written for where, _ in outs):
                    raise Unreadable(f"{i.opcode} writes a register, or does not")
                negated, name = i.predicate
                known = _known(registers, name)
                event = ("when", ("un", "!", known) if negated else known, event)
            for n, (where, letter) in enumerate(outs):
                value: Value = ("out", letter, n, event, self._serial(i.needs, n))
                if i.predicate and isinstance(where, int):
                    value = "given", value, written[where]
                if isinstance(where, int):
                    written[where] = value
                else:
                    registers[where] = value
            if i.needs != PURE:
                self.walk.emit(*event)
        return written

    def _back(
        self,
        found: tuple[Instruction, ...],
        at: int,
        labels: dict[str, tuple[int, int]],
        registers: dict[str, Value],
    ) -> None:
        """`@!p bra LABEL`, LABEL at the one instruction before, which writes p."""
        i = found[at]
        start, events = labels.get(str(i.operands[0]), (-1, 0)) if len(i.operands) == 1 else (-1, 0)
        if start != at - 1 or not i.predicate or not i.predicate[0] or i.label:
            raise Unreadable("a branch that is no loop around one instruction")
        done, event = _known(registers, i.predicate[1]), self.walk.events[events:]
        if len(event) != 1 or done[:4] != ("out", "pred", 0, event[0]):
            raise Unreadable("a branch that does not ask for what its loop writes")
        self.walk.events[events] = ("until", event[0])

    def _resolve(
        self,
        x: Any,
        first: bool,
        operands: list[Value],
        registers: dict[str, Value],
        outs: list[tuple[int | str, str]],
    ) -> Value:
        if not isinstance(x, tuple):
            return x
        if x[0] == "reg":
            if first:
                outs.append((x[2], x[1]))
                return f"${x[1]}"
            return _known(registers, x[2])
        if x[0] == "%":
            if x[1] >= len(operands):
                raise Unreadable(f"%{x[1]} is no operand")
            v = operands[x[1]]
            if isinstance(v, tuple) and v[0] == "out" and len(v) == 3:
                outs.append((x[1], v[1]))
                return f"${v[1]}"
            return v
        if x[0] == "list" and whole(x[1], operands):
            return operands[0]
        inside = tuple(self._resolve(i, False, operands, registers, outs) for i in x[1])
        return x[0], inside

    # ---- the IR's side ----

    def instruction(self, opcode: str, args: tuple[Expr, ...], env: Env) -> Value:
        """`"opcode"(operands)`: emitted unless it only computes; its value is what it writes first."""
        event = self._event(opcode, args, env)
        of = needs(opcode, event[2:])
        if of != PURE:
            self.walk.emit(*event)
        letter = _letter(event)
        return ("out", letter, 0, event, self._serial(of, 0)) if letter else None

    def _serial(self, of: str, n: int) -> int:
        """Tells what one instruction wrote from what the same one wrote another time; 0 if it only computes."""
        if of == PURE:
            return 0
        self.walk.outputs += not n
        return self.walk.outputs

    def _event(self, opcode: str, args: tuple[Expr, ...], env: Env) -> tuple[Any, ...]:
        return ("ptx", opcode, *(plain(self.walk.value(a, env)) for a in args))

    def builtin(self, name: str, args: tuple[Expr, ...], env: Env) -> Value:
        """$until(i): instruction i again until it holds. $when(p, i): i where p. $nth(x, n): another of what an
        instruction writes. $given(p, i, x): what i writes where p, else x. $all(array, n): its registers. $opaque(x): x, of which the compiler knows nothing. $once(i): what i
        reads, moved and merged as if it only computed."""
        w = self.walk
        match name:
            case "$until":
                w.emit("until", self._event(args[0][1][1], args[0][3], env))
                w.outputs += 1
                return None
            case "$when":
                p = w.value(args[0], env)
                w.emit("when", p, self._event(args[1][1][1], args[1][3], env))
                return None
            case "$given":
                event = ("when", w.value(args[0], env), self._event(args[1][1][1], args[1][3], env))
                w.emit(*event)
                value = "out", _letter(event[2]), 0, event, self._serial(VOLATILE, 0)
                return "given", value, w.value(args[2], env)
            case "$nth":
                return _nth(w.value(args[0], env), w.value(args[1], env))
            case "$all":
                return "all", w.value(args[0], env)[2], w.value(args[1], env)
            case "$once":
                event = self._event(args[0][1][1], args[0][3], env)
                return "out", _letter(event), 0, event, 0
            case "$opaque":
                return "opaque", w.value(args[0], env)
        raise Unreadable(f"{name} is nothing")


def _nth(v: Value, n: Value) -> Value:
    if v[0] == "given":
        return "given", _nth(v[1], n), v[2]
    return (*v[:2], n, *v[3:])


def _once(i: Instruction, operands: list[Value]) -> Instruction:
    """`i`, which may be moved and merged if it loads from global memory by a pointer that was made opaque: no further than to
    where that was."""
    match i.operands[1] if len(i.operands) == 2 else None:
        case ("mem", (("%", int(n)),)) if i.opcode.startswith("ld.global."):
            _, parts = terms(operands[n])
            pointers = [x for x in parts if kind(x).endswith("*")]
            if pointers and all(x[0] == "opaque" for x in pointers):
                return replace(i, needs=PURE)
    return i


def _known(registers: dict[str, Value], name: str) -> Value:
    if name not in registers:
        raise Unreadable(f"register {name} is read before it is written")
    return registers[name]


def _letter(event: tuple[Any, ...]) -> str:
    """What is written first: a constraint or a register's type; none: ""."""
    first = event[2] if len(event) > 2 else None
    while isinstance(first, tuple) and first[0] == "list" and first[1]:
        first = first[1][0]
    return first[1:] if isinstance(first, str) and first.startswith("$") else ""
