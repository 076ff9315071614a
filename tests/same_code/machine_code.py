"""What a GPU executes of a cubin: its sections of code, without names, line tables and notes."""

from __future__ import annotations

import hashlib
import struct
from collections import Counter
from typing import NamedTuple

INSTRUCTION_BYTES = 16
OPCODE = 0xFFF  # of an instruction's first word


class Code(NamedTuple):
    """sha256: in hex. instructions: with those that fill up. kinds: how many of which, the same where registers are
    others, or the order is."""

    sha256: str
    instructions: int
    kinds: tuple[tuple[int, int], ...] = ()


def machine_code(cubin: bytes) -> Code:
    """Of the `.text` sections of an ELF64 file."""
    (sections,) = struct.unpack_from("<Q", cubin, 0x28)
    size, count, names = struct.unpack_from("<HHH", cubin, 0x3A)
    heads = [struct.unpack_from("<IIQQQQ", cubin, sections + size * i) for i in range(count)]
    at = heads[names][4]
    code = b""
    for name, _, _, _, offset, length in heads:
        label = cubin[at + name : cubin.index(b"\0", at + name)]
        if label.startswith(b".text."):
            code += cubin[offset : offset + length]
    if not code:
        raise ValueError("a cubin without code")
    opcodes = (word & OPCODE for word, _ in struct.iter_unpack("<QQ", code))
    kinds = tuple(sorted(Counter(opcodes).items()))
    return Code(hashlib.sha256(code).hexdigest(), len(code) // INSTRUCTION_BYTES, kinds)
