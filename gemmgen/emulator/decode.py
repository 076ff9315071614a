"""Instructions -> closures. Every opcode has a row here; what has none is an error that names it."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from . import (
    access,
    accumulators,
    alu,
    async_stores,
    atomics,
    barriers,
    bits,
    control,
    convert,
    copy_decode,
    fences,
    floats,
    mma_sync,
    reductions,
    synchronise,
    tensor_map_edit,
    wgmma,
)
from .errors import UnsupportedInstruction
from .group import Group
from .program import Handler, Op, Program, Scope
from .syntax import Function, Instruction

HANDLERS: Mapping[str, Handler] = {
    **alu.HANDLERS,
    **bits.HANDLERS,
    **floats.HANDLERS,
    **convert.HANDLERS,
    **control.HANDLERS,
    **reductions.HANDLERS,
    **barriers.HANDLERS,
    **synchronise.HANDLERS,
    **fences.HANDLERS,
    **access.HANDLERS,
    **async_stores.HANDLERS,
    **atomics.HANDLERS,
    **copy_decode.HANDLERS,
    **tensor_map_edit.HANDLERS,
    **wgmma.HANDLERS,
    **mma_sync.HANDLERS,
}
BRANCHES = ("bra",)  # take their guard themselves


def decode(function: Function) -> Program:
    """Every instruction decoded once. Raises UnsupportedInstruction with the PTX line."""
    scope = Scope(function=function)
    ops = [_op(i, scope) for i in function.body]
    scope.check_registers()
    checked = accumulators.checked(function, ops, [frozenset(x) for x in scope.defined])
    end = Instruction(opcode="exit", operands=(), guard=None, line=0, source=None)
    body = (*function.body, end)
    return Program(
        function=function,
        scope=scope,
        body=body,
        ops=(*checked, control.HANDLERS["exit"](end, scope)),
    )


def _op(i: Instruction, s: Scope) -> Op:
    handler = HANDLERS.get(".".join(i.parts[:2])) or HANDLERS.get(i.parts[0])
    if handler is None:
        raise UnsupportedInstruction(str(i))
    s.current = i
    s.defined.append(set())
    try:
        op = handler(i, s)
    except UnsupportedInstruction as e:
        raise UnsupportedInstruction(f"{i}: {e}") from e
    except (KeyError, IndexError, ValueError) as e:
        raise UnsupportedInstruction(f"{i}: {type(e).__name__} {e}") from e
    if i.guard is None or i.parts[0] in BRANCHES:
        return op
    return _guarded(i, op, s)


def _guarded(i: Instruction, op: Op, s: Scope) -> Op:
    """Execute `op` for the lanes whose guard holds. What may wait takes its lanes apart first."""
    assert i.guard is not None
    slot, negated = s.src(i.guard, "pred"), i.guard.negated
    may_wait = i.parts[0] in control.BLOCKING

    def run(g: Group) -> int | None:
        lanes = g.active & (~g.R[slot] if negated else g.R[slot])
        count = np.count_nonzero(lanes)
        if count == g.fiber.count:
            return op(g)
        if count == 0:
            return None
        if may_wait:
            g.keep(lanes, g.fiber.pc + 1)
            return op(g)
        before = g.active, g.where
        g.active = g.where = lanes
        result = op(g)
        g.active, g.where = before
        return result

    return run
