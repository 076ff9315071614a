"""`ops.select` against NumPy in float64, over ties, groups, biases and every dtype; gradients, compiled."""

from __future__ import annotations

import inspect

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from roundings import UNIT  # noqa: E402

import gemmgen.torch_ops  # noqa: E402, F401
from gemmgen import ops  # noqa: E402
from gemmgen.ops import selecting  # noqa: E402

GRADIENT = 16 * UNIT[torch.float32]  # so many roundings of numbers about as large as 1


def reference(logits, top, score, bias, groups, kept, renormalise, scale):
    """Ids and weights; scores as torch has them, for ids must agree where they are nearly equal."""
    wide = logits.float()
    scores = (wide.softmax(-1) if score == "softmax" else wide.sigmoid()).numpy()
    by = scores if bias is None else scores + bias.numpy()
    tokens, experts = scores.shape
    chosen = np.empty((tokens, top), np.int32)
    for t in range(tokens):
        of = by[t].reshape(groups, -1)
        best = 1 if bias is None else 2
        size = np.sort(of, axis=1)[:, ::-1][:, :best].sum(1, dtype=np.float32)
        keep = sorted(range(groups), key=lambda g: (-size[g], g))[:kept]
        may = [e for e in range(experts) if e // (experts // groups) in keep]
        chosen[t] = sorted(may, key=lambda e: (-by[t, e], e))[:top]
    weights = np.take_along_axis(scores.astype(np.float64), chosen.astype(np.int64), 1)
    if renormalise:
        weights = weights / weights.sum(1, keepdims=True)
    return chosen, weights * scale


def agree(logits, top, score="softmax", bias=None, groups=1, kept=1, renormalise=True, scale=1.0):
    said = {"score": score, "bias": bias, "groups": groups, "kept_groups": kept}
    chosen, weights = ops.select(logits, top, renormalise=renormalise, scale=scale, **said)
    ids, wanted = reference(logits, top, score, bias, groups, kept, renormalise, scale)
    assert (chosen.dtype, weights.dtype) == (torch.int32, torch.float32)
    assert np.array_equal(chosen.numpy(), ids)
    roundings = top + 2  # a sum, to which a least one is added, a division, a product
    assert np.allclose(weights.numpy(), wanted, rtol=roundings * UNIT[torch.float32], atol=0)
    return chosen, weights


def drawn(tokens, experts, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return (3 * torch.randn(tokens, experts, generator=generator)).to(dtype)


@pytest.mark.parametrize("renormalise", (False, True))
@pytest.mark.parametrize("score", ("softmax", "sigmoid"))
@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16, torch.float16), ids=str)
def test_scores(dtype, score, renormalise):
    """16-bit logits have ties."""
    agree(drawn(200, 64, dtype), 6, score, renormalise=renormalise, scale=2.5)


@pytest.mark.parametrize("biased", (False, True))
@pytest.mark.parametrize(("groups", "kept"), ((1, 1), (4, 2), (8, 4), (8, 8), (64, 12)))
def test_groups(groups, kept, biased):
    """With a bias a group is as large as its two largest scores; groups of one expert have but one."""
    bias = torch.linspace(-0.4, 0.4, 64) if biased else None
    agree(drawn(150, 64, seed=groups), 8, "sigmoid", bias, groups, kept)


def test_a_bias_chooses_and_does_not_weigh():
    bias = torch.zeros(8)
    bias[5] = 10.0
    chosen, weights = ops.select(torch.zeros(3, 8), 2, score="sigmoid", bias=bias)
    assert chosen.tolist() == [[5, 0]] * 3 and weights.tolist() == [[0.5, 0.5]] * 3


def test_of_equals_the_first():
    chosen, _ = agree(torch.zeros(5, 512), 8)
    assert chosen.tolist() == [[*range(8)]] * 5
    chosen, _ = agree(torch.zeros(2, 64), 4, groups=8, kept=2)
    assert chosen.tolist() == [[0, 1, 2, 3]] * 2


def test_ids_come_from_kept_groups_even_where_scores_vanish():
    """Scores of -inf logits are 0, and not those of groups that are not kept."""
    logits = torch.full((1, 8), float("-inf"))
    logits[0, 7] = 1.0
    chosen, weights = ops.select(logits, 4, groups=2)
    assert chosen.tolist() == [[7, 4, 5, 6]] and weights.tolist() == [[1.0, 0.0, 0.0, 0.0]]


def test_every_expert_and_no_token():
    agree(drawn(4, 16), 16)
    chosen, weights = ops.select(torch.empty(0, 16), 4)
    assert chosen.shape == weights.shape == (0, 4)


@pytest.mark.parametrize("shared", (1, 3))
def test_experts_that_every_token_has(shared):
    """Behind all others, with weight 1, whatever weights are multiplied with."""
    said = {"score": "sigmoid", "scale": 2.5}
    logits = drawn(20, 16)
    chosen, weights = ops.select(logits, 4, shared=shared, **said)
    routed = ops.select(logits, 4, **said)
    for found, want in zip((chosen, weights), routed, strict=True):
        assert found.dtype == want.dtype and torch.equal(found[:, :4], want)
    assert chosen[:, 4:].tolist() == [[*range(16, 16 + shared)]] * 20
    assert (weights[:, 4:] == 1).all()


