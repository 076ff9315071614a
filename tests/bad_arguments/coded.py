"""GEMMs by packed weights of 4 bits, and by rows that come by index: right calls, and what is wrong with others."""

from __future__ import annotations

from dataclasses import replace

from fake_torch import Placed

from gemmgen import ops
from gemmgen.config import Config
from gemmgen.epilogues import EPILOGUES, PerColumn
from gemmgen.errors import IllegalConfig
from gemmgen.ir.counts import INT_LIMIT
from gemmgen.ir.dtypes import BF16
from gemmgen.ir.expr import ACC
from gemmgen.problem import Problem

from .model import Function, Given, Output, Wrong, wrong
from .tensors import tensor

G, M, N, K = 3, 256, 72, 256
ROWS, ACROSS, BYTES = 2, 2, 4224  # of blocks, and of one of "int4_128_bf16"
CONFIG = Config(swap_ab=True, block_m=16, block_n=64, block_k_bytes=256, consumers=1, stages=4, in_flight=1)  # fmt: skip
WEIGHTS = "int4_128_bf16"
PROBLEM = Problem(family="w4a16", a=BF16, b=BF16, weights=WEIGHTS)
OPERAND = "none dtype device rank last pitch address negative"
OUT = "none dtype device rank side rows last pitch address negative"
TABLE = "none dtype device rank last side"


def _blocks(*lead: int, dtype: str = "uint8", stride: tuple[int, ...] | None = None) -> Placed:
    return Placed(*lead, ACROSS, BYTES, dtype=dtype, stride=stride)


def right_of(grouping: str = "none") -> Given:
    lead = (G,) * (grouping in ("batched", "masked"))
    groups = (G,) * (grouping != "none")
    tables = {"masked": {"group_rows": (G,)}, "rows": {"row_groups": (M,)}, "ends": {"group_ends": (G,)}}  # fmt: skip
    return {
        "a": Placed(*lead, M, K, dtype="bfloat16"),
        "b": _blocks(*groups, ROWS),
        "out": Output(*lead, M, N),
        "weights": WEIGHTS,
        "columns": N,
        "config": CONFIG,
        **{n: Placed(*s, dtype="int32") for n, s in tables.get(grouping, {}).items()},
    }


def _apart(at: int) -> Wrong:
    """b with gaps between its rows of blocks, its blocks, or their bytes."""

    def change(given: Given) -> Given:
        steps = list(given["b"].strides)
        steps[at] += 16
        return {"b": Placed(*given["b"].shape, dtype="uint8", stride=tuple(steps))}

    return Wrong(says=f"b: gaps in side {at}", change=change, argument="b")


def of_blocks(says: str, argument: str, *sides: int, **changes: object) -> Wrong:
    """b's last sides, whatever its groups."""
    return Wrong(
        says=says,
        change=lambda given: {"b": Placed(*given["b"].shape[:-3], *sides, dtype="uint8"), **changes},
        argument=argument,
    )  # fmt: skip


BLOCKS = (
    *tensor("b", "none dtype device rank side last address"),
    _apart(-2),
    _apart(-3),
    wrong("numbers for b", "b dtype", b=Placed(N, K, dtype="bfloat16")),
    wrong("signed bytes for b", "b dtype", b=_blocks(ROWS, dtype="int8")),
    of_blocks("blocks with scales of 64", "b shape", ROWS, ACROSS, BYTES + 128),
    of_blocks("blocks of twice the K", "b shape", ROWS, 2 * ACROSS, BYTES),
    of_blocks("no blocks", "columns", 0, ACROSS, BYTES, columns=None),
    of_blocks("blocks of more columns", "columns", ROWS + 1, ACROSS, BYTES),
)
COLUMNS = (
    *(wrong(f"columns {x!r} of 65 to 128", "columns", columns=x) for x in (0, -1, 64, 129, 2**31, 72.0, "72", True, [72])),
    wrong("columns that are not given and of which D has fewer", "out shape", columns=None),
)  # fmt: skip
NAMES = (
    *(wrong(f"weights {x!r}", "weights", weights=x) for x in ("", "int4", "int3_128_bf16", "e2m1_64_e8m0", "int4_128_f16", None, 4, [WEIGHTS])),
    wrong("weights whose scales are of another dtype than a", "weights", a=Placed(M, K, dtype="float16")),
    wrong("exponents for a of another dtype", "weights", a=Placed(M, K, dtype="float16"), weights="e2m1_32_e8m0"),
)  # fmt: skip
SCALES = (
    wrong("scale_b of a dtype of its own", "scale_b dtype", scale_b=Placed(N, dtype="float64")),
    wrong("one scale_b too many", "scale_b shape", scale_b=Placed(N + 1)),
    wrong("scale_b as text", "scale_b", scale_b="2"),
    wrong(
        "an epilogue with a scale of its own",
        "epilogue argument",
        epilogue=ACC * PerColumn("scale_b") + PerColumn("bias"),
        scale_b=2.0,
        bias=Placed(N),
    ),
)
OPTIONS = (
    *(wrong(f"out_dtype {x!r}", "out_dtype", out_dtype=x) for x in ("e4m3", "s32", "f64", ["bf16"], 16)),
    wrong("no config of gemmgen's", "config", config={"block_n": 64}),
    wrong("a number for a promise", "weights_ready", weights_ready=1),
    wrong("a number for invariance", "invariant", invariant=1),
    wrong("no epilogue's name", "epilogue", epilogue="rleu"),
    wrong("a vector that the epilogue reads is missing", "bias", epilogue=ACC + PerColumn("bias")),
    wrong("an argument that the epilogue does not read", "nobody", nobody=1.0),
    wrong("scale_out without an FP8 output", "scale_out", scale_out=1.0),
)  # fmt: skip
ALONE = (
    wrong("a vector of 64 for each row of blocks", "bias shape", epilogue=ACC + PerColumn("bias"), bias=Placed(64 * ROWS)),
    wrong("an odd number of columns that are paired", "columns", epilogue=EPILOGUES["swiglu"], columns=N + 1, out=None),
    wrong("no columns of a", "b shape", a=Placed(M, 0, dtype="bfloat16")),
    wrong("nothing along K", "a columns", a=Placed(M, 0, dtype="bfloat16"), b=Placed(ROWS, 0, BYTES, dtype="uint8")),
    wrong("INT8 for a", "a dtype", a=Placed(M, K, dtype="int8")),
    wrong("codes that are not wgmma's A", "decoded-swapped", IllegalConfig, config=replace(CONFIG, swap_ab=False)),
)  # fmt: skip
OVER = tuple(
    Wrong(
        says=f"out over {x}",
        change=lambda given, x=x: {"out": _at(given["out"], given[x])},
        argument="out",
    )
    for x in "ab"
)
PAIR = (
    *tensor("a", OPERAND),
    *BLOCKS,
    *tensor("out", OUT),
    *OVER,
    *COLUMNS,
    *NAMES,
    *SCALES,
    *OPTIONS,
)


