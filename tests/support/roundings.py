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