@pytest.mark.parametrize("shared", (0, 1))
@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16), ids=str)
def test_one_launch(dtype, shared, monkeypatch):
    """Emulated, of rows in a wider tensor: what torch's operators give, but for weights' last bits."""
    pytest.importorskip("cuda.bindings.nvrtc", exc_type=ImportError)
    from emulated_ops import Memory, emulated
    from select_reference import ROUNDING

    logits = drawn(11, 80, dtype)[:, :64]
    bias = torch.linspace(-0.4, 0.4, 64)
    said = {"score": "sigmoid", "bias": bias, "groups": 8, "kept_groups": 4, "scale": 2.5}
    want = ops.select(logits, 8, shared=shared, **said)
    memory = Memory(logits, bias)
    emulated(monkeypatch, memory)
    with memory:
        found = ops.select(logits, 8, shared=shared, **said)
    assert [x.partition("_")[0] for x in memory.launched] == ["select"]
    assert torch.equal(found[0], want[0])
    assert torch.allclose(found[1], want[1], rtol=2 * ROUNDING, atol=0)  # either is rounded


@pytest.mark.parametrize(
    ("logits", "top"),
    ((drawn(3, 513), 4), (drawn(3, 64), 33), (drawn(3, 64).requires_grad_(), 4)),
    ids=("experts", "choices", "gradients"),
)
def test_what_no_launch_does(logits, top, monkeypatch):
    """Too many experts or choices, or a gradient: torch's operators do, on any device."""
    asked = []
    monkeypatch.setattr(selecting, "generated", lambda x: True)
    monkeypatch.setattr(selecting, "launched", lambda *of: asked.append(of))
    chosen, _ = ops.select(logits, top)
    assert chosen.shape == (3, top) and not asked
    with torch.no_grad():
        ops.select(logits, top)
    assert len(asked) == logits.requires_grad


def test_the_operator_says_what_the_function_does_where_nothing_is_said():
    for x in REGISTERED.select.default._schema.arguments[3:]:
        assert inspect.signature(ops.select).parameters[x.name].default == x.default_value, x.name


def test_a_tangent_goes_through_torchs_operators(monkeypatch):
    """A launch would lose it, and say nothing."""
    logits, along = drawn(4, 16).float(), torch.randn(4, 16)
    monkeypatch.setattr(selecting, "generated", lambda x: True)
    monkeypatch.setattr(selecting, "launched", lambda *given: pytest.fail("launched"))
    with torch.autograd.forward_ad.dual_level() as level:
        dual = torch.autograd.forward_ad.make_dual(logits, along, level=level)
        _, weights = ops.select(dual, 3)
        tangent = torch.autograd.forward_ad.unpack_dual(weights, level=level).tangent
    _, want = torch.func.jvp(lambda x: selecting.by_torch(x, how_of(3))[1], (logits,), (along,))
    assert torch.equal(tangent, want) and want.any()


def how_of(top):
    names = inspect.signature(ops.select).parameters.values()
    return selecting.How(top=top, **{x.name: x.default for x in names if x.kind is x.KEYWORD_ONLY})


def test_gradients():
    logits = drawn(6, 16).double().float().requires_grad_()
    _, weights = ops.select(logits, 4, scale=2.0)
    weights.square().sum().backward()
    want = logits.detach().clone().requires_grad_()
    best = want.softmax(-1).topk(4).values
    (2 * best / best.sum(-1, keepdim=True)).square().sum().backward()
    assert torch.allclose(logits.grad, want.grad, rtol=0, atol=GRADIENT)


REGISTERED = torch.ops.gemmgen


@pytest.mark.parametrize("said", (
    {},
    {"renormalise": False, "scale": 2.5},
    {"score": "sigmoid", "groups": 4, "kept_groups": 2, "shared": 2, "scale": 2.5},
    {"score": "sigmoid", "renormalise": False},
), ids=str)  # fmt: skip
@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16), ids=str)
def test_the_operator(dtype, said):
    """The same, its fake, its gradients those of torch's operators, and what torch checks of operators."""
    logits = drawn(20, 32, dtype)
    bias = torch.linspace(-0.2, 0.2, 32)
    found = REGISTERED.select(logits, 4, bias=bias, **said)
    for got, want in zip(found, ops.select(logits, 4, bias=bias, **said), strict=True):
        assert torch.equal(got, want)
    torch.library.opcheck(REGISTERED.select.default, (logits, 4), {"bias": bias, **said})
    gradients = []
    for select in (REGISTERED.select, ops.select):
        x = logits.clone().requires_grad_()
        _, weights = select(x, 4, bias=bias, **said)
        of = torch.linspace(-1, 1, weights.numel()).view(weights.shape)
        gradients.append(torch.autograd.grad((weights * of).sum(), x)[0].float())
    last = 2 * UNIT[dtype]  # either is rounded to logits' dtype
    assert torch.allclose(*gradients, rtol=last, atol=GRADIENT)


def test_the_operator_compiled():
    """Forward and backward in one graph each, of one operator."""
    logits = drawn(33, 32).requires_grad_()

    def loss(x):
        return REGISTERED.select(x, 4, score="sigmoid", groups=4, kept_groups=2)[1].square().sum()

    compiled = torch.compile(loss, backend="aot_eager", fullgraph=True)
    found, want = (torch.autograd.grad(f(logits), logits)[0] for f in (compiled, loss))
    assert torch.allclose(found, want)


def test_compiled_whole():
    compiled = torch.compile(
        lambda x: ops.select(x, 4, score="sigmoid", groups=4, kept_groups=2),
        backend="aot_eager",
        fullgraph=True,
    )
    logits = drawn(33, 32)
    for got, want in zip(
        compiled(logits),
        ops.select(logits, 4, score="sigmoid", groups=4, kept_groups=2),
        strict=True,
    ):
        assert torch.equal(got, want)


def test_a_layer_takes_what_it_gives():
    """A router of three lines before `ops.route`."""
    chosen, _ = ops.select(drawn(40, 32), 4)
    routes = ops.route(chosen, 32)
    assert int(routes.ends[-1]) <= routes.rows and int((routes.copies >= 0).sum()) == 160
