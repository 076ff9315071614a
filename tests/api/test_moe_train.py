"""`torch_ops.moe_train` on the CPU, with float64 in the place of the GEMMs and NaN wherever nobody wrote: against autograd of a layer in float64."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

import torch_reference  # noqa: E402
from mixtures import (  # noqa: E402
    BF16,
    F32,
    LEAVES,
    choices,
    distances,
    drawn,
    trained,
    weights_of,
    wide_layer,
)
from torch_reference import on_cpu  # noqa: E402, F401

from gemmgen import ops  # noqa: E402
from gemmgen.errors import ArgumentError  # noqa: E402
from gemmgen.nn.experts import CALLS  # noqa: E402
from gemmgen.ops import mixture  # noqa: E402
from gemmgen.torch_ops import moe_train  # noqa: E402
from gemmgen.torch_ops.expert_products import depths_of, gaps_of  # noqa: E402

EXPERTS, HIDDEN, INNER = 6, 256, 128
# Lengths of differences, of the length of what float64 gives. An E4M3 operand is off by 0.026 of its own, a BF16 one by 0.0017; a gradient has up to
# eight of them, whose squares add up: 0.074, 0.0048.
BOUND = {"bf16": 0.008, "fp8": 0.085}
ORDERS, WAYS = ("alternating", "halves"), (False, True)
EVERY = tuple(itertools.product(BOUND, ORDERS, WAYS))
PRODUCT = torch_reference.product


@pytest.fixture(autouse=True)
def called(on_cpu, monkeypatch):  # noqa: F811
    """The GEMMs on the CPU, which leave NaN in rows that they do not write; so does what is allocated. GEMMs and casts, by name and in order."""
    found = []

    def product(op, given):
        found.append(op.name)
        d, written = PRODUCT(op, given)
        return torch.where(written, d, torch.nan), written

    monkeypatch.setattr(torch_reference, "product", product)
    monkeypatch.setattr(mixture, "CALLS", replace(CALLS))
    torch.use_deterministic_algorithms(True)
    assert torch.utils.deterministic.fill_uninitialized_memory
    yield found
    torch.use_deterministic_algorithms(False)


def given(tokens=40, top=3, order="alternating", **more):
    """Arguments of a layer, and y's gradient."""
    found = {"x": drawn(tokens, HIDDEN), **weights_of(EXPERTS, HIDDEN, INNER, "cpu", "bf16", order)}
    found |= {**choices(tokens, top, EXPERTS), "order": order, "add": drawn(tokens, HIDDEN)}
    return {**found, **more}, drawn(tokens, HIDDEN)


def gradients(of, dy, kind="bf16", **how):
    return trained(lambda **of: moe_train(**of, kind=kind, **how), of, dy)


def check(of, dy, kind="bf16", **how):
    """Each as near to float64's as its dtypes let it be."""
    found, exact = gradients(of, dy, kind, **how), trained(wide_layer, of, dy)
    assert found.keys() == exact.keys()
    for name, x in found.items():
        assert x.dtype == of.get(name, of["x"]).dtype and x.shape == exact[name].shape
        assert not x.isnan().any(), name
    off = distances(found, exact)
    assert all(x < BOUND[kind] for x in off.values()), off
    return found


def same(one, other):
    return all(torch.equal(x, other[n]) for n, x in one.items())


@pytest.mark.parametrize(("kind", "order", "recompute"), EVERY)
@pytest.mark.parametrize(("tokens", "top"), ((40, 3), (1, 5), (150, 1)))
def test_gradients(tokens, top, kind, order, recompute):
    check(*given(tokens, top, order), kind, recompute=recompute)


@pytest.mark.parametrize(("kind", "order", "recompute"), EVERY)
@pytest.mark.parametrize(("tokens", "top"), ((0, 2), (9, 0)))
def test_of_no_copies(tokens, top, kind, order, recompute):
    of, dy = given(tokens, top, order)
    found = check(of, dy, kind, recompute=recompute)
    assert torch.equal(found["y"], of["add"]) and torch.equal(found["add"], dy)
    assert not any(found[n].any() for n in ("x", "w1", "w2", "weights"))


