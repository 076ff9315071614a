"""Tokens -> statements, as nested tuples whose first item says what they are."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

from .errors import Unreadable
from .expressions import QUALIFIERS, TYPES, Expr, Parser
from .tokens import tokens

Statement = tuple[Any, ...]
ATTRIBUTES = ("__shared__", "__align__")


@lru_cache(maxsize=4096)
def parsed(text: str) -> tuple[Statement, ...]:
    """The statements of `text`."""
    p = Parser(tokens(text), statement)
    found = []
    while p.peek():
        found.append(statement(p))
    return tuple(found)


def statement(p: Parser) -> Statement:
    token = p.peek()
    if token in READ:
        p.at += 1
        return READ[token](p)
    if token.startswith("#"):
        return _pragma(p)
    if _declares(p):
        return declaration(p)
    x = p.comma()
    p.expect(";")
    return "expr", x


def _block(p: Parser) -> Statement:
    found = []
    while not p.accept("}"):
        if not p.peek():
            raise Unreadable("a block does not end")
        found.append(statement(p))
    return "block", tuple(found)


def _if(p: Parser) -> Statement:
    p.expect("(")
    condition = p.comma()
    p.expect(")")
    then = statement(p)
    return "if", condition, then, statement(p) if p.accept("else") else None


def _while(p: Parser) -> Statement:
    p.expect("(")
    condition = p.comma()
    p.expect(")")
    return "while", condition, statement(p)


def _for(p: Parser, unroll: str = "") -> Statement:
    p.expect("(")
    if p.peek() == "auto":
        kind = p.type_name()
        name = p.take()
        p.expect(":")
        over = p.expression()
        p.expect(")")
        return "each", unroll, kind, name, over, statement(p)
    first = statement(p)
    condition = None if p.peek() == ";" else p.expression()
    p.expect(";")
    step = None if p.peek() == ")" else p.comma()
    p.expect(")")
    return "for", unroll, first, condition, step, statement(p)


def _pragma(p: Parser) -> Statement:
    words = p.take().split()
    if words[:2] != ["#pragma", "unroll"] or not p.accept("for"):
        raise Unreadable(f"{' '.join(words)} before no loop")
    return _for(p, " ".join(words[1:]))


def _return(p: Parser) -> Statement:
    value = None if p.peek() == ";" else p.expression()
    p.expect(";")
    return "return", value


def _word(name: str) -> Any:
    def read(p: Parser) -> Statement:
        p.expect(";")
        return (name,)

    return read


def _asm(p: Parser) -> Statement:
    """asm volatile("text" : outputs : inputs : clobbers);"""
    volatile = p.accept("volatile")
    p.expect("(")
    text = p.primary()
    if text[0] != "str":
        raise Unreadable("asm without its text")
    sections: list[list[tuple[str, Expr]]] = [[]]
    while not p.accept(")"):
        token = p.take()
        if token not in (":", "::"):
            raise Unreadable(f"{token!r} in an asm statement")
        sections += [[] for _ in token]
        while p.peek()[:1] == '"':
            name = p.take()[1:-1]
            sections[-1].append((name, p.items(")")[0] if p.accept("(") else None))
            if p.peek() not in (":", "::", ")"):
                p.expect(",")
    p.expect(";")
    parts = [tuple(s) for s in (*sections[1:], [], [], [])][:3]
    return "asm", volatile, text[1], *parts


READ: dict[str, Callable[[Parser], Statement]] = {
    "{": _block,
    "if": _if,
    "for": _for,
    "while": _while,
    "return": _return,
    "continue": _word("continue"),
    "break": _word("break"),
    ";": lambda p: ("empty",),
    "asm": _asm,
}


def _declares(p: Parser) -> bool:
    token, after = p.tokens[p.at], p.tokens[p.at + 1]
    if token in QUALIFIERS or token in ATTRIBUTES:
        return True
    if token in TYPES:
        return after != "("
    named = token[:1].isalpha() or token[:1] == "_"
    return named and (after[:1].isalpha() or after[:1] == "_")


def declaration(p: Parser) -> Statement:
    """("declare", attributes, type, ((name, how, value), ...)); how: "=", "array", "made" or ""."""
    words = []
    while p.peek() in (*QUALIFIERS, *ATTRIBUTES):
        word = p.take()
        if word == "__align__":
            p.expect("(")
            word = f"__align__({p.expression()})"
            p.expect(")")
        words += [] if word == "const" else [word]
    kind = p.type_name()
    found = []
    while True:
        name = p.take()
        if p.accept("["):
            count = None if p.peek() == "]" else p.expression()
            p.expect("]")
            found.append((name, "array", count))
        elif p.accept("("):
            found.append((name, "made", p.items(")")))
        elif p.accept("="):
            found.append((name, "=", p.expression()))
        else:
            found.append((name, "", None))
        if not p.accept(","):
            break
    p.expect(";")
    return "declare", tuple(words), kind, tuple(found)
