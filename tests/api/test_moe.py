"""`ops.moe` and `torch.ops.gemmgen.moe`, with float64 in the place of the GEMMs: against a layer in float64."""

from __future__ import annotations

from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from mixtures import (  # noqa: E402
    BF16,
    F32,
    FP8,
    choices,
    distance,
    drawn,
    layer,
    weights_of,
)
from torch._subclasses import FakeTensorMode  # noqa: E402
from torch_reference import on_cpu  # noqa: E402, F401

from gemmgen import nn, ops  # noqa: E402
from gemmgen.errors import ArgumentError  # noqa: E402
from gemmgen.nn.experts import CALLS  # noqa: E402
from gemmgen.ops import mixture  # noqa: E402

EXPERTS, HIDDEN, INNER = 6, 256, 128
KINDS = ("fp8", "bf16")
BOUND = {"fp8": 0.08, "bf16": 0.01}
ORDERS = ("alternating", "halves")


@pytest.fixture(autouse=True)
def called(on_cpu, monkeypatch):  # noqa: F811
    """The GEMMs on the CPU; what is launched, by name, with its arguments."""
    found = []

    def noted(name, run):
        def call(*args, **given):
            found.append((name, given))
            return run(*args, **given)

        return call

    names = ("route", "quantise_rows", "spread", "plain", "blocks", "quantised")
    calls = {name: noted(name, getattr(CALLS, name)) for name in names}
    monkeypatch.setattr(mixture, "CALLS", replace(CALLS, **calls))
    monkeypatch.setattr(mixture, "combine", noted("combine", ops.combine))
    return found


def given(tokens=40, top=3, kind="fp8", order="alternating", **more):
    """Arguments of a layer."""
    found = {"x": drawn(tokens, HIDDEN), **weights_of(EXPERTS, HIDDEN, INNER, "cpu", kind, order)}
    return {**found, **choices(tokens, top, EXPERTS), "order": order, **more}


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("tokens", "top"), ((0, 2), (1, 1), (1, 5), (40, 3), (9, 0)))
def test_tokens_get_their_experts(tokens, top, kind, order):
    of = given(tokens, top, kind, order)
    y = ops.moe(**of)
    assert (y.shape, y.dtype) == ((tokens, HIDDEN), BF16)
    assert distance(y, layer(**of)) < BOUND[kind]


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_added_comes_first(kind):
    of = given(kind=kind, add=drawn(40, HIDDEN))
    assert distance(ops.moe(**of), layer(**of)) < BOUND[kind]
    none = {**of, "chosen": torch.full((40, 3), EXPERTS)}
    assert torch.equal(ops.moe(**none), of["add"])


@pytest.mark.parametrize("kind", KINDS)
def test_ids_of_other_experts_add_nothing(kind):
    """And experts of parts, in whatever part, are those of the whole."""
    of = given(kind=kind)
    of["chosen"][0, 0] = -1
    of["chosen"][1, 1] = EXPERTS
    whole = ops.moe(**of)
    assert distance(whole, layer(**of)) < BOUND[kind]
    shift = of | {"chosen": of["chosen"] + 3, "first": 3, "experts": 64}
    assert torch.equal(ops.moe(**shift), whole)
    mine = {n: x[2:4] for n, x in of.items() if n.startswith(("w1", "w2", "scale"))}
    part = of | mine | {"first": 2, "experts": EXPERTS}
    assert distance(ops.moe(**part), layer(**part)) < BOUND[kind]


@pytest.mark.parametrize("kind", KINDS)
def test_bits_do_not_depend_on_the_order_of_tokens(kind):
    of, order = given(kind=kind), torch.randperm(40)
    moved = of | {name: of[name][order] for name in ("x", "chosen", "weights")}
    y = ops.moe(**of)
    assert torch.equal(ops.moe(**of), y)
    assert torch.equal(ops.moe(**moved), y[order])


@pytest.mark.parametrize("dtype", (torch.int32, torch.int64))
@pytest.mark.parametrize("weights", (F32, BF16, torch.float16))
def test_dtypes(dtype, weights):
    of = given()
    of |= {"chosen": of["chosen"].to(dtype), "weights": of["weights"].to(weights)}
    assert distance(ops.moe(**of), layer(**of)) < BOUND["fp8"]


def test_what_a_module_of_the_same_weights_gives():
    """To the bit, in as many launches."""
    of = given()
    mine = nn.GroupedExperts(EXPERTS, HIDDEN, INNER)
    names = {"w1": "gate_up", "w2": "down", "scale_w1": "gate_up_scale", "scale_w2": "down_scale"}
    mine.load_state_dict({name: of[x] for x, name in names.items()})
    assert torch.equal(mine(of["x"], of["chosen"], of["weights"]), ops.moe(**of))


LAUNCHES = {
    ("fp8", "alternating"): "route quantise_rows spread quantised blocks combine",
    ("fp8", "halves"): "route quantise_rows spread blocks quantised blocks combine",
    ("bf16", "alternating"): "route spread plain plain combine",
    ("bf16", "halves"): "route spread plain plain plain combine",
}


@pytest.mark.parametrize(("kind", "order"), LAUNCHES, ids=str)
def test_launches(kind, order, called):
    """Each by a function that makes one; GEMMs are told what rows an expert has in the mean, and how many have any."""
    ops.moe(**given(40, 4, kind, order), experts=50)
    assert " ".join(name for name, _ in called) == LAUNCHES[kind, order]
    assert expected(called) == {(4, EXPERTS)}  # of 160 copies, 50 experts
    assert sum("expected_rows" in of for _, of in called) == 2 + (order == "halves")


