"""When a value that a name was given is no longer what its expression would say.

A local constant stands for its expression. That holds as long as nothing it reads has changed since: the ring's
position, the tile, a register of an array. Each has a version here, which what changes it raises; so does a loop, on
entry, of all that is changed inside.
"""

from __future__ import annotations

from typing import Any

from .values import Value

OBJECTS = ("ring", "next", "tile", "scheduler", "stamps")


def reads(v: Value) -> set[str]:
    """What a value depends on that can change: what an instruction has written stays, whatever it read."""
    found: set[str] = set()
    left = [v]
    while left:
        x = left.pop()
        if isinstance(x, str):
            of, member, _ = x.partition(".")
            if of in OBJECTS:
                found.update((of, x) if member else (of,))
        elif isinstance(x, frozenset):
            left.extend(of for of, _ in x)
        elif isinstance(x, tuple) and x and x[0] != "lambda" and not _written(x):
            if x[0] == "element" and isinstance(x[2], str):
                found.add(x[2])
            left.extend(x[1:])
    return found


def _written(v: tuple[Value, ...]) -> bool:
    """Whether an instruction that does something wrote it, once (`Machine._serial`)."""
    return v[0] == "out" and len(v) == 5 and v[4] != 0


def changed(event: tuple[Any, ...]) -> str:
    """What an event changes, if it is an object or an array."""
    if event[0] == "set":
        return root(event[1])
    if event[0] == "does" and isinstance(event[1], str):
        return event[1].partition(".")[0]
    if (
        event[0] == "ptx"
        and len(event) > 2
        and isinstance(event[2], tuple)
        and event[2][0] == "all"
    ):
        return str(event[2][1])
    return ""


def root(place: Value) -> str:
    if isinstance(place, str):
        return place
    if isinstance(place, tuple) and place[0] in ("element", "member"):
        return root(place[2] if place[0] == "element" else place[1])
    return ""


def writes(loop: Any, known: dict[int, set[str]]) -> set[str]:
    """Names that a loop may change: places that are set, objects whose methods are called, and all that a
    function is given by name. known: of loops that were asked before, by their ids."""
    if id(loop) in known:
        return known[id(loop)]
    found: set[str] = set()
    left = [loop]
    while left:
        x = left.pop()
        if x is not loop and x[0] in ("for", "while"):
            found |= writes(x, known)
            continue
        if (x[0] == "=" and len(x) == 4) or (x[0] in ("pre", "post") and len(x) == 3):
            found.add(_name(x[2]))
        elif x[0] == "call" and len(x) == 4:
            found.add(_name(x[1]).partition(".")[0])
            found.update(a for a in x[3] if isinstance(a, str))
        elif x[0] == "each" and len(x) == 6:
            found.add(_name(x[4]))
        left += [part for part in x if type(part) is tuple and part]
    known[id(loop)] = found
    return found


def _name(x: Any) -> str:
    """The object, its member, or the array of a place."""
    if isinstance(x, tuple) and x[0] == "." and isinstance(x[1], str):
        return f"{x[1]}.{x[2]}"
    while isinstance(x, tuple) and len(x) > 1:
        x = x[1]
    return x if isinstance(x, str) else ""
