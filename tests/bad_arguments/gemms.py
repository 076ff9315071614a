"""The GEMMs of `gemmgen.ops`: right calls of each, and what is wrong with others."""

from __future__ import annotations

from fake_torch import Placed

from gemmgen import ops
from gemmgen.config import Config
from gemmgen.epilogues import EPILOGUES, PerColumn, Scalar
from gemmgen.errors import IllegalConfig
from gemmgen.ir.dtypes import E4M3
from gemmgen.ir.expr import ACC
from gemmgen.problem import Problem

from .model import Function, Given, Output, Wrong, wrong
from .tensors import tensor

BLOCK_SCALED = Problem(family="fp8_block", a=E4M3, b=E4M3)
G, M, N, K = 3, 256, 72, 256
BLOCKS_N, BLOCKS_K = 1, 2
CONFIG = Config(block_n=64, stages=2)
FP8, BF16, INT8 = "float8_e4m3fn", "bfloat16", "int8"
OPERAND = "none dtype device rank last pitch address negative"
OUT = "none dtype device rank side rows last pitch address negative"
LENGTHS = "none dtype device rank last"  # of which any length will do
TABLE = LENGTHS + " side"
SCALES = (
    "none dtype device rank side rows"  # of a layout that the copy engine reads: address, column
)

COMMON = (
    wrong("no config of gemmgen's", "config", config={"block_n": 64}),
    wrong("an output dtype that there is not", "out_dtype", out_dtype="f64"),
)
EPILOGUE = (
    wrong("no expression", "epilogue", epilogue=1.0),
    wrong("no epilogue's name", "epilogue", epilogue="rleu"),
    wrong("a vector that the epilogue reads is missing", "bias", epilogue=ACC + PerColumn("bias")),
    wrong("a number that the epilogue reads is missing", "alpha", epilogue=ACC * Scalar("alpha")),
    wrong("text for a number", "alpha", epilogue=ACC * Scalar("alpha"), alpha="2"),
    wrong("nothing for a number", "alpha", epilogue=ACC * Scalar("alpha"), alpha=None),
    wrong("a number that no double holds", "alpha", epilogue=ACC * Scalar("alpha"), alpha=10**400),
    wrong("a list for a vector", "bias", epilogue=ACC + PerColumn("bias"), bias=[0.0] * N),
    wrong("an argument that the epilogue does not read", "nobody", nobody=1.0),
    wrong("scale_out without an FP8 output", "scale_out", scale_out=1.0),
)
VECTORS = (
    wrong("a vector of another length", "bias shape", epilogue=ACC + PerColumn("bias"), bias=Placed(N + 1)),
    wrong("a vector of another dtype", "bias dtype", epilogue=ACC + PerColumn("bias"), bias=Placed(N, dtype=BF16)),
    wrong("a vector with gaps", "bias strides", epilogue=ACC + PerColumn("bias"), bias=Placed(N, stride=(2,))),
    wrong("a matrix of odd rows", "c row stride", epilogue=EPILOGUES["residual"], c=Placed(M, N, dtype=BF16, stride=(N + 1, 1))),
    wrong("an odd N where columns are paired", "b rows", epilogue=EPILOGUES["swiglu"], b=Placed(N + 1, K, dtype=BF16)),
)  # fmt: skip


def overlapping(name: str = "out", operand: str = "a") -> Wrong:
    """The output begins where an operand does."""

    def change(given: Given) -> Given:
        out = given[name].seen(given[name].shape, given[name].strides)
        out.address = given[operand].address
        return {name: out}

    return Wrong(says=f"{name} over {operand}", change=change, argument=name)


