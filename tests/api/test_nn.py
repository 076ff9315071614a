"""`gemmgen.nn` on the CPU against torch.nn, with float64 in the kernels' place."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch")

from mixtures import distance  # noqa: E402
from torch_reference import on_cpu  # noqa: E402, F401

from gemmgen import nn, ops  # noqa: E402
from gemmgen.errors import ArgumentError  # noqa: E402
from gemmgen.nn.experts import alternating  # noqa: E402

BF16, F32, FP8 = torch.bfloat16, torch.float32, torch.float8_e4m3fn
K, N, TOKENS = 160, 144, 37
EXPERTS, HIDDEN, INTERMEDIATE = 5, 160, 96
# Of experts: an operand in E4M3 is off by 0.026 of its length, so six independent ones by 0.026 * sqrt(6) = 0.064.
FP8_EXPERTS = 0.08


def plain(bias=True, dtype=BF16):
    return torch.nn.Linear(K, N, bias, dtype=dtype)


def drawn(*shape):
    return torch.randn(*shape).to(BF16)


def error(found, exact):
    """Largest error, of the largest value."""
    return ((found.double() - exact.double()).abs().max() / exact.double().abs().max()).item()


def states(module):
    return {n: x.clone() for n, x in module.state_dict().items()}


def same(one, other):
    assert one.keys() == other.keys()
    for name, x in one.items():
        assert x.dtype == other[name].dtype and torch.equal(x.float(), other[name].float()), name


# ---- linear layers --------------------------------------------------------------------------


@pytest.mark.parametrize("bias", (False, True))
@pytest.mark.parametrize("lead", ((), (TOKENS,), (2, 3, 5), (0,)))
def test_they_compute_what_torch_does(bias, lead):
    layer, x = plain(bias), drawn(*lead, K)
    exact = copy.deepcopy(layer).double()(x.double())
    made = (nn.Linear.of(layer), nn.Fp8Linear.of(layer), nn.Fp8Linear.of(layer, master=True))
    for allowed, module in zip((2**-8, 0.05, 0.05), made, strict=True):
        y = module(x)
        assert y.shape == exact.shape and y.dtype == BF16
        assert not x.numel() or error(y, exact) < allowed
    assert torch.equal(made[1](x), made[2](x))


def test_a_linear_layer_trains_as_torchs_does():
    layer = plain()
    mine, x, dy = nn.Linear.of(layer), drawn(TOKENS, K), drawn(TOKENS, N)
    assert mine.weight is layer.weight and isinstance(mine, torch.nn.Linear)
    found = torch.autograd.grad(mine(x), [mine.weight, mine.bias], dy)
    wide = copy.deepcopy(layer).double()
    exact = torch.autograd.grad(wide(x.double()), [wide.weight, wide.bias], dy.double())
    assert all(error(a, b) < 2**-7 for a, b in zip(found, exact, strict=True))


def test_a_master_trains():
    layer = plain()
    mine = nn.Fp8Linear.of(layer, master=True)
    x, dy = drawn(TOKENS, K).requires_grad_(), drawn(TOKENS, N)
    found = torch.autograd.grad(mine(x), [x, mine.weight, mine.bias], dy)
    wide, x_wide = copy.deepcopy(layer).double(), x.detach().double().requires_grad_()
    exact = torch.autograd.grad(wide(x_wide), [x_wide, wide.weight, wide.bias], dy.double())
    assert all(error(a, b) < 0.06 for a, b in zip(found, exact, strict=True))
    assert dict(mine.named_parameters()).keys() == {"weight", "bias"}


def test_without_a_master_nothing_asks_for_gradients():
    mine = nn.Fp8Linear.of(plain())
    assert {*dict(mine.named_parameters())} == {"bias"}
    with pytest.raises(ArgumentError, match="master"):
        mine(drawn(3, K).requires_grad_())
    with torch.no_grad():
        mine(drawn(3, K).requires_grad_())


@pytest.mark.parametrize(
    ("x", "argument"),
    (
        (torch.zeros(3, K), "x dtype"),
        (torch.zeros(3, K + 16, dtype=BF16), "x shape"),
        (torch.zeros((), dtype=BF16), "x shape"),
    ),
)
def test_inputs_that_are_refused(x, argument):
    with pytest.raises(ArgumentError) as e:
        nn.Fp8Linear.of(plain())(x)
    assert e.value.argument == argument


@pytest.mark.parametrize(("cls", "step"), ((nn.Linear, 8), (nn.Fp8Linear, 16)))
def test_features_that_are_refused(cls, step):
    for given, argument in (((K + step // 2, N), "in_features"), ((K, 0), "out_features")):
        with pytest.raises(ArgumentError) as e:
            cls(*given)
        assert e.value.argument == argument and str(step) in str(e.value)


def test_what_they_say_of_themselves():
    assert "weight=e4m3 128x128" in repr(nn.Fp8Linear(K, N))
    assert "quantised by every call" in repr(nn.Fp8Linear(K, N, bias=False, master=True))
    assert "in_features=160, out_features=144" in repr(nn.Linear(K, N))
    assert "experts=5, hidden=160" in repr(experts())


@pytest.mark.parametrize("change", ("half", "bfloat16", "double", "cpu", "to"))
def test_no_change_of_dtype_rounds_codes_or_scales(change):
    mine = nn.Fp8Linear.of(plain())
    before = states(mine)
    getattr(mine, change)(*((torch.float16,) if change == "to" else ()))
    for name in ("weight", "weight_scale"):
        assert mine.state_dict()[name].dtype == before[name].dtype
        assert torch.equal(mine.state_dict()[name].float(), before[name].float())


def test_copies_and_pickles(tmp_path):
    mine, x = nn.Fp8Linear.of(plain()), drawn(TOKENS, K)
    torch.save(mine, tmp_path / "layer.pt")
    for other in (copy.deepcopy(mine), torch.load(tmp_path / "layer.pt", weights_only=False)):
        assert torch.equal(other(x), mine(x))


@pytest.mark.parametrize("master", (False, True))
def test_compile(master):
    mine, x = nn.Fp8Linear.of(plain(), master=master), drawn(TOKENS, K)
    compiled = torch.compile(mine, backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(x), mine(x))


def test_compile_a_mixture():
    mine, x = experts(mixture()), drawn(TOKENS, HIDDEN)
    shares, chosen = torch.rand(TOKENS, EXPERTS).topk(2)
    compiled = torch.compile(mine, backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(x, chosen, shares), mine(x, chosen, shares))


# ---- state dicts ----------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", (BF16, torch.float16, F32))
def test_an_ordinary_state_dict_is_quantised(dtype):
    layer = plain(dtype=dtype)
    state = states(layer)
    mine = nn.Fp8Linear(K, N)
    assert mine.load_state_dict(state).missing_keys == []
    q, scale = ops.quantise_blocks(layer.weight.detach())
    assert torch.equal(mine.weight.float(), q.float()) and torch.equal(mine.weight_scale, scale)
    assert torch.equal(mine.bias, layer.bias.to(BF16))
    same(state, states(layer))  # the caller's is not changed


def test_its_own_state_dict_comes_back():
    mine, other = nn.Fp8Linear.of(plain()), nn.Fp8Linear(K, N)
    other.load_state_dict(states(mine))
    same(states(mine), states(other))
    renamed = {n.replace("_scale", "_scale_inv"): x for n, x in states(mine).items()}
    third = nn.Fp8Linear(K, N)
    third.load_state_dict(renamed)
    same(states(mine), states(third))


def test_inside_a_model_and_assigned():
    model = torch.nn.Sequential(plain(), torch.nn.ReLU())
    with torch.device("meta"):
        mine = torch.nn.Sequential(nn.Fp8Linear(K, N), torch.nn.ReLU())
    mine.load_state_dict(states(model), assign=True)
    assert torch.equal(
        mine[0](drawn(3, K).fill_(0.5)), nn.Fp8Linear.of(model[0])(drawn(3, K).fill_(0.5))
    )


@pytest.mark.parametrize(
    ("changed", "says"),
    (
        ({"weight": torch.zeros(N, K, dtype=FP8)}, "has no weight_scale"),
        ({"weight": torch.zeros(N, K, dtype=torch.int8)}, "dtype is torch.int8"),
        ({"weight": torch.zeros(N, K + 1)}, "size mismatch for weight"),
        ({"weight": None}, "Missing key"),
        ({"more": torch.zeros(1)}, "Unexpected key"),
    ),
    ids=str,
)
def test_state_dicts_that_are_refused(changed, says):
    state = {**states(plain()), **changed}
    with pytest.raises(RuntimeError, match=says):
        nn.Fp8Linear(K, N).load_state_dict({n: x for n, x in state.items() if x is not None})


def test_a_master_takes_no_codes():
    with pytest.raises(RuntimeError, match="needs it wide"):
        nn.Fp8Linear(K, N, master=True).load_state_dict(
            states(nn.Fp8Linear.of(plain())), strict=False
        )
    mine, layer = nn.Fp8Linear(K, N, master=True), plain()
    mine.load_state_dict(states(layer))
    assert torch.equal(mine.weight, layer.weight)


# ---- experts --------------------------------------------------------------------------------


class Expert(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.gate_proj = torch.nn.Linear(HIDDEN, INTERMEDIATE, False, dtype=BF16)
        self.up_proj = torch.nn.Linear(HIDDEN, INTERMEDIATE, False, dtype=BF16)
        self.down_proj = torch.nn.Linear(INTERMEDIATE, HIDDEN, False, dtype=BF16)

    def forward(self, x):
        return self.down_proj(torch.nn.functional.silu(self.gate_proj(x)) * self.up_proj(x))


def mixture():
    return torch.nn.ModuleList(Expert() for _ in range(EXPERTS))


def experts(of=None):
    made = nn.GroupedExperts(EXPERTS, HIDDEN, INTERMEDIATE)
    if of is not None:
        made.load_state_dict(states(of))
    return made


def test_an_ordinary_mixture_is_loaded():
    of = mixture()
    mine = experts(of)
    gate, up = (torch.stack([getattr(e, n).weight for e in of]) for n in ("gate_proj", "up_proj"))
    both = alternating(gate, up)
    assert torch.equal(both[:, ::2], gate) and torch.equal(both[:, 1::2], up)
    q, scale = ops.quantise_blocks(both.detach())
    assert torch.equal(mine.gate_up.float(), q.float()) and torch.equal(mine.gate_up_scale, scale)
    other = experts()
    other.load_state_dict(states(mine))
    same(states(mine), states(other))
    inside = torch.nn.ModuleDict({"experts": experts()})
    inside.load_state_dict({f"experts.{n}": x for n, x in states(of).items()})
    same(states(inside["experts"]), states(mine))


@pytest.mark.parametrize(
    ("changed", "says"),
    (
        ({"3.up_proj.weight": None}, "Missing key.*3.up_proj.weight"),
        ({"3.up_proj.weight": torch.zeros(3, 4)}, "shape is .3, 4., must be .96, 160."),
        ({"3.up_proj.weight": torch.zeros(96, 160, dtype=FP8)}, "dtype is torch.float8"),
        ({"9.up_proj.weight": torch.zeros(96, 160)}, "Unexpected key.*9.up_proj.weight"),
    ),
    ids=str,
)
def test_mixtures_that_are_refused(changed, says):
    state = {**states(mixture()), **changed}
    mine = experts()
    before = states(mine)
    with pytest.raises(RuntimeError, match=f"(?s){says}"):
        mine.load_state_dict({n: x for n, x in state.items() if x is not None})
    if "Unexpected" not in says:
        same(before, states(mine))


@pytest.mark.parametrize("tokens", (0, 1, 40))
@pytest.mark.parametrize("top", (1, 3))
def test_tokens_get_their_experts(tokens, top):
    of = mixture()
    mine, x = experts(of), drawn(tokens, HIDDEN)
    scores = torch.rand(tokens, EXPERTS)
    scores[:, 2] = -1  # an expert without a token
    weights, chosen = scores.topk(top)
    exact = torch.zeros(tokens, HIDDEN, dtype=torch.float64)
    wide = copy.deepcopy(of).double()
    for t in range(tokens):
        for w, e in zip(weights[t], chosen[t], strict=True):
            exact[t] += w.double() * wide[e](x[t].double())
    y = mine(x, chosen, weights)
    assert y.shape == exact.shape and y.dtype == BF16
    assert not tokens or distance(y, exact) < FP8_EXPERTS


@pytest.mark.parametrize("dtype", (F32, BF16))
def test_sums_are_in_the_order_of_the_choices(dtype):
    """In FP32, product and sum each rounded; of copies that lie where a loop puts them."""
    mine, x = experts(mixture()), drawn(TOKENS, HIDDEN)
    weights, chosen = torch.rand(TOKENS, EXPERTS).to(dtype).topk(4)
    at = ops.route(chosen, EXPERTS)
    rows = torch.zeros(at.rows, HIDDEN, dtype=BF16)
    for j in range(4):
        rows[at.slots[:, j].long()] = x
    y, sums = mine.contiguous(rows, at.ends), torch.zeros(TOKENS, HIDDEN)
    for j in range(4):
        sums = sums + y[at.slots[:, j].long()].float() * weights[:, j, None].float()
    assert torch.equal(mine(x, chosen, weights), sums.to(BF16))


def test_weights_that_are_refused():
    with pytest.raises(ArgumentError) as e:
        experts()(drawn(4, HIDDEN), torch.zeros(4, 2).long(), torch.ones(4, 2).double())
    assert e.value.argument == "weights dtype"


def dequantised(q, scale, rows):
    scale = scale.double().repeat_interleave(128, -1)[..., : q.shape[-1]]
    return q.double() * scale.repeat_interleave(rows, -2)[..., : q.shape[-2], :]


def test_what_is_quantised_and_where():
    """Of one expert, step by step as documented."""
    mine, x = experts(mixture()), drawn(9, HIDDEN)
    weights = [
        dequantised(*(x[1] for x in mine.frozen_weight(n)), 128) for n in ("gate_up", "down")
    ]
    rows = dequantised(*ops.quantise_rows(x), 1) @ weights[0].mT
    h = torch.nn.functional.silu(rows[:, ::2]) * rows[:, 1::2]
    y = dequantised(*ops.quantise_rows(h.float()), 1) @ weights[1].mT
    found = mine.contiguous(x, torch.tensor([0, 9, 9, 9, 9]).int())
    assert error(found, y.float().to(BF16)) < 2**-7


def test_sorted_and_masked_rows_are_the_same_rows():
    mine, rows = experts(mixture()), (3, 0, 130, 1, 7)
    ends, at = [], 0
    for count in rows:
        start = -(-at // 128) * 128
        ends.append(at := start + count)
    x = drawn(at, HIDDEN)
    y = mine.contiguous(x, torch.tensor(ends).int())
    packed = torch.zeros(EXPERTS, 130, HIDDEN, dtype=BF16)
    for e, (count, end) in enumerate(zip(rows, ends, strict=True)):
        packed[e, :count] = x[end - count : end]
    z = mine.masked(packed, torch.tensor(rows).int(), expected_rows=30)
    for e, (count, end) in enumerate(zip(rows, ends, strict=True)):
        assert torch.equal(y[end - count : end], z[e, :count]), e


def test_one_graph_for_any_number_of_tokens():
    """Neither rows that there is room for nor the mean of an expert's is a number to a compiler."""
    mine, graphs = experts(mixture()), []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph

    compiled = torch.compile(mine, backend=backend, fullgraph=True, dynamic=True)
    for tokens in (40, 41, 57, 90):
        x, (weights, chosen) = drawn(tokens, HIDDEN), torch.rand(tokens, EXPERTS).topk(3)
        assert torch.equal(compiled(x, chosen, weights), mine(x, chosen, weights))
    assert len(graphs) == 1


