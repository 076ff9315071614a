"""Files of what a mode of `gemmgen tune` measured: a JSON object per line, whose first field says which mode."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from ...errors import ArgumentError
from ...untrusted import parse_json, read_text

NAMED = "gemmgen"  # the field that says which mode: it names gemmgen in a file's first bytes
T = TypeVar("T")


def to_text(mode: str, of: Iterable[Mapping[str, Any]]) -> str:
    """One line for each, in the order given."""
    return "".join(json.dumps({NAMED: mode, **x}, allow_nan=False) + "\n" for x in of)


def load(mode: str, path: Path, from_json: Callable[[Any], T]) -> list[T]:
    """What `from_json` makes of each line. Raises ArgumentError naming the file, the line and what is wrong."""
    found = []
    for number, line in enumerate(read_text("--database", path).splitlines(), 1):
        try:
            data = parse_json(mode, line)
            if data[NAMED] != mode:
                raise ValueError(f"not {mode!r}")
            found.append(from_json(data))
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as e:
            allowed = f"line {number} must be one that gemmgen tune --{mode} wrote ({e})"
            raise ArgumentError("--database", str(path), allowed) from e
    return found
