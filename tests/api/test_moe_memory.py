"""What `ops.moe` holds, and until when."""

from __future__ import annotations

import weakref
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from mixtures import CASES, CODED, biases_of, choices, drawn, weights_of  # noqa: E402
from torch_reference import on_cpu  # noqa: E402, F401

from gemmgen import ops, torch_ops  # noqa: E402
from gemmgen.bench.moe_sizes import Sizes  # noqa: E402
from gemmgen.cli.moe_launches import layer  # noqa: E402
from gemmgen.errors import ArgumentError  # noqa: E402
from gemmgen.nn.experts import CALLS  # noqa: E402
from gemmgen.ops import mixture  # noqa: E402
from gemmgen.target import H200  # noqa: E402

GEMMS = (
    "plain",
    "blocks",
    "quantised",
    "by_row",
    "integers",
    "coded",
    "coded_by_row",
    "coded_by_block",
    "octets",
)


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


@pytest.mark.parametrize(("kind", "order"), CASES)
def test_rows_are_free_before_the_second_gemm(kind, order, held):
    """Of what the first GEMM has read nothing is held when the second begins, but for tables of integers."""
    tokens, experts, hidden, inner, top = 40, 4, 384, 256, 3
    w = weights_of(experts, hidden, inner, kind=kind, order=order)
    mixture.moe(drawn(tokens, hidden, kind=kind), **w, **choices(tokens, top, experts), order=order)
    scale = w.get("scale_w1")
    gaps = w.get("activations") == "e4m3_128" or (scale is not None and scale.dim() == 3)
    rows = ops.routing.rows_of(tokens * top, experts, 4 if gaps else 1)
    first, last = (
        [s for s, dtype in x if dtype != torch.int32 and s[-1] in (hidden, inner)]
        for x in (held[0], held[-1])
    )
    read = tokens if kind == "fp8" else rows  # so few are read by index
    assert (first, last) == ([(read, hidden)], [(rows, inner)])


@pytest.mark.parametrize("tokens", (1, 40, 900))
def test_bytes_are_those_that_the_explanation_adds_up(tokens):
    """Tensor by tensor there; within what each is rounded up to."""
    s = Sizes(experts=16, top=4, hidden=384, intermediate=256)
    said = layer("", s, tokens, H200)
    given = drawn(tokens, s.hidden), *weights_of(s.experts, s.hidden, s.intermediate).values()
    x, w1, w2, scale_w1, scale_w2 = given
    scales = {"scale_w1": scale_w1, "scale_w2": scale_w2}
    found = torch_ops.moe_bytes(x, w1, w2, **choices(tokens, s.top, s.experts), **scales)
    assert said.peak <= found <= said.peak + 512 * len(said.held)


@pytest.mark.parametrize(("kind", "order"), CASES)
def test_bytes_of_tensors_that_are_not_there(kind, order):
    """Of shapes alone, on the meta device: what they are of tensors; more tokens hold more, and a rank's experts less."""

    def given(tokens, experts=4):
        w = weights_of(experts, 384, 256, kind=kind, order=order)
        return {"x": drawn(tokens, 384, kind=kind), **w, **choices(tokens, 3, 4), "order": order}

    of = given(40)
    found = torch_ops.moe_bytes(**of)
    meta = {n: x.to("meta") if isinstance(x, torch.Tensor) else x for n, x in of.items()}
    assert torch_ops.moe_bytes(**meta) == found > 2 * 384 * 120
    assert torch_ops.moe_bytes(**given(4000)) > 10 * found
    scale = of.get("scale_w1")
    gaps = of.get("activations") == "e4m3_128" or (scale is not None and scale.dim() == 3)
    fewer = gaps or (scale is not None and order == "halves")  # of which scales are copied
    one = torch_ops.moe_bytes(**given(40, 1), experts=4)
    assert one < found if fewer else one == found
    biased = of | biases_of(4, 384, 256)
    assert torch_ops.moe_bytes(**biased) >= found
    for named, wrong in (
        ("order", {"order": "gate first"}),
        ("w1 strides" if kind in CODED else "w1 last stride", {"w1": of["w1"].mT.contiguous().mT}),
        ("bias_w1 strides", {"bias_w1": biased["bias_w1"].mT.contiguous().mT}),
    ):
        with pytest.raises(ArgumentError) as e:
            torch_ops.moe_bytes(**biased | wrong)
        assert e.value.argument == named