@pytest.mark.parametrize(("kind", "recompute"), tuple(itertools.product(BOUND, WAYS)))
def test_experts_of_none_and_of_all(kind, recompute):
    """More copies of one expert than `ALIGNMENT`, and experts without any, whose gradients are zeros."""
    of, dy = given(140, 2)
    of["chosen"][:, 0], of["chosen"][:, 1] = 4, -1
    of["chosen"][::50, 1] = 2
    found = check(of, dy, kind, recompute=recompute)
    for name in ("w1", "w2"):
        assert found[name].flatten(1).any(1).nonzero().flatten().tolist() == [2, 4]
    assert not found["weights"][of["chosen"] < 0].any()


@pytest.mark.parametrize("kind", BOUND)
def test_ids_of_other_experts(kind):
    """They add nothing; and experts of a part, in whatever part, have the gradients of the whole."""
    of, dy = given()
    of["chosen"][0, 0], of["chosen"][1, 1] = -1, EXPERTS
    whole = check(of, dy, kind)
    shift = of | {"chosen": of["chosen"] + 3, "first": 3, "experts": 64}
    assert same(gradients(shift, dy, kind), whole)
    part = of | {n: of[n][2:4] for n in ("w1", "w2")} | {"first": 2, "experts": EXPERTS}
    found = check(part, dy, kind)
    assert torch.equal(found["w1"], whole["w1"][2:4])
    nobody = of | {"chosen": torch.full_like(of["chosen"], EXPERTS)}
    assert torch.equal(check(nobody, dy, kind)["y"], of["add"])


@pytest.mark.parametrize("kind", BOUND)
def test_an_expert_that_is_chosen_twice(kind):
    of, dy = given(20, 2)
    of["chosen"][:, 1] = of["chosen"][:, 0]
    check(of, dy, kind)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("epilogue", ("geglu", "geglu_tanh", "reglu"))
@pytest.mark.parametrize("recompute", WAYS)
def test_other_gates(epilogue, recompute, order):
    check(*given(epilogue=epilogue, order=order), recompute=recompute)


@pytest.mark.parametrize("dtype", (F32, BF16, torch.float16))
def test_dtypes_of_weights(dtype):
    of, dy = given()
    check(of | {"weights": of["weights"].to(dtype), "chosen": of["chosen"].int()}, dy)


def test_small_steps_change_a_loss_as_its_gradient_says():
    """By differences of float64's layer along what the layer itself gives."""
    of, dy = given()
    found = gradients(of, dy)
    for name in LEAVES:
        along = found[name].double()
        step = 1e-6 / along.norm()
        moved = [wide_layer(**of | {name: of[name].double() + s * step * along}) for s in (1, -1)]
        slope = ((moved[0] - moved[1]) * dy).sum() / (2 * step)
        assert slope == pytest.approx((along * along).sum().item(), rel=0.01)


@pytest.mark.parametrize(("kind", "recompute"), tuple(itertools.product(BOUND, WAYS)))
def test_bits(kind, recompute):
    """Again the same, and of tokens in another order those of tokens are."""
    of, dy = given()
    order = torch.randperm(40)
    found = gradients(of, dy, kind, recompute=recompute)
    assert same(found, gradients(of, dy, kind, recompute=recompute))
    names = ("x", "chosen", "weights", "add")
    moved = gradients(of | {n: of[n][order] for n in names}, dy[order], kind, recompute=recompute)
    for name in ("y", "x", "weights", "add"):
        assert torch.equal(moved[name], found[name][order])


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("kind", BOUND)
def test_what_is_recomputed_is_what_was_kept(kind, order):
    """And the forward pass that keeps nothing is `moe`."""
    of, dy = given(order=order)
    kept, again = (gradients(of, dy, kind, recompute=x) for x in WAYS)
    y = again.pop("y")
    assert same(again, kept)
    w = {n: of[n] for n in ("w1", "w2")}
    if kind == "fp8":
        for name in ("w1", "w2"):
            w[name], w[f"scale_{name}"] = ops.quantise_blocks(of[name])
    assert torch.equal(y, ops.moe(**of | w))


