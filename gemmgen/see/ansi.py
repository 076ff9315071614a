"""Colours for a terminal: a few classes of words per language, nothing parsed."""

from __future__ import annotations

import re
from collections.abc import Mapping

# SGR codes that are legible on dark and light backgrounds.
CODES = {"comment": "2", "name": "34", "kind": "36", "number": "33", "title": "1"}
RESET = "\x1b[0m"

NUMBER = r"(?P<number>\b(?:0x[0-9a-fA-F]+|\d+(?:\.\d+)?f?)\b)"
WORDS: Mapping[str, re.Pattern[str]] = {
    "ir": re.compile(
        r"(?P<title>^\w[^\n]*$)|(?P<name>^ +[A-Z]\w+)|(?P<kind>\b\w+(?==))|" + NUMBER, re.M
    ),
    "cu": re.compile(
        r"(?P<comment>//[^\n]*)|(?P<kind>^ *#[^\n]*|\b(?:const|int|uint\d+_t|float|auto|for|if|else|void|struct"
        r"|return|switch|case|break|template|__\w+__)\b)|(?P<name>\b(?:ptx|scheduler|ring)\b[\w:.]*)|"
        + NUMBER,
        re.M,
    ),
    "ptx": re.compile(
        r"(?P<comment>//[^\n]*)|(?P<name>(?<=\t)[a-z][\w.:]+)|(?P<kind>%\w+|(?<![\w\])])\.\w+)|"
        + NUMBER
    ),
    "sass": re.compile(
        r"(?P<comment>/\*.*?\*/)|(?P<kind>\b(?:U?R\d+|U?RZ|!?U?P\d|U?PT)\b)|(?P<title>^\.L_x_\d+:)"
        r"|(?P<name>\b[A-Z][A-Z0-9]{2,}(?:\.[A-Z0-9_]+)*\b)|" + NUMBER,
        re.M,
    ),
}
LINES = {"+": "32", "-": "31", "@": "36"}  # of a unified diff, by their first character


def paint(text: str, language: str) -> str:
    """`text` with escape codes around words; without them it is `text` again."""

    def coloured(found: re.Match[str]) -> str:
        return f"\x1b[{CODES[found.lastgroup or 'comment']}m{found[0]}{RESET}"

    return WORDS[language].sub(coloured, text)


def paint_diff(lines: list[str]) -> list[str]:
    """A unified diff's lines: what is added, removed, and where."""
    codes = (LINES.get(line[:1]) for line in lines)
    return [f"\x1b[{c}m{x}{RESET}" if c else x for c, x in zip(codes, lines, strict=True)]
