"""GEMMs of FP8 with a scale for each 128 of K by packed weights of 4 bits: right calls, and what is wrong with others."""

from __future__ import annotations

from dataclasses import replace

from fake_torch import Placed

from gemmgen import ops

from . import coded_fp8
from .coded import K, M
from .gemms import SCALES
from .model import Function, Given, wrong
from .tensors import tensor

BLOCKS_K = -(-K // 128)
CONFIG = replace(coded_fp8.CONFIG, in_flight=0)


def _right(grouping: str = "none") -> Given:
    given = coded_fp8.right(grouping)
    lead = given["a"].shape[:-2]
    rows = -(-M // 4) * 4
    steps = (*(rows * BLOCKS_K,) * len(lead), 1, rows)
    return given | {
        "config": CONFIG,
        "scale_a": Placed(*lead, M, BLOCKS_K, stride=steps),
        "scale_a_layout": "mn",
    }


WRONG = (
    *(x for x in coded_fp8.PAIR if "scale_a" not in x.says),
    *tensor("scale_a", SCALES + " address column"),
    wrong("a scale for each row alone", "scale_a shape", scale_a=Placed(M)),
    wrong("a layout of scales that there is not", "scale_a_layout", scale_a_layout="column"),
    wrong("no layout of scales", "scale_a_layout", scale_a_layout=None),
)
FUNCTIONS = (
    Function(
        name="ops.w4a8_block_gemm",
        call=ops.w4a8_block_gemm,
        right=_right,
        wrong=(*WRONG, *coded_fp8.ALONE),
    ),
    *(
        Function(
            name=f"ops.w4a8_block_{name}_gemm",
            call=getattr(ops, f"w4a8_block_{name}_gemm"),
            right=lambda grouping=grouping: _right(grouping),
            wrong=(*WRONG, *more),
        )
        for grouping, (name, more) in coded_fp8.GROUPED.items()
    ),
)
