"""Calls of an indexer's scores, drawn."""

from __future__ import annotations

from typing import Any

import pytest
from fake_torch import Placed
from hypothesis import strategies as st

from gemmgen import ops
from gemmgen.ops import logits

from .values import CONFIG, Function, function, mostly

# What the function handed on to the launch.
PASSED: list[Any] = []


def without_gpu(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(logits, "run", lambda *of: PASSED.append(of) or of)


def _scores(given: dict[str, Any]) -> list[str]:
    PASSED.clear()
    ops.fp8_mqa_logits(**given)
    p, config, a, b, out, shape, _, _, read = PASSED[-1]
    q, vectors = given["q"], ("weights", "window_first", "window_end")
    told = {
        "q": a.data_ptr() == q.data_ptr() and shape[0] == q.shape[0] * q.shape[1],
        "kv": b is given["kv"] and shape[1] == b.shape[0],
        "kv_scale": read["column_scale"] is given["kv_scale"],
        "out": out is given.get("out"),
        "out_dtype": p.d.name == given.get("out_dtype", "f32"),
        "config": config is given.get("config"),
        **{name: read[name] is given[name] for name in vectors},
    }
    return [name for name in given if not told[name]]


def _of(*shape: int, dtype: str = "float32") -> st.SearchStrategy[Any]:
    return mostly(st.builds(lambda: Placed(*shape, dtype=dtype)), odd=12)


FUNCTIONS: dict[str, Function] = {
    "fp8_mqa_logits": function(
        ops.fp8_mqa_logits,
        _scores,
        {
            "out": _of(4, 72),
            "out_dtype": mostly(st.sampled_from(["f32", "bf16", "f16"])),
            "config": mostly(CONFIG | st.none()),
        },
        q=_of(4, 32, 64, dtype="float8_e4m3fn"),
        kv=_of(72, 64, dtype="float8_e4m3fn"),
        kv_scale=_of(72),
        weights=_of(4, 32),
        window_first=_of(4, dtype="int32"),
        window_end=_of(4, dtype="int32"),
    )
}