def operands(dtype: str, grouping: str = "none") -> Given:
    """a, b, out and the table of a right call."""
    lead = (G,) * (grouping in ("batched", "masked"))
    groups = (G,) * (grouping != "none")
    tables = {
        "masked": {"group_rows": (G,)},
        "rows": {"row_groups": (M,)},
        "ends": {"group_ends": (G,)},
    }
    made = {n: Placed(*s, dtype="int32") for n, s in tables.get(grouping, {}).items()}
    out = "int32" if dtype == INT8 else BF16
    return {
        "a": Placed(*lead, M, K, dtype=dtype),
        "b": Placed(*groups, N, K, dtype=dtype),
        "out": Output(*lead, M, N, dtype=out),
        "config": CONFIG,
        **made,
    }  # fmt: skip


def blocks(dtype: str, grouping: str = "none") -> Given:
    """The same with the scales of blocks."""
    given = operands(dtype, grouping)
    lead = given["a"].shape[:-2]
    steps = (*(BLOCKS_K * M,) * len(lead), 1, M)
    return {
        **given,
        "out": Output(*lead, M, N),
        "scale_a": Placed(*lead, M, BLOCKS_K, stride=steps),
        "scale_b": Placed(*given["b"].shape[:-2], BLOCKS_N, BLOCKS_K),
        "scale_a_layout": "mn",
    }


PAIR = (
    *tensor("a", OPERAND),
    *tensor("b", OPERAND + " side"),
    *tensor("out", OUT),
    overlapping(),
    *COMMON,
)
BLOCKED = (
    *tensor("scale_a", SCALES + " address column"),
    *tensor("scale_b", SCALES),
    wrong("a layout of scales that there is not", "scale_a_layout", scale_a_layout="column"),
    wrong("no layout of scales", "scale_a_layout", scale_a_layout=None),
)


def _tables(grouping: str) -> tuple[Wrong, ...]:
    """What is wrong with a grouped call."""
    both = wrong("two tables", "row_groups, group_ends", row_groups=Placed(M, dtype="int32"), group_ends=Placed(G, dtype="int32"))  # fmt: skip
    neither = wrong("no table", "row_groups, group_ends", row_groups=None, group_ends=None)
    odd = wrong("groups aligned to 100", "alignment", alignment=100)
    match grouping:
        case "batched":
            return tensor("b", "groups")
        case "masked":
            rows = wrong("no row expected", "expected_rows", expected_rows=0)
            some = wrong("half a row expected", "expected_rows", expected_rows=0.5)
            filled = wrong("no group expected", "expected_groups", expected_groups=0)
            return (*tensor("b", "groups"), *tensor("group_rows", TABLE), rows, some, filled)
        case "rows":
            return (*tensor("row_groups", TABLE), both, neither, odd)
    return (*tensor("group_ends", TABLE), both, neither, odd)


def _named(kind: str, grouping: str) -> str:
    stem = {"rows": "grouped", "ends": "grouped", "none": ""}.get(grouping, grouping)
    return "_".join(x for x in (kind, stem, "gemm") if x)


def _function(kind: str, grouping: str, dtype: str, more: tuple[Wrong, ...] = ()) -> Function:
    name = _named(kind, grouping)
    more = (*more, wrong("a number for a promise", "weights_ready", weights_ready=1))
    build = blocks if kind.endswith("block") else operands
    scales = BLOCKED if build is blocks else ()
    epilogue = () if dtype == INT8 and build is operands else EPILOGUE
    return Function(
        name=f"ops.{name}",
        call=getattr(ops, name),
        right=lambda: build(dtype, grouping),
        wrong=(*PAIR, *scales, *_tables(grouping), *epilogue, *more)
        if grouping != "none"
        else (*PAIR, *scales, *epilogue, *more),
    )


