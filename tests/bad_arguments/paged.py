"""An indexer's scores of keys in pages: right calls, and what is wrong with others."""

from __future__ import annotations

from fake_torch import Placed

from gemmgen import ops
from gemmgen.compat import deep_gemm
from gemmgen.config import Config
from gemmgen.errors import IllegalConfig, UnsupportedProblem

from .logits import CONFIG, COUNT, FP8, VECTOR
from .model import Function, Given, Output, wrong
from .tensors import tensor

SEQUENCES, QUERIES, HEADS, DEPTH, PAGES, COLUMNS = 3, 2, 32, 64, 7, 120
INT = "int32"


def _scores() -> Given:
    return {
        "q": Placed(SEQUENCES, QUERIES, HEADS, DEPTH, dtype=FP8),
        "kv": Placed(PAGES, 64, DEPTH, dtype=FP8),
        "kv_scale": Placed(PAGES, 64),
        "weights": Placed(SEQUENCES, QUERIES, HEADS),
        "context_lens": Placed(SEQUENCES, QUERIES, dtype=INT),
        "block_table": Placed(SEQUENCES, 2, dtype=INT),
        "max_context_len": COLUMNS,
        "out": Output(SEQUENCES, QUERIES, COLUMNS, dtype="float32"),
        "config": CONFIG,
    }


def heads(count: int) -> Placed:
    return Placed(SEQUENCES, QUERIES, count, DEPTH, dtype=FP8)


LENGTHS = (0, -1, 129, 2**31 - 1, 2**31, True, 1.5, "64", None)
OF_TENSORS = (
    *tensor("q", "none dtype device rank last address"),
    *tensor("kv", "none dtype device rank side rows last pitch address negative"),
    *tensor("kv_scale", "none dtype device rank side last"),
    *tensor("weights", VECTOR + " rows"),
    *tensor("context_lens", VECTOR + " rows"),
    *tensor("block_table", "none dtype device rank rows last"),
    *(wrong(f"{n} heads", "q heads", q=heads(n)) for n in (0, 1, 24, 256)),
    wrong("no queries", "q queries", q=Placed(SEQUENCES, 0, HEADS, DEPTH, dtype=FP8)),
    wrong("no depth", "q depth", q=Placed(SEQUENCES, QUERIES, HEADS, 0, dtype=FP8)),
    wrong("no pages", "kv pages", kv=Placed(0, 64, DEPTH, dtype=FP8), kv_scale=Placed(0, 64)),
    wrong("scales of fewer pages", "kv_scale shape", kv_scale=Placed(PAGES - 1, 64)),
    wrong("gaps between queries", "q stride between queries",
          q=Placed(SEQUENCES, QUERIES, HEADS, DEPTH, dtype=FP8, stride=(8192, 4096, 64, 1))),
    wrong("pages not at multiples of 16 bytes", "kv group stride",
          kv=Placed(PAGES, 64, DEPTH, dtype=FP8, stride=(64 * DEPTH + 4, DEPTH, 1))),
    wrong("gaps between lengths", "context_lens strides", context_lens=Placed(SEQUENCES, QUERIES, dtype=INT, stride=(4, 1))),
    wrong("no config of gemmgen's", "config", config={"block_n": 64}),
    wrong("a config without swap_ab", "row-sums", IllegalConfig, config=Config(block_n=64, stages=2)),
)  # fmt: skip
WRONG = (
    *OF_TENSORS,
    *tensor("out", "none dtype device rank side rows last pitch address negative"),
    *(wrong(f"{n!r} columns", "max_context_len", max_context_len=n, out=None) for n in LENGTHS),
    wrong("an FP8 output", "out_dtype", out_dtype="e4m3"),
)
OF_SCORES = (
    *OF_TENSORS,
    *COUNT,
    *(wrong(f"{n!r} columns", "max_context_len", max_context_len=n) for n in LENGTHS),
)


def _cache() -> Given:
    return {"cache": Placed(PAGES, 64, 1, DEPTH + 4, dtype="uint8")}


