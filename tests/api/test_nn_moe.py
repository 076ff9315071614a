"""`gemmgen.nn.MoE` and `Experts` on the CPU, with float64 in the kernels' place."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch")

from mixtures import distance, drawn, wide_layer  # noqa: E402
from torch_reference import on_cpu  # noqa: E402, F401

from gemmgen import nn, ops  # noqa: E402
from gemmgen.errors import ArgumentError  # noqa: E402
from gemmgen.nn.experts import CALLS  # noqa: E402
from gemmgen.ops import mixture  # noqa: E402

HIDDEN, INNER, EXPERTS, TOP, SHARED = 128, 64, 6, 2, 96
# As of tests/api/test_moe_train.py, and a router and a shared expert beside; half as much again for gradients, of which a softmax takes differences.
BOUND = {"bf16": 0.012, "fp8": 0.09}
F32 = torch.float32


@pytest.fixture(autouse=True)
def moe_on_cpu(on_cpu, monkeypatch):  # noqa: F811
    monkeypatch.setattr(mixture, "CALLS", CALLS)


def made(kind="bf16", shared=SHARED, **more):
    return nn.MoE(HIDDEN, INNER, EXPERTS, TOP, kind=kind, shared=shared, **more)


def exactly(wide, x):
    """A module whose parameters are float64's. The choice is that of float32, as there."""
    logits = torch.nn.functional.linear(x.double(), wide.router.weight)
    chosen, _ = ops.select(logits.float(), wide.top, bias=wide.router_bias, **wide.how)
    scores = logits.sigmoid() if wide.how["score"] == "sigmoid" else logits.softmax(-1)
    weights = scores.gather(-1, chosen.long())
    if wide.how["renormalise"]:
        weights = weights / weights.sum(-1, keepdim=True)
    add, s = None, wide.shared
    if s is not None:
        gate, up = (x.double() @ p.weight.mT for p in (s.gate_proj, s.up_proj))
        add = (torch.nn.functional.silu(gate) * up) @ s.down_proj.weight.mT
    e = wide.experts
    return wide_layer(x, e.gate_up, e.down, chosen, weights * wide.how["scale"], add)


def test_a_router_of_groups_with_a_bias():
    """As DeepSeek-V3's: the bias chooses among kept groups, has no gradient, and is in the state."""
    how = {"score": "sigmoid", "biased": True, "groups": 3, "kept_groups": 2, "scale": 2.5}
    mine, x = made(**how), drawn(30, HIDDEN)
    assert "router_bias" in mine.state_dict() and "router_bias" not in made().state_dict()
    assert mine.bfloat16().router_bias.dtype == F32
    mine.router.float()
    before = mine(x)
    with torch.no_grad():
        mine.router_bias[4:] = 10.0
    chosen, _ = ops.select(mine.router(x.float()), TOP, bias=mine.router_bias, **mine.how)
    assert (chosen >= 4).all() and not torch.equal(mine(x), before)
    wide = copy.deepcopy(mine).double()
    assert wide.router_bias.dtype == F32
    assert distance(mine(x), exactly(wide, x)) < BOUND["bf16"]
    other = made(**how)
    other.load_state_dict(mine.state_dict())
    assert torch.equal(other.router_bias, mine.router_bias)


@pytest.mark.parametrize("shared", (None, SHARED))
@pytest.mark.parametrize(
    "how",
    ({}, {"score": "sigmoid", "scale": 2.5, "renormalise": False}, {"recompute": True}),
    ids=str,
)
@pytest.mark.parametrize("kind", BOUND)
def test_gradients_of_all_parameters(kind, how, shared):
    mine = made(kind, shared, **how)
    x, dy = drawn(30, HIDDEN), drawn(30, HIDDEN)
    wide = copy.deepcopy(mine).double()
    y, exact = mine(x), exactly(wide, x)
    assert y.dtype == torch.bfloat16 and distance(y, exact.detach()) < BOUND[kind]
    y.backward(dy)
    exact.backward(dy.double())
    expected = dict(wide.named_parameters())
    assert len(expected) == (3 if shared is None else 6)
    for name, p in mine.named_parameters():
        assert distance(p.grad, expected[name].grad) < 1.5 * BOUND[kind], name


@pytest.mark.parametrize("lead", ((), (0,), (2, 3, 5)))
def test_sides_of_x(lead):
    mine, x = made(), drawn(*lead, HIDDEN)
    assert mine(x).shape == x.shape
    assert torch.equal(mine(x).flatten(), mine(x.reshape(-1, HIDDEN)).flatten())


