"""GEMMs of FP8 by packed weights of 4 bits: right calls, and what is wrong with others."""

from __future__ import annotations

from dataclasses import replace

from fake_torch import Placed

from gemmgen import ops
from gemmgen.epilogues import EPILOGUES, PerColumn
from gemmgen.errors import IllegalConfig
from gemmgen.ir.expr import ACC

from .coded import (
    ACROSS,
    COLUMNS,
    EXPECTED,
    OPERAND,
    OUT,
    OVER,
    ROWS,
    TABLE,
    TABLES,
    K,
    M,
    N,
    of_blocks,
    right_of,
)
from .coded import CONFIG as OF_16_BITS
from .model import Function, Given, wrong
from .tensors import tensor

BYTES = 4352  # of a block of "e2m1_32_e8m0"
CONFIG = replace(OF_16_BITS, block_k_bytes=128)
FP8 = "float8_e4m3fn"


def right(grouping: str = "none") -> Given:
    given = right_of(grouping)
    lead, groups = given["a"].shape[:-2], given["b"].shape[:-3]
    return given | {
        "a": Placed(*given["a"].shape, dtype=FP8),
        "b": Placed(*groups, ROWS, ACROSS, BYTES, dtype="uint8"),
        "weights": "e2m1_32_e8m0",
        "config": CONFIG,
        "scale_a": Placed(*lead, M),
        "scale_b": Placed(*groups, N),
    }


BLOCKS = (
    *tensor("b", "none dtype device rank side last address"),
    wrong("numbers for b", "b dtype", b=Placed(N, K, dtype=FP8)),
    of_blocks("blocks of INT4", "b shape", ROWS, ACROSS, BYTES - 128),
    of_blocks("blocks of twice the K", "b shape", ROWS, 2 * ACROSS, BYTES),
    of_blocks("no blocks", "columns", 0, ACROSS, BYTES, columns=None),
)
SCALES = (
    *(wrong(f"{x} of a dtype of its own", f"{x} dtype", **{x: Placed(side, dtype="float64")}) for x, side in (("scale_a", M), ("scale_b", N))),
    *(wrong(f"one {x} too many", f"{x} shape", **{x: Placed(side + 1)}) for x, side in (("scale_a", M), ("scale_b", N))),
    *(wrong(f"{x} as text", x, **{x: "2"}) for x in ("scale_a", "scale_b")),
)  # fmt: skip
OPTIONS = (
    *(wrong(f"weights {x!r}", "weights", weights=x) for x in ("", "int4_128_bf16", "e2m1_16_e4m3", None, 4)),
    *(wrong(f"out_dtype {x!r}", "out_dtype", out_dtype=x) for x in ("e4m3", "s32", "f64", ["bf16"], 16, None)),
    wrong("BF16 for a", "a dtype", a=Placed(M, K, dtype="bfloat16")),
    wrong("the other FP8 for a", "a dtype", a=Placed(M, K, dtype="float8_e5m2")),
    wrong("no config of gemmgen's", "config", config={"block_n": 64}),
    wrong("a number for a promise", "weights_ready", weights_ready=1),
    wrong("a number for invariance", "invariant", invariant=1),
    wrong("no epilogue's name", "epilogue", epilogue="rleu"),
    wrong("an epilogue with scales of its own", "epilogue argument", epilogue="tensor_scaled"),
    wrong("a vector that the epilogue reads is missing", "bias", epilogue=ACC + PerColumn("bias")),
    wrong("an argument that the epilogue does not read", "nobody", nobody=1.0),
)  # fmt: skip
ALONE = (
    wrong("an odd number of columns that are paired", "columns", epilogue=EPILOGUES["swiglu"], columns=N + 1, out=None, scale_b=None),
    wrong("codes that are not wgmma's A", "decoded-swapped", IllegalConfig, config=replace(CONFIG, swap_ab=False)),
    wrong("K blocks of 256 columns", "decoded-span", IllegalConfig, config=replace(CONFIG, block_k_bytes=256)),
)  # fmt: skip
PAIR = (*tensor("a", OPERAND), *BLOCKS, *tensor("out", OUT), *OVER, *COLUMNS, *SCALES, *OPTIONS)
GROUPED = {
    "batched": ("batched", tensor("b", "groups")),
    "masked": ("masked", (*tensor("b", "groups"), *tensor("group_rows", TABLE), *EXPECTED)),
    "rows": ("grouped", (*tensor("row_groups", TABLE), *TABLES)),
    "ends": ("grouped", (*tensor("group_ends", TABLE), *TABLES, *EXPECTED)),
}
FUNCTIONS = (
    Function(name="ops.w4a8_gemm", call=ops.w4a8_gemm, right=right, wrong=(*PAIR, *ALONE)),
    *(
        Function(
            name=f"ops.w4a8_{name}_gemm",
            call=getattr(ops, f"w4a8_{name}_gemm"),
            right=lambda grouping=grouping: right(grouping),
            wrong=(*PAIR, *more),
        )
        for grouping, (name, more) in GROUPED.items()
    ),
)
