"""Calls of products with FP32 weights and sums of squares, drawn."""

from __future__ import annotations

from typing import Any

import pytest
from fake_torch import Placed, bf16
from hypothesis import strategies as st

from gemmgen import ops
from gemmgen.ops import pairing, prenorm

from .values import CONFIG, Function, function, mostly

# What the function handed on.
PASSED: list[Any] = []


def without_gpu(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(prenorm, "compute", lambda *of, **how: PASSED.append((*of, how)) or of)
    patch.setattr(pairing, "pairs_of", lambda *of: PASSED.append(of) or of)


def _product(given: dict[str, Any]) -> list[str]:
    PASSED.clear()
    ops.prenorm_gemm(**given)
    p, config, a, pairs, out, read, how = PASSED[-1]
    told = {
        "a": a is given["a"] and p.squares and not read,
        "pairs": pairs is given["pairs"],
        "out": out is given.get("out"),
        "squares": how["squares"] is given.get("squares"),
        "config": config is given.get("config"),
    }
    return [name for name in given if not told[name]]


def _pairs(given: dict[str, Any]) -> list[str]:
    PASSED.clear()
    ops.paired(**given)
    weights, squares, tf32 = PASSED[-1]
    told = {
        "weights": weights is given["weights"],
        "squares": squares is given.get("squares", False),
        "tf32": tf32 is given.get("tf32", False),
    }
    return [name for name in given if not told[name]]


def _of(*shape: int) -> st.SearchStrategy[Any]:
    return mostly(st.builds(lambda: Placed(*shape)), odd=12)


FUNCTIONS: dict[str, Function] = {
    "prenorm_gemm": function(
        ops.prenorm_gemm,
        _product,
        {"out": _of(8, 24), "squares": _of(8), "config": mostly(CONFIG | st.none())},
        a=mostly(st.builds(lambda: bf16(8, 256))),
        pairs=mostly(st.builds(lambda: bf16(50, 256))),
    ),
    "paired": function(
        ops.paired,
        _pairs,
        {"squares": mostly(st.booleans()), "tf32": mostly(st.booleans())},
        weights=mostly(st.builds(lambda: Placed(24, 256))),
    ),
}