CACHES = (
    *tensor("cache", "none dtype"),
    wrong("pages of 16 keys", "cache shape", cache=Placed(PAGES, 16, DEPTH + 4, dtype="uint8")),
    wrong("two heads of keys", "cache shape", cache=Placed(PAGES, 64, 2, DEPTH + 4, dtype="uint8")),
    wrong("no codes", "cache shape", cache=Placed(PAGES, 64, 4, dtype="uint8")),
    wrong("8 codes", "cache shape", cache=Placed(PAGES, 64, 12, dtype="uint8")),
    wrong("pages not at multiples of 16 bytes", "cache strides",
          cache=Placed(PAGES, 64, DEPTH + 4, dtype="uint8", stride=(64 * (DEPTH + 4) + 8, DEPTH + 4, 1))),
    wrong("no pages", "cache shape", cache=Placed(0, 64, DEPTH + 4, dtype="uint8")),
    wrong("gaps", "cache strides", cache=Placed(PAGES, 64, DEPTH + 4, dtype="uint8", stride=(8192, 80, 1))),
)  # fmt: skip


def _theirs() -> Given:
    of = _scores()
    return {
        "q": of["q"],
        "kv_cache": _cache()["cache"],
        "weights": Placed(SEQUENCES * QUERIES, HEADS),
        "context_lens": of["context_lens"],
        "block_table": of["block_table"],
        "schedule_meta": None,
        "max_context_len": COLUMNS,
    }


def _newer() -> Given:
    of = _theirs()
    return {**of, "q": (of["q"], None)}


COMMON = (
    *tensor("kv_cache", "none dtype device address"),
    *tensor("weights", VECTOR + " rows"),
    *tensor("context_lens", VECTOR + " rows"),
    *tensor("block_table", "none dtype device rank rows last"),
    *(wrong(f"{n!r} columns", "max_context_len", max_context_len=n) for n in LENGTHS),
    wrong("a number for a flag", "clean_logits", clean_logits=1),
)  # fmt: skip
INDICES = wrong("indices", "indices", UnsupportedProblem, indices=Placed(SEQUENCES, dtype=INT))
THEIRS = (*tensor("q", "none dtype device rank last address"), *COMMON, INDICES)
NEWER = (
    *COMMON,
    wrong("q alone", "q", q=_scores()["q"]),
    wrong("scales of q", "scales of q", UnsupportedProblem, q=(_scores()["q"], Placed(SEQUENCES, HEADS))),
    INDICES,
    wrong("logits of 16 bits that there are not", "logits_dtype", logits_dtype="float16"),
)  # fmt: skip


def _metadata() -> Given:
    return {"context_lens": Placed(SEQUENCES, QUERIES, dtype=INT), "block_kv": 64, "num_sms": 132}


def _of_scores() -> Given:
    given = _scores()
    del given["out"]
    return given | {"count": 16}


METADATA = (
    *tensor("context_lens", "none dtype rank"),
    *(wrong(f"pages of {n!r}", "block_kv", block_kv=n) for n in (16, 32.0, 0, None)),
    *(wrong(f"{n!r} SMs", "num_sms", num_sms=n) for n in (0, -1, True, 1.5, None)),
    INDICES,
)
FUNCTIONS = (
    Function(name="ops.fp8_paged_mqa_logits", call=ops.fp8_paged_mqa_logits, right=_scores, wrong=WRONG),
    Function(name="ops.fp8_paged_mqa_top_k", call=ops.fp8_paged_mqa_top_k, right=_of_scores, runs=False, wrong=OF_SCORES),
    Function(name="ops.paged_cache", call=ops.paged_cache, right=_cache, wrong=CACHES),
    Function(name="deep_gemm.fp8_paged_mqa_logits", call=deep_gemm.fp8_paged_mqa_logits, right=_theirs, wrong=THEIRS),
    Function(name="deep_gemm.fp8_fp4_paged_mqa_logits", call=deep_gemm.fp8_fp4_paged_mqa_logits, right=_newer, wrong=NEWER),
    Function(name="deep_gemm.get_paged_mqa_logits_metadata", call=deep_gemm.get_paged_mqa_logits_metadata, right=_metadata, wrong=METADATA),
)  # fmt: skip
