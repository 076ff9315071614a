"""A translation unit: what it declares, by name. Bodies are read when they are asked for."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from .errors import Unreadable
from .expressions import Expr, Parser
from .statements import Statement, declaration, parsed, statement
from .tokens import declarations, tokens

FUNCTION = ("__device__", "__forceinline__")


@dataclass(frozen=True, kw_only=True)
class Function:
    """`returns` name<templates>(parameters) { body }; `words` are what stands before."""

    words: tuple[str, ...]
    returns: str
    name: str
    templates: tuple[tuple[str, str], ...]  # kind, name
    parameters: tuple[tuple[str, str, Expr], ...]
    body: tuple[Statement, ...]


@dataclass(frozen=True, kw_only=True)
class Unit:
    """`heads` are typedefs, lines of the preprocessor and opaque structs, as tokens; `constants` are those at the
    top; `ptx` the functions of that namespace, `others` those beside it, `structs` all structs but opaque ones."""

    heads: tuple[tuple[str, ...], ...]
    constants: dict[str, Expr]
    ptx: dict[str, str]
    others: dict[str, str]
    structs: dict[str, str]
    kernel: str


def unit(text: str) -> Unit:
    heads: list[tuple[str, ...]] = []
    constants: dict[str, Expr] = {}
    ptx: dict[str, str] = {}
    others: dict[str, str] = {}
    structs: dict[str, str] = {}
    kernel = ""
    for piece in declarations(text):
        words = tokens(piece[:400])
        match words[0] if words else "":
            case "":
                continue
            case "constexpr":
                constants |= dict(_constants(piece))
            case "namespace":
                if words[1] != "ptx":
                    raise Unreadable(f"namespace {words[1]}")
                for name, text in _namespace(piece).items():
                    _add(ptx, name, text)
            case "struct" if "opaque" not in words:
                _add(structs, words[words.index("{") - 1], piece)
            case "__device__" | "template":
                _add(others, name_of(piece), piece)
            case "extern":
                if kernel:
                    raise Unreadable("two kernels in one text")
                kernel = piece
            case _:
                heads.append(tuple(tokens(piece)))
    if not kernel:
        raise Unreadable("there is no kernel in the text")
    return Unit(
        heads=tuple(heads),
        constants=constants,
        ptx=ptx,
        others=others,
        structs=structs,
        kernel=kernel,
    )


def _add(table: dict[str, str], name: str, text: str) -> None:
    if table.get(name):
        raise Unreadable(f"{name} is defined twice")
    table[name] = text


@lru_cache(maxsize=256)
def _namespace(piece: str) -> dict[str, str]:
    """The functions of namespace ptx, by their qualified names; "" of one that is only declared."""
    found: dict[str, str] = {}
    for each in declarations(piece[piece.index("{") + 1 : piece.rindex("}")]):
        _add(found, f"ptx::{name_of(each)}", each if each.endswith("}") else "")
    return found


def _constants(piece: str) -> list[tuple[str, Expr]]:
    found = parsed(piece)[0]
    if found[1] != ("constexpr",) or found[2] not in ("int", "uint32_t"):
        raise Unreadable(f"no constant: {piece}")
    return [(name, value) for name, _, value in found[3]]


@lru_cache(maxsize=1024)
def name_of(text: str) -> str:
    return _head(text)[1].name


def _head(text: str) -> tuple[Parser, Function]:
    """The parser before the body, and the function without it."""
    p = Parser(tokens(text), statement)
    templates: list[tuple[str, str]] = []
    if p.accept("template"):
        p.expect("<")
        while not p.accept(">"):
            templates.append((p.take(), p.take()))
            if p.peek() != ">":
                p.expect(",")
    words = []
    while p.peek() in FUNCTION:
        words.append(p.take())
    returns = p.type_name()
    name = p.take()
    head = Function(
        words=tuple(words),
        returns=returns,
        name=name,
        templates=tuple(templates),
        parameters=p.parameters(),
        body=(),
    )
    return p, head


@lru_cache(maxsize=1024)
def function(text: str) -> Function:
    """Of its text; kept, since kernels have most of their functions in common."""
    p, head = _head(text)
    body = statement(p)
    if body[0] != "block" or p.peek():
        raise Unreadable(f"{head.name} has no body, or something after it")
    return Function(**{**vars(head), "body": body[1]})


@dataclass(frozen=True, kw_only=True)
class Struct:
    """`head`: its first line's tokens; `fields` are declarations, `methods` functions (a constructor's
    initialisers are declarations too)."""

    head: tuple[str, ...]
    fields: tuple[Statement, ...]
    methods: tuple[Function, ...]


@lru_cache(maxsize=256)
def struct(text: str) -> Struct:
    p = Parser(tokens(text), statement)
    head = []
    while not p.accept("{"):
        head.append(p.take())
    name, fields, methods = head[-1], [], []
    while not p.accept("}"):
        if p.peek() == "__device__":
            methods.append(_method(p, name))
        else:
            fields.append(declaration(p))
    p.expect(";")
    return Struct(head=tuple(head), fields=tuple(fields), methods=tuple(methods))


def _method(p: Parser, of: str) -> Function:
    words = [p.take()]
    returns = "" if p.peek() == of else p.type_name()
    name, parameters = p.take(), p.parameters()
    first: list[Statement] = []
    if p.accept(":"):
        while p.peek() != "{":
            member = p.take()
            p.expect("(")
            first.append(("expr", ("=", "=", member, p.items(")")[0])))
            p.accept(",")
    if p.accept("const"):
        words.append("const")
    body = statement(p)
    return Function(
        words=tuple(words),
        returns=returns,
        name=name,
        templates=(),
        parameters=parameters,
        body=(*first, *body[1]),
    )


@dataclass(frozen=True, kw_only=True)
class Entry:
    """The kernel: all that stands before its body, and the body."""

    head: tuple[str, ...]
    parameters: tuple[tuple[str, str], ...]
    body: tuple[Statement, ...]


def entry(text: str) -> Entry:
    words = tokens(text)
    opens = words.index("{")
    p = Parser(words, statement)
    p.at = opens
    body = statement(p)
    first = len(words[:opens]) - words[:opens][::-1].index("(")
    parameters: list[tuple[str, str]] = []
    part: list[str] = []
    for word in words[first:opens]:
        if word in (",", ")"):
            if part:
                parameters.append((" ".join(part[:-1]), part[-1]))
            part = []
        else:
            part.append(word)
    return Entry(head=tuple(words[:opens]), parameters=tuple(parameters), body=body[1])
