"""What `ops.moe` holds, and until when."""

from __future__ import annotations

import weakref
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from mixtures import choices, drawn, weights_of  # noqa: E402
from torch_reference import on_cpu  # noqa: E402, F401

from gemmgen import ops  # noqa: E402
from gemmgen.nn.experts import CALLS  # noqa: E402
from gemmgen.ops import mixture  # noqa: E402

GEMMS = ("plain", "blocks", "quantised", "by_row", "integers")


@pytest.fixture
def held(on_cpu, monkeypatch):  # noqa: F811
    """Of each GEMM, the shapes of earlier launches' results that are still there."""
    made, found = [], []

    def noting(call, gemm):
        def run(*args, **given):
            if gemm:
                tensors = [x() for x in made]
                found.append([(tuple(x.shape), x.dtype) for x in tensors if x is not None])
                del tensors
            results = call(*args, **given)
            for x in results if isinstance(results, tuple) else (results,):
                made.append(weakref.ref(x))
            return results

        return run

    names = ("route", "quantise_rows", "spread", *GEMMS)
    calls = {n: noting(getattr(CALLS, n), n in GEMMS) for n in names}
    monkeypatch.setattr(mixture, "CALLS", replace(CALLS, **calls))
    return found


@pytest.mark.parametrize("order", ("alternating", "halves"))
@pytest.mark.parametrize("kind", ("bf16", "fp8", "fp8 rows", "int8"))
def test_rows_are_free_before_the_second_gemm(kind, order, held):
    """Of what the first GEMM has read nothing is held when the second begins, but for tables of integers."""
    tokens, experts, hidden, inner, top = 40, 4, 384, 256, 3
    w = weights_of(experts, hidden, inner, kind=kind, order=order)
    mixture.moe(drawn(tokens, hidden), **w, **choices(tokens, top, experts), order=order)
    rows = ops.routing.rows_of(tokens * top, experts, 128)
    first, last = (
        [s for s, dtype in x if dtype != torch.int32 and s[-1] in (hidden, inner)]
        for x in (held[0], held[-1])
    )
    read = tokens if kind == "fp8" else rows  # so few are read by index
    assert (first, last) == ([(read, hidden)], [(rows, inner)])