DENSE = (
    wrong("a layout that there is not", "layout", layout="xy"),
    wrong("a list for a layout", "layout", layout=["nt"]),
)
SINGLE = (
    *VECTORS,
    wrong("an operand of another dtype than the other's", "b dtype", b=Placed(N, K, dtype="float16")),
    wrong("no columns", "a columns", a=Placed(M, 0, dtype=BF16), b=Placed(N, 0, dtype=BF16)),
    wrong("no rows of b", "b rows", b=Placed(0, K, dtype=BF16), out=None),
    wrong("nothing to add to", "out", accumulate=True, out=None),
    wrong("adding to BF16", "accumulate", accumulate=True, out_dtype="bf16"),
    wrong("neither true nor false", "accumulate", accumulate=[1], out_dtype="f32"),
    wrong("a tile that no wgmma has", "tile-rows", IllegalConfig, config=Config(block_m=8)),
    wrong("more stages than shared memory", "smem-capacity", IllegalConfig, config=Config(stages=16)),
    wrong("scale_out of another shape", "scale_out shape", out=None, out_dtype="e4m3", config=Config(stages=2), scale_out=Placed(M, 2, stride=(1, M))),
    wrong("scale_out along N", "scale_out stride along M", out=None, out_dtype="e4m3", config=Config(stages=2), b=Placed(2 * N, K, dtype=BF16), scale_out=Placed(M, 2)),
    wrong("scale_out whose columns meet", "scale_out column stride", out=None, out_dtype="e4m3", config=Config(stages=2), b=Placed(2 * N, K, dtype=BF16), scale_out=Placed(M, 2, stride=(1, 4))),
)  # fmt: skip
OF_A_SUM = (
    wrong("a scale of another dtype", "scale_a dtype", scale_a=Placed(M, dtype=BF16), out_dtype="f32", out=None),
    wrong("a scale of another length", "scale_b shape", scale_b=Placed(5), out_dtype="f32", out=None),
    wrong("text for a scale", "scale_a", scale_a="1", out_dtype="f32", out=None),
)  # fmt: skip
FAST = (
    wrong("INT8 operands", "a dtype", a=Placed(M, K, dtype=INT8), b=Placed(N, K, dtype=INT8)),
    *OF_A_SUM,
)
WHOLE = (
    *OF_A_SUM,
    wrong("scales of an INT32 output", "out_dtype", scale_a=2.0),
    wrong("K of which sums may overflow", "a columns", a=Placed(M, 131072, dtype=INT8), b=Placed(N, 131072, dtype=INT8)),
)  # fmt: skip


def _vectors() -> Given:
    given = blocks(FP8) | {"scale_layout": "mn", "out": Output(M, N, dtype="float32")}
    del given["scale_a_layout"]
    return given | {"scale_b": Placed(N, BLOCKS_K, stride=(1, N))}


WGRAD = Function(
    name="ops.fp8_wgrad_gemm",
    call=ops.fp8_wgrad_gemm,
    right=_vectors,
    wrong=(
        *PAIR,
        *tensor("scale_a", SCALES + " address column"),
        *tensor("scale_b", SCALES + " address column"),
        wrong("a layout of scales that there is not", "scale_layout", scale_layout="nm"),
        wrong("a number to add", "c", c=1.0),
        wrong("a matrix of another shape to add", "c shape", c=Placed(M, N + 8)),
        wrong("a matrix of another dtype to add", "c dtype", c=Placed(M, N, dtype=BF16)),
        wrong("an FP8 output", "out_dtype", out_dtype="e4m3"),
    ),
)


def _any() -> Given:
    given = blocks(FP8) | {"problem": BLOCK_SCALED, "scale_layout": "mn"}
    del given["scale_a_layout"]
    return given


MULTIPLY = Function(
    name="ops.multiply",
    call=ops.multiply,
    right=_any,
    wrong=(
        *(w for w in PAIR if w.argument != "out_dtype"),
        *tensor("scale_a", SCALES + " address column"),
        *tensor("scale_b", SCALES),
        wrong("a layout of scales that there is not", "scale_layout", scale_layout="nm"),
        wrong("a name for a problem", "problem", problem="fp8_block"),
        wrong("a table of one GEMM", "table", table=Placed(G, dtype="int32")),
        wrong("rows expected of one GEMM", "expected_rows", expected_rows=9),
        wrong("groups expected of one GEMM", "expected_groups", expected_groups=1),
        wrong("scale_out without an FP8 output", "scale_out", scale_out=1.0),
        wrong("an argument that the epilogue does not read", "nobody", nobody=1.0),
    ),
)