GEMMS = {
    (
        "bf16",
        False,
    ): "grouped_gemm grouped_gemm / grouped_gemm k_grouped_gemm grouped_gemm k_grouped_gemm",
    (
        "bf16",
        True,
    ): "grouped_gemm grouped_gemm / grouped_gemm grouped_gemm k_grouped_gemm grouped_gemm k_grouped_gemm",
    (
        "fp8",
        False,
    ): "fp8_block_grouped_gemm fp8_block_grouped_gemm / fp8_block_grouped_gemm fp8_k_grouped_gemm fp8_block_grouped_gemm fp8_k_grouped_gemm",
}


@pytest.mark.parametrize(("kind", "recompute"), [*GEMMS], ids=str)
def test_gemms_of_both_passes(kind, recompute, called):
    """Two and four, or five: dgrad and wgrad are GEMMs of gemmgen."""
    of, dy = given()
    forward, backward = (x.split() for x in GEMMS[kind, recompute].split(" / "))
    leaves = [of[n].requires_grad_() for n in LEAVES]
    y = moe_train(**of, kind=kind, recompute=recompute)
    assert called == forward
    called.clear()
    torch.autograd.grad(y, leaves, dy)
    assert called == backward


@pytest.mark.parametrize("recompute", WAYS)
def test_all_gemms_are_chosen_for_experts_with_rows(recompute, monkeypatch):
    """Of one token and two choices two experts, in both passes."""
    told = set()

    def product(op, given):
        if op.name == "grouped_gemm":
            told.add((given["expected_rows"], given["expected_groups"]))
        return PRODUCT(op, given)

    monkeypatch.setattr(torch_reference, "product", product)
    of, dy = given(1, 2)
    gradients(of, dy, recompute=recompute)
    assert told == {(1, 2)}


@pytest.mark.parametrize("recompute", WAYS)
@pytest.mark.parametrize("name", LEAVES)
def test_only_what_is_asked_for(name, recompute, called):
    of, dy = given()
    whole = gradients(of, dy, recompute=recompute)
    of[name].requires_grad_()
    y = moe_train(**of, recompute=recompute)
    called.clear()
    (found,) = torch.autograd.grad(y, [of[name]], dy)
    assert torch.equal(found, whole[name])
    most = {"add": 0, "weights": 1, "x": 2, "w1": 2, "w2": 2}[name]
    assert len(called) == most + (recompute and name != "add")
    assert not moe_train(**of | {name: found}).requires_grad


def test_of_one_number_for_all():
    """A gradient that is not in memory, and operands that lie otherwise."""
    of, _ = given()
    dense = {n: of[n].clone().requires_grad_() for n in LEAVES}
    expected = torch.autograd.grad(moe_train(**of | dense).sum(), [*dense.values()])
    apart = {n: of[n].mT.contiguous().mT.requires_grad_() for n in LEAVES}
    found = torch.autograd.grad(moe_train(**of | apart).sum(), [*apart.values()])
    assert all(torch.equal(x, y) for x, y in zip(found, expected, strict=True))


@pytest.mark.parametrize(("kind", "recompute"), tuple(itertools.product(BOUND, WAYS)))
@pytest.mark.parametrize("dynamic", (False, True))
def test_compiled(kind, recompute, dynamic):
    """By fakes alone, in one graph."""

    def layer(**of):
        return moe_train(**of, kind=kind, recompute=recompute)

    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True, dynamic=dynamic)
    for tokens in (40, 57):
        of, dy = given(tokens)
        assert same(trained(compiled, of, dy), trained(layer, of, dy))


