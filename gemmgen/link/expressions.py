"""Tokens -> expressions, as nested tuples whose first item says what they are.

Beside C's: a string that is called, `"fence.proxy.async"()`, is the PTX instruction of that name, and
`[x]` and `{x, y}` are its operands. That is how the IR's side spells instructions; text has `asm`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from .errors import Unreadable
from .tokens import unquoted

Expr = Any  # an int, a name, or a tuple

ASSIGNMENTS = ("=", "+=", "-=", "*=", "/=", "%=", "&=", "|=", "^=", "<<=", ">>=")
OPERATORS = (  # from the weakest
    ("||",),
    ("&&",),
    ("|",),
    ("^",),
    ("&",),
    ("==", "!="),
    ("<", ">", "<=", ">="),
    ("<<", ">>"),
    ("+", "-"),
    ("*", "/", "%"),
)
LEVELS: dict[str, int] = {
    **dict.fromkeys(ASSIGNMENTS, 1),
    "?": 2,
    **{op: level for level, ops in enumerate(OPERATORS, 3) for op in ops},
}
UNARY = 13
TYPES = {
    *("void", "bool", "char", "int", "unsigned", "long", "float", "double", "auto", "short"),
    *("uint8_t", "uint16_t", "uint32_t", "uint64_t", "int8_t"),
}
QUALIFIERS = {"const", "constexpr", "static", "extern", "volatile"}
TEMPLATES = ("static_cast", "reinterpret_cast")


class Parser:
    """Over one list of tokens; `at` is the next."""

    def __init__(self, tokens: Sequence[str], statement: Callable[[Parser], Any]) -> None:
        self.tokens = [*tokens, "", ""]
        self.at = 0
        self.statement = statement  # how a lambda's body is read

    def peek(self) -> str:
        return self.tokens[self.at]

    def take(self) -> str:
        token = self.tokens[self.at]
        self.at += 1
        return token

    def expect(self, token: str) -> None:
        if self.tokens[self.at] != token:
            around = " ".join(self.tokens[max(0, self.at - 6) : self.at + 6])
            raise Unreadable(f"{token!r} is missing at: {around}")
        self.at += 1

    def accept(self, token: str) -> bool:
        if self.tokens[self.at] == token:
            self.at += 1
            return True
        return False

    # ---- expressions ----

    def comma(self) -> Expr:
        x = self.expression()
        while self.accept(","):
            x = (",", x, self.expression())
        return x

    def expression(self, least: int = 1) -> Expr:
        x = self.unary()
        while True:
            op = self.tokens[self.at]
            level = LEVELS.get(op, 0)
            if level < least or not level:
                return x
            self.at += 1
            if level == 1:
                x = ("=", op, x, self.expression(1))
            elif level == 2:
                yes = self.expression()
                self.expect(":")
                x = ("?", x, yes, self.expression(2))
            else:
                x = ("op", op, x, self.expression(level + 1))

    def unary(self) -> Expr:
        token = self.tokens[self.at]
        if token in ("-", "!", "~", "&", "*", "+"):
            self.at += 1
            return ("un", token, self.expression(UNARY))
        if token in ("++", "--"):
            self.at += 1
            return ("pre", token, self.expression(UNARY))
        if token == "(" and self._is_type(self.at + 1):
            self.at += 1
            kind = self.type_name()
            self.expect(")")
            return ("cast", kind, self.expression(UNARY))
        return self.postfix(self.primary())

    def postfix(self, x: Expr) -> Expr:
        while True:
            token = self.tokens[self.at]
            if token == "(":
                self.at += 1
                x = ("call", x, (), self.items(")"))
            elif token == "[":
                self.at += 1
                x = ("index", x, self.comma())
                self.expect("]")
            elif token in (".", "->"):
                self.at += 1
                x = (".", x, self.take())
            elif token in ("++", "--"):
                self.at += 1
                x = ("post", token, x)
            else:
                return x

    def primary(self) -> Expr:
        token = self.take()
        first = token[:1]
        if first.isdigit() or (first == "." and len(token) > 1):
            return number(token)
        if first == '"':
            while self.peek()[:1] == '"':
                token = token[:-1] + self.take()[1:]
            return ("str", unquoted(token))
        if token == "(":
            x = self.comma()
            self.expect(")")
            return x
        if token == "{":
            return ("list", self.items("}"))
        if token == "[":
            captures = self.tokens[self.at : self.at + 2] in (["&", "]"], ["=", "]"])
            return self.lambda_() if captures else ("mem", self.items("]"))
        if token in TYPES and self.peek() == "(":
            self.at += 1
            return ("cast", token, self.items(")")[0])
        if not (first.isalpha() or first in "_$") or not first:
            raise Unreadable(
                f"{token!r} is no expression: {' '.join(self.tokens[self.at - 4 : self.at + 4])}"
            )
        return self.named(token)

    def named(self, name: str) -> Expr:
        """A name, a call of a template with its arguments, or a cast in C++'s spelling."""
        if self.peek() != "<" or not (name in TEMPLATES or name.startswith("ptx::")):
            return name
        self.at += 1
        if name in TEMPLATES:
            kind = self.type_name()
            self.expect(">")
            self.expect("(")
            return ("cast", kind, self.items(")")[0])
        arguments = [self.expression(LEVELS["<<"])]
        while self.accept(","):
            arguments.append(self.expression(LEVELS["<<"]))
        self.expect(">")
        self.expect("(")
        return ("call", name, tuple(arguments), self.items(")"))

    def items(self, end: str) -> tuple[Expr, ...]:
        found: list[Expr] = []
        while not self.accept(end):
            found.append(self.expression())
            if not self.accept(","):
                self.expect(end)
                break
        return tuple(found)

    def lambda_(self) -> Expr:
        capture = self.take()
        self.expect("]")
        return ("lambda", capture, self.parameters(), self.statement(self))

    # ---- types ----

    def _is_type(self, at: int) -> bool:
        token = self.tokens[at]
        return token in QUALIFIERS or (token in TYPES and self.tokens[at + 1] != "(")

    def type_name(self) -> str:
        """`const uint32_t*`: words without `const`, and stars."""
        words: list[str] = []
        while True:
            token = self.peek()
            if token == "const":
                self.at += 1
            elif token in (*TYPES, "*", "&") or not (words or not token.isidentifier()):
                words.append(self.take())
            else:
                return " ".join(words)

    def parameters(self) -> tuple[tuple[str, str, Expr], ...]:
        """(type, name, count of an array) of each, after the opening parenthesis."""
        self.expect("(")
        found = []
        while not self.accept(")"):
            kind, count = self.type_name(), None
            array = self.accept("(")
            if array:
                self.expect("&")
            name = self.take()
            if array:
                self.expect(")")
                self.expect("[")
                count = self.expression()
                self.expect("]")
            found.append((kind, name, count))
            if not self.accept(","):
                self.expect(")")
                break
        return tuple(found)


def number(token: str) -> Expr:
    plain = token.rstrip("uUlL")
    try:
        return int(plain, 0)
    except ValueError:
        return ("float", token)
