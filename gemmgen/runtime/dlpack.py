"""Reading DLPack capsules through ctypes: the consumer's side of the protocol, and nothing of the producer's.

Layouts, type codes and rules are those of dlpack.h (version 1) and of the Python array API's data interchange: a
consumer takes a capsule named "dltensor", renames it "used_dltensor", so that its destructor leaves the tensor alone,
and calls the tensor's deleter once, when it is done with it.
"""

from __future__ import annotations

import ctypes
import weakref
from typing import Any

from ..errors import ArgumentError
from ..ir.dtypes import BF16, E4M3, E5M2, F16, F32, S8, S32, DType
from .arrays import CUDA, Array, ArrayDevice, compact

FRESH, USED = (
    b"dltensor",
    b"used_dltensor",
)  # held by the module: a capsule keeps no copy of its name
CPU_KIND, CUDA_KINDS = 1, (2, 13)  # memory of the device, and managed memory
DEFAULT_STREAM = 1  # 0 is ambiguous, and forbidden
DTYPES: dict[tuple[int, int], DType] = {
    (0, 8): S8,
    (0, 32): S32,
    (2, 16): F16,
    (2, 32): F32,
    (4, 16): BF16,
    (10, 8): E4M3,
    (12, 8): E5M2,
}
NAMES = {0: "s", 1: "u", 2: "f", 3: "opaque", 4: "bf", 5: "c", 6: "bool"}
TYPED = {0, 2, 4, 5, *range(7, 18)}  # what these codes mean is no mere storage


class _Device(ctypes.Structure):
    _fields_ = (("kind", ctypes.c_int32), ("index", ctypes.c_int32))


class _DataType(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", _Device),
        ("ndim", ctypes.c_int32),
        ("dtype", _DataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _Managed(ctypes.Structure):
    pass


_DELETER = ctypes.CFUNCTYPE(None, ctypes.POINTER(_Managed))
_Managed._fields_ = (("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", _DELETER))

_API = ctypes.pythonapi
_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_IsValid", _API)
)
_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", _API)
)
_rename = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_SetName", _API)
)


class _Taken:
    """A tensor that is ours. Its deleter runs once, when nothing refers to this any more."""

    def __init__(self, managed: Any) -> None:
        if managed.contents.deleter:
            weakref.finalize(self, managed.contents.deleter, managed).atexit = False


def exported(name: str, x: Any, stream: int) -> Array:
    """What `x.__dlpack__` exports, ready to be used on CUDA stream `stream` (a raw handle, 0 for the default
    one): its producer sees to that. Raises ArgumentError naming `name`; what the producer raises."""
    kind, _ = x.__dlpack_device__()
    on_gpu = int(kind) in CUDA_KINDS
    capsule = x.__dlpack__(stream=stream or DEFAULT_STREAM) if on_gpu else x.__dlpack__()
    return taken(name, capsule, stream)


def taken(name: str, capsule: Any, stream: int) -> Array:
    """The array in `capsule`, which is used up. Raises ArgumentError naming `name`."""
    if not _is_valid(capsule, FRESH):
        raise ArgumentError(name, capsule, "must export an unused capsule named dltensor")
    managed = ctypes.cast(_pointer(capsule, FRESH), ctypes.POINTER(_Managed))
    _rename(capsule, USED)
    owner, t = _Taken(managed), managed.contents.tensor
    shape = tuple(t.shape[i] for i in range(t.ndim))
    dtype, bits = _dtype(name, t.dtype)
    return Array(
        address=(t.data or 0) + t.byte_offset,
        shape=shape,
        strides=tuple(t.strides[i] for i in range(t.ndim)) if t.strides else compact(shape),
        dtype=dtype,
        bits=bits,
        device=ArrayDevice(*_place(t.device), stream),
        owner=owner,
    )


def _place(device: _Device) -> tuple[str, int]:
    if device.kind in CUDA_KINDS:
        return CUDA, device.index
    return "cpu" if device.kind == CPU_KIND else f"dlpack {device.kind}", device.index


def _dtype(name: str, found: _DataType) -> tuple[DType | str, int]:
    if found.lanes != 1 or found.bits % 8 or not found.bits:
        got = f"{found.bits} bits, {found.lanes} lanes"
        raise ArgumentError(f"{name} dtype", got, "must have elements of whole bytes, one by one")
    known = DTYPES.get((found.code, found.bits))
    if known is None and found.code in TYPED:
        got = f"{NAMES.get(found.code, f'dlpack {found.code} ')}{found.bits}"
        raise ArgumentError(
            f"{name} dtype", got, f"must be one of {', '.join(map(str, DTYPES.values()))}"
        )
    return known or f"{NAMES[found.code]}{found.bits}", found.bits
