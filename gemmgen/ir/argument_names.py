"""What an epilogue's arguments are called in emitted text."""

from __future__ import annotations

# What emitted names of users' begin with. Each ends with the user's and none of them begins another, nor any
# name of ours: so no two names are the same, whatever users call their arguments.
PREFIXES = ("arg_", "row_stride_", "group_stride_", "at_")


def parameter(name: str) -> str:
    """The kernel parameter that carries argument `name`."""
    return f"{PREFIXES[0]}{name}"


def row_stride(name: str) -> str:
    """The kernel parameter with the row stride, in elements, of the PerElement `name`."""
    return f"{PREFIXES[1]}{name}"


def group_stride(name: str) -> str:
    """The kernel parameter with the elements between two groups of the PerElement `name`."""
    return f"{PREFIXES[2]}{name}"


def local(name: str) -> str:
    """The pointer that an epilogue reads argument `name` through: of the tile's group."""
    return f"{PREFIXES[3]}{name}"
