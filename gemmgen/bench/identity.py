"""Whether two providers are two: by the kernel that each of them spends most of its time in."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations

from ..errors import GemmgenError

# Kernels that convert, fill and copy: torch's, which any two providers may share.
HELPERS = ("elementwise", "memset", "memcpy", "copy", "fill", "reduce_kernel", "splitkreduce")


def heaviest(seconds: Mapping[str, float]) -> str:
    """The kernel with the most seconds that is no helper; of helpers alone, the heaviest of them."""
    real = {name: s for name, s in seconds.items() if not is_helper(name)}
    candidates = real or dict(seconds)
    return max(candidates, key=lambda name: candidates[name])


def is_helper(kernel: str) -> bool:
    return any(word in kernel.lower() for word in HELPERS)


def check_distinct(mains: Mapping[str, str]) -> None:
    """`mains`: by provider, its heaviest kernel. Raises GemmgenError naming two that ran the same."""
    for first, second in combinations(mains, 2):
        if mains[first] == mains[second]:
            raise GemmgenError(
                f"providers {first} and {second} ran the same kernel, {mains[first]}: "
                "their times are one kernel's, measured twice"
            )
