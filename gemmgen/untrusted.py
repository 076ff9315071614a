"""Text from outside: files, JSON and numbers that nobody has looked at, read within limits.

A file may be a pipe that nobody writes to, a device without an end, or larger than memory; JSON may nest deeper
than Python's stack, name a field twice, or hold a NaN. All of that is an ArgumentError here.
"""

from __future__ import annotations

import errno
import json
import os
import re
import stat
from io import BufferedReader
from pathlib import Path
from typing import Any

from .errors import ArgumentError

MOST_BYTES = 1 << 26  # of a file; the database shipped has less than 1 << 18
NUMBER = re.compile(r"[0-9]{1,10}", re.ASCII)  # `isdigit` takes "²" too, and any length
READ = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC  # never wait for the other end of a pipe


def read_text(argument: str, path: str | Path) -> str:
    """The UTF-8 text of a regular file of at most 64 MiB. Raises ArgumentError naming `argument` and the path."""
    try:
        return read_bytes(argument, path).decode()
    except UnicodeDecodeError as e:
        raise ArgumentError(argument, str(path), f"cannot be read: {e}") from e


def read_bytes(
    argument: str, path: str | Path, start: int = 0, size: int | None = None
) -> bytes | bytearray:
    """A regular file: `size` bytes from `start` on, a bytearray; or all of them, at most 64 MiB. Raises ArgumentError naming `argument`
    and the path, before it takes memory for what the file does not have."""
    try:
        with open(path, "rb", opener=_without_waiting) as file:
            found = os.fstat(file.fileno())
            if not stat.S_ISREG(found.st_mode):
                raise OSError(errno.EINVAL, "it is no regular file")
            return _all_of(file) if size is None else _part_of(file, found.st_size, start, size)
    except (OSError, ValueError) as e:  # ValueError: a path with a NUL
        why = getattr(e, "strerror", None) or e
        raise ArgumentError(argument, str(path), f"cannot be read: {why}") from e


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, READ)


def _part_of(file: BufferedReader, length: int, start: int, size: int) -> bytearray:
    if start + size <= length:
        file.seek(start)
        data = bytearray(size)
        if file.readinto(data) == size:
            return data
    raise OSError(errno.EINVAL, f"it ends before byte {start + size}")


def _all_of(file: BufferedReader) -> bytes:
    data = file.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise OSError(errno.EFBIG, f"it has more than {MOST_BYTES} bytes")
    return data


def parse_json(argument: str, text: str, constants: bool = False) -> Any:
    """What JSON of RFC 8259 says, each name of an object once. constants: whether Infinity, -Infinity and NaN, which Python writes, are taken
    too. Raises ArgumentError naming `argument`."""
    taken = float if constants else _refused
    try:
        return json.loads(text, object_pairs_hook=_each_once, parse_constant=taken)
    except RecursionError as e:
        raise ArgumentError(argument, text, "is not JSON that can be read: nests too deep") from e
    except ValueError as e:
        raise ArgumentError(argument, text, f"is not JSON: {e}"[:300]) from e


def whole(text: str) -> int | None:
    """The number that 1 to 10 ASCII digits spell, else None."""
    return int(text) if NUMBER.fullmatch(text) else None


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("an object has a name twice")
    return found


def _refused(constant: str) -> float:
    raise ValueError(f"{constant} is no number")
