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


CUT = (
    2.0**-13
)  # of the largest: what the tensor core leaves out of each FP8 product and sum that it aligns to that
STEP, LARGEST = (
    32,
    8,
)  # products that are aligned with the sum so far; the largest of them, of their root mean square


def of_fast_sums(dtype, k):
    """Of a vector's length, what sums of `k` independent FP8 products of mean 0 in the tensor core cost, and their rounding to `dtype`.

    Of each product is cut off up to CUT of the largest of its step, which is a product or the sum so far, of size sqrt(k): errors of
    either sign, as in `of_length`. The sum itself is cut towards 0 each step, by CUT / 2 in the mean."""
    products = CUT * max(LARGEST, k**0.5) / 3**0.5
    return of_length(dtype) + products + k / STEP * CUT / 2
