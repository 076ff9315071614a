"""PTX text -> `Function`s. One pass over statements; scopes are resolved by renaming."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field

from . import operands as operand
from .errors import PtxSyntaxError
from .syntax import Function, Instruction, Param, Reg, Source, Variable

SIZES = {"8": 1, "16": 2, "32": 4, "64": 8}
STATEMENT = re.compile(
    r"\s*(?:([A-Za-z_$%][\w$]*)\s*:(?!:)|([{}])|((?:[^;{}]|\{[^{}]*\})*?);)", re.S
)
RANGE = re.compile(r"([%\w$]+)<(\d+)>$")
PARAM = re.compile(
    r"\.param\s+(?:\.align\s+(\d+)\s+)?\.(\w+)\s+(?:\.ptr\S*\s+(?:\.\w+\s+)?(?:\.align\s+\d+\s+)?)?"
    r"([\w$]+)(?:\[(\d+)\])?"
)
VARIABLE = re.compile(
    r"(?:\.(?:visible|extern|weak)\s+)*\.(global|const|shared|local)\s+(?:\.align\s+(\d+)\s+)?"
    r"(?:\.attribute\S*\s+)?\.(\w+)\s+([\w$]+)(?:\[(\d*)\])?\s*(?:=\s*(.*))?$",
    re.S,
)
ENTRY = re.compile(r"\.entry\s+([\w$]+)\s*\(([^)]*)\)([^{;]*)\{", re.S)
DIRECTIVE = re.compile(r"\.(\w+)((?:\s+\d+\s*,?)*)")
GUARD = re.compile(r"@(!?)([%\w$]+)\s+")
LOC = re.compile(r"\.loc\s+(\d+\s+\d+\s+\d+)(?:.*inlined_at\s+(\d+\s+\d+\s+\d+))?", re.S)
FILE = re.compile(r'\.file\s+(\d+)\s+"([^"]*)"')


def parse(ptx: str) -> dict[str, Function]:
    """The kernels of a PTX module by name. Raises PtxSyntaxError."""
    text = _without_comments(ptx)
    files = {int(n): name.rsplit("/", 1)[-1] for n, name in FILE.findall(text)}
    found: dict[str, Function] = {}
    outside, position = [], 0
    for match in ENTRY.finditer(text):
        end = _closing(text, match.end())
        outside.append(text[position : match.start()])
        first_line = text.count("\n", 0, match.end()) + 1
        found[match[1]] = _function(match, text[match.end() : end], first_line, files)
        position = end + 1
    variables = _variables("".join([*outside, text[position:]]))
    for function in found.values():
        function.variables = {**variables, **function.variables}
    return found


def size_of(kind: str) -> int:
    """Bytes of a PTX scalar type such as `u32`."""
    return 1 if kind == "pred" else SIZES[re.sub(r"\D", "", kind)]


def _without_comments(ptx: str) -> str:
    """Comments become spaces, so that lines keep their numbers; .loc and .file, which alone end with
    their line, get a semicolon."""
    keep_lines = lambda m: re.sub(r"[^\n]", " ", m[0])  # noqa: E731
    text = re.sub(r"//[^\n]*|/\*.*?\*/", keep_lines, ptx, flags=re.S)
    return re.sub(r"^(\s*\.(?:loc|file)\b[^\n]*?);?[ \t]*$", r"\1;", text, flags=re.M)


def _closing(text: str, start: int) -> int:
    depth = 1
    for match in re.finditer(r"[{}]", text[start:]):
        depth += 1 if match[0] == "{" else -1
        if depth == 0:
            return start + match.start()
    raise PtxSyntaxError("a kernel's body has no end")


def _variables(text: str) -> dict[str, Variable]:
    statements = (s.strip() for s in text.split(";"))
    found = (_variable(s[s.find(".") :]) for s in statements if "." in s)
    return {v.name: v for v in found if v}


def _variable(statement: str) -> Variable | None:
    match = VARIABLE.search(statement)
    if not match:
        return None
    space, align, kind, name, count, init = match.groups()
    item = size_of(kind)
    size = 0 if count == "" else item * int(count or 1)
    data = _initial(init, item) if init else b""
    return Variable(name=name, space=space, align=int(align or item), size=size, init=data)


def _initial(text: str, item: int) -> bytes:
    values = [v.strip() for v in text.strip().strip("{}").split(",") if v.strip()]
    mask = (1 << 8 * item) - 1
    return b"".join((_number(v) & mask).to_bytes(item, "little") for v in values)


def _number(text: str) -> int:
    if text[:2].lower() in ("0f", "0d"):
        return int(text[2:], 16)
    if "." in text:
        return int(struct.unpack("<I", struct.pack("<f", float(text)))[0])
    return int(text.rstrip("U"), 0)


def _params(text: str) -> tuple[Param, ...]:
    params: list[Param] = []
    offset = 0
    for align, kind, name, count in PARAM.findall(text):
        item = size_of(kind)
        alignment = int(align or item)
        offset = -(-offset // alignment) * alignment
        size = item * int(count or 1)
        params.append(Param(name=name, type=kind, align=alignment, size=size, offset=offset))
        offset += size
    return tuple(params)


def _directives(text: str) -> dict[str, tuple[int, ...]]:
    return {n: tuple(int(x) for x in re.findall(r"\d+", v)) for n, v in DIRECTIVE.findall(text)}


def _function(match: re.Match[str], body: str, line: int, files: dict[int, str]) -> Function:
    function = Function(name=match[1], params=_params(match[2]), directives=_directives(match[3]))
    _Body(function=function, text=body, first_line=line, files=files).parse()
    return function


@dataclass(kw_only=True)
class _Body:
    """The state of parsing one kernel's body."""

    function: Function
    text: str
    first_line: int
    files: dict[int, str]
    scopes: list[dict[str, str]] = field(default_factory=lambda: [{}])
    blocks: int = 0
    label: str = ""  # the last one
    source: Source | None = None
    inlined: dict[tuple[int, ...], tuple[int, ...]] = field(default_factory=dict)
    pending: list[tuple[list[dict[str, str]], str, int, Source | None]] = field(
        default_factory=list
    )

    def parse(self) -> None:
        """Statements first, operands after: a label may be used before it stands."""
        for label, brace, statement, line in self._statements():
            if label:
                self.label = self._declare(label)
                self.function.labels[self.label] = len(self.pending)
            elif brace:
                self._scope(brace)
            else:
                self._statement(statement, line)
        for item in self.pending:
            self.function.body.append(self._instruction(*item))

    def _statements(self) -> Iterator[tuple[str, str, str, int]]:
        position, line, counted = 0, self.first_line, 0
        while match := STATEMENT.match(self.text, position):
            start = match.start(match.lastindex or 0)
            line += self.text.count("\n", counted, start)
            counted = start
            position = match.end()
            label, brace, statement = match.groups()
            yield label or "", brace or "", (statement or "").strip(), line
        if self.text[position:].strip():
            raise PtxSyntaxError(f"line {line}: {self.text[position:].strip()[:60]!r}")

    def _scope(self, brace: str) -> None:
        if brace == "{":
            self.blocks += 1
            self.scopes = [*self.scopes, {"": f"@{self.blocks}"}]
        else:
            self.scopes = self.scopes[:-1]

    def _declare(self, name: str) -> str:
        unique = name + self.scopes[-1].get("", "")
        self.scopes[-1][name] = unique
        return unique

    def _statement(self, text: str, line: int) -> None:
        if text.startswith(".reg"):
            self._registers(text)
        elif found := LOC.match(text):
            self._located(found)
        elif text.startswith(".branchtargets"):
            names = tuple(n.strip() for n in text.split(None, 1)[1].split(","))
            self.function.tables[self.label] = names
        elif text.startswith((".shared", ".local", ".global", ".const")):
            variable = _variable(text)
            assert variable
            self.function.variables[variable.name] = variable
        elif text and not text.startswith("."):
            self.pending.append((self.scopes, text, line, self.source))

    def _located(self, found: re.Match[str]) -> None:
        """A .loc inside an inlined function says where it was inlined: the kernel's own line counts."""
        here, outer = (tuple(map(int, x.split())) if x else None for x in found.groups())
        assert here
        if outer:
            self.inlined[here] = outer
        line = here[1]
        while here in self.inlined and self.inlined[here] != here:
            here = self.inlined[here]
        self.source = Source(file=self.files.get(here[0], "?"), line=here[1], inner=line)

    def _registers(self, text: str) -> None:
        kind, names = text.split(None, 2)[1:]
        for name in (n.strip() for n in names.split(",")):
            many = RANGE.match(name)
            each = [f"{many[1]}{i}" for i in range(int(many[2]))] if many else [name]
            self.function.registers |= {self._declare(n): kind.lstrip(".") for n in each}

    def _instruction(
        self, scopes: list[dict[str, str]], text: str, line: int, source: Source | None
    ) -> Instruction:
        def resolve(name: str) -> str:
            return next((s[name] for s in reversed(scopes) if name in s), name)

        guard = GUARD.match(text)
        opcode, _, rest = (text[guard.end() :] if guard else text).partition(" ")
        opcode, _, tabbed = opcode.partition("\t")
        known = self.function.registers
        try:
            operands = operand.split(tabbed + " " + rest, resolve, known)
        except ValueError as e:
            raise PtxSyntaxError(f"line {line}: {text!r}: {e}") from e
        predicate = Reg(resolve(guard[2]), guard[1] == "!") if guard else None
        return Instruction(
            opcode=opcode, operands=operands, guard=predicate, line=line, source=source
        )
