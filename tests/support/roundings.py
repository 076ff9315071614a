"""What rounding to nearest costs, for bounds of tests."""

from __future__ import annotations

import torch

# Half a step, of the least number with such a step: an element is off by no more of itself.
UNIT = {
    torch.float8_e4m3fn: 2.0**-4,
    torch.bfloat16: 2.0**-8,
    torch.float16: 2.0**-11,
    torch.float32: 2.0**-24,
}


def of_length(dtype, times=1):
    """Of a vector's length, what so many roundings of all its elements cost: errors are independent, each spread evenly over at most
    UNIT of the element to either side, whose root mean square is 1 / sqrt(3) of that."""
    return UNIT[dtype] * (times / 3) ** 0.5


# What the tensor core leaves out of each FP8 product and sum that it aligns to the largest, of that.
CUT = 2.0**-13
# Products that are aligned with the sum so far; and how far the largest of many numbers is, in their root mean square.
STEP, LARGEST = 32, 8


def of_fast_sums(dtype, k):
    """Of a vector's length, what sums of `k` independent FP8 products of mean 0 in the tensor core cost, and their rounding to `dtype`."""
    return of_length(dtype) + of_cuts(k)


def of_cuts(k):
    """The sums alone. Of each product is cut off up to CUT of the largest of its step, which is a product or the sum so far, of size sqrt(k):
    errors of either sign, as in `of_length`. The sum itself is cut towards 0 each step, by CUT / 2 in the mean."""
    return CUT * max(LARGEST, k**0.5) / 3**0.5 + k / STEP * CUT / 2


def check_fast_sums(got, want, k):
    """`want`, float64, of such sums: all of `got` within what they cost, and each element within LARGEST times that and its own rounding."""
    off, size = (got.double() - want).abs(), want.square().mean().sqrt()
    assert off.norm() <= of_fast_sums(got.dtype, k) * want.norm()
    assert bool((off <= UNIT[got.dtype] * want.abs() + LARGEST * of_cuts(k) * size).all())
