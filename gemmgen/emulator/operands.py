"""The operands of one PTX instruction: text -> `Operand`s."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Mapping

from .syntax import Address, Imm, Operand, Pair, Reg, Sink, Special, Symbol, Vector

Resolve = Callable[[str], str]
NUMBER = re.compile(r"-?(0[xX][0-9a-fA-F]+|\d+)U?$")
OFFSET = re.compile(r"^(.*?)\s*\+\s*(-?\s*(?:0[xX][0-9a-fA-F]+|\d+))$")


def split(text: str, resolve: Resolve, registers: Mapping[str, str]) -> tuple[Operand, ...]:
    """The operands in `text`, commas between them. Raises ValueError."""
    return tuple(_operand(t, resolve, registers) for t in _pieces(text))


def _pieces(text: str) -> list[str]:
    """Cut at the commas that no bracket encloses."""
    pieces, depth, start = [], 0, 0
    for i, c in enumerate(text):
        depth += (c in "{[(") - (c in "}])")
        if c == "," and depth == 0:
            pieces.append(text[start:i])
            start = i + 1
    return [p.strip() for p in [*pieces, text[start:]] if p.strip()]


def _operand(text: str, resolve: Resolve, registers: Mapping[str, str]) -> Operand:
    if text == "_":
        return Sink()
    if text.startswith("{"):
        return Vector(split(text[1:-1], resolve, registers))
    if text.startswith("["):
        return _address(text[1:-1], resolve, registers)
    if "|" in text:
        first, second = (_operand(t.strip(), resolve, registers) for t in text.split("|"))
        return Pair(
            first if isinstance(first, Reg) else None, second if isinstance(second, Reg) else None
        )
    if text.startswith("!"):
        return Reg(resolve(text[1:]), negated=True)
    return _literal(text) or _name(text, resolve, registers)


def _address(text: str, resolve: Resolve, registers: Mapping[str, str]) -> Address:
    parts = _pieces(text)
    match = OFFSET.match(parts[0])
    name, offset = (match[1], int(match[2].replace(" ", ""), 0)) if match else (parts[0], 0)
    base = _operand(name, resolve, registers)
    if not isinstance(base, Reg | Imm | Symbol):
        raise ValueError(f"{name} is no address")
    coords = split(parts[1].strip("{}"), resolve, registers) if len(parts) > 1 else ()
    return Address(base, offset, coords)


def _literal(text: str) -> Imm | None:
    if text[:2] in ("0f", "0F") and len(text) == 10:
        return Imm(int(text[2:], 16), 32)
    if text[:2] in ("0d", "0D") and len(text) == 18:
        return Imm(int(text[2:], 16), 64)
    if NUMBER.match(text):
        return Imm(int(text.rstrip("U"), 0))
    try:
        return Imm(int.from_bytes(struct.pack("<d", float(text)), "little"), 64)
    except ValueError:
        return None


def _name(text: str, resolve: Resolve, registers: Mapping[str, str]) -> Operand:
    unique = resolve(text)
    if unique in registers:
        return Reg(unique)
    return Special(text[1:]) if text.startswith("%") else Symbol(unique)
