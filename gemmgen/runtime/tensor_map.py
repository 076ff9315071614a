"""Tensor maps: what the TMA unit knows about a global tensor, checked here and encoded by the driver."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import ArgumentError, LaunchError, TensorMapError
from ..ir.dtypes import DType
from ..ir.indices import SOURCES
from ..ir.launchable import Launchable
from ..ir.nodes import TmaMap
from .driver import call, driver

ALIGNMENT = 16  # bytes
STRIDE_LIMIT = 1 << 40
DIM_LIMIT = 1 << 32


@dataclass(frozen=True, kw_only=True)
class Matrix:
    """A tensor in device memory: `outer` rows of `inner` contiguous elements, `stride` apart, in
    `groups` groups, `group_stride` elements apart."""

    pointer: int
    outer: int
    inner: int
    stride: int  # elements between rows
    groups: int = 1
    group_stride: int = 0  # any, if there is one group


def check(argument: str, matrix: Matrix, itemsize: int) -> None:
    """What cuTensorMapEncodeTiled needs, by name: it only ever answers INVALID_VALUE itself."""
    if matrix.pointer % ALIGNMENT or not matrix.pointer:
        raise ArgumentError(
            argument, hex(matrix.pointer), "its address must be a multiple of 16 bytes"
        )
    if matrix.outer > 1 and (matrix.stride * itemsize) % ALIGNMENT:
        got = matrix.stride * itemsize
        raise ArgumentError(f"{argument} row stride", got, "must be a multiple of 16 bytes")
    if matrix.outer > 1 and matrix.stride < matrix.inner:
        raise ArgumentError(
            f"{argument} row stride",
            matrix.stride,
            f"must be at least the row's {matrix.inner} elements",
        )
    if matrix.groups > 1 and (matrix.group_stride * itemsize) % ALIGNMENT:
        got = matrix.group_stride * itemsize
        raise ArgumentError(f"{argument} group stride", got, "must be a multiple of 16 bytes")
    for what, stride in (("row", matrix.stride), ("group", matrix.group_stride)):
        if stride * itemsize >= STRIDE_LIMIT:
            raise ArgumentError(f"{argument} {what} stride", stride, "must be below 2**40 bytes")
    sides = (matrix.groups, matrix.outer, matrix.inner)
    if not all(0 < side < DIM_LIMIT for side in sides):
        raise ArgumentError(f"{argument} shape", sides, "sides must be 1 to 2**32 - 1")


def lying(matrices: Mapping[str, Matrix]) -> dict[str, int]:
    """Where A and B lie, their strides in elements, and how many rows A has, as parameters of a kernel that reads them by address."""
    rows = {"a": "a_stride_m", "b": "b_stride_n"}
    return {
        **{name: matrices[name].pointer for name in rows},
        **{of: matrices[name].stride for name, of in rows.items()},
        **{f"{name}_stride_g": matrices[name].group_stride for name in rows},
        SOURCES: matrices["a"].outer,
    }


@dataclass(frozen=True, kw_only=True)
class Description:
    """The arguments of cuTensorMapEncodeTiled that differ between maps, innermost dimension first."""

    address: int
    dtype: DType
    dims: tuple[int, ...]
    strides: tuple[int, ...]  # bytes, one fewer than dims
    box: tuple[int, ...]
    swizzle: int  # bytes


def describe(kernel: Launchable, m: TmaMap, matrix: Matrix) -> Description:
    """What `m` says of `matrix`. Raises ArgumentError naming the tensor."""
    smem = kernel.buffer(m.smem)
    check(m.tensor, matrix, smem.dtype.bytes)
    assert m.box is not None
    inner = max(m.clip, matrix.inner // m.clip * m.clip)  # below one piece, nothing is stored
    # A single row has no stride of its own, but the driver wants a legal one.
    row_bytes = max(matrix.stride, matrix.inner) * smem.dtype.bytes
    row_bytes = -(-row_bytes // ALIGNMENT) * ALIGNMENT if matrix.outer == 1 else row_bytes
    group_bytes = matrix.group_stride * smem.dtype.bytes
    group_bytes = group_bytes if matrix.groups > 1 else max(row_bytes, ALIGNMENT)
    return Description(
        address=matrix.pointer,
        dtype=smem.dtype,
        dims=(inner, matrix.outer, *(matrix.groups,) * m.grouped),
        strides=(row_bytes, *(group_bytes,) * m.grouped),
        box=(*m.box, *(1,) * m.grouped),
        swizzle=smem.swizzle or 0,
    )


@dataclass(frozen=True, kw_only=True)
class Encoded:
    """A CUtensorMap, and the driver's arguments before and after the address it is over."""

    map: Any
    before: tuple[Any, ...]
    after: tuple[Any, ...]

    def at(self, address: int) -> Encoded:
        """The same over a matrix at another address, as aligned as this one."""
        return _encoded(self.before, address, self.after)


def encode(d: Description) -> Encoded:
    """The CUtensorMap of `d`."""
    cu = driver()
    before = (
        getattr(cu.CUtensorMapDataType, f"CU_TENSOR_MAP_DATA_TYPE_{d.dtype.tensor_map}"),
        len(d.dims),
    )
    after = (
        [cu.cuuint64_t(x) for x in d.dims],
        [cu.cuuint64_t(x) for x in d.strides],
        [cu.cuuint32_t(x) for x in d.box],
        [cu.cuuint32_t(1)] * len(d.dims),
        cu.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
        _swizzle(cu, d.swizzle),
        cu.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
        cu.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
    )
    return _encoded(before, d.address, after)


def _encoded(before: tuple[Any, ...], address: int, after: tuple[Any, ...]) -> Encoded:
    """Not by `cuTensorMapReplaceAddress`: the driver wants maps at multiples of 64 bytes, where the
    bindings place those they return and no copy."""
    given = (*before, address, *after)
    try:
        found = call("cuTensorMapEncodeTiled", *given)
    except LaunchError as e:
        raise TensorMapError(f"{e}: {_shown(given)}") from e
    return Encoded(map=found, before=before, after=after)


def _shown(given: tuple[Any, ...]) -> str:
    """The driver's arguments as text: numbers of its own types by value, enumerators by name."""
    plain = ([int(x) for x in v] if isinstance(v, list) else getattr(v, "name", v) for v in given)
    return ", ".join(map(str, plain))


def _swizzle(cu: Any, span: int) -> Any:
    name = f"{span}B" if span else "NONE"
    return getattr(cu.CUtensorMapSwizzle, f"CU_TENSOR_MAP_SWIZZLE_{name}")
