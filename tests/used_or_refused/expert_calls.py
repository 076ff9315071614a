"""Calls of layers of experts, and of what is around their GEMMs, drawn."""

from __future__ import annotations

import math
from typing import Any

import pytest
from fake_torch import Placed
from hypothesis import strategies as st

from gemmgen import ops
from gemmgen.ops import combining, mixture, routing, selecting, spreading

from .values import Function, function, mostly

# What a function handed on to what this campaign has not.
PASSED: list[Any] = []


def without_gpu(patch: pytest.MonkeyPatch) -> None:
    def results(calls: Any, w: Any, x: Any, chosen: Any, **said: Any) -> Any:
        PASSED.append({**vars(w), "x": x, "chosen": chosen, **said})
        return None, None

    def summed(y: Any, slots: Any, weights: Any, *, add: Any) -> None:
        PASSED[-1] |= {"weights": weights, "add": add}

    patch.setattr(routing, "_routed", lambda *of: PASSED.append(of) or of)
    patch.setattr(selecting, "selected", lambda *of: PASSED.append(of) or of)
    patch.setattr(combining, "combined", lambda **of: PASSED.append(of) or of)
    patch.setattr(spreading, "copied", lambda *of: PASSED.append(of) or of)
    patch.setattr(mixture, "results", results)
    patch.setattr(mixture, "combine", summed)


def _route(given: dict[str, Any]) -> list[str]:
    PASSED.clear()
    ops.route(**given)
    chosen, rows, alignment, first, local = PASSED[-1]
    copies = math.prod(given["chosen"].shape)
    told = {
        "chosen": chosen is given["chosen"],
        "experts": local == given.get("local") or local + first == given["experts"],
        "alignment": alignment == given.get("alignment", 128)
        and rows % alignment == 0
        and rows >= copies,
        "first": first == given.get("first", 0),
        "local": given.get("local") in (None, local),
    }
    return [k for k in given if not told[k]]


def _select(given: dict[str, Any]) -> list[str]:
    PASSED.clear()
    ops.select(**given)
    logits, how = PASSED[-1]
    passed = {"logits": logits, **vars(how)}
    return [name for name, x in given.items() if passed[name] is not x]


def _combine(given: dict[str, Any]) -> list[str]:
    PASSED.clear()
    ops.combine(**given)
    return [name for name, x in given.items() if PASSED[-1][name] is not x]


def _spread(given: dict[str, Any]) -> list[str]:
    PASSED.clear()
    ops.spread(**given)
    passed = dict(zip(("q", "scale", "slots", "rows"), PASSED[-1], strict=True))
    return [name for name, x in given.items() if passed[name] is not x]


def _moe(given: dict[str, Any]) -> list[str]:
    PASSED.clear()
    ops.moe(**given)
    return [name for name, x in given.items() if x is not None and PASSED[-1][name] is not x]


def _of(*shape: int, dtype: str = "bfloat16") -> st.SearchStrategy[Any]:
    return mostly(st.builds(lambda: Placed(*shape, dtype=dtype)), odd=12)


MAY = {
    "add": _of(64, 256),
    "order": mostly(st.sampled_from(["alternating", "halves"])),
    "epilogue": mostly(st.sampled_from(["swiglu", "geglu", "swiglu_clamped"])),
    "bias_w1": _of(8, 512, dtype="float32"),
    "bias_w2": _of(8, 256, dtype="float32"),
    "experts": mostly(st.sampled_from([8, 64])),
    "first": mostly(st.sampled_from([0, 3])),
}
TOKENS = {
    "x": _of(64, 256),
    "chosen": _of(64, 4, dtype="int32"),
    "weights": _of(64, 4, dtype="float32"),
}


def _layer(dtype: str, *scales: tuple[int, ...]) -> Function:
    scale_w1, scale_w2 = (_of(*sides, dtype="float32") for sides in scales)
    return function(
        ops.moe,
        _moe,
        MAY,
        w1=_of(8, 512, 256, dtype=dtype),
        scale_w1=scale_w1,
        w2=_of(8, 256, 256, dtype=dtype),
        scale_w2=scale_w2,
        **TOKENS,
    )


def _packed_layer() -> Function:
    """Of MXFP4, whose blocks have as many bytes for BF16 and for FP8, with factors."""
    may = MAY | {
        "activations": mostly(st.just("e4m3")),
        "scale_w1": _of(8, 512, dtype="float32"),
        "scale_w2": _of(8, 256, dtype="float32"),
    }
    return function(
        ops.moe,
        _moe,
        may,
        packed=mostly(st.just("e2m1_32_e8m0")),
        w1=_of(8, 8, 2, 4352, dtype="uint8"),
        w2=_of(8, 4, 2, 4352, dtype="uint8"),
        **TOKENS,
    )


X = mostly(st.builds(lambda: Placed(64, 256, dtype="bfloat16")))
FUNCTIONS: dict[str, Function] = {
    "route": function(
        ops.route,
        _route,
        {
            "alignment": mostly(st.sampled_from([1, 8, 128])),
            "first": mostly(st.sampled_from([0, 3, 63])),
            "local": mostly(st.sampled_from([1, 32, 64])),
        },
        chosen=mostly(st.sampled_from(["int32", "int64"]).map(lambda x: Placed(64, 8, dtype=x))),
        experts=mostly(st.sampled_from([64, 512, 1000])),
    ),
    "select": function(
        ops.select,
        _select,
        {
            "score": mostly(st.sampled_from(["softmax", "sigmoid"])),
            "bias": mostly(st.builds(lambda: Placed(64))),
            "groups": mostly(st.sampled_from([1, 4, 8])),
            "kept_groups": mostly(st.sampled_from([1, 2])),
            "renormalise": mostly(st.booleans()),
            "scale": mostly(st.sampled_from([1.0, 2.5])),
            "shared": mostly(st.sampled_from([0, 1])),
        },
        logits=mostly(st.builds(lambda: Placed(64, 64))),
        top=mostly(st.sampled_from([1, 4, 8])),
    ),
    "combine": function(
        ops.combine,
        _combine,
        {"add": mostly(st.builds(lambda: Placed(8, 256, dtype="bfloat16")))},
        y=X,
        slots=mostly(st.builds(lambda: Placed(8, 4, dtype="int32"))),
        weights=mostly(st.builds(lambda: Placed(8, 4))),
    ),
    "spread": function(
        ops.spread,
        _spread,
        {},
        q=mostly(st.builds(lambda: Placed(8, 256, dtype="float8_e4m3fn"))),
        scale=mostly(st.builds(lambda: Placed(8, 2))),
        slots=mostly(st.builds(lambda: Placed(8, 4, dtype="int32"))),
        rows=mostly(st.sampled_from([0, 1, 640])),
    ),
    "moe": _layer("float8_e4m3fn", (8, 4, 2), (8, 2, 2)),
    "moe of rows": _layer("float8_e4m3fn", (8, 512), (8, 256)),
    "moe of integers": _layer("int8", (8, 512), (8, 256)),
    "moe of packed weights": _packed_layer(),
}  # fmt: skip
