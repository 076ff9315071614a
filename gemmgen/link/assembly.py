"""The text of an asm statement -> PTX instructions, with their operands as the statement names them.

What each instruction needs of the C compiler is told by its opcode: see NEEDS.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from .errors import Unreadable

Operand = Any  # ("%", n), ("mem", (...)), ("list", (...)), ("reg", type, name), a number or a word

TOKEN = re.compile(r"%%?\w+|[\w$.:]+|[\[\]{},@!;]")
STRAY = re.compile(r"[^\s\w%$.:\[\]{},@!;]")

# Whether the C compiler may move or drop it (none), must keep it in its place among others that are kept
# ("volatile"), or must also not move reads and writes of memory across it ("memory").
PURE, VOLATILE, MEMORY = "", "volatile", "memory"
NEEDS: dict[str, str] = {
    **dict.fromkeys(("mapa", "cvt", "selp", "setp", "sub", "mul", "mad", "prmt", "lop3"), PURE),
    # Special registers: who a thread is stays so, clocks run.
    "mov": PURE,
    "ld.acquire": MEMORY,
    **dict.fromkeys(("setmaxnreg", "prefetch", "ld", "wgmma.mma_async", "mma"), VOLATILE),
    "griddepcontrol.launch_dependents": VOLATILE,
    "griddepcontrol.wait": MEMORY,
    **dict.fromkeys(("mbarrier", "fence", "barrier", "bar"), MEMORY),
    **dict.fromkeys(("atom", "cp", "st", "stmatrix", "tensormap"), MEMORY),
    **dict.fromkeys(("wgmma.fence", "wgmma.commit_group", "wgmma.wait_group"), MEMORY),
}
CLOCKS = ("%clock", "%clock64", "%globaltimer")


@dataclass(frozen=True, kw_only=True)
class Instruction:
    opcode: str  # with all its qualifiers
    operands: tuple[Operand, ...]
    predicate: tuple[bool, str] | None = None  # (whether it is negated, the register)
    label: str = ""  # that stands before it
    needs: str = PURE


@lru_cache(maxsize=1024)
def instructions(text: str) -> tuple[Instruction, ...]:
    """What `text` holds, in order, `bra` among it. Registers that it declares carry their type.
    Raises Unreadable for what is no instruction of the table."""
    if STRAY.search(text):
        raise Unreadable(f"{STRAY.search(text)[0]!r} in an asm text: {text!r}")  # type: ignore[index]
    words = TOKEN.findall(text)
    if words[:1] == ["{"]:
        if words[-1] != "}":
            raise Unreadable(f"a block of an asm text does not end: {text!r}")
        words = words[1:-1]
    registers: dict[str, str] = {}
    found: list[Instruction] = []
    label, at = "", 0
    while at < len(words):
        if words[at].endswith(":"):
            label, at = words[at][:-1], at + 1
            continue
        if ";" not in words[at:]:
            raise Unreadable(f"an instruction does not end: {text!r}")
        end = words.index(";", at)
        line, at = words[at:end], end + 1
        if line and line[0] == ".reg":
            kind, name = line[1:] if len(line) == 3 else ("", "")
            if not kind.startswith("."):
                raise Unreadable(f"no declaration of a register: {' '.join(line)}")
            registers[name] = kind[1:]
        elif line:
            found.append(_instruction(line, registers, label))
            label = ""
    if label:
        raise Unreadable(f"nothing follows {label}: {text!r}")
    return tuple(found)


def _instruction(line: list[str], registers: dict[str, str], label: str) -> Instruction:
    predicate = None
    if line[0] == "@":
        negated = line[1] == "!"
        predicate = negated, line[1 + negated]
        line = line[2 + negated :]
        if predicate[1] not in registers:
            raise Unreadable(f"@{predicate[1]} is not declared")
    opcode, rest = line[0], line[1:]
    operands, at = (
        _operands(rest, 0, "", registers) if opcode != "bra" else (tuple(rest), len(rest))
    )
    if at != len(rest):
        raise Unreadable(f"operands of {opcode}: {' '.join(rest)}")
    return Instruction(
        opcode=opcode,
        operands=operands,
        predicate=predicate,
        label=label,
        needs=needs(opcode, operands),
    )


def needs(opcode: str, operands: tuple[Operand, ...]) -> str:
    if opcode == "mov.u64" and operands[1:] == ("%clock64",):
        return MEMORY
    if operands[1:] and operands[1] in CLOCKS:
        return VOLATILE
    parts = opcode.split(".")
    for name in (".".join(parts[:2]), parts[0]):
        if name in NEEDS:
            return NEEDS[name]
    if opcode == "bra":
        return PURE
    raise Unreadable(f"{opcode!r} is no instruction that gemmgen's kernels have")


def _operands(
    words: list[str], at: int, end: str, registers: dict[str, str]
) -> tuple[tuple[Operand, ...], int]:
    """Up to `end`, and where it stands."""
    found: list[Operand] = []
    while at < len(words) and words[at] != end:
        word, at = words[at], at + 1
        if word in ("[", "{"):
            close = "]" if word == "[" else "}"
            inside, at = _operands(words, at, close, registers)
            if at >= len(words):
                raise Unreadable(f"{word} is not closed: {' '.join(words)}")
            found.append(("mem" if word == "[" else "list", inside))
            at += 1
        else:
            found.append(_operand(word, registers))
        if at < len(words) and words[at] == "," and at + 1 < len(words) and words[at + 1] != end:
            at += 1
        elif at < len(words) and words[at] != end:
            raise Unreadable(f"a comma is missing: {' '.join(words)}")
    return tuple(found), at


def _operand(word: str, registers: dict[str, str]) -> Operand:
    if re.fullmatch(r"%\d+", word):
        return "%", int(word[1:])
    if word.startswith("%%"):
        return word[1:]
    if word in registers:
        return "reg", registers[word], word
    if re.fullmatch(r"0[fF][0-9a-fA-F]{8}|_", word):
        return word
    try:
        return int(word, 0)
    except ValueError:
        raise Unreadable(f"{word!r} in an asm text is neither operand nor register") from None


def whole(parts: tuple[Operand, ...], operands: list[Any]) -> bool:
    """Whether `parts` are all of the array's registers, in order."""
    first, n = operands[0] if operands else 0, len(parts)
    return (
        isinstance(first, tuple)
        and first[0] == "all"
        and first[2] == n
        and parts == tuple(("%", i) for i in range(n))
    )


def early(found: tuple[Instruction, ...], out: int, outs: int) -> bool:
    """Whether an instruction writes the statement's operand `out` before another reads one that is not among the first `outs`."""
    writes = [at for at, i in enumerate(found) if out in _named(i.operands[:1])]
    reads = [at for at, i in enumerate(found) if any(n >= outs for n in _named(i.operands[1:]))]
    return bool(writes and reads) and writes[0] < reads[-1]


def _named(operands: tuple[Operand, ...]) -> set[int]:
    """Operands of the statement among those of an instruction."""
    found: set[int] = set()
    for x in operands:
        if isinstance(x, tuple):
            found |= {x[1]} if x[0] == "%" else _named(x[1]) if x[0] != "reg" else set()
    return found
