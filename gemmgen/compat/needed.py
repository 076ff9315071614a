"""A library that gemmgen does not depend on, for who asks for what stands on it."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from ..errors import RuntimeUnavailable


def needed(module: str, requirement: str) -> Any:
    """That module. Raises RuntimeUnavailable, which says what to install, if there is none."""
    try:
        return import_module(module)
    except ImportError as e:
        text = f"{module} cannot be imported ({e}). Run: pip install '{requirement}'"
        raise RuntimeUnavailable(text) from e
