"""Kernel IR resource: an operand that threads read by its address, without a tensor map."""

from __future__ import annotations

from dataclasses import dataclass, field

from .dtypes import DType
from .resources import PIECE, UNUSUAL, Axis, Param


@dataclass(frozen=True, kw_only=True)
class Pointed:
    """A K-major operand that a kernel reads by its address: threads PIECE bytes of a row at once, so that rows begin at multiples of them, and K is one;
    of packed weights bulk copies a block. clipped: K is any, for of a last piece only what is there is read."""

    tensor: str
    dtype: DType
    outer: Axis
    grouped: bool = field(default=False, metadata=UNUSUAL)
    clipped: bool = field(default=False, metadata=UNUSUAL)  # index_rows

    @property
    def inner(self) -> Axis:
        return "k"

    @property
    def step(self) -> int:
        """What K is a multiple of."""
        return 1 if self.clipped else PIECE // self.dtype.bytes

    @property
    def params(self) -> tuple[Param, ...]:
        """By which a kernel is told where it lies. Of elements only the size counts."""
        return (
            Param(name=self.tensor, ctype=f"const uint{self.dtype.bits}_t*"),
            Param(name=f"{self.tensor}_stride_{self.outer}", ctype="int"),
            *(Param(name=f"{self.tensor}_stride_g", ctype="long long"),) * self.grouped,
        )
