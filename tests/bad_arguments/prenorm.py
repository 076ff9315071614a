"""FP32 weights in pairs, and sums of squares beside a product: right calls, and what is wrong with others."""

from __future__ import annotations

from fake_torch import Placed, bf16

from gemmgen import Problem, ops
from gemmgen.compat import deep_gemm
from gemmgen.config import Config
from gemmgen.errors import IllegalConfig

from .model import Function, Given, Output, wrong
from .tensors import tensor

ROWS, COLUMNS, DEPTH = 8, 24, 256
CONFIG = Config(block_m=64, block_n=64, consumers=1, stages=2)
OPERAND = "none dtype device rank last pitch address negative"


def _weights() -> Given:
    return {"weights": Placed(COLUMNS, DEPTH)}


PAIRED = (
    wrong("no tensor", "weights", weights=[[1.0]]),
    *(wrong(f"{x} weights", "weights dtype", weights=Placed(COLUMNS, DEPTH, dtype=x)) for x in ("bfloat16", "float16", "int32")),
    wrong("one row", "weights shape", weights=Placed(DEPTH)),
    wrong("weights of several", "weights shape", weights=Placed(2, COLUMNS, DEPTH)),
    *(wrong(f"{name}={x!r}", name, **{name: x}) for name in ("squares", "tf32") for x in (0, 1, None, "true")),
)  # fmt: skip


def _product() -> Given:
    return {
        "a": bf16(ROWS, DEPTH),
        "pairs": bf16(2 * (COLUMNS + 1), DEPTH),
        "out": Output(ROWS, COLUMNS, dtype="float32"),
        "squares": Output(ROWS, dtype="float32"),
        "config": CONFIG,
    }


WRONG = (
    *tensor("a", OPERAND),
    *tensor("pairs", OPERAND + " side"),
    *tensor("out", "none dtype device rank side rows last pitch address negative"),
    *tensor("squares", "none dtype device rank side"),
    *(wrong(f"{n} rows of pairs", "pairs rows", pairs=bf16(n, DEPTH)) for n in (1, 8, 48, 52, 54)),
    wrong("squares all in one place", "squares strides", squares=Output(ROWS, dtype="float32", stride=(0,))),
    wrong("a of 16 other bits", "a dtype", a=Placed(ROWS, DEPTH, dtype="float16")),
    wrong("no config of gemmgen's", "config", config={"block_n": 64}),
    wrong("swapped", "squares-rows", IllegalConfig, config=Config(swap_ab=True, block_m=8, stages=2)),
    wrong("another swizzle", "squares-lines", IllegalConfig, config=Config(block_m=64, consumers=1, swizzle_ab=64, stages=2)),
    wrong("in shares", "shares-squares", IllegalConfig, config=Config(block_m=64, consumers=1, shares=2, stages=2)),
)  # fmt: skip


def _any() -> Given:
    p = Problem(family="dense", a="bf16", b="bf16", d="f32", epilogue="pair_sum", squares=True)
    given = _product()
    return {"problem": p, "b": given.pop("pairs"), **given}


OF_ANY = (
    wrong("squares of a problem without", "squares", problem=Problem(family="dense", a="bf16", b="bf16", d="f32"), out=None),
    wrong("an output that has them", "out shape", out=Output(ROWS, COLUMNS + 1, dtype="float32")),
    wrong("columns that leave no whole pieces", "columns", b=bf16(54, DEPTH), out=None),
)  # fmt: skip


def _theirs() -> Given:
    return {
        "a": bf16(ROWS, DEPTH),
        "b": Placed(COLUMNS, DEPTH),
        "d": Output(4, ROWS, COLUMNS, dtype="float32"),
        "sqr_sum": Output(4, ROWS, dtype="float32"),
        "num_splits": 4,
    }


THEIRS = (
    *tensor("a", "none dtype device rank last"),
    *tensor("b", "none dtype device rank side"),
    *tensor("d", "none dtype device rank side rows last"),
    *tensor("sqr_sum", "none dtype device rank side"),
    *(wrong(f"{x!r} splits", "num_splits", num_splits=x) for x in (0, -1, 1.0, "4", True)),
    wrong("no splits", "d shape", num_splits=None),
    wrong("other splits", "d shape", num_splits=2),
)
FUNCTIONS = (
    Function(name="ops.paired", call=ops.paired, right=_weights, runs=False, wrong=PAIRED),
    Function(name="ops.prenorm_gemm", call=ops.prenorm_gemm, right=_product, wrong=WRONG),
    Function(name="ops.multiply, squares", call=ops.multiply, right=_any, wrong=OF_ANY),
    Function(name="deep_gemm.tf32_hc_prenorm_gemm", call=deep_gemm.tf32_hc_prenorm_gemm, right=_theirs, runs=False, wrong=THEIRS),
)  # fmt: skip
