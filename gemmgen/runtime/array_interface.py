"""The CUDA array interface, version 2 and 3: `__cuda_array_interface__` of CuPy, Numba and others."""

from __future__ import annotations

from typing import Any

from ..errors import ArgumentError
from ..ir.dtypes import F16, F32, S8, S32, DType
from . import driver
from .arrays import CUDA, Array, ArrayDevice, compact

OLDEST = 2
DTYPES: dict[str, DType] = {"<f2": F16, "<f4": F32, "|i1": S8, "<i4": S32}
STORAGE = "uV"  # kinds that say a size and no meaning: unsigned integers, bytes
DEFAULTS = {1: 0, 2: 2}  # by what the interface calls the default streams, their handles


def interface_of(x: Any) -> dict[str, Any] | None:
    found = getattr(x, "__cuda_array_interface__", None)
    return found if isinstance(found, dict) else None


def described(name: str, x: Any, stream: int) -> Array:
    """The array that `x` describes, to be used on `stream`; the caller sees to the order (`stream_of`).
    Raises ArgumentError naming `name`."""
    found = interface_of(x)
    if found is None or found.get("version", 0) < OLDEST:
        raise ArgumentError(name, type(x).__name__, f"must have version {OLDEST} of its interface")
    if found.get("mask") is not None:
        raise ArgumentError(name, "a mask", "must have no mask")
    shape, (address, readonly) = tuple(found["shape"]), found["data"]
    dtype, bits = _dtype(name, found["typestr"])
    return Array(
        address=address,
        shape=shape,
        strides=_strides(name, found.get("strides"), shape, bits // 8),
        dtype=dtype,
        bits=bits,
        device=ArrayDevice(CUDA, driver.device_of(address) if address else 0, stream),
        readonly=bool(readonly),
        owner=x,
    )


def stream_of(name: str, x: Any) -> int | None:
    """The raw handle of the stream that what `x` holds is being made on; None if there is nothing to wait for.
    Raises ArgumentError for 0, which the interface forbids."""
    said = (interface_of(x) or {}).get("stream")
    if said == 0:
        raise ArgumentError(f"{name} stream", said, "must be None, 1, 2 or a handle")
    return None if said is None else DEFAULTS.get(said, int(said))


def _strides(
    name: str, given: tuple[int, ...] | None, shape: tuple[int, ...], size: int
) -> tuple[int, ...]:
    """In elements; the interface has bytes, or None for C order."""
    if given is None:
        return compact(shape)
    if any(s % size for s in given):
        raise ArgumentError(f"{name} strides", given, f"must be multiples of {size} bytes")
    return tuple(s // size for s in given)


def _dtype(name: str, text: str) -> tuple[DType | str, int]:
    kind, size = text[1:2], text[2:]
    bits = 8 * int(size) if size.isdigit() else 0
    if text in DTYPES:
        return DTYPES[text], bits
    if kind in STORAGE and bits and text[0] in "<|":
        return f"{kind}{bits}", bits
    raise ArgumentError(f"{name} dtype", text, f"must be one of {', '.join(DTYPES)}, or storage")
