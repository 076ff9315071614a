"""wgmma: asynchronous matrix multiply-accumulate of a warpgroup (PTX ISA, section 9.7.15).

Between issue and the wait for its group, an accumulator belongs to the tensor core: its registers hold
NaN patterns, and the products are computed when the schedule says so, reading shared memory then.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from .descriptor import decode_descriptor
from .errors import ProtocolError, UnsupportedInstruction
from .fiber import LANES, Wait
from .group import Group
from .lanes import constant, who
from .products import (
    BITS,
    ROWS,
    Held,
    Mma,
    Pipeline,
    Source,
    complete,
    held,
    pipeline,
    release,
    take,
    touched,
)
from .program import Handler, Op, Scope
from .races import WORD
from .syntax import Instruction, Operand, Vector

WARP_ROWS = 16  # of A, and of D, per warp
SHAPE = re.compile(r"m64n(\d+)k(\d+)$")
RESULT: Mapping[str, Any] = {"f32": np.float32, "s32": np.int32}


def _together(function: Callable[[Group], int | None]) -> Op:
    """The whole warpgroup executes it."""

    def op(g: Group) -> int | None:
        if (waiting := g.collect(aligned=True, whole_group=True)) is not None:
            return waiting
        if g.lanes != LANES or not g.active.all():
            raise ProtocolError(f"{who(g)}: takes all 128 threads of a warpgroup")
        return function(g)

    return op


def _fence(i: Instruction, s: Scope) -> Op:
    def fence(g: Group) -> None:
        p = pipeline(g)
        p.fenced = True
        p.written.clear()

    return _together(fence)


def _commit(i: Instruction, s: Scope) -> Op:
    def commit(g: Group) -> None:
        p = pipeline(g)
        mmas, p.current = p.current, []
        p.committed += 1
        tracker = g.cta.cluster.tracker
        p.issued.append([tracker.time(x) for x in _warps(g)])
        for agent in _warps(g):
            tracker.tick(agent)
        g.cta.cluster.start(lambda: complete(g, p, mmas), who(g), stream=p)

    return _together(commit)


def _wait(i: Instruction, s: Scope) -> Op:
    pending = constant(i.operands[0], i)

    def wait(g: Group) -> int | None:
        p = pipeline(g)
        need = p.committed - pending
        if len(p.retired) < need:
            return g.park(
                Wait(ready=lambda: len(p.retired) >= need, what=lambda: "wgmma groups", merge=True)
            )
        release(g, p, need)
        p.fenced = False
        tracker = g.cta.cluster.tracker
        for w, agent in enumerate(_warps(g)):
            tracker.observe(agent, p.agents[w], max(need, 0))
            if need > 0:
                tracker.loads.end(agent, p.issued[need - 1][w])
        return None

    return _together(wait)


def _warps(g: Group) -> list[int]:
    """Their agents."""
    tracker = g.cta.cluster.tracker
    return [tracker.warp(g.cta.rank, g.first_warp + w) for w in range(g.warps)]


def _mma(i: Instruction, s: Scope) -> Op:
    shape, result, a_type, b_type = i.parts[4], *i.parts[-3:]
    n = _check(i, shape, result, a_type, b_type)
    d, a, b, scale, *rest = i.operands
    assert isinstance(d, Vector)
    slots = tuple(s.dst(x, result) for x in d.items)
    transposes = [constant(x, i) for x in rest[2:]]
    if any(constant(x, i) != 1 for x in rest[:2]) or len(slots) != n // 2:
        raise UnsupportedInstruction(f"{i}: scales of {rest[:2]}, {len(slots)} registers of D")
    # A in registers is K-major: then there is one transpose, B's.
    *of_a, of_b = map(bool, transposes or (0, 0))
    a_rows: Callable[[Group], Source | Held]
    if isinstance(a, Vector):
        a_rows = _registers(i, a, s)
    else:
        a_rows = _source(a, ROWS, s, *of_a)
    b_tile = _source(b, n, s, of_b)
    keep = s.src(scale, "pred")

    def issue(g: Group) -> None:
        predicate = g.R[keep]
        if predicate.any() != predicate.all():
            raise ProtocolError(f"{who(g)}: scale-d differs between the threads of a warpgroup")
        p, x, y = pipeline(g), a_rows(g), b_tile(g)
        for w in range(g.warps):
            if isinstance(x, Source):
                _announce(g, p, x, w, WARP_ROWS)
            _announce(g, p, y, w, None)
        accumulator = take(g, p, slots, n)
        mma = Mma(
            d=accumulator,
            a=x,
            b=y,
            types=(a_type, b_type),
            accumulate=bool(predicate[0]),
            text=who(g),
        )
        p.current.append(mma)

    return _together(issue)


def _check(i: Instruction, shape: str, result: str, a: str, b: str) -> int:
    match = SHAPE.match(shape)
    if not match or result not in RESULT or a not in BITS or b not in BITS:
        raise UnsupportedInstruction(str(i))
    n, k = int(match[1]), int(match[2])
    if k * BITS[a] != 256 or n % 8 or not 8 <= n <= 256 or (a == "s8") != (result == "s32"):
        raise UnsupportedInstruction(f"{i}: no such shape")
    return n


def _registers(i: Instruction, operand: Vector, s: Scope) -> Callable[[Group], Held]:
    slots = tuple(s.src(x, "b32") for x in operand.items)
    if len(slots) != 4:
        raise UnsupportedInstruction(f"{i}: {len(slots)} registers of A")
    return lambda g: held(g, slots)


def _source(operand: Operand, rows: int, s: Scope, transposed: bool) -> Callable[[Group], Source]:
    slot = s.src(operand, "b64")

    def source(g: Group) -> Source:
        values = g.R[slot]
        if (values != values[0]).any():
            raise ProtocolError(
                f"{who(g)}: the descriptor differs between the threads of a warpgroup"
            )
        found = decode_descriptor(int(values[0]))
        return Source(descriptor=found, rows=rows, transposed=transposed)

    return source


def _announce(g: Group, p: Pipeline, x: Source, warp: int, rows: int | None) -> None:
    """A warp's part of a product reads all of B, and of A its own `rows`."""
    first = warp * rows if rows else 0
    words, shared = touched(x.descriptor, x.rows, x.transposed, first, rows), g.cta.shared
    low, high = _limits(words)
    shared.check(low, high, who(g))
    shared.claim_read(words, p.agents[warp], p.committed + 1, g.clocks[warp], who(g))


def _limits(words: Any) -> tuple[int, int]:
    first, last = (
        (words.start, words.stop - 1) if isinstance(words, slice) else (words[0], words[-1])
    )
    return int(first) * WORD, int(last) * WORD + WORD


FORMS: Mapping[str, Handler] = {
    "fence": _fence,
    "commit_group": _commit,
    "wait_group": _wait,
    "mma_async": _mma,
}


def _wgmma(i: Instruction, s: Scope) -> Op:
    if i.parts[1] not in FORMS or "sp" in i.parts:
        raise UnsupportedInstruction(str(i))
    return FORMS[i.parts[1]](i, s)


HANDLERS: Mapping[str, Handler] = {"wgmma": _wgmma}
