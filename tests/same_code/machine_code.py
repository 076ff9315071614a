"""What a GPU executes of a cubin: its sections of code, without names, line tables and notes."""

from __future__ import annotations

import hashlib
import struct


def machine_code(cubin: bytes) -> str:
    """The SHA-256 of the `.text` sections of an ELF64 file, in hex."""
    (sections,) = struct.unpack_from("<Q", cubin, 0x28)
    size, count, names = struct.unpack_from("<HHH", cubin, 0x3A)
    heads = [struct.unpack_from("<IIQQQQ", cubin, sections + size * i) for i in range(count)]
    at = heads[names][4]
    digest, found = hashlib.sha256(), 0
    for name, _, _, _, offset, length in heads:
        label = cubin[at + name : cubin.index(b"\0", at + name)]
        if label.startswith(b".text."):
            digest.update(cubin[offset : offset + length])
            found += 1
    if not found:
        raise ValueError("a cubin without code")
    return digest.hexdigest()
