"""Registers of D, and of an A that registers hold, that are written between a wgmma.fence and the wgmma that uses them.

PTX ISA, wgmma.fence: it must stand between an access to a register and a wgmma that uses that
register, unless the access is another wgmma's. A move from register to register is none: PTX has a name per
value, not per register, and where names meet the compiler moves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from .errors import ProtocolError
from .lanes import who
from .products import pipeline
from .syntax import Instruction, Reg, Symbol, Vector

if TYPE_CHECKING:
    from .group import Group
    from .program import Op
    from .syntax import Function

Defined = Sequence[frozenset[str]]  # registers, by instruction
ENDS = ("fence", "wait_group")  # of wgmma: what is before one is not between a fence and a wgmma


def checked(function: Function, ops: Sequence[Op], defined: Defined) -> tuple[Op, ...]:
    """`ops`, of which those that write D after its fence are noted, and the wgmma that use it refuse."""
    found = unfenced(function, defined)
    out = list(ops)
    for at in {x for writes in found.values() for x in writes}:
        out[at] = _noted(out[at], at)
    for at, writes in found.items():
        out[at] = _refusing(out[at], {x: function.body[x] for x in writes})
    return tuple(out)


def _noted(op: Op, at: int) -> Op:
    def run(g: Group) -> int | None:
        pipeline(g).written.add(at)
        return op(g)

    return run


def _refusing(op: Op, writes: Mapping[int, Instruction]) -> Op:
    def run(g: Group) -> int | None:
        if written := pipeline(g).written & writes.keys():
            raise ProtocolError(
                f"{who(g)}: its D or A is written by {writes[min(written)]} after the wgmma.fence: "
                "no wgmma.fence orders that write before it"
            )
        return op(g)

    return run


def unfenced(function: Function, defined: Defined) -> dict[int, set[int]]:
    """Of each wgmma the writes of its D, by position, from which a way leads to it without a wgmma.fence."""
    before = _before(function)
    found = {}
    for at, i in enumerate(function.body):
        if i.parts[:2] == ("wgmma", "mma_async") and (
            writes := _writes(function.body, defined, before, at)
        ):
            found[at] = writes
    return found


def _writes(
    body: Sequence[Instruction], defined: Defined, before: Sequence[list[int]], at: int
) -> set[int]:
    """Backwards from the wgmma at `at`, with the registers whose writers are looked for."""
    found: set[int] = set()
    seen: dict[int, frozenset[str]] = {}
    todo = [(x, defined[at] | _held(body[at])) for x in before[at]]
    while todo:
        where, wanted = todo.pop()
        wanted -= seen.get(where, frozenset())
        if not wanted:
            continue
        seen[where] = seen.get(where, frozenset()) | wanted
        i = body[where]
        if i.parts[0] == "wgmma" and i.parts[1] in ENDS:
            continue
        if mine := wanted & defined[where]:
            if i.guard is None:
                wanted -= mine
            if source := _moved(i):
                wanted |= {source}
            elif i.parts[0] != "wgmma":
                found.add(where)
        todo += [(x, wanted) for x in before[where]]
    return found


def _held(i: Instruction) -> frozenset[str]:
    """A's registers, where it is not in shared memory."""
    a = i.operands[1]
    return (
        frozenset(x.name for x in a.items if isinstance(x, Reg))
        if isinstance(a, Vector)
        else frozenset()
    )


def _moved(i: Instruction) -> str:
    """The register that a move copies to another."""
    moves = i.parts[0] == "mov" and all(isinstance(o, Reg) for o in i.operands)
    return i.operands[1].name if moves else ""  # type: ignore[union-attr]


def _before(function: Function) -> list[list[int]]:
    """From where each instruction is reached."""
    before: list[list[int]] = [[] for _ in [*function.body, None]]
    for at, i in enumerate(function.body):
        goes_on = i.guard is not None or i.parts[0] not in ("bra", "brx", "exit", "ret", "trap")
        targets = {at + 1} if goes_on else set()
        if i.parts[0] == "bra":
            targets |= _places(function, i.operands[0])
        if i.parts[0] == "brx":
            assert isinstance(i.operands[1], Symbol)
            names = function.tables[i.operands[1].name]
            targets |= {function.labels[x] for x in names}
        for target in targets:
            before[target].append(at)
    return before


def _places(function: Function, operand: object) -> set[int]:
    name = operand.name if isinstance(operand, Symbol) else ""
    return {function.labels[name]} if name in function.labels else set()
