"""Weights of 4 and 8 bits in NumPy: what their codes and scales stand for, exactly, and how they are made.

`gemmgen.quant` reads them from checkpoints; what a kernel makes of them is judged by `dequantise`.
"""

from ..ir.codings import E2M1_VALUES
from .format import FP8_ROWS, GROUPS, INT8_ROWS, MXFP4, NVFP4, Format, int4, named, widest_group
from .multiplied import multiplied, rescaled, sum_scales
from .numbers import e2m1, e2m1_values, e8m0_values
from .packing import Packed, numbers, pack, unpack
from .quantise import quantise
from .weights import Weights, dequantise, elements, grouped, nibbles, paired

__all__ = [
    "E2M1_VALUES",
    "FP8_ROWS",
    "GROUPS",
    "INT8_ROWS",
    "MXFP4",
    "NVFP4",
    "Format",
    "Packed",
    "Weights",
    "dequantise",
    "e2m1",
    "e2m1_values",
    "e8m0_values",
    "elements",
    "grouped",
    "int4",
    "multiplied",
    "named",
    "nibbles",
    "numbers",
    "pack",
    "paired",
    "quantise",
    "rescaled",
    "sum_scales",
    "unpack",
    "widest_group",
]
