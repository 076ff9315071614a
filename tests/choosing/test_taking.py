"""Whether a layer's first GEMM takes rows by index: what the model says, beside what was measured."""

from __future__ import annotations

import pytest

from gemmgen.ir.dtypes import BF16, E4M3
from gemmgen.ops import building, taking
from gemmgen.problem import Problem
from gemmgen.target import H100

FP8 = Problem(family="fp8_block", a=E4M3, b=E4M3, d=E4M3, epilogue="swiglu", grouping="ends")
SIZES = {
    "v3": (256, 8, 7168, 4096),
    "v3 of 32": (32, 8, 7168, 4096),
    "qwen3": (128, 8, 4096, 3072),
    "gpt-oss": (128, 4, 2880, 5760),
}
# Over copies and the GEMM after them, an H100 (docs/adr/0063-rows-by-index.md).
MEASURED = {
    ("v3", 256): 0.948,
    ("v3", 1024): 0.966,
    ("v3", 4096): 1.204,
    ("v3", 16384): 1.044,
    ("v3 of 32", 64): 0.976,
    ("v3 of 32", 4096): 1.054,
    ("v3 of 32", 16384): 1.159,
    ("qwen3", 64): 0.962,
    ("qwen3", 4096): 0.908,
    ("qwen3", 16384): 1.096,
    ("gpt-oss", 64): 0.979,
    ("gpt-oss", 4096): 0.888,
    ("gpt-oss", 16384): 1.035,
}


def layer(name, tokens, product=FP8):
    experts, top, hidden, wide = SIZES[name]
    mean = -(-tokens * top // experts)
    return taking.Layer(
        product=product, shape=(mean, wide, hidden), experts=experts, tokens=tokens, top=top
    )


@pytest.fixture(autouse=True)
def an_h100(monkeypatch):
    monkeypatch.setattr(building, "priced_for", lambda device: (H100.device_name, H100))
    caches = (taking.pays, building.kept_choice)
    for x in caches:
        x.cache_clear()
    yield
    for x in caches:
        x.cache_clear()


def test_what_was_measured():
    """Nothing is lost that copies would not lose; two gains are left out, of more rows than the model tells gains from losses of."""
    taken = {at: taking.pays(layer(*at), 0) for at in MEASURED}
    assert not {at: MEASURED[at] for at, pays in taken.items() if pays and MEASURED[at] > 1}
    left = {at for at, pays in taken.items() if not pays and MEASURED[at] < 1}
    assert left <= {("qwen3", 4096), ("gpt-oss", 4096), ("gpt-oss", 64)}, left


def test_16_bits_copy_no_scales():
    p = Problem(family="dense", a=BF16, b=BF16, epilogue="swiglu", grouping="ends")
    assert taking._scales(layer("v3", 64, p), 1.0) == 0.0
    assert taking.pays(layer("qwen3", 1024, p), 0)
