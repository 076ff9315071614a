"""An output with poison around it, so that a write outside it shows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..codes import Codes, code_type
from ..errors import ArgumentError, VerificationError
from ..ir.dtypes import DType

Buffer = npt.NDArray[np.uint8]

ALIGNMENT = 1024  # bytes, relative to the buffer's own start
LEAST_GUARD = 4096  # bytes on either side
POISONS = (0xFF, 0x5A)  # NaN in every output dtype; then a number no result is likely to equal


@dataclass(frozen=True, kw_only=True)
class Guarded:
    """A buffer that holds [rows, cols] elements of `dtype`, rows `pitch` elements apart.

    Layout in bytes: guard, rows * pitch elements, guard; then `beside`, if there is one, laid out alike.
    A guard is at least 4 KiB and at least `guard_rows` rows. The last row's padding belongs to the
    image. `start`: codes [rows, cols] that the elements of the rows `started` (bool [rows]) hold
    before; poison if None.
    """

    dtype: DType
    rows: int
    cols: int
    pitch: int
    guard_rows: int = 8
    start: Codes | None = None
    started: npt.NDArray[np.bool_] | None = None
    beside: Guarded | None = None  # a second output, in the same buffer, after this one

    def __post_init__(self) -> None:
        if self.rows < 0 or self.cols < 0:
            raise ArgumentError("rows, cols", (self.rows, self.cols), "must not be negative")
        if self.pitch < self.cols:
            raise ArgumentError("pitch", self.pitch, f"must be at least cols={self.cols}")

    @property
    def offset(self) -> int:
        """Byte offset of element (0, 0): a multiple of 1024."""
        wanted = max(LEAST_GUARD, self.guard_rows * self.pitch * self.dtype.bytes)
        return -(-wanted // ALIGNMENT) * ALIGNMENT

    @property
    def size(self) -> int:
        """Bytes of the whole buffer."""
        return self.own + (self.beside.size if self.beside else 0)

    @property
    def own(self) -> int:
        """Bytes without `beside`, which begins at a multiple of 1024."""
        size = self._end + self.offset
        return -(-size // ALIGNMENT) * ALIGNMENT if self.beside else size

    @property
    def beside_offset(self) -> int:
        """Byte offset of element (0, 0) of `beside`; 0 without one."""
        return self.own + self.beside.offset if self.beside else 0

    @property
    def _end(self) -> int:
        """Of the elements."""
        return self.offset + self.rows * self.pitch * self.dtype.bytes

    def poison(self, fill: int) -> Buffer:
        """uint8 [size], every byte `fill`, but for what the elements hold."""
        buffer = np.full(self.size, fill, np.uint8)
        if self.start is not None and self.started is not None:
            rows = np.ascontiguousarray(self.start[self.started]).view(np.uint8)
            self._image(buffer)[self.started, : rows.shape[1]] = rows
        return buffer

    def check(self, after: Buffer, fill: int) -> None:
        """Raise VerificationError if a byte outside the rows x cols elements is no longer `fill`."""
        if after.shape != (self.size,) or after.dtype != np.uint8:
            raise ArgumentError("after", (after.shape, after.dtype), f"uint8 [{self.size}]")
        if self.beside:
            self.beside.check(after[self.own :], fill)
        end = self._end
        self._flat("before", after[: self.offset], fill, -self.offset)
        self._flat("after", after[end : self.own], fill, end - self.offset)
        padding = self._image(after)[:, self.cols * self.dtype.bytes :] != fill
        if padding.any():
            row, byte = np.argwhere(padding)[0]
            raise VerificationError(
                f"{int(padding.sum())} bytes of row padding were overwritten; first in row {row}, "
                f"{byte} bytes after its last element"
            )

    def extract(self, after: Buffer) -> Codes:
        """The elements: codes [rows, cols], a copy."""
        image = np.ascontiguousarray(self._image(after)[:, : self.cols * self.dtype.bytes])
        return image.reshape(-1).view(code_type(self.dtype)).reshape(self.rows, self.cols)

    def _image(self, buffer: Buffer) -> Buffer:
        image = buffer[self.offset : self._end]
        return image.reshape(self.rows, self.pitch * self.dtype.bytes)

    def _flat(self, name: str, guard: Buffer, fill: int, start: int) -> None:
        changed = np.flatnonzero(guard != fill)
        if changed.size:
            raise VerificationError(
                f"{changed.size} bytes of the guard {name} the output were overwritten; first at "
                f"byte {start + int(changed[0])} relative to element (0, 0)"
            )