@pytest.mark.parametrize("dtype", (torch.uint8, torch.int16, torch.int32))
def test_choices_of_any_integers(dtype):
    mine, x, weights = experts(mixture()), drawn(9, HIDDEN), torch.rand(9, 2)
    chosen = torch.randint(EXPERTS, (9, 2))
    assert torch.equal(mine(x, chosen.to(dtype), weights), mine(x, chosen, weights))


@pytest.mark.parametrize("shape", ((0, 2), (3, 0)))
def test_no_choices(shape):
    y = experts(mixture())(drawn(shape[0], HIDDEN), torch.zeros(shape).long(), torch.ones(shape))
    assert y.shape == (shape[0], HIDDEN) and not y.any()


@pytest.mark.parametrize(
    ("x", "argument"),
    (
        (torch.zeros(4, HIDDEN), "x dtype"),
        (torch.zeros(4, 1, HIDDEN, dtype=BF16), "x shape"),
        (torch.zeros(4, HIDDEN + 16, dtype=BF16), "x shape"),
        (torch.zeros(4, HIDDEN, dtype=BF16, requires_grad=True), "x"),
    ),
)
def test_rows_that_are_refused(x, argument):
    with pytest.raises(ArgumentError) as e:
        experts().contiguous(x, torch.zeros(EXPERTS).int())
    assert e.value.argument == argument


