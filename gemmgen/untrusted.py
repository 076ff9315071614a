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
from pathlib import Path
from typing import Any

from .errors import ArgumentError

MOST_BYTES = 1 << 26  # of a file; the database shipped has less than 1 << 18
NUMBER = re.compile(r"[0-9]{1,10}", re.ASCII)  # `isdigit` takes "²" too, and any length
READ = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC  # never wait for the other end of a pipe


def read_text(argument: str, path: str | Path) -> str:
    """The UTF-8 text of a regular file of at most 64 MiB. Raises ArgumentError naming `argument` and the path."""
    try:
        return _contents(path).decode()
    except (OSError, ValueError) as e:  # ValueError: a path with a NUL, text that is not UTF-8
        why = getattr(e, "strerror", None) or e
        raise ArgumentError(argument, str(path), f"cannot be read: {why}") from e


def _contents(path: str | Path) -> bytes:
    handle = os.open(path, READ)
    with os.fdopen(handle, "rb") as file:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise OSError(errno.EINVAL, "it is no regular file")
        data = file.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise OSError(errno.EFBIG, f"it has more than {MOST_BYTES} bytes")
    return data


def parse_json(argument: str, text: str) -> Any:
    """What JSON of RFC 8259 says, each name of an object once. Raises ArgumentError naming `argument`."""
    try:
        return json.loads(text, object_pairs_hook=_each_once, parse_constant=_refused)
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


def _refused(constant: str) -> None:
    raise ValueError(f"{constant} is no number")
