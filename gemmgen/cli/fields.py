"""FIELD=VALUE on the command line, as JSON has them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

from ..errors import ArgumentError
from ..untrusted import parse_json


def fields(option: str, items: Iterable[str]) -> dict[str, Any]:
    """Config fields and their values from FIELD=VALUE. Raises ArgumentError naming the option."""
    found: dict[str, Any] = {}
    for item in items:
        field, equals, text = item.partition("=")
        if not equals:
            raise ArgumentError(option, item, "must be FIELD=VALUE")
        read = value(text)
        if field in found and found[field] != read:
            raise ArgumentError(option, item, f"cannot be given with {field}={found[field]}")
        found[field] = read
    return found


def split(text: str) -> list[str]:
    """FIELD=VALUE,FIELD=VALUE in parts; a comma inside a value is part of it."""
    return [item.strip() for item in re.split(r",(?=\s*\w+=)", text)]


def value(text: str) -> Any:
    """What JSON says; where it is none, the text itself."""
    try:
        return parse_json("value", text)
    except ArgumentError:
        return text


def spelled(v: Any) -> str:
    """A value as `value` reads it back: words as they are, all else as JSON."""
    plain = isinstance(v, str) and value(v) == v
    return v if plain else json.dumps(v)
