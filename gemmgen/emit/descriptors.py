"""Words of wgmma's matrix descriptors, and their names."""

from __future__ import annotations

from ..ir.nodes import Kernel, Mma, MmaDecoded
from ..ir.rewrite import statements


def part(name: str) -> str:
    """smem_a -> A: what a buffer or a barrier is called in the struct Shared."""
    return name.removeprefix("smem_").upper()


LOW, HIGH = "LOW", "HIGH"  # words of a matrix descriptor


def descriptors(kernel: Kernel) -> dict[str, int]:
    """By operand, what its first matrix descriptor says besides the address."""
    found: dict[str, int] = {}
    for s in statements(kernel):
        if isinstance(s, Mma):
            of = {} if isinstance(s, MmaDecoded) else {s.a: s.a_bits}
            found |= {x: found.get(x, bits or 0) for x, bits in {**of, s.b: s.b_bits}.items()}
    return found


def word(known: dict[str, int], operand: str, bits: int, which: str) -> str:
    """A word of `bits`, by the name that the operand's has if it is that."""
    if bits == known[operand]:
        return f"{part(operand)}_DESCRIPTOR_{which}"
    return str(bits & 0xFFFFFFFF) if which == LOW else hex(bits >> 32)


def descriptor_words(kernel: Kernel) -> list[str]:
    """`NAME = value` for each word."""
    lines = []
    for operand, bits in descriptors(kernel).items():
        leading, stride, swizzle = bits >> 16 & 0x3FFF, bits >> 32 & 0x3FFF, bits >> 62
        name = f"{part(operand)}_DESCRIPTOR"
        mode = f" | {swizzle}u << 30" if swizzle else ""
        lines.append(
            f"{name}_LOW = {16 * leading} / 16 << 16, {name}_HIGH = {16 * stride} / 16{mode}"
        )
    return lines
