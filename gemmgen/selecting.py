"""Kernels that choose each token's experts by a router's logits: what they are, and their CUDA source.

A warp has a token: its lanes hold the scores, and take the largest one after the other, as `gemmgen.ops.select` defines it. Like
a cast (`gemmgen.casts`) it is no `Kernel`: there is nothing to lower.
"""

from __future__ import annotations

from dataclasses import dataclass

from .emit import MEMORY, VALUES, plain
from .errors import IRError
from .ir.dtypes import FLOATS, DType
from .ir.resources import Param

SCORES = ("softmax", "sigmoid")
WARP = 32
MOST_PER_LANE = 16
MOST_EXPERTS = WARP * MOST_PER_LANE
MOST_CHOICES = WARP  # a lane keeps one
LEAST_SUM = 1e-20
THREADS = 128
SM_CTAS = 4  # more would leave a thread of 512 experts too few registers


@dataclass(frozen=True, kw_only=True)
class Selection:
    """logits [tokens, experts] of bf16, f16 or f32, bias float32 [experts] or null -> chosen int32 and weights float32, both [tokens, top +
    shared].

    score: "softmax" or "sigmoid". per_lane: experts that a lane has: 1, 2, 4, 8 or 16, for at most 32 times as many.

    Everything but these is an argument of the kernel: shapes, addresses, groups. top and shared together are at most 32. Raises IRError.
    """

    logits: DType
    score: str
    per_lane: int

    def __post_init__(self) -> None:
        if self.logits not in FLOATS or self.score not in SCORES:
            raise IRError(f"a selection by {self.score} of {self.logits} is none")
        if self.per_lane not in (1, 2, 4, 8, MOST_PER_LANE):
            raise IRError(f"per_lane={self.per_lane}: must be 1, 2, 4, 8 or {MOST_PER_LANE}")

    @property
    def name(self) -> str:
        """The kernel's, of all fields."""
        return f"select_{self.score}_{self.logits}_{WARP * self.per_lane}"

    @property
    def threads(self) -> int:
        """Of a CTA."""
        return THREADS

    @property
    def ctas_per_sm(self) -> int:
        """That run at once at least."""
        return SM_CTAS

    @property
    def params(self) -> tuple[Param, ...]:
        """In the order of the kernel's."""
        pointers = {
            "logits": "const Logit::Element* __restrict__",
            "bias": "const float* __restrict__",
            "chosen": "int* __restrict__",
            "weights": "float* __restrict__",
        }
        sizes: tuple[str, ...] = ("pitch", "tokens", "experts", "top", "shared")
        sizes += ("groups", "kept", "best", "renormalise")
        kinds = pointers | dict.fromkeys(sizes, "int") | {"scale": "float"}
        return tuple(Param(name=name, ctype=ctype) for name, ctype in kinds.items())

    def tiles(self, tokens: int) -> int:
        """CTAs that have something to do."""
        return -(-tokens * WARP // THREADS)


def per_lane(experts: int) -> int:
    """The least there is for so many experts, at most 512."""
    return next(n for n in (1, 2, 4, 8, MOST_PER_LANE) if WARP * n >= experts)


def source(selection: Selection) -> str:
    """The kernel's self-contained CUDA source: it includes nothing under NVRTC. Same selection, same bytes."""
    layer = (MEMORY, *VALUES)
    return plain("selecting/select.cu.j2", layer, selection=selection, least_sum=LEAST_SUM)
