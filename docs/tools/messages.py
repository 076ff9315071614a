"""Every error that gemmgen raises on purpose, found in its source: class, message, file."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from gemmgen import errors

ROOT = Path(__file__).parent.parent.parent
OWN_BUGS = ("IRError",)  # no user causes one


@dataclass(frozen=True, kw_only=True)
class Raised:
    """One `raise`. what: the argument or rule it names; says: its message, `{}` where a value stands."""

    error: str
    what: str
    says: str
    file: str


def classes() -> tuple[type[errors.GemmgenError], ...]:
    """The exception classes of gemmgen.errors, in their order there."""
    found = (c for c in vars(errors).values() if isinstance(c, type))
    return tuple(c for c in found if issubclass(c, errors.GemmgenError))


@cache
def raised() -> tuple[Raised, ...]:
    """Every `raise` of a class of gemmgen.errors with a message in its place; in order of class and file."""
    names = [c.__name__ for c in classes() if c.__name__ not in OWN_BUGS]
    found = []
    for path in sorted((ROOT / "gemmgen").rglob("*.py")):
        for error, arguments in _raises(ast.parse(path.read_text())):
            if error in names and arguments:
                found.append(_entry(error, arguments, path.relative_to(ROOT).as_posix()))
    unique = {r: None for r in found if r.says.strip("{}. ")}
    return tuple(sorted(unique, key=lambda r: (names.index(r.error), r.what, r.says, r.file)))


def _raises(tree: ast.AST) -> Iterator[tuple[str, list[ast.expr]]]:
    for node in ast.walk(tree):
        match node:
            case ast.Raise(exc=ast.Call(func=ast.Name(id=name), args=arguments)):
                yield name, arguments


def _entry(error: str, arguments: list[ast.expr], file: str) -> Raised:
    first, says = text(arguments[0]), text(arguments[-1])
    if error == "ArgumentError":
        return Raised(error=error, what=first, says=says, file=file)
    if error == "IllegalConfig":
        rule = first.strip("{}").lower().replace("_", "-")  # a rule's constant is named as its id
        return Raised(error=error, what=rule, says=says, file=file)
    return Raised(error=error, what="", says=first, file=file)


def text(node: ast.expr) -> str:
    """A message as its source spells it; `{name}` where a value stands."""
    match node:
        case ast.Constant(value=str() as value):
            return value
        case ast.JoinedStr(values=values):
            return "".join(text(v) for v in values)
        case ast.FormattedValue(value=value):
            return "{" + _short(value) + "}"
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return text(left) + text(right)
        case _:
            return "{" + _short(node) + "}"


def _short(node: ast.expr) -> str:
    """The name of a value, or `...`."""
    spelled = ast.unparse(node)
    return spelled if spelled.replace(".", "").replace("_", "").isalnum() else "..."


def page() -> str:
    """The Markdown of the catalogue of messages."""
    parts = [
        "# Messages\n",
        "Made from the source: every error that gemmgen raises on purpose, with its message. `{...}` stands for a\n"
        "value. [errors.md](errors.md) says what each class means, [rules.md](rules.md) why configs are refused.\n",
    ]
    for c in classes():
        mine = [r for r in raised() if r.error == c.__name__]
        if mine:
            head = "| of | message | raised in |\n| --- | --- | --- |"
            rows = "\n".join(_row(r) for r in mine)
            parts.append(f"## {c.__name__}\n\n{head}\n{rows}\n")
    return "\n".join(parts)


def _row(r: Raised) -> str:
    says = " ".join(r.says.split()).replace("|", "\\|").replace("<", "&lt;")
    what = r.what.replace("|", "\\|")
    return f"| {f'`{what}`' if what else ''} | {says} | `{r.file}` |"