def _at(out: Output, operand: Placed) -> Placed:
    moved = out.seen(out.shape, out.strides)
    moved.address = operand.address
    return moved


EXPECTED = (
    wrong("no row expected", "expected_rows", expected_rows=0),
    wrong("no group expected", "expected_groups", expected_groups=0),
)
TABLES = (
    wrong("two tables", "row_groups, group_ends", row_groups=Placed(M, dtype="int32"), group_ends=Placed(G, dtype="int32")),
    wrong("no table", "row_groups, group_ends", row_groups=None, group_ends=None),
    wrong("groups aligned to 100", "alignment", alignment=100),
)  # fmt: skip
GROUPED = {
    "batched": ("batched", tensor("b", "groups")),
    "masked": ("masked", (*tensor("b", "groups"), *tensor("group_rows", TABLE), *EXPECTED)),
    "rows": ("grouped", (*tensor("row_groups", TABLE), *TABLES)),
    "ends": ("grouped", (*tensor("group_ends", TABLE), *TABLES, *EXPECTED)),
}


def _of_groups(grouping: str, name: str, more: tuple[Wrong, ...]) -> Function:
    name = f"w4a16_{name}_gemm"
    return Function(
        name=f"ops.{name}",
        call=getattr(ops, name),
        right=lambda: right_of(grouping),
        wrong=(*PAIR, *more),
    )


# ---- multiply ---------------------------------------------------------------------------------


def _any() -> Given:
    given = right_of() | {"problem": PROBLEM}
    del given["weights"]
    return given


def _by_index() -> Given:
    """Of 40 rows of A, each of which two rows of the product may have."""
    return {
        "problem": Problem(family="dense", a=BF16, b=BF16, grouping="ends", indexed=True),
        "a": Placed(40, K, dtype="bfloat16"),
        "b": Placed(G, N, K, dtype="bfloat16"),
        "out": Output(M, N),
        "table": Placed(G, dtype="int32"),
        "rows": Placed(M, dtype="int32"),
        "top": 2,
        "config": Config(block_n=64, stages=2),
    }


MULTIPLY = (
    Function(
        name="ops.multiply, packed weights",
        call=ops.multiply,
        right=_any,
        wrong=(
            *tensor("a", OPERAND),
            *BLOCKS,
            *tensor("out", OUT),
            *OVER,
            *COLUMNS,
            wrong("scales in a layout", "scale_layout", scale_layout="mn"),
            wrong("a scale that nothing reads", "scale_b", scale_b=Placed(N)),
            wrong("a table of one GEMM", "table", table=Placed(G, dtype="int32")),
            wrong("rows by index", "rows", rows=Placed(M, dtype="int32")),
            wrong("two of each row", "top", top=2),
            wrong("packed for another problem", "b shape", problem=replace(PROBLEM, weights="int4_32_bf16")),
            wrong("packed, for one that has no weights", "b dtype", problem=Problem(family="dense", a=BF16, b=BF16), columns=None),
        ),
    ),
    Function(
        name="ops.multiply, rows by index",
        call=ops.multiply,
        right=_by_index,
        wrong=(
            *tensor("rows", "none dtype device rank last"),
            *tensor("table", "none dtype device rank", named="group_ends"),
            wrong("no rows", "rows", rows=None),
            *(wrong(f"top {x!r}", "top", top=x) for x in (0, -1, 2**31, 1.5, "2", None, True)),
            wrong("a product of rows and top that int32 does not hold", "top", top=INT_LIMIT // 40 + 1),
            *(wrong(f"columns {x!r} of no packed weights", "columns", columns=x) for x in (N, 0, "72", True)),
        ),
    ),
)  # fmt: skip
FUNCTIONS = (
    Function(name="ops.w4a16_gemm", call=ops.w4a16_gemm, right=right_of, wrong=(*PAIR, *ALONE)),
    *(_of_groups(grouping, *x) for grouping, x in GROUPED.items()),
    *MULTIPLY,
)
