"""An indexer's scores: right calls, and what is wrong with others."""

from __future__ import annotations

from fake_torch import Placed

from gemmgen import ops
from gemmgen.compat import deep_gemm
from gemmgen.config import Config
from gemmgen.errors import IllegalConfig, UnsupportedProblem

from .model import Function, Given, Output, wrong
from .tensors import tensor

QUERIES, HEADS, KEYS, DEPTH = 4, 32, 72, 64
FP8 = "float8_e4m3fn"
CONFIG = Config(swap_ab=True, block_m=64, block_n=64, consumers=1, block_k_bytes=64)
VECTOR = "none dtype device rank side"
BOUNDS = ("window_first", "window_end")


def _scores() -> Given:
    return {
        "q": Placed(QUERIES, HEADS, DEPTH, dtype=FP8),
        "kv": Placed(KEYS, DEPTH, dtype=FP8),
        "kv_scale": Placed(KEYS),
        "weights": Placed(QUERIES, HEADS),
        "window_first": Placed(QUERIES, dtype="int32"),
        "window_end": Placed(QUERIES, dtype="int32"),
        "out": Output(QUERIES, KEYS, dtype="float32"),
        "config": CONFIG,
    }


def heads(count: int) -> Placed:
    return Placed(QUERIES, count, DEPTH, dtype=FP8)


WRONG = (
    *tensor("q", "none dtype device rank last address"),
    *tensor("kv", "none dtype device rank side last pitch address negative"),
    *tensor("kv_scale", VECTOR),
    *tensor("weights", VECTOR + " rows"),
    *(w for name in BOUNDS for w in tensor(name, VECTOR)),
    *tensor("out", "none dtype device rank side rows last pitch address negative"),
    *(wrong(f"{n} heads", "q heads", q=heads(n)) for n in (0, 1, 24, 256)),
    wrong("gaps between queries", "q stride between queries", q=Placed(QUERIES, HEADS, DEPTH, dtype=FP8, stride=(4096, 64, 1))),
    wrong("an FP8 output", "out_dtype", out_dtype="e4m3"),
    wrong("no output's dtype", "out_dtype", out_dtype=None),
    wrong("no columns", "columns", columns=0, out=None),
    wrong("half a column", "columns", columns=1.5, out=None),
    wrong("other columns than the output's", "out shape", columns=KEYS - 1),
    wrong("no config of gemmgen's", "config", config={"block_n": 64}),
    wrong("a config without swap_ab", "row-sums", IllegalConfig, config=Config(block_n=64, stages=2)),
    wrong("gaps between weights", "weights strides", weights=Placed(QUERIES, HEADS, stride=(40, 1))),
    wrong("gaps between bounds", "window_end strides", window_end=Placed(QUERIES, dtype="int32", stride=(2,))),
)  # fmt: skip


def _theirs() -> Given:
    of = _scores()
    return {
        "q": of["q"],
        "kv": (of["kv"], of["kv_scale"]),
        "weights": of["weights"],
        "cu_seq_len_k_start": of["window_first"],
        "cu_seq_len_k_end": of["window_end"],
    }


def _newer() -> Given:
    of = _theirs()
    return {**of, "q": (of["q"], None)}


COMMON = (
    *tensor("cu_seq_len_k_start", VECTOR),
    *tensor("cu_seq_len_k_end", VECTOR),
    wrong("keys without scales", "kv", kv=_scores()["kv"]),
    wrong("a word for a flag", "clean_logits", clean_logits="no"),
    wrong("a length twice", "clean_logits", clean_logits=64, max_seqlen_k=64),
    wrong("a length below 0", "max_seqlen_k", max_seqlen_k=-1),
    wrong("a flag for a length", "max_seqlen_k", max_seqlen_k=True),
    wrong("clean rows that begin with their windows", "clean_logits", max_seqlen_k=64),
)  # fmt: skip
THEIRS = (
    *tensor("q", "none dtype device rank last address"),
    *tensor("kv[0]", "none dtype device rank side last pitch address"),
    *tensor("kv[1]", VECTOR),
    *tensor("weights", VECTOR + " rows"),
    *COMMON,
)
NEWER = (
    *COMMON,
    wrong("q alone", "q", q=_scores()["q"]),
    wrong("scales of q", "scales of q", UnsupportedProblem, q=(_scores()["q"], Placed(QUERIES, HEADS))),
    wrong("logits of 16 bits that there are not", "logits_dtype", logits_dtype="float16"),
)  # fmt: skip


def _of_scores() -> Given:
    given = _scores()
    del given["out"]
    return given | {"count": 16}


COUNT = tuple(
    wrong(f"{x!r} of each", "count", count=x) for x in (0, -1, 4097, 1.0, "1", None, True)
)
OF_SCORES = (
    *COUNT,
    *tensor("q", "none dtype device rank last address"),
    *tensor("kv", "none dtype device rank side last pitch address negative"),
    *tensor("kv_scale", VECTOR),
    *tensor("weights", VECTOR + " rows"),
    *(w for name in BOUNDS for w in tensor(name, VECTOR)),
    *(wrong(f"{n} heads", "q heads", q=heads(n)) for n in (0, 1, 24, 256)),
    wrong("no columns", "columns", columns=0),
    wrong("half a column", "columns", columns=1.5),
    wrong("no config of gemmgen's", "config", config={"block_n": 64}),
    wrong("a config without swap_ab", "row-sums", IllegalConfig, config=Config(block_n=64, stages=2)),
    wrong("gaps between bounds", "window_end strides", window_end=Placed(QUERIES, dtype="int32", stride=(2,))),
)  # fmt: skip


def _rows() -> Given:
    bounds = {name: Placed(QUERIES, dtype="int32") for name in ("first", "end")}
    return {"x": Placed(QUERIES, KEYS), "count": 16, **bounds}


ROWS = (
    *COUNT,
    *(wrong(f"{x} of no tensor", x, **{x: [[1.0]]}) for x in ("x", "first", "end")),
    wrong("integers", "x dtype", x=Placed(QUERIES, KEYS, dtype="int32")),
    wrong("one row", "x shape", x=Placed(KEYS)),
    *(wrong("bounds of 64 bits", f"{x} dtype", **{x: Placed(QUERIES, dtype="int64")}) for x in ("first", "end")),
    *(wrong("bounds of fewer rows", f"{x} shape", **{x: Placed(QUERIES - 1, dtype="int32")}) for x in ("first", "end")),
)  # fmt: skip
OURS = (
    Function(name="ops.fp8_mqa_logits", call=ops.fp8_mqa_logits, right=_scores, wrong=WRONG),
    Function(
        name="ops.fp8_mqa_top_k",
        call=ops.fp8_mqa_top_k,
        right=_of_scores,
        runs=False,
        wrong=OF_SCORES,
    ),
    Function(name="ops.top_k", call=ops.top_k, right=_rows, runs=False, wrong=ROWS),
)
DEEP_GEMM = (
    Function(name="deep_gemm.fp8_mqa_logits", call=deep_gemm.fp8_mqa_logits, right=_theirs, wrong=THEIRS),
    Function(name="deep_gemm.fp8_fp4_mqa_logits", call=deep_gemm.fp8_fp4_mqa_logits, right=_newer, wrong=NEWER),
)  # fmt: skip
FUNCTIONS = (*OURS, *DEEP_GEMM)