def _depths(kind: str) -> Given:
    given = {"group_depths": Placed(G, dtype="int32"), "out": Output(G, M, N, dtype="float32")}
    if kind == "bf16":
        return {
            "a": Placed(K, M, dtype=BF16),
            "b": Placed(K, N, dtype=BF16),
            "config": CONFIG,
            **given,
        }
    return {**_vectors(), "packing": "columns", **given}


SPLIT = (
    *tensor("group_depths", LENGTHS),
    wrong("a number to add", "c", c=1.0),
    wrong("a matrix of another shape to add", "c shape", c=Placed(M, N)),
    wrong("no config of gemmgen's", "config", config="fast"),
    wrong("an FP8 output", "out_dtype", out_dtype="f64"),
    overlapping(),
)
K_GROUPED = (
    Function(
        name="ops.k_grouped_gemm",
        call=ops.k_grouped_gemm,
        right=lambda: _depths("bf16"),
        wrong=(*tensor("a", OPERAND), *tensor("b", OPERAND + " rows"), *SPLIT, *DENSE),
    ),
    Function(
        name="ops.fp8_k_grouped_gemm",
        call=ops.fp8_k_grouped_gemm,
        right=lambda: _depths("fp8"),
        wrong=(
            *tensor("a", OPERAND),
            *tensor("b", OPERAND + " side"),
            *tensor("scale_a", SCALES + " address column"),
            *tensor("scale_b", SCALES + " address column"),
            *SPLIT,
            wrong("a packing that there is not", "packing", packing="rows"),
            wrong("K that is no multiple of 128", "a columns", a=Placed(M, 144, dtype=FP8), b=Placed(N, 144, dtype=FP8)),
            wrong("flat, and of another size", "a shape", packing="flat", a=Placed(M, dtype=FP8)),
            wrong("no packing", "packing", packing=None),
        ),
    ),
)  # fmt: skip


def _sum() -> Given:
    return {
        "a": Placed(G, M, K, dtype=BF16),
        "b": Placed(G, N, K, dtype=BF16),
        "out": Output(M, N),
        "config": CONFIG,
    }


SUMMED = Function(
    name="ops.summed_gemm",
    call=ops.summed_gemm,
    right=_sum,
    wrong=(
        *tensor("a", OPERAND),
        *tensor("b", OPERAND + " side"),
        *tensor("out", OUT),
        wrong("a batch of another size", "b groups", b=Placed(G + 1, N, K, dtype=BF16)),
        wrong("a D of each", "out shape", out=Output(G, M, N)),
        wrong("K and the batch past 31 bits", "a groups", a=Placed(1 << 24, 8, K, dtype=BF16), b=Placed(1 << 24, 8, K, dtype=BF16), out=Output(8, 8)),
        wrong("a number to add", "c", c=1.0),
        wrong("a matrix of another shape to add", "c shape", c=Placed(G, M, N, dtype=BF16)),
        wrong("a matrix of odd rows to add", "c row stride", c=Placed(M, N, dtype=BF16, stride=(N + 1, 1))),
        wrong("no config of gemmgen's", "config", config="fast"),
        wrong("an FP8 output", "out_dtype", out_dtype="e4m3"),
        overlapping(),
        *DENSE,
    ),
)  # fmt: skip
FUNCTIONS = (
    _function("", "none", BF16, (*DENSE, *SINGLE)),
    _function("fp8", "none", FP8, FAST),
    _function("int8", "none", INT8, WHOLE),
    _function("fp8_block", "none", FP8),
    _function("int8_block", "none", INT8),
    WGRAD,
    MULTIPLY,
    *(
        _function(kind, grouping, dtype, more)
        for grouping in ("batched", "masked", "rows", "ends")
        for kind, dtype, more in (("", BF16, DENSE), ("fp8_block", FP8, ()), ("fp8", FP8, OF_A_SUM), ("int8", INT8, ()))
    ),
    *K_GROUPED,
    SUMMED,
)  # fmt: skip
