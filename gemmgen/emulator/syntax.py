"""PTX as data: what the parser makes of the text. Names and types are still strings here."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property


@dataclass(frozen=True)
class Reg:
    """A register by its unique name (scopes resolved); `negated` for `!%p`."""

    name: str
    negated: bool = False


@dataclass(frozen=True)
class Imm:
    """A literal: `bits` is the integer, or the bit pattern of a float of `width` bits."""

    bits: int
    width: int = 0  # 0: an integer, 32 or 64: a float


@dataclass(frozen=True)
class Special:
    """A special register, e.g. `tid.x`."""

    name: str


@dataclass(frozen=True)
class Symbol:
    """A variable, parameter or label by name."""

    name: str


@dataclass(frozen=True)
class Address:
    """`[base + offset]`; `coords` are the coordinates of a tensor address `[map, {x, y}]`."""

    base: Reg | Imm | Symbol
    offset: int = 0
    coords: tuple[Operand, ...] = ()


@dataclass(frozen=True)
class Vector:
    """`{a, b, ...}`."""

    items: tuple[Operand, ...]


@dataclass(frozen=True)
class Pair:
    """`%r2|%p1`: a result and a predicate."""

    first: Reg | None
    second: Reg | None


@dataclass(frozen=True)
class Sink:
    """`_`: the result is discarded."""


Operand = Reg | Imm | Special | Symbol | Address | Vector | Pair | Sink


@dataclass(frozen=True, kw_only=True)
class Source:
    """A line of the CUDA source; `inner` is the line in the function that was inlined there."""

    file: str
    line: int
    inner: int

    def __str__(self) -> str:
        inlined = f", inlined from line {self.inner}" if self.inner != self.line else ""
        return f"{self.file}:{self.line}{inlined}"


@dataclass(frozen=True, kw_only=True)
class Instruction:
    """One instruction; `parts` is its opcode split at the dots, `root` what says what it does."""

    opcode: str
    operands: tuple[Operand, ...]
    guard: Reg | None
    line: int  # in the PTX
    source: Source | None  # of the preceding .loc

    @cached_property
    def parts(self) -> tuple[str, ...]:
        return tuple(self.opcode.split("."))

    @cached_property
    def text(self) -> str:
        where = f" ({self.source})" if self.source else ""
        return f"{self.opcode} at PTX line {self.line}{where}"

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, kw_only=True)
class Variable:
    """A .global, .const or .shared variable; `size` 0: the dynamic shared memory."""

    name: str
    space: str
    align: int
    size: int
    init: bytes = b""


@dataclass(frozen=True, kw_only=True)
class Param:
    """A kernel parameter at `offset` in the parameter space."""

    name: str
    type: str  # "u32", "b8", ...
    align: int
    size: int
    offset: int


@dataclass(kw_only=True)
class Function:
    """A kernel: `body` in order, `labels` and branch `tables` by unique name."""

    name: str
    params: tuple[Param, ...]
    registers: dict[str, str] = field(default_factory=dict)  # name -> type
    body: list[Instruction] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)
    tables: dict[str, tuple[str, ...]] = field(default_factory=dict)
    variables: dict[str, Variable] = field(default_factory=dict)
    directives: dict[str, tuple[int, ...]] = field(default_factory=dict)
