"""What is kept between calls, under keys that say all that can be known of arguments without reading memory."""

from __future__ import annotations

import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar

from ..config import Config
from ..ir.expr import Expr
from ..problem import Problem
from ..runtime.arrays import Array
from ..runtime.torch_tensors import torch

Key = tuple[Any, ...]
Reader = Callable[[Any], Any]
T = TypeVar("T")


class Unreadable(Exception):
    """An argument of a type that no key can hold."""


def facts(tensor: Any) -> Key:
    """Address, shape, strides in elements, dtype, device: whatever a check or a plan reads of a tensor. One
    that takes the place of another, freed one, with the same facts is as good: a kernel gets no more."""
    return tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype, tensor.device


TENSORS: set[type] = {Array}  # the types that READ reads `facts` of, as far as they were seen


class Readers(dict[type, Reader]):
    """By exact type, what a key holds of an argument. A subclass of Tensor may lie about its memory, and any
    other object may change, so they have none."""

    def __missing__(self, kind: type) -> Reader:
        if "torch" in sys.modules and kind in (torch().Tensor, torch().nn.Parameter):
            self[kind] = facts
            TENSORS.add(kind)
        elif issubclass(kind, Expr | Problem):
            self[kind] = Same
        else:
            raise Unreadable
        return self[kind]


class Same:
    """An object that equals itself only: an expression, or a problem that has one, whose equality takes -0.0 for
    0.0 and whose hash walks the tree. It is held, so that nothing else gets its id."""

    __slots__ = ("it",)

    def __init__(self, it: object) -> None:
        self.it = it

    def __hash__(self) -> int:
        return id(self.it)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and self.it is other.it


def _itself(x: Any) -> Any:
    return x


def _integers(x: Any) -> Key:
    """Of integers, which stay what they are. Raises Unreadable for anything else in it, bools too."""
    if any(type(i) is not int for i in x):
        raise Unreadable
    return type(x), *x


READ = Readers(
    {
        type(None): _itself,
        str: _itself,
        Config: _itself,
        int: _itself,
        bool: lambda x: (bool, x),  # equal to 1 and to 1.0, which mean something else
        float: lambda x: (float, x.hex()),  # -0.0 is not 0.0
        tuple: _integers,
        list: _integers,
    }
)


class Kept(Generic[T]):
    """At most `most` values by key. Looking one up takes no lock and moves nothing: a value whose `used` is
    set gets a second round before it makes room, which is the order of use, nearly."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._values: OrderedDict[Hashable, T] = OrderedDict()
        self._lock = threading.Lock()
        self.get = self._values.get

    def __len__(self) -> int:
        return len(self._values)

    def put(self, key: Hashable, value: T) -> None:
        with self._lock:
            while len(self._values) >= self._most and key not in self._values:
                oldest, found = self._values.popitem(last=False)
                if getattr(found, "used", False):
                    found.used = False  # type: ignore[attr-defined]
                    self._values[oldest] = found
            self._values[key] = value

    def clear(self) -> None:
        with self._lock:
            self._values.clear()
