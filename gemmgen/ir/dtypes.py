"""The dtype table. A new dtype is one row here."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class DType:
    """One element type: how memory, PTX, tensor maps and the emitted C spell it."""

    name: str
    bits: int
    ptx: str
    tensor_map: str  # CU_TENSOR_MAP_DATA_TYPE_*
    cuda: str  # the C type of a scalar; operands are only ever addressed, never read, in C
    significand: int  # bits of precision, the hidden one included; of an integer, all but the sign
    min_exponent: int  # of a normal number; of an integer, 0
    wgmma_immediates: str = ""  # scale-a and scale-b
    wgmma_n_step: int = 8  # of N above 32; up to there it is 8
    integer: bool = False

    @property
    def asm(self) -> str:
        """The inline-assembly constraint of a 32-bit register that holds it."""
        return "r" if self.integer else "f"

    @property
    def transposes(self) -> bool:
        """Whether wgmma takes it MN-major too: PTX has the transposes for 16-bit types only."""
        return self.bits == 16 and not self.integer

    @property
    def bytes(self) -> int:
        return self.bits // 8

    def __str__(self) -> str:
        return self.name


F32 = DType("f32", 32, "f32", "FLOAT32", "float", 24, -126)
BF16 = DType("bf16", 16, "bf16", "BFLOAT16", "uint16_t", 8, -126, ", 1, 1")
F16 = DType("f16", 16, "f16", "FLOAT16", "uint16_t", 11, -14, ", 1, 1")
E4M3 = DType("e4m3", 8, "e4m3", "UINT8", "uint8_t", 4, -6, ", 1, 1")

E5M2 = DType("e5m2", 8, "e5m2", "UINT8", "uint8_t", 3, -14, ", 1, 1")

S8 = DType("s8", 8, "s8", "UINT8", "int8_t", 7, 0, wgmma_n_step=16, integer=True)
S32 = DType("s32", 32, "s32", "INT32", "int", 31, 0, integer=True)

FLOATS = (BF16, F16, F32)  # of 16 or 32 bits
FP8 = (E4M3, E5M2)
DTYPES = {t.name: t for t in (F32, BF16, F16, *FP8, S8, S32)}