@pytest.mark.parametrize(
    ("chosen", "weights", "argument"),
    (
        ((3, 2), (3, 2), "chosen shape"),
        ((8,), (8,), "chosen shape"),
        ((4, 2), (4, 1), "weights shape"),
    ),
)
def test_choices_that_are_refused(chosen, weights, argument):
    x = torch.zeros(4, HIDDEN, dtype=BF16)
    with pytest.raises(ArgumentError) as e:
        experts()(x, torch.zeros(chosen).long(), torch.ones(weights))
    assert e.value.argument == argument


def test_a_mixture_of_nothing():
    for given, argument in (((0, 160, 96), "experts"), ((2, 161, 96), "in_features")):
        with pytest.raises(ArgumentError) as e:
            nn.GroupedExperts(*given)
        assert e.value.argument == argument


# ---- converting -----------------------------------------------------------------------------


class Mine(torch.nn.Linear):
    pass


def model():
    made = torch.nn.ModuleDict(
        {
            "up": plain(),
            "inner": torch.nn.Sequential(torch.nn.Linear(N, K, dtype=BF16), torch.nn.ReLU()),
            "odd": torch.nn.Linear(20, 32, dtype=BF16),
            "wide": torch.nn.Linear(K, N),
            "mine": Mine(K, N, dtype=BF16),
            "tied": plain(),
            "embedding": torch.nn.Embedding(N, K, dtype=BF16),
            "hooked": plain(),
            "head": plain(),
        }
    )
    made["tied"].weight = made["embedding"].weight
    made["hooked"].register_forward_hook(lambda *_: None)
    made["again"] = made["up"]
    return made


