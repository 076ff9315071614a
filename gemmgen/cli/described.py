"""An error as JSON: what a program can read of it (docs/errors.md lists the ids)."""

from __future__ import annotations

import math

from ..errors import ArgumentError, GemmgenError, IllegalConfig, shown

WIDEST = 1 << 63  # of integers that other languages' readers of JSON take


def described(e: GemmgenError) -> dict[str, object]:
    """id, type and message; argument, value and allowed of an ArgumentError; rule, values and fix of an IllegalConfig."""
    found: dict[str, object] = {"id": e.id, "type": type(e).__name__, "message": str(e)}
    if isinstance(e, ArgumentError):
        found |= {"argument": e.argument, "value": _value(e.value), "allowed": e.allowed}
    if isinstance(e, IllegalConfig):
        values = {k: str(v) for k, v in e.values.items()}
        found |= {"rule": e.rule.id, "values": values, "fix": e.fix}
    return found


def _value(value: object) -> object:
    """As JSON has it, or else as the message shows it."""
    if isinstance(value, int):  # a bool too
        return value if abs(value) < WIDEST else shown(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else shown(value)
    return value if value is None or isinstance(value, str) else shown(value)