@pytest.mark.parametrize("kind", BOUND)
def test_it_learns(kind):
    """A batch by heart, as a router and experts of torch would."""
    mine, x, goal = made(kind), drawn(40, HIDDEN), drawn(40, HIDDEN).float()
    optimiser, losses = torch.optim.Adam(mine.parameters(), lr=0.01), []
    for _ in range(12):
        loss = (mine(x).float() - goal).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < 0.6 * losses[0]
    assert mine.router.weight.dtype == F32 and mine.router.weight.grad.any()


def test_it_is_compiled_whole():
    mine, x = made("fp8"), drawn(20, HIDDEN)
    compiled = torch.compile(mine, backend="aot_eager", fullgraph=True)
    dy = drawn(20, HIDDEN)
    found = torch.autograd.grad(compiled(x), [*mine.parameters()], dy)
    expected = torch.autograd.grad(mine(x), [*mine.parameters()], dy)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_inference_loads_what_was_trained():
    """In FP8, to the bit."""
    mine = made("fp8", recompute=True).experts
    frozen = nn.GroupedExperts(EXPERTS, HIDDEN, INNER)
    frozen.load_state_dict(mine.state_dict())
    x, chosen = drawn(20, HIDDEN), torch.randint(-1, EXPERTS, (20, TOP))
    weights = torch.rand(20, TOP)
    assert torch.equal(mine(x, chosen, weights), frozen(x, chosen, weights))


def test_projections_are_put_in_turn():
    mine = nn.Experts(EXPERTS, HIDDEN, INNER)
    inward, outward = (EXPERTS, INNER, HIDDEN), (EXPERTS, HIDDEN, INNER)
    gate, up, down = drawn(*inward), drawn(*inward).float(), drawn(*outward)
    mine.put_projections(gate, up, down)
    assert torch.equal(mine.gate_up[:, ::2], gate) and torch.equal(mine.gate_up[:, 1::2], up)
    assert torch.equal(mine.down, down) and mine.down.requires_grad


def test_parameters_are_drawn_as_torchs():
    mine = nn.Experts(EXPERTS, HIDDEN, INNER)
    for weight in (mine.gate_up, mine.down):
        bound = weight.shape[-1] ** -0.5
        assert 0.9 * bound < weight.abs().max() <= bound * 1.01


def test_a_router_in_16_bits():
    mine = made().bfloat16()
    assert mine(drawn(5, HIDDEN)).dtype == torch.bfloat16


def test_what_it_says_of_itself():
    said = repr(made("fp8", recompute=True))
    assert "top=2, score=softmax" in said and "kind=fp8, recompute=True" in said


def chosen_of_floats():
    experts = nn.Experts(EXPERTS, HIDDEN, INNER)
    chosen = torch.full((3, TOP), 1.7)
    return experts(torch.zeros(3, HIDDEN).bfloat16(), chosen, torch.ones(3, TOP))


REFUSED = (
    ("kind", lambda: made("int8")),
    ("top", lambda: nn.MoE(HIDDEN, INNER, EXPERTS, EXPERTS + 1)),
    ("top", lambda: nn.MoE(HIDDEN, INNER, EXPERTS, 0)),
    (
        "top",
        lambda: (
            made(groups=3, kept_groups=1, score="sigmoid")
            and nn.MoE(HIDDEN, INNER, EXPERTS, 3, groups=3)
        ),
    ),
    ("groups", lambda: made(groups=4)),
    ("kept_groups", lambda: made(groups=3, kept_groups=4)),
    ("score", lambda: made(score="tanh")),
    ("experts", lambda: nn.MoE(HIDDEN, INNER, 0, 1)),
    ("experts", lambda: nn.MoE(HIDDEN, INNER, 513, 1)),
    ("chosen dtype", lambda: chosen_of_floats()),
    ("in_features", lambda: nn.MoE(HIDDEN + 4, INNER, EXPERTS, TOP)),
    ("out_features", lambda: nn.MoE(HIDDEN, INNER + 8, EXPERTS, TOP, kind="fp8")),
    ("out_features", lambda: made(shared=4)),
    ("x shape", lambda: made()(drawn(5, HIDDEN + 8))),
    ("x dtype", lambda: made(shared=None)(drawn(5, HIDDEN).float())),
    ("score", lambda: made(score="relu")(drawn(5, HIDDEN))),
    ("chosen shape", lambda: made().experts(drawn(5, HIDDEN), torch.zeros(4, 2).long(), None)),
)


@pytest.mark.parametrize(("named", "run"), REFUSED, ids=[x for x, _ in REFUSED])
def test_errors(named, run):
    with pytest.raises(ArgumentError) as e:
        run()
    assert e.value.argument == named
