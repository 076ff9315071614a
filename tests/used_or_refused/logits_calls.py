"""Calls of an indexer's scores, drawn."""

from __future__ import annotations

from typing import Any

import pytest
from fake_torch import Placed
from hypothesis import strategies as st

from gemmgen import ops
from gemmgen.ops import logits, paged_logits, top_keys, top_scores

from .values import CONFIG, Function, function, mostly

TENSORS = ("q", "kv", "kv_scale", "weights", "window_first", "window_end")
PAGES = ("context_lens", "block_table")
# What the function handed on to the launch.
PASSED: list[Any] = []


def without_gpu(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(logits, "run", lambda *of, **how: PASSED.append((*of, how)) or of)
    for module, name in (
        (top_keys, "found"),
        (top_scores, "found"),
        (top_scores, "found_in_pages"),
    ):
        patch.setattr(module, name, lambda *of: PASSED.append(of) or of)
    patch.setattr(paged_logits, "run", lambda *of, **how: PASSED.append((*of, how)) or of)


def _scores(given: dict[str, Any]) -> list[str]:
    PASSED.clear()
    ops.fp8_mqa_logits(**given)
    p, config, a, b, out, shape, _, _, read, told_of = PASSED[-1]
    q, vectors = given["q"], ("weights", "window_first", "window_end")
    told = {
        "q": a.data_ptr() == q.data_ptr() and shape[0] == q.shape[0] * q.shape[1],
        "kv": b is given["kv"] and shape[1] == b.shape[0],
        "kv_scale": read["column_scale"] is given["kv_scale"],
        "out": out is given.get("out"),
        "out_dtype": p.d.name == given.get("out_dtype", "f32"),
        "columns": (p.compact, told_of["room"])
        == (given.get("columns") is not None, given.get("columns") or 0),
        "config": config is given.get("config"),
        **{name: read[name] is given[name] for name in vectors},
    }
    return [name for name in given if not told[name]]


def _paged(given: dict[str, Any]) -> list[str]:
    PASSED.clear()
    ops.fp8_paged_mqa_logits(**given)
    p, config, a, b, out, shape, _, where, read, told = PASSED[-1]
    q, table = given["q"], given["block_table"]
    passed = {
        "q": a.data_ptr() == q.data_ptr() and told["groups"].count == q.shape[0],
        "kv": b is given["kv"] and where["page_count"] == b.shape[0],
        "kv_scale": read["column_scale"] is given["kv_scale"],
        "weights": read["weights"] is given["weights"],
        "context_lens": read["window_end"] is given["context_lens"],
        "block_table": (where["pages"], where["pages_stride"])
        == (table.data_ptr(), table.stride(0)),
        "max_context_len": shape[1] == given["max_context_len"],
        "out": out is given.get("out"),
        "out_dtype": p.d.name == given.get("out_dtype", "f32"),
        "config": config is given.get("config"),
    }
    return [name for name in given if not passed[name]]


def _views(given: dict[str, Any]) -> list[str]:
    """Both are of the cache's memory, one behind the other."""
    cache = given["cache"]
    kv, scale = ops.paged_cache(cache)
    there = kv.data_ptr() == cache.data_ptr() and scale.data_ptr() == cache.data_ptr() + 64 * 64
    return ["cache"] * (not there)


def _places(given: dict[str, Any]) -> list[str]:
    PASSED.clear()
    ops.top_k(**given)
    told = dict(zip(("x", "count", "first", "end"), PASSED[-1], strict=True))
    return [name for name, x in given.items() if told[name] is not x]


def _keys(given: dict[str, Any]) -> list[str]:
    PASSED.clear()
    ops.fp8_mqa_top_k(**given)
    tensors, count, columns, config = PASSED[-1]
    keys = given["kv"].shape[0]
    told = dict(
        zip(
            TENSORS,
            (x is given[name] for name, x in zip(TENSORS, tensors, strict=True)),
            strict=True,
        )
    )
    told |= {"count": count == given["count"], "config": config is given.get("config")}
    told |= {"columns": columns == min(given.get("columns") or keys, keys)}
    return [name for name in given if not told[name]]


def _keys_in_pages(given: dict[str, Any]) -> list[str]:
    PASSED.clear()
    ops.fp8_paged_mqa_top_k(**given)
    tensors, count, columns, config = PASSED[-1]
    told = {n: x is given[n] for n, x in zip(TENSORS[:4] + PAGES, tensors, strict=True)}
    told |= {
        "count": count == given["count"],
        "max_context_len": columns == given["max_context_len"],
    }
    told |= {"config": config is given.get("config")}
    return [name for name in given if not told[name]]


def _of(*shape: int, dtype: str = "float32") -> st.SearchStrategy[Any]:
    return mostly(st.builds(lambda: Placed(*shape, dtype=dtype)), odd=12)


IN_PAGES = {
    "q": _of(3, 2, 32, 64, dtype="float8_e4m3fn"),
    "kv": _of(7, 64, 64, dtype="float8_e4m3fn"),
    "kv_scale": _of(7, 64),
    "weights": _of(3, 2, 32),
    "context_lens": _of(3, 2, dtype="int32"),
    "block_table": _of(3, 2, dtype="int32"),
    "max_context_len": mostly(st.just(100) | st.integers(1, 128)),
}
FUNCTIONS: dict[str, Function] = {
    "fp8_mqa_logits": function(
        ops.fp8_mqa_logits,
        _scores,
        {
            "out": _of(4, 72),
            "out_dtype": mostly(st.sampled_from(["f32", "bf16", "f16"])),
            "columns": mostly(st.none() | st.integers(1, 100)),
            "config": mostly(CONFIG | st.none()),
        },
        q=_of(4, 32, 64, dtype="float8_e4m3fn"),
        kv=_of(72, 64, dtype="float8_e4m3fn"),
        kv_scale=_of(72),
        weights=_of(4, 32),
        window_first=_of(4, dtype="int32"),
        window_end=_of(4, dtype="int32"),
    ),
    "fp8_mqa_top_k": function(
        ops.fp8_mqa_top_k,
        _keys,
        {"columns": mostly(st.none() | st.integers(1, 100)), "config": mostly(CONFIG | st.none())},
        q=_of(4, 32, 64, dtype="float8_e4m3fn"),
        kv=_of(72, 64, dtype="float8_e4m3fn"),
        kv_scale=_of(72),
        weights=_of(4, 32),
        window_first=_of(4, dtype="int32"),
        window_end=_of(4, dtype="int32"),
        count=mostly(st.integers(1, 4096)),
    ),
    "fp8_paged_mqa_logits": function(
        ops.fp8_paged_mqa_logits,
        _paged,
        {
            "out": _of(3, 2, 100),
            "out_dtype": mostly(st.sampled_from(["f32", "bf16", "f16"])),
            "config": mostly(CONFIG | st.none()),
        },
        **IN_PAGES,
    ),
    "fp8_paged_mqa_top_k": function(
        ops.fp8_paged_mqa_top_k,
        _keys_in_pages,
        {"config": mostly(CONFIG | st.none())},
        **IN_PAGES,
        count=mostly(st.integers(1, 4096)),
    ),
    "top_k": function(
        ops.top_k,
        _places,
        {"first": _of(4, dtype="int32"), "end": _of(4, dtype="int32")},
        x=_of(4, 72),
        count=mostly(st.integers(1, 4096)),
    ),
    "paged_cache": function(ops.paged_cache, _views, {}, cache=_of(7, 64, 1, 68, dtype="uint8")),
}
