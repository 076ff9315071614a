"""Tensors in files of the safetensors format, one read at a time.

A file is 8 bytes, little-endian: the length of a JSON object, which names each tensor's dtype, shape and place behind it; then
the tensors (github.com/huggingface/safetensors, README, "Format").
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import ArgumentError
from ..runtime.torch_tensors import torch
from ..untrusted import parse_json, read_bytes

SUFFIX = ".safetensors"
LENGTH = 8
METADATA = "__metadata__"  # in a header, words by name
MOST_HEADER = 100_000_000  # bytes, as the format's own readers allow
MOST_ELEMENTS = 1 << 63  # what torch's strides count to
# By the format's name: torch's, and the bytes of an element.
FLOATS = {"F16": ("float16", 2), "BF16": ("bfloat16", 2), "F32": ("float32", 4), "F64": ("float64", 8)}  # fmt: skip
FP8 = {"F8_E4M3": ("float8_e4m3fn", 1), "F8_E5M2": ("float8_e5m2", 1)}
INTEGERS = {"U8": ("uint8", 1), "I8": ("int8", 1), "I16": ("int16", 2), "I32": ("int32", 4), "I64": ("int64", 8)}  # fmt: skip
DTYPES = {**FLOATS, **FP8, **INTEGERS, "BOOL": ("bool", 1)}


@dataclass(frozen=True)
class Place:
    """Where a tensor is. dtype: by the format's name. start, size: bytes of the file."""

    path: Path
    dtype: str
    shape: tuple[int, ...]
    start: int
    size: int

    def check(self, name: str) -> None:
        """Raise ArgumentError unless there are as many bytes as a tensor of a known dtype has. name: the tensor's."""
        if self.dtype in DTYPES and self.size != math.prod(self.shape) * DTYPES[self.dtype][1]:
            allowed = f"must hold {list(self.shape)} of {self.dtype}"
            raise ArgumentError(f"{name} data_offsets", self.size, allowed)

    def octets(self, first: int, size: int) -> bytes | bytearray:
        """So many of the tensor's bytes from `first` on, as the file has them. Raises ArgumentError."""
        return read_bytes("paths", self.path, self.start + first, size)


class Checkpoint(Mapping[str, Any]):
    """The tensors of safetensors files by name, each read from its file whenever it is asked for, onto the CPU.

    paths: a file, a folder, of which all *.safetensors are taken, or several of these. Raises ArgumentError for what cannot be read,
    is no such file, or names a tensor twice.
    """

    def __init__(self, paths: str | Path | Sequence[str | Path]) -> None:
        given = [paths] if isinstance(paths, str | Path) else paths
        if not isinstance(given, Sequence) or not all(isinstance(x, str | Path) for x in given):
            raise ArgumentError("paths", paths, "must be a path, or several")
        self.places: dict[str, Place] = {}  # of tensors by name
        self.metadata: dict[str, str] = {}  # what the first file says that says it
        for file in (f for x in given for f in _files(Path(x))):
            places, metadata = _header(file)
            self.metadata = metadata | self.metadata
            for name, place in places:
                if name in self.places:
                    raise ArgumentError(name, str(file), f"is in {self.places[name].path}, too")
                self.places[name] = place

    def __getitem__(self, name: str) -> Any:
        """Raises KeyError for a name that there is not; ArgumentError for a dtype that is not taken, and a file that ends too soon."""
        at = self.places[name]
        if at.dtype not in DTYPES:
            raise ArgumentError(f"{name} dtype", at.dtype, f"must be {', '.join(DTYPES)}")
        at.check(name)
        dtype = getattr(torch(), DTYPES[at.dtype][0])
        if not at.size:
            return torch().empty(at.shape, dtype=dtype)
        data = read_bytes("paths", at.path, at.start, at.size)
        return torch().frombuffer(data, dtype=torch().uint8).view(dtype).view(at.shape)

    def __contains__(self, name: object) -> bool:
        """Reads nothing."""
        return name in self.places

    def __iter__(self) -> Iterator[str]:
        return iter(self.places)

    def __len__(self) -> int:
        return len(self.places)


def _files(path: Path) -> list[Path]:
    try:
        if not path.is_dir():
            return [path]
        found = sorted(path.glob(f"*{SUFFIX}"))
    except (OSError, ValueError) as e:
        why = getattr(e, "strerror", None) or e
        raise ArgumentError("paths", str(path), f"cannot be read: {why}") from e
    if not found:
        raise ArgumentError("paths", str(path), f"must hold files that end in {SUFFIX}")
    return found


def _header(path: Path) -> tuple[list[tuple[str, Place]], dict[str, str]]:
    """Places of tensors, and what the file says beside them."""
    size = int.from_bytes(read_bytes("paths", path, 0, LENGTH), "little")
    if not 2 <= size <= MOST_HEADER:
        raise ArgumentError("paths", str(path), f"is no safetensors file: a header of {size} bytes")
    try:
        text = read_bytes("paths", path, LENGTH, size).decode()
    except UnicodeDecodeError as e:
        raise ArgumentError("paths", str(path), "is no safetensors file: no UTF-8") from e
    try:
        told = parse_json("paths", text)
    except ArgumentError as e:
        allowed = f"is no safetensors file: its header {e.allowed}"
        raise ArgumentError("paths", str(path), allowed) from e
    if not isinstance(told, dict):
        raise ArgumentError("paths", str(path), "is no safetensors file: no JSON object")
    beside = told.get(METADATA)
    of = [(n, x) for n, x in told.items() if n != METADATA]
    places = [(name, _place(path, name, x, LENGTH + size)) for name, x in of]
    ends = [at.start + at.size for _, at in places]
    read_bytes("paths", path, max(ends, default=LENGTH + size), 0)  # so far it must reach
    said = beside if isinstance(beside, dict) else {}
    return places, {name: x for name, x in said.items() if isinstance(x, str)}


def _place(path: Path, name: str, told: Any, behind: int) -> Place:
    try:
        dtype, shape, (first, last) = told["dtype"], told["shape"], told["data_offsets"]
        sides = (first, last, *shape)
    except (KeyError, TypeError, ValueError) as e:
        raise ArgumentError(name, told, "must have dtype, shape and data_offsets") from e
    kinds = isinstance(dtype, str) and isinstance(shape, list)
    if not kinds or not all(type(x) is int and 0 <= x < 1 << 62 for x in sides):
        raise ArgumentError(name, told, "must be a dtype's name and numbers from 0 on")
    if last < first:
        raise ArgumentError(f"{name} data_offsets", [first, last], "must not end before they begin")
    if _many(shape):
        raise ArgumentError(f"{name} shape", shape, "must have a product below 2^63, zeros apart")
    return Place(path, dtype, tuple(shape), behind + first, last - first)


def _many(shape: list[int]) -> bool:
    """Whether sides are more than strides can be of; a 0 among them makes no difference."""
    product = 1
    for side in shape:
        product *= side or 1
        if product >= MOST_ELEMENTS:
            return True
    return False