def test_no_second_derivative():
    of, _ = given()
    x = of["x"].requires_grad_()
    (dx,) = torch.autograd.grad(moe_train(**of).square().sum(), [x], create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        dx.sum().backward()


@pytest.mark.parametrize("counts", ((3, 0, 128, 129, 0, 1), (0, 0, 0), (128,), (1, 127, 256)))
def test_rows_between_experts(counts):
    """Each once, no row of an expert, and depths that end where the last one's do."""
    chosen = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts)).unsqueeze(-1)
    routes = ops.route(chosen.int(), len(counts))
    gaps, depths = gaps_of(routes.ends, routes.rows), depths_of(routes.ends)
    last = int(depths.sum())
    assert depths.dtype == torch.int32 and (depths % 128 == 0).all()
    assert [d // 128 for d in depths.tolist()] == [-(-n // 128) for n in counts]
    free = (routes.copies[:last] < 0).nonzero().flatten()
    assert torch.equal(gaps[gaps < routes.rows].sort().values, free)
    assert (gaps < routes.rows + 127).all()


REFUSED = (
    ("kind", lambda of: {"kind": "int8"}),
    ("order", lambda of: {"order": "gate first"}),
    ("epilogue", lambda of: {"epilogue": "silu"}),
    ("epilogue", lambda of: {"epilogue": "swiglu_clamped"}),
    ("x dtype", lambda of: {"x": of["x"].float()}),
    ("x shape", lambda of: {"x": of["x"][0]}),
    ("x shape", lambda of: {"x": of["x"][:, :252]}),
    ("x shape", lambda of: {"x": of["x"][:, :248], "kind": "fp8"}),
    ("w1 dtype", lambda of: {"w1": of["w1"].float()}),
    ("w1 shape", lambda of: {"w1": of["w1"][..., :128]}),
    ("w1 shape", lambda of: {"w1": of["w1"][:, :248]}),
    ("w1 shape", lambda of: {"w1": of["w1"][:, :16], "kind": "fp8"}),
    ("w1 shape", lambda of: {"w1": of["w1"][:, :0]}),
    ("w1 shape", lambda of: {"w1": of["w1"][:0]}),
    ("w1 shape", lambda of: {"w1": of["w1"][0]}),
    ("w1 shape", lambda of: {"w1": of["w1"][:1].expand(513, -1, -1)}),
    ("w1 shape", lambda of: {"w1": of["w1"][:, :192], "kind": "fp8", "order": "halves", "recompute": True}),
    ("w2 dtype", lambda of: {"w2": of["w2"].half()}),
    ("w2 shape", lambda of: {"w2": of["w2"][:5]}),
    ("w2 shape", lambda of: {"w2": of["w2"].mT}),
    ("chosen dtype", lambda of: {"chosen": of["chosen"].float()}),
    ("chosen shape", lambda of: {"chosen": of["chosen"][0]}),
    ("chosen shape", lambda of: {"chosen": of["chosen"][1:]}),
    ("weights dtype", lambda of: {"weights": of["weights"].double()}),
    ("weights shape", lambda of: {"weights": of["weights"][:, 1:]}),
    ("add dtype", lambda of: {"add": of["add"].float()}),
    ("add shape", lambda of: {"add": of["add"][1:]}),
    ("experts", lambda of: {"experts": EXPERTS - 1}),
    ("experts", lambda of: {"experts": 0}),
    ("experts", lambda of: {"experts": 8.0}),
    ("experts", lambda of: {"experts": EXPERTS, "first": 1}),
    ("first", lambda of: {"first": -1}),
    ("first", lambda of: {"first": "0"}),
    ("first", lambda of: {"first": True}),
    ("recompute", lambda of: {"recompute": 1}),
)  # fmt: skip


@pytest.mark.parametrize(("named", "change"), REFUSED, ids=[x for x, _ in REFUSED])
def test_errors(named, change, called):
    of, _ = given()
    with pytest.raises(ArgumentError) as e:
        moe_train(**of | change(of))
    assert e.value.argument == named and not called


def test_what_has_no_gradients_says_which_has():
    of, _ = given()
    of["w1"].requires_grad_()
    with pytest.raises(ArgumentError, match="moe_train"):
        ops.moe(**of)
