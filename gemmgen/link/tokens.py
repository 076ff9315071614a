"""CUDA text -> tokens, and the declarations at its top level."""

from __future__ import annotations

import re
from collections.abc import Iterator

from .errors import Unreadable

STRING = r'"(?:\\.|[^"\\])*"'
TOKEN = re.compile(
    r"//[^\n]*|/\*.*?\*/"
    r"|" + STRING + r"|[$A-Za-z_]\w*(?:::[A-Za-z_]\w*)*"
    r"|0[xX][0-9a-fA-F]+[uUlL]*|(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?[fFuUlL]*"
    r"|\#[^\n]*"
    r"|<<=|>>=|->|\+\+|--|<<|>>|<=|>=|==|!=|&&|\|\||[-+*/%&|^]=|::|\S",
    re.S,
)
MARKS = re.compile(r"//[^\n]*|/\*.*?\*/|^\#[^\n]*|" + STRING + r"|[{};]", re.S | re.M)


def tokens(text: str) -> list[str]:
    """Without comments."""
    return [t for t in TOKEN.findall(text) if not t.startswith(("//", "/*"))]


def declarations(text: str) -> Iterator[str]:
    """Pieces of `text` at depth 0: up to a semicolon, or to the brace that closes what is no initialiser.
    A line of the preprocessor is one."""
    depth = start = 0
    for mark in MARKS.finditer(text):
        what = mark[0]
        if what[:2] in ("//", "/*") and not text[start : mark.start()].strip():
            start = mark.end()
        if what == "{":
            depth += 1
        elif what == "}":
            depth -= 1
        ended = what == ";" or (what == "}" and not _goes_on(text, start, mark.end()))
        if depth == 0 and (ended or what[0] == "#"):
            yield text[start : mark.end()].strip()
            start = mark.end()
        if depth < 0:
            raise Unreadable("a brace closes what none opened")
    if depth or tokens(text[start:]):
        raise Unreadable("the text ends inside a declaration")


def _goes_on(text: str, start: int, at: int) -> bool:
    """Whether a semicolon follows the brace, as after a struct."""
    return re.match(r"\s*;", text[at : at + 80]) is not None


def unquoted(token: str) -> str:
    """The characters of a string literal."""
    inside = token[1:-1]
    return inside.encode().decode("unicode_escape") if "\\" in inside else inside
