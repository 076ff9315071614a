"""Kernels that add up what the experts of a token made of it: what they are, and their CUDA source.

A combination reads each copy once and writes a row per token, as `gemmgen.ops.combine` defines it. Like a cast
(`gemmgen.casts`) it is no `Kernel`: there is nothing to lower.
"""

from __future__ import annotations

from dataclasses import dataclass

from .emit import plain
from .errors import IRError
from .ir.dtypes import FLOATS, DType
from .ir.resources import Param

VECTOR_BYTES = 16  # the widest load
THREADS = 128
MOST_AT_ONCE = 8  # loads that a thread has under way: each takes four registers
# Bytes of y that an SM has on its way at once: what hides the latency of memory twice, for a copy's row is known
# only when its slot has come.
SM_BYTES = 80 << 10
SM_CTAS = 7  # at most: more would leave a thread too few registers


@dataclass(frozen=True, kw_only=True)
class Combination:
    """y [rows, columns] and weights [tokens, top] of bf16, f16 or f32, slots int32 [tokens, top] -> out [tokens,
    columns] of y's dtype.

    aligned: rows of y, of out and of what is added begin and end at multiples of 16 bytes; else a thread has one
    element. at_once: copies that a thread reads before it adds the first, 1 to 8.

    Everything but these is an argument of the kernel: shapes, strides, addresses. `add` may be null. Raises IRError.
    """

    y: DType
    weights: DType
    aligned: bool = True
    at_once: int = MOST_AT_ONCE

    def __post_init__(self) -> None:
        if self.y not in FLOATS or self.weights not in FLOATS:
            raise IRError(f"a combination of {self.y} times {self.weights} is none")
        if self.at_once not in range(1, MOST_AT_ONCE + 1):
            raise IRError(f"at_once={self.at_once}: must be from 1 to {MOST_AT_ONCE}")

    @property
    def name(self) -> str:
        """The kernel's, of all fields."""
        elements = "_elements" * (not self.aligned)
        return f"combine_{self.y}_by_{self.weights}_{self.at_once}{elements}"

    @property
    def vector(self) -> int:
        """Elements of a row that a thread has."""
        return VECTOR_BYTES // self.y.bytes if self.aligned else 1

    @property
    def formats(self) -> tuple[DType, ...]:
        """What is read, each once."""
        return tuple(dict.fromkeys((self.y, self.weights)))

    @property
    def access(self) -> str:
        return "vector" if self.aligned else "element"

    @property
    def threads(self) -> int:
        """Of a CTA."""
        return THREADS

    @property
    def ctas_per_sm(self) -> int:
        """That run at once at least."""
        if not self.aligned:
            return SM_CTAS
        return min(SM_BYTES // (THREADS * self.at_once * VECTOR_BYTES), SM_CTAS)

    @property
    def params(self) -> tuple[Param, ...]:
        """In the order of the kernel's."""
        y, weight = (f"const {name}::Element* __restrict__" for name in ("Value", "Weight"))
        pointers = {
            "y": y,
            "slots": "const int* __restrict__",
            "weights": weight,
            "add": y,
            "out": "Value::Element* __restrict__",
        }
        strides = (f"{name}_stride" for name in ("y", "slots", "weights", "add"))
        sizes = (*strides, "rows", "tokens", "top", "columns")
        return tuple(
            Param(name=name, ctype=ctype)
            for name, ctype in (pointers | dict.fromkeys(sizes, "int")).items()
        )

    def items(self, tokens: int, columns: int) -> int:
        """What threads are asked for: of a launch over so many rows of so many columns."""
        return tokens * (columns // self.vector)

    def tiles(self, tokens: int, columns: int) -> int:
        """CTAs that have something to do."""
        return -(-self.items(tokens, columns) // THREADS)


def at_once(top: int) -> int:
    """In the fewest goes, and in those the fewest at once."""
    goes = -(-top // MOST_AT_ONCE)
    return -(-top // goes) if goes else 1


def source(combination: Combination) -> str:
    """The kernel's self-contained CUDA source: it includes nothing under NVRTC. Same combination, same bytes."""
    return plain("combining/combine.cu.j2", kernel=combination)
