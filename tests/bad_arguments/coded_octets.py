"""GEMMs by packed weights of 8 bits: right calls, and what is wrong with others."""

from __future__ import annotations

from fake_torch import Placed

from gemmgen import ops

from .coded import (
    ACROSS,
    ALONE,
    BLOCKS,
    COLUMNS,
    GROUPED,
    OPERAND,
    OPTIONS,
    OUT,
    OVER,
    ROWS,
    SCALES,
    K,
    M,
    N,
    of_blocks,
    right_of,
)
from .model import Function, Given, Wrong, wrong
from .tensors import tensor

BYTES = 8192  # of a block
WEIGHTS = "int8_column_f32"


def _right(grouping: str = "none") -> Given:
    given = right_of(grouping)
    groups = given["b"].shape[:-3]
    blocks = Placed(*groups, ROWS, ACROSS, BYTES, dtype="uint8")
    return given | {"b": blocks, "weights": WEIGHTS, "scale_b": Placed(*groups, N)}


OF_4_BITS = (
    "blocks with scales of 64",
    "blocks of twice the K",
    "no blocks",
    "blocks of more columns",
    "signed bytes for b",
)
PAIR = (
    *tensor("a", OPERAND),
    *(x for x in BLOCKS if x.says not in OF_4_BITS),
    of_blocks("blocks of 4 bits", "b shape", ROWS, ACROSS, 4224),
    of_blocks("blocks of twice the K", "b shape", ROWS, 2 * ACROSS, BYTES),
    of_blocks("no blocks", "columns", 0, ACROSS, BYTES, columns=None, scale_b=None),
    of_blocks("blocks of more columns", "columns", ROWS + 1, ACROSS, BYTES),
    *tensor("out", OUT),
    *OVER,
    *(x for x in COLUMNS if "are not given" not in x.says),
    *(wrong(f"weights {x!r}", "weights", weights=x) for x in ("", "int8", "int8_column_bf16", "int8_128_f32", "int4_128_bf16", "int8_column_f32_f16", None, 8, [WEIGHTS])),
    wrong("weights that are packed for another dtype than a", "weights", a=Placed(M, K, dtype="float16")),
    *SCALES,
    *OPTIONS,
)  # fmt: skip


def _of_groups(grouping: str, name: str, more: tuple[Wrong, ...]) -> Function:
    name = f"w8a16_{name}_gemm"
    return Function(
        name=f"ops.{name}",
        call=getattr(ops, name),
        right=lambda: _right(grouping),
        wrong=(*PAIR, *more),
    )


FUNCTIONS = (
    Function(name="ops.w8a16_gemm", call=ops.w8a16_gemm, right=_right, wrong=(*PAIR, *(x for x in ALONE if "along K" not in x.says))),
    *(_of_groups(grouping, *x) for grouping, x in GROUPED.items()),
)  # fmt: skip
