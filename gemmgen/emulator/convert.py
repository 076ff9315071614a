"""mov and cvt: moving, packing, and conversion between types (PTX ISA, sections mov and cvt)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from .errors import UnsupportedInstruction
from .group import Group
from .operand_formats import decode
from .parse import size_of
from .program import NUMPY, Handler, Op, Scope
from .spaces import PARAM_WINDOW, SHARED_WINDOW
from .syntax import Instruction, Sink, Special, Vector

CLOCKS = ("globaltimer", "globaltimer_lo", "clock", "clock64")
INTEGER = {k for k in NUMPY if k[0] in "us" and k[1:].isdigit()}
ROUND: Mapping[str, Callable[[Any], Any]] = {
    "rni": np.rint,
    "rzi": np.trunc,
    "rmi": np.floor,
    "rpi": np.ceil,
}


def bf16(x: Any) -> Any:
    """float32 -> bf16 codes, to nearest even; NaN becomes 0x7FFF."""
    bits = x.view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1))) >> np.uint32(16)
    return np.where(np.isnan(x), np.uint32(0x7FFF), rounded).astype(np.uint16)


def f16(x: Any) -> Any:
    """float32 -> f16 codes, to nearest even; NaN becomes 0x7FFF."""
    codes = x.astype(np.float16).view(np.uint16)
    return np.where(np.isnan(x), np.uint16(0x7FFF), codes)


def e4m3(x: Any) -> Any:
    """float32 -> e4m3 codes, to nearest even; beyond 448 becomes 448 (satfinite), NaN 0x7F."""
    size = np.minimum(np.abs(np.where(np.isnan(x), 0, x)).astype(np.float64), 448.0)
    exponent = np.maximum(np.frexp(np.where(size > 0, size, 2.0**-6))[1] - 1, -6)
    steps = np.rint(np.ldexp(size, 3 - exponent)).astype(np.int64)
    codes = ((exponent + 6) << 3) + steps | np.signbit(x).astype(np.int64) << 7
    return np.where(np.isnan(x), 0x7F, codes).astype(np.uint8)


NARROW: Mapping[str, Callable[[Any], Any]] = {"bf16": bf16, "f16": f16}


def _mov(i: Instruction, s: Scope) -> Op:
    d, a = i.operands
    kind = i.parts[-1]
    if isinstance(a, Vector):
        return _pack(kind, d, a, s)
    if isinstance(d, Vector):
        return _unpack(kind, d, a, s)
    to = s.dst(d, kind)
    if isinstance(a, Special) and a.name in CLOCKS:
        return _clock(to)
    source = s.src(a, kind)

    def op(g: Group) -> None:
        np.copyto(g.R[to], g.R[source], where=g.where)

    return op


def _clock(to: int) -> Op:
    """A turn of the schedule counts as a microsecond and as 1000 cycles, whatever happens in it."""

    def op(g: Group) -> None:
        kind = g.R[to].dtype
        now = g.cta.launch.stats.turns * 1000 % (1 << 8 * kind.itemsize)
        np.copyto(g.R[to], kind.type(now), where=g.where)

    return op


def _pack(kind: str, d: Any, a: Vector, s: Scope) -> Op:
    """{low, ..., high} -> one register."""
    part = f"u{8 * size_of(kind) // len(a.items)}"
    to, parts = s.dst(d, kind), [s.src(x, part) for x in a.items]
    dtype = NUMPY["u" + str(8 * size_of(kind))]

    def op(g: Group) -> None:
        packed = np.stack([g.R[p] for p in parts], 1).reshape(-1).view(dtype)
        np.copyto(g.R[to].view(dtype), packed, where=g.where)

    return op


def _unpack(kind: str, d: Vector, a: Any, s: Scope) -> Op:
    part = f"u{8 * size_of(kind) // len(d.items)}"
    source = s.src(a, kind)
    slots = [None if isinstance(x, Sink) else s.dst(x, part) for x in d.items]

    def op(g: Group) -> None:
        parts = g.R[source].copy().view(NUMPY[part]).reshape(g.lanes, -1)
        for k, slot in enumerate(slots):
            if slot is not None:
                np.copyto(g.R[slot], parts[:, k], where=g.where)

    return op


def _cvt(i: Instruction, s: Scope) -> Op:
    to, source = i.parts[-2:]
    if to == "f16x2" and source in ("e4m3x2", "e5m2x2"):
        return _cvt_halves(i, s, source[:-2])
    if to.endswith("x2"):
        return _cvt_pair(i, s, to, source)
    convert = conversion(i, to, source)
    # A register wider than the type holds the extended value (PTX ISA, operand size exceeding).
    wide = s.wide(i.operands[0], to) if to in INTEGER else to
    d, a = s.dst(i.operands[0], wide), s.src(i.operands[1], source)
    dtype = NUMPY[wide]

    def op(g: Group) -> None:
        np.copyto(g.R[d], convert(g.R[a]).astype(dtype), where=g.where)

    return op


def _cvt_pair(i: Instruction, s: Scope, to: str, source: str) -> Op:
    """cvt.rn.bf16x2.f32 d, a, b: a becomes the upper half."""
    if to == "e4m3x2" and source == "f32" and i.parts[1:3] == ("rn", "satfinite"):
        return _cvt_e4m3(i, s)
    if source != "f32" or to[:-2] not in NARROW or "rn" not in i.parts or len(i.parts) > 4:
        raise UnsupportedInstruction(str(i))
    narrow = NARROW[to[:-2]]
    d, a, b = s.dst(i.operands[0], "u32"), *(s.src(o, "f32") for o in i.operands[1:3])

    def op(g: Group) -> None:
        high, low = narrow(g.R[a]).astype(np.uint32), narrow(g.R[b])
        np.copyto(g.R[d], high << np.uint32(16) | low, where=g.where)

    return op


def _cvt_halves(i: Instruction, s: Scope, kind: str) -> Op:
    """cvt.rn.f16x2.e4m3x2 d, a: of each byte its value, which FP16 has."""
    if i.parts[1:2] != ("rn",) or len(i.parts) != 4:
        raise UnsupportedInstruction(str(i))
    d, a = s.dst(i.operands[0], "b32"), s.src(i.operands[1], "b16")
    codes = f16(decode(np.arange(256, dtype=np.uint8), kind).astype(np.float32))

    def op(g: Group) -> None:
        pairs = np.ascontiguousarray(codes[g.R[a].copy().view(np.uint8)])
        np.copyto(g.R[d], pairs.view(np.uint32), where=g.where)

    return op


def _cvt_e4m3(i: Instruction, s: Scope) -> Op:
    """cvt.rn.satfinite.e4m3x2.f32 d, a, b: a becomes the upper byte."""
    d, a, b = s.dst(i.operands[0], "u16"), *(s.src(o, "f32") for o in i.operands[1:3])

    def op(g: Group) -> None:
        high, low = e4m3(g.R[a]).astype(np.uint16), e4m3(g.R[b])
        np.copyto(g.R[d], high << np.uint16(8) | low, where=g.where)

    return op


def conversion(i: Instruction, to: str, source: str) -> Callable[[Any], Any]:
    """The function on arrays. Raises UnsupportedInstruction for forms nobody asked for yet."""
    modifiers = set(i.parts[1:-2])
    if to in INTEGER and source in INTEGER:
        return lambda x: _narrowed(x, to, "sat" in modifiers)
    if to in INTEGER and source in ("f32", "f64", "f16"):
        mode = next((m for m in ROUND if m in modifiers), None)
        if mode:
            return lambda x: _to_integer(ROUND[mode](x.astype(np.float64)), to)
    if to in ("f32", "f64") and source in INTEGER and "rn" in modifiers:
        return lambda x: x.astype(NUMPY[to])
    if not modifiers & {"rz", "rm", "rp", "sat", "ftz", "relu"}:
        if to in NARROW and source == "f32" and "rn" in modifiers:
            narrow = NARROW[to]
            return (lambda x: narrow(x).view(np.float16)) if to == "f16" else narrow
        if to == "f32" and source == "bf16":
            return lambda x: (x.astype(np.uint32) << np.uint32(16)).view(np.float32)
        if to in ("f32", "f64") and source in ("f16", "f32", "f64"):
            return lambda x: x.astype(NUMPY[to])
    raise UnsupportedInstruction(str(i))


def _narrowed(x: Any, to: str, saturate: bool) -> Any:
    if saturate:
        limits = np.iinfo(NUMPY[to])
        return np.array([min(max(int(v), limits.min), limits.max) for v in x], NUMPY[to])
    return x.astype(NUMPY[to])


def _to_integer(x: Any, to: str) -> Any:
    """Out of range saturates; NaN becomes zero (PTX ISA, cvt, for 32-bit results)."""
    limits = np.iinfo(NUMPY[to])
    inside = np.clip(np.where(np.isnan(x), 0, x), float(limits.min), float(limits.max))
    over = inside >= float(limits.max)
    return np.where(over, limits.max, np.where(over, 0, inside).astype(NUMPY[to])).astype(NUMPY[to])


WINDOWS = {
    "shared": SHARED_WINDOW,
    "shared::cta": SHARED_WINDOW,
    "param": PARAM_WINDOW,
    "global": 0,
}


def _cvta(i: Instruction, s: Scope) -> Op:
    """To the generic address space or from it; global addresses are the same in both."""
    kind = i.parts[-1]
    away = i.parts[1] == "to"
    space = i.parts[2] if away else i.parts[1]
    if space not in WINDOWS or kind != "u64":
        raise UnsupportedInstruction(str(i))
    window = np.uint64(WINDOWS[space])
    d, a = s.dst(i.operands[0], kind), s.src(i.operands[1], kind)

    def op(g: Group) -> None:
        x = g.R[a]
        np.copyto(g.R[d], x - window if away else x + window, where=g.where)

    return op


HANDLERS: Mapping[str, Handler] = {"mov": _mov, "cvt": _cvt, "cvta": _cvta}