@pytest.mark.parametrize(("to", "cls"), (("fp8", nn.Fp8Linear), ("bf16", nn.Linear)))
def test_layers_are_replaced_or_a_reason_is_given(to, cls):
    found = model()
    made = nn.convert_(found, to, where=lambda name, layer: name != "head")
    assert made.converted == ("up", "inner.0") and {type(found["up"]), type(found["inner"][0])} == {
        cls
    }
    assert found["again"] is found["up"]
    reasons = {"odd": "multiples", "wide": "float32", "mine": "Mine", "tied": "shares"}
    reasons |= {"hooked": "hooks", "head": "where"}
    assert {*made.skipped} == {*reasons}
    assert all(word in made.skipped[name] for name, word in reasons.items())
    assert "2 layers converted, 6 left" in str(made) and "  head: " in str(made)
    again = nn.convert_(found, to)
    assert again.converted == ("head",) and not {"up", "inner.0"} & {*again.skipped}


def test_a_converted_model_computes_nearly_the_same():
    found = torch.nn.Sequential(plain(), torch.nn.SiLU(), torch.nn.Linear(N, K, dtype=BF16)).eval()
    x = drawn(TOKENS, K)
    exact = copy.deepcopy(found).double()(x.double())
    assert nn.convert_(found).converted == ("0", "2") and not found[0].training
    assert error(found(x), exact) < 0.08
    found.load_state_dict(
        states(torch.nn.Sequential(plain(), torch.nn.SiLU(), torch.nn.Linear(N, K)))
    )


def test_a_converted_model_trains():
    found = torch.nn.Sequential(plain(), torch.nn.SiLU(), torch.nn.Linear(N, K, dtype=BF16))
    optimiser = torch.optim.SGD(found.parameters(), lr=0.5)
    assert len(nn.convert_(found, master=True).converted) == 2
    x, goal = drawn(TOKENS, K), drawn(TOKENS, K)
    losses = []
    for _ in range(6):
        optimiser.zero_grad()
        loss = torch.nn.functional.mse_loss(found(x).float(), goal.float())
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses == sorted(losses, reverse=True) and losses[-1] < 0.99 * losses[0]


@pytest.mark.parametrize(
    ("given", "argument"),
    (
        ({"to": "int8"}, "to"),
        ({"to": "bf16", "master": True}, "master"),
        ({"module": plain()}, "module"),
    ),
    ids=str,
)
def test_conversions_that_are_refused(given, argument):
    with pytest.raises(ArgumentError) as e:
        nn.convert_(**{"module": model(), **given})
    assert e.value.argument == argument
