"""The instruction that multiplies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ..errors import IRError
from .dtypes import DType

Major = Literal["k", "mn"]  # the contiguous side of an operand


@dataclass(frozen=True, kw_only=True)
class Wgmma:
    """One wgmma.mma_async shape; M is always 64 and K always 32 bytes. MN-major is for 16-bit types."""

    n: int
    a: DType
    b: DType
    d: DType
    a_major: Major = "k"
    b_major: Major = "k"

    def __post_init__(self) -> None:
        if self.a.bits != self.b.bits:
            raise IRError(f"wgmma operands differ in width: {self.a.name}, {self.b.name}")
        if self.majors and not self.a.transposes:
            raise IRError(f"wgmma reads {self.a.name} K-major only, not {self.majors}")

    @property
    def k(self) -> int:
        return 32 // self.a.bytes

    @property
    def num_regs(self) -> int:
        return self.n // 2

    @property
    def majors(self) -> dict[str, Major]:
        """The operands that are not K-major, by field name."""
        both: dict[str, Major] = {"a_major": self.a_major, "b_major": self.b_major}
        return {name: major for name, major in both.items() if major != "k"}

    @property
    def immediates(self) -> str:
        """What follows scale-d: scale-a and scale-b and, for 16-bit types, the transposes."""
        transposes = ", ".join(str(int(m == "mn")) for m in (self.a_major, self.b_major))
        return self.a.wgmma_immediates + f", {transposes}" * self.a.transposes

    @property
    def register_immediates(self) -> str:
        """The same with A in registers, which is never transposed."""
        return self.a.wgmma_immediates + f", {int(self.b_major == 'mn')}" * self.a.transposes

    @property
    def mnemonic(self) -> str:
        shape = f"m64n{self.n}k{self.k}"
        return f"wgmma.mma_async.sync.aligned.{shape}.{self.d.ptx}.{self.a.ptx}.{self.b.ptx}"