@pytest.mark.parametrize(
    ("tokens", "top", "experts", "told"),
    (
        (1, 4, EXPERTS, (1, 4)),
        (2, 2, EXPERTS, (1, 4)),
        (3, 4, EXPERTS, (2, EXPERTS)),
        (1, 3, 60, (1, 1)),  # of three experts a tenth of one
        (30, 1, 60, (1, 3)),
        (0, 2, EXPERTS, (1, 1)),
    ),
)
def test_of_few_tokens_few_experts_have_rows(tokens, top, experts, told, called):
    ops.moe(**given(tokens, top), experts=experts)
    assert expected(called) == {told}


def expected(called):
    """Rows of an expert that has any and experts that have any, as GEMMs are told."""
    return {(x["expected_rows"], x["expected_groups"]) for _, x in called if "expected_rows" in x}


@pytest.mark.parametrize("epilogue", ("geglu", "reglu"))
def test_other_gates(epilogue, called):
    ops.moe(**given(), epilogue=epilogue)
    assert [of["epilogue"] for _, of in called if "epilogue" in of] == [epilogue]


def test_rows_of_parents():
    of = given(kind="bf16")
    exact, plain = layer(**of), ops.moe(**of)
    for name in ("x", "w1", "w2", "weights", "chosen"):
        parent = of[name].new_ones((*of[name].shape[:-1], of[name].shape[-1] + 8))
        of[name] = parent[..., : of[name].shape[-1]].copy_(of[name])
    assert torch.equal(ops.moe(**of), plain) and distance(plain, exact) < BOUND["bf16"]


REFUSED = (
    ("x", lambda of: {"x": [[1.0]]}),
    ("x dtype", lambda of: {"x": of["x"].float()}),
    ("x shape", lambda of: {"x": of["x"][0]}),
    ("x shape", lambda of: {"x": of["x"][:, :249]}),
    ("w1 dtype", lambda of: {"w1": of["w1"].view(torch.int8)}),
    ("w1 dtype", lambda of: {"scale_w1": None}),
    ("w1 shape", lambda of: {"w1": of["w1"][:, 1:]}),
    ("w1 shape", lambda of: {"w1": of["w1"][..., :128]}),
    ("w1 shape", lambda of: {"w1": of["w1"][:0], "w2": of["w2"][:0]}),
    ("w1 shape", lambda of: {"w1": of["w1"][:, :64], "order": "halves"}),
    ("w1 last stride", lambda of: {"w1": of["w1"].mT.contiguous().mT}),
    ("w1", lambda of: {"w1": shifted(of["w1"])}),
    ("w2 dtype", lambda of: {"w2": of["w2"].to(BF16)}),
    ("w2 shape", lambda of: {"w2": of["w2"][:5]}),
    ("scale_w1 dtype", lambda of: {"scale_w1": of["scale_w1"].double()}),
    ("scale_w1 shape", lambda of: {"scale_w1": of["scale_w1"][:, :1]}),
    ("scale_w2", lambda of: {"scale_w2": None}),
    ("scale_w2 shape", lambda of: {"scale_w2": of["scale_w2"][:, :1]}),
    ("scale_w1", lambda of: {"scale_w1": None, **weights_of(6, HIDDEN, INNER, kind="bf16")}),
    ("chosen dtype", lambda of: {"chosen": of["chosen"].float()}),
    ("chosen shape", lambda of: {"chosen": of["chosen"][0]}),
    ("chosen shape", lambda of: {"chosen": of["chosen"][1:], "weights": of["weights"][1:]}),
    ("weights dtype", lambda of: {"weights": of["weights"].double()}),
    ("weights shape", lambda of: {"weights": of["weights"][:, 1:]}),
    ("weights", lambda of: {"weights": of["weights"].clone().requires_grad_()}),
    ("x", lambda of: {"x": of["x"].clone().requires_grad_()}),
    ("add dtype", lambda of: {"add": of["x"].float()}),
    ("add shape", lambda of: {"add": of["x"][1:]}),
    ("order", lambda of: {"order": "gate first"}),
    ("epilogue", lambda of: {"epilogue": "silu"}),
    ("epilogue", lambda of: {"epilogue": "geglu", "order": "halves"}),
    ("experts", lambda of: {"experts": EXPERTS - 1}),
    ("experts", lambda of: {"experts": EXPERTS, "first": 1}),
    ("first", lambda of: {"first": -1}),
    ("first", lambda of: {"first": "0"}),
)


def shifted(w):
    """8 bytes beyond a multiple of 16."""
    flat = torch.zeros(w.numel() + 16, dtype=torch.uint8).view(FP8)
    start = (8 - flat.data_ptr()) % 16
    return flat[start:][: w.numel()].view(w.shape)


@pytest.mark.parametrize(("named", "change"), REFUSED, ids=[x for x, _ in REFUSED])
def test_errors(named, change, called):
    of = given()
    with pytest.raises(ArgumentError) as e:
        ops.moe(**of | change(of))
    assert e.value.argument == named and not called


# ---- the operator ------------------------------------------------------------------------


def test_the_operator():
    of = given()
    run, y = torch.ops.gemmgen.moe, ops.moe(**of)
    assert torch.equal(run(**of), y)
    compiled = torch.compile(lambda **of: run(**of) + 1, backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(**of), y + 1)


def test_the_fake():
    of = given()
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        of = {n: mode.from_tensor(x) if isinstance(x, torch.Tensor) else x for n, x in of.items()}
        y = torch.ops.gemmgen.moe(**of)
        assert (tuple(y.shape), y.dtype) == ((40, HIDDEN), BF16)
        with pytest.raises(ArgumentError):
            torch.ops.gemmgen.moe(**of | {"experts": 2})
