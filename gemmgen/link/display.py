"""Values and events for people: C, as far as it goes."""

from __future__ import annotations

from typing import Any

from .values import FOLDED, Value

THREAD = "threadIdx.x"
# What the kernel calls some values.
KNOWN: dict[Value, str] = {
    ("%", THREAD, 32): "lane",
    ("%", ("/", THREAD, 32), 4): "warp",
    ("call", "__shfl_sync", 0xFFFFFFFF, ("/", THREAD, 128), 0): "warpgroup",
    (
        "cast",
        "uint32_t",
        ("call", "__cvta_generic_to_shared", ("array", "uint8_t", "smem")),
    ): "smem",
}
TWO = (*FOLDED, "<", ">", "<=", ">=", "==", "!=", "&&", "||")


def shown(v: Value) -> str:
    if not isinstance(v, tuple):
        return str(v)
    if v in KNOWN:
        return KNOWN[v]
    match v:
        case ("sum", constant, found):
            parts = sorted(f"{shown(x)}{f' * {c}' * (c != 1)}" for x, c in found)
            return " + ".join([*parts, *[str(constant)] * bool(constant)])
        case ("f", op, a, b):
            return f"({shown(a)} {op} {shown(b)})"
        case (op, a, b) if op in TWO:
            return f"({shown(a)} {op} {shown(b)})"
        case ("typed", _, "?:", c, a, b):
            return f"({shown(c)} ? {shown(a)} : {shown(b)})"
        case ("typed" | "array", _, name):
            return shown(name)
        case ("element", _, base, at):
            return f"{shown(base)}[{shown(at)}]"
        case ("cast", to, x):
            return f"({to})({shown(x)})"
        case ("un", op, x):
            return f"{op}{shown(x)}"
        case ("mem", inside):
            return f"[{', '.join(map(shown, inside))}]"
        case ("list", inside):
            return f"{{{', '.join(map(shown, inside))}}}"
        case ("out", _, n, event, _):
            return f"{told(event)}{f' #{n}' * bool(n)}"
        case ("all", name, count):
            return f"{{{name}[0 .. {count}]}}"
        case ("call", name, *args):
            return f"{shown(name)}({', '.join(map(shown, args))})"
    return f"{v[0]}({', '.join(map(shown, v[1:]))})" if v else "()"


def bare(v: Value) -> str:
    """Without the parentheses that `shown` puts around an operation."""
    text = shown(v)
    around = isinstance(v, tuple) and v not in KNOWN and v[0] in TWO
    return text[1:-1] if around else text


def told(event: tuple[Any, ...]) -> str:
    match event:
        case ("{", "for", unroll, first, (condition, _), steps):
            start = ", ".join(
                f"{of} {name}{'' if x is None else f' = {shown(x)}'}" for _, of, name, _, x in first
            )
            head = f"for ({start}; {bare(condition)}; {', '.join(map(told, steps))})"
            return f"{unroll}: {head}" if unroll else head
        case ("{", "if" | "while" as word, condition, *_):
            return f"{word} ({bare(condition)})"
        case ("{", *head):
            return " ".join(map(shown, head))
        case ("}",):
            return "the end of a block"
        case ("ptx", opcode, *operands):
            return f"{opcode}({', '.join(map(shown, operands))})"
        case ("until", inner):
            return f"until it holds: {told(inner)}"
        case ("when", p, inner):
            return f"where {shown(p)}: {told(inner)}"
        case ("set", place, op, value):
            return f"{shown(place)} {op} {shown(value)}"
        case ("does", name, *args):
            return f"{shown(name)}({', '.join(map(shown, args))})"
        case ("unreadable", why):
            return f"what the link cannot read: {why}"
    return " ".join(map(shown, event))
