"""The values that a field of a statement may have."""

from __future__ import annotations

from typing import Any, Literal, get_args, get_origin, get_type_hints


def values(cls: type, name: str) -> tuple[Any, ...]:
    """Of the Literal that the field is, or is beside None."""
    hint = get_type_hints(cls)[name]
    return get_args(next((h for h in get_args(hint) if get_origin(h) is Literal), hint))
