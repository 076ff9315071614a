"""What can be wrong with a tensor, whatever the function: each as a change of a right call's arguments."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from fake_torch import Device, Placed

from .model import Given, Wrong


def get(given: Given, path: str) -> Any:
    """The argument at `path`: `a`, or `a[0]` of a pair."""
    found = re.fullmatch(r"(\w+)\[(\d)\]", path)
    return given[found[1]][int(found[2])] if found else given[path]


def put(given: Given, path: str, value: Any) -> Given:
    """What changes if `value` takes that place."""
    found = re.fullmatch(r"(\w+)\[(\d)\]", path)
    if not found:
        return {path: value}
    pair = list(given[found[1]])
    pair[int(found[2])] = value
    return {found[1]: tuple(pair)}


def _like(t: Placed, shape: tuple[int, ...], stride: Any = None, dtype: str | None = None) -> Any:
    return type(t)(*shape, dtype=dtype or t.dtype, stride=stride)


def _elsewhere(t: Placed) -> Placed:
    other = _like(t, t.shape, t.strides)
    other.device = Device("cpu", 0)
    return other


def _shifted(t: Placed) -> Placed:
    other = _like(t, t.shape, t.strides)
    other.address += 8
    return other


def _strides(t: Placed, at: int, by: int) -> Placed:
    steps = list(t.strides)
    steps[at] += by
    return _like(t, t.shape, tuple(steps))


def _longer(t: Placed, at: int, by: int) -> Placed:
    sides = list(t.shape)
    sides[at] += by
    return _like(t, tuple(sides))


CHANGES: dict[str, tuple[str, str, Callable[[Any], Any]]] = {
    # what the change is called: what is wrong, what the error says of the argument, the change
    "none": ("no tensor", "", lambda t: [[1.0]]),
    "dtype": ("a dtype that is none of the function's", " dtype", lambda t: _like(t, t.shape, t.strides, "int64")),
    "device": ("on the CPU", " device", _elsewhere),
    "rank": ("a dimension too many", " shape", lambda t: _like(t, (1, *t.shape))),
    "side": ("its last side too long", " shape", lambda t: _longer(t, -1, 128)),
    "rows": ("its rows too many", " shape", lambda t: _longer(t, -2, 128)),
    "groups": ("its groups too many", " groups", lambda t: _longer(t, 0, 1)),
    "last": ("not contiguous along its last dimension", " last stride", lambda t: _strides(t, -1, 1)),
    "pitch": ("rows not at multiples of 16 bytes", " row stride", lambda t: _strides(t, -2, 1)),
    "column": ("columns not at multiples of 16 bytes", " row stride", lambda t: _strides(t, -1, 1)),
    "address": ("8 bytes beyond a multiple of 16", "", _shifted),
    "negative": ("a negative stride", " strides", lambda t: _strides(t, -2, -2 * t.strides[-2])),
}  # fmt: skip


def tensor(path: str, kinds: str, *, named: str | None = None) -> tuple[Wrong, ...]:
    """Wrong calls in which the tensor at `path` has one of the changes of `kinds`. named: what errors call it."""
    return tuple(_wrong(path, named or path, *CHANGES[kind]) for kind in kinds.split())


def _wrong(path: str, name: str, says: str, of: str, change: Callable[[Any], Any]) -> Wrong:
    return Wrong(
        says=f"{path}: {says}",
        change=lambda given: put(given, path, change(get(given, path))),
        argument=f"{name}{of}",
    )
