"""How the files that gemmgen writes begin: only such a file is written over.

The word alone says nothing: people write about gemmgen, and keep what it printed. So each format has its mark at
one place, near the beginning; a cubin, which others name the parts of, has it in the names of its functions.
"""

from __future__ import annotations

import re
import struct
from itertools import takewhile
from pathlib import Path
from typing import BinaryIO

HEAD = 1 << 16  # bytes in which a mark ends
MARKS = re.compile(
    rb"""(?x)
    //\ gemmgen_\w+\n//\ Generated\ by\ gemmgen;                      # a kernel's source
    | (?://|\#)\ Generated\ by\ gemmgen[:.]\                          # IR, C code, CMakeLists.txt
    | \#\ gemmgen\ bench\n                                            # CSV
    | \{\n\ \ "generator":\ "gemmgen\ bench",\n                       # JSON of a benchmark
    | \{\n\ \ "format":\ \d+,\n\ \ "generator":\ "gemmgen",\n         # a pack's manifest
    | \{"otherData":\ \{"generator":\ "gemmgen",\                     # a trace
    | \{"gemmgen":\ (?:\d+|"tune"|"regret"|"sweep"),\ "problem":\    # measured configs, a tuner's logs
    | <!DOCTYPE\ html>\n<html\ lang="en">\n<head>\n<meta\ charset="utf-8">\n<meta\ name="generator"\ content="gemmgen">\n
    | <svg\ [^<>]*>\n<title[^<>]*>[^<>]*</title>\n<desc[^<>]*>[^<>]*</desc>\n<!--\ Generated\ by\ gemmgen\.\ -->\n
    """
)
ELF = b"\x7fELF\x02\x01"  # of 64 bits, little-endian
SECTION = struct.Struct("<IIQQQQIIQQ")
FUNCTION, OWN = b".text.", b".text.gemmgen_"
MOST_NAMES = 1 << 20  # bytes of the names of an ELF file's sections


def is_ours(path: Path) -> bool:
    """Whether gemmgen wrote it; a pipe or a device is not opened."""
    if not path.is_file():
        return False
    with path.open("rb") as f:
        head = f.read(HEAD)
        return bool(MARKS.match(head)) or (head.startswith(ELF) and _own_functions(f, head))


def _own_functions(f: BinaryIO, head: bytes) -> bool:
    """Whether an ELF file has functions, all of them gemmgen's kernels."""
    try:
        names = [x for x in _sections(f, head) if x.startswith(FUNCTION)]
    except (struct.error, OSError, ValueError):  # cut short; an offset that no file has
        return False
    return bool(names) and all(x.startswith(OWN) for x in names)


def _sections(f: BinaryIO, head: bytes) -> list[bytes]:
    """The names of an ELF file's sections (System V ABI, chapter 4)."""
    (table,) = struct.unpack_from("<Q", head, 40)
    size, count, of_names = struct.unpack_from("<3H", head, 58)
    f.seek(table)
    data = f.read(size * count)
    rows = [SECTION.unpack_from(data, i * size) for i in range(count)]
    if of_names >= count:
        return []
    start, length = rows[of_names][4:6]
    f.seek(start)
    text = f.read(min(length, MOST_NAMES))
    return [bytes(takewhile(bool, text[row[0] : row[0] + HEAD])) for row in rows]
