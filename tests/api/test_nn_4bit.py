"""Layers of `gemmgen.nn` whose weights have 4 bits, on the CPU with float64 in the kernels' place, against the dequantised weights."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch")

import four_bits  # noqa: E402
from four_bits import FORMS  # noqa: E402
from mixtures import GATES, distance  # noqa: E402
from roundings import UNIT  # noqa: E402
from torch_reference import on_cpu  # noqa: E402, F401

from gemmgen import formats, nn, ops, quant  # noqa: E402
from gemmgen.errors import ArgumentError  # noqa: E402
from gemmgen.ir.dtypes import E4M3  # noqa: E402
from gemmgen.nn.experts4bit import ACTIVATIONS  # noqa: E402
from gemmgen.nn.kinds import Kind  # noqa: E402

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
N, K = 70, 256
BY_FP8 = 0.06  # what rows of FP8 are apart from wide ones
EXPERTS, HIDDEN, INNER, TOKENS, TOP = 4, 192, 160, 9, 2


def quantised(*shape, form="int4"):
    return four_bits.drawn(FORMS[form][0], *shape)


def near(found, exact, steps=1.0):
    """Within so many roundings of a value."""
    bound = steps * UNIT[found.dtype] * exact.abs().max()
    return bool(((found.double() - exact).abs() <= bound).all())


def states(module):
    return {n: x.clone() for n, x in module.state_dict().items()}


def same(one, other):
    assert one.keys() == other.keys()
    assert all(torch.equal(x, other[n]) and x.dtype == other[n].dtype for n, x in one.items())


# ---- a linear layer -------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("lead", ((), (5,), (2, 3), (0,)), ids=str)
@pytest.mark.parametrize("biased", (False, True))
def test_it_multiplies_by_what_was_packed(form, lead, biased):
    dtype = FORMS[form][1]
    packed = quant.pack(quantised(N, K, form=form), dtype)
    bias = torch.randn(N).to(dtype) if biased else None
    layer, x = nn.Linear4bit.from_packed(packed, bias), torch.randn(*lead, K).to(dtype)
    y = layer(x)
    exact = x.double() @ four_bits.exact(packed).mT + (bias.double() if biased else 0.0)
    assert y.shape == (*lead, N) and y.dtype == dtype
    assert not x.numel() or near(y, exact)
    assert layer.blocks.data_ptr() == packed.blocks.data_ptr() and not [*layer.parameters()]


def test_it_is_made_of_what_was_quantised_and_of_a_linear_layer():
    plain = torch.nn.Linear(K, N)
    weights = quant.of(plain.weight, FORMS["zeros"][0])
    one = nn.Linear4bit.from_quantised(weights, plain.bias)
    other = nn.Linear4bit.from_linear(plain.eval(), FORMS["zeros"][0])
    same(states(one), states(other))
    assert one.dtype == F16 and one.training and not other.training
    x = torch.randn(3, K).half()
    exact = x.double() @ weights.dequantise().mT + plain.bias.double()
    assert near(one(x), exact, 2)


@pytest.mark.parametrize("form", (formats.MXFP4, formats.NVFP4), ids=lambda f: f.name)
def test_e2m1_is_packed_for_the_dtype_that_is_asked_for(form):
    """Blocks for one dtype are none for the other, and the layer's weights say which."""
    plain = torch.nn.Linear(K, N, bias=False).half()
    weights = quant.of(plain.weight, form)
    layer = nn.Linear4bit.from_quantised(weights, dtype=F16)
    same(states(layer), states(nn.Linear4bit.from_linear(plain, form, F16)))
    same(states(layer), states(Kind(weights=f"{form.name}_f16").of(plain)))
    assert layer.dtype == F16 and layer.weights == f"{form.name}_f16"
    x = torch.randn(3, K).half()
    assert near(layer(x), x.double() @ weights.dequantise().mT)
    other = nn.Linear4bit.from_quantised(weights)
    assert other.dtype == BF16 and not torch.equal(other.blocks, layer.blocks)
    with pytest.raises(RuntimeError, match="_extra_state"):
        other.load_state_dict(layer.state_dict())
    with pytest.raises(ArgumentError, match="x dtype"):
        layer(x.to(BF16))
    empty = nn.Linear4bit(K, N, bias=False, weights=layer.weights)
    empty.load_state_dict({"weight": plain.weight.detach()})
    same(states(empty), states(layer))


@pytest.mark.parametrize("zeros", (False, True))
@pytest.mark.parametrize(("scale", "dtype"), (("bf16", BF16), ("f16", F16)))
@pytest.mark.parametrize(("k", "group"), ((256, 128), (192, 64), (96, 32)))
def test_scales_of_whole_rows(k, group, scale, dtype, zeros):
    """A layer of groups, by whose numbers those of the rows are multiplied, rounded once."""
    plain, form = torch.nn.Linear(k, N), formats.int4(0, scale, zeros=zeros)
    weights, name = quant.of(plain.weight, form), f"int4_{group}_{scale}{'_zeros' * zeros}"
    layer = nn.Linear4bit.from_quantised(weights, plain.bias)
    assert layer.weights == name and layer.dtype == dtype
    x = torch.randn(3, k).to(dtype)
    exact = x.double() @ weights.dequantise(dtype).double().mT + plain.bias.double()
    assert near(layer(x), exact)
    same(states(layer), states(nn.Linear4bit.from_linear(plain, form)))
    kind = Kind(weights=form.name)
    one = kind.of(torch.nn.Linear(k, N, dtype=dtype))
    empty = kind.empty(plain)
    assert one.weights == empty.weights == name and kind.has(one) and kind.group == 32
    held = kind.quantised(plain.weight)
    assert held.keys() == {"blocks"} and torch.equal(held["blocks"], layer.blocks)
    other = nn.Linear4bit(k, N, weights=name)
    other.load_state_dict(layer.state_dict())
    same(states(other), states(layer))


def test_whole_rows_that_no_group_divides():
    plain = torch.nn.Linear(72, N, dtype=BF16)
    with pytest.raises(ArgumentError, match=r"^K=72: must be a multiple of 32: a whole row's"):
        nn.Linear4bit.from_linear(plain, formats.int4(0, "bf16"))
    kind = Kind(weights="int4_column_bf16")
    assert kind.obstacle(plain) == "in_features is 72, must be a multiple of 32"
    assert not kind.has(nn.Linear4bit(48, N, weights="e2m1_16_e4m3"))
    assert not kind.has(nn.Linear4bit(256, N, weights="int4_64_bf16"))
    assert not Kind(weights="fp8").has(nn.Linear4bit(256, N))


def test_facts_of_other_blocks_are_refused_by_themselves():
    layer = nn.Linear4bit.from_quantised(quantised(N, K))
    layer.set_extra_state(layer.get_extra_state())
    for other in (nn.Linear4bit(K, N, weights="int4_64_bf16").get_extra_state(), None):
        with pytest.raises(ArgumentError, match=rf"must be int4_128_bf16 {N}x{K}"):
            layer.set_extra_state(other)


def test_rows_that_are_not_contiguous():
    layer, x = nn.Linear4bit.from_quantised(quantised(N, K)), torch.randn(K, 6).to(BF16)
    assert torch.equal(layer(x.mT), layer(x.mT.contiguous()))


@pytest.mark.parametrize("change", ("half", "double", "float", "to", "cpu"))
def test_no_change_of_dtype_touches_it(change):
    layer = nn.Linear4bit.from_quantised(quantised(N, K), torch.randn(N))
    before = states(layer)
    getattr(layer, change)(*((F16,) if change == "to" else ()))
    same(before, states(layer))
    with pytest.raises(ArgumentError, match=r"must be torch.bfloat16: weights are int4_128_bf16"):
        layer(torch.randn(2, K).half())


def test_copies_pickles_and_moves(tmp_path):
    layer, x = nn.Linear4bit.from_quantised(quantised(N, K)), torch.randn(3, K).to(BF16)
    torch.save(layer, tmp_path / "layer.pt")
    for other in (copy.deepcopy(layer), torch.load(tmp_path / "layer.pt", weights_only=False)):
        assert torch.equal(other(x), layer(x))
    assert layer.to("meta").blocks.is_meta


def test_compiled_and_in_inference_mode():
    layer = nn.Linear4bit.from_quantised(quantised(N, K), torch.randn(N))
    x = torch.randn(4, K).to(BF16)
    assert torch.equal(torch.compile(layer, backend="aot_eager", fullgraph=True)(x), layer(x))
    with torch.inference_mode():
        layer(x)


def test_a_gradient_is_refused():
    layer, x = nn.Linear4bit.from_quantised(quantised(N, K)), torch.zeros(2, K).to(BF16)
    with pytest.raises(ArgumentError, match="no gradients"):
        layer(x.requires_grad_())
    with torch.no_grad():
        layer(x)


FP8 = torch.float8_e4m3fn


def by_fp8(bias=None):
    return nn.Linear4bit.from_quantised(quantised(N, K, form="mxfp4"), bias, FP8)


@pytest.mark.parametrize("lead", ((), (5,), (2, 3), (0,)), ids=str)
@pytest.mark.parametrize("biased", (False, True))
def test_rows_that_are_quantised(lead, biased):
    """Each by its own scale; weights are exact."""
    bias = torch.randn(N) if biased else None
    layer, x = by_fp8(bias), torch.randn(*lead, K).to(BF16)
    held = quant.Packed(format=formats.MXFP4, dtype=E4M3, blocks=layer.blocks, shape=(N, K), factors=layer.factors)  # fmt: skip
    y = layer(x)
    assert y.shape == (*lead, N) and y.dtype == BF16 and layer.dtype == BF16
    if x.numel():
        q, scale = ops.quantise_rows(x.reshape(-1, K), None)
        rows = (q.double() * scale.double()[:, None]).view(x.shape)
        exact = rows @ four_bits.exact(held).mT + (bias.double() if biased else 0.0)
        assert near(y, exact)
        loud = 2.0 ** torch.arange(-4, len(q) - 4).view(*lead, 1).to(BF16)
        assert biased or torch.equal(layer(x * loud), y * loud)


def test_blocks_for_rows_that_are_quantised_are_of_them_alone():
    layer, other = by_fp8(), nn.Linear4bit.from_quantised(quantised(N, K, form="mxfp4"))
    assert "e2m1_32_e8m0 by e4m3, x=torch.bfloat16" in repr(layer)
    assert not Kind(weights="e2m1_32_e8m0").has(layer)
    for one, state in ((layer, other), (other, layer)):
        with pytest.raises(RuntimeError, match="blocks are of"):
            one.load_state_dict(state.state_dict())
    plain = torch.nn.Linear(K, N, bias=False)
    empty = nn.Linear4bit(K, N, bias=False, weights=layer.weights, activations="e4m3")
    empty.load_state_dict(plain.state_dict())
    same(states(empty), states(nn.Linear4bit.from_linear(plain, formats.MXFP4, FP8)))
    x = torch.randn(3, K).to(BF16)
    compiled = torch.compile(empty, backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(x), empty(x))


@pytest.mark.parametrize(
    "form", (formats.MXFP4, formats.int4(128, "bf16"), formats.int4(0, "f16")), ids=lambda x: x.name
)
@pytest.mark.parametrize("lead", ((3,), (2, 4), (0,)))
def test_rows_that_have_a_scale_for_each_128(lead, form):
    """Of MXFP4 blocks are those of rows with one scale, and a state_dict of either loads into the other; INT4 has no other way, and scales in float32."""
    x, wide = torch.randn(*lead, K).to(BF16), torch.nn.Linear(K, N, bias=False)
    fine = nn.Linear4bit.from_linear(wide, form, activations="e4m3_128")
    weights = "int4_128_f32" if form.element == "int4" else "e2m1_32_e8m0"
    assert f"weight={weights} by e4m3_128, x=torch.bfloat16" in repr(fine)
    held = quant.pack(quant.of(wide.weight, form), FP8)
    assert torch.equal(held.blocks, fine.blocks)
    exact = four_bits.exact(held)
    assert torch.equal(exact, quant.of(wide.weight, form).dequantise())
    y = fine(x)
    assert y.shape == (*lead, N) and y.dtype == BF16
    if x.numel():
        q, scale = ops.quantise_rows(x.reshape(-1, K))
        rows = q.double() * scale.double().repeat_interleave(128, -1)[:, :K]
        assert near(y, rows.view(x.shape) @ exact.mT)
    empty = nn.Linear4bit(K, N, bias=False, weights=weights, activations="e4m3_128")
    empty.load_state_dict(fine.state_dict())
    assert torch.equal(torch.compile(empty, backend="aot_eager", fullgraph=True)(x), y)
    empty.load_state_dict(wide.state_dict())
    own = formats.named(weights)
    same(states(empty), states(nn.Linear4bit.from_linear(wide, own, activations="e4m3_128")))
    if weights == "e2m1_32_e8m0":
        coarse = nn.Linear4bit.from_linear(wide, form, FP8)
        same(states(coarse), states(fine))
        assert nn.Linear4bit.from_packed(held, activations="e4m3_128").activations == "e4m3_128"


PLAIN = {"in_features": K, "out_features": N}
PACKED = quant.pack(quant.of(torch.randn(N, K), formats.int4(128, "bf16")))


@pytest.mark.parametrize(
    ("make", "argument"),
    (
        (lambda: nn.Linear4bit(**PLAIN, weights="int4"), "weights"),
        (lambda: nn.Linear4bit(**PLAIN, weights="int4_128_f32"), "weights"),
        (lambda: nn.Linear4bit(K + 32, N), "in_features"),
        (lambda: nn.Linear4bit(K, 0), "out_features"),
        (lambda: nn.Linear4bit.from_packed(quantised(N, K)), "packed"),
        (lambda: nn.Linear4bit.from_packed(quant.pack(quantised(2, N, K))), "packed shape"),
        (lambda: nn.Linear4bit(**PLAIN, activations="e4m3"), "weights"),
        (lambda: nn.Linear4bit.from_quantised(quantised(N, K, form="zeros"), dtype=FP8), "dtype"),
        (lambda: nn.Linear4bit.from_linear(torch.nn.Linear(K, N), formats.int4(128), activations="e4m3"), "activations"),
        (lambda: nn.Linear4bit.from_linear(torch.nn.Linear(K, N), formats.int4(32), activations="e4m3_128"), "dtype"),
        (lambda: nn.Linear4bit.from_linear(torch.nn.Linear(K - 64, N), formats.int4(0), activations="e4m3_128"), "K"),
        (lambda: nn.Linear4bit.from_quantised(quantised(N, K, form="nvfp4"), dtype=FP8), "dtype"),
        (lambda: nn.Linear4bit(**PLAIN, activations="bf16"), "activations"),
        (lambda: nn.Linear4bit(**PLAIN, activations="e4m3_128"), "weights"),
        (lambda: nn.Linear4bit.from_packed(PACKED, activations="e4m3_128"), "activations"),
        (lambda: nn.Linear4bit.from_packed(PACKED, activations="e4m3_64"), "activations"),
        (lambda: nn.Linear4bit.from_quantised(quantised(N, K, form="mxfp4"), dtype=BF16, activations="e4m3_128"), "dtype"),
        (lambda: nn.Linear8bit(**PLAIN, activations="e4m3_128"), "activations"),
        (lambda: by_fp8()(torch.zeros(2, K).half()), "x dtype"),
        (lambda: nn.Linear4bit.from_packed(PACKED, 1.0), "bias"),
        (lambda: nn.Linear4bit.from_packed(PACKED, torch.zeros(N + 1)), "bias shape"),
        (lambda: nn.Linear4bit.from_packed(PACKED, torch.zeros(N).int()), "bias dtype"),
        (lambda: nn.Linear4bit.from_quantised(PACKED), "weights"),
        (lambda: nn.Linear4bit.from_linear(PACKED, formats.MXFP4), "layer"),
        (lambda: nn.Linear4bit.from_linear(torch.nn.Linear(K, N), "int4"), "form"),
        (lambda: nn.Linear4bit.from_packed(PACKED)(torch.zeros(2, K)), "x dtype"),
        (lambda: nn.Linear4bit.from_packed(PACKED)(torch.zeros(2, N).to(BF16)), "x shape"),
        (lambda: nn.Linear4bit.from_packed(PACKED)(torch.zeros(()).to(BF16)), "x shape"),
    ),
)  # fmt: skip
def test_what_is_refused(make, argument):
    with pytest.raises(ArgumentError) as e:
        make()
    assert e.value.argument == argument


def test_what_they_say_of_themselves():
    assert "weight=int4_128_bf16, x=torch.bfloat16" in repr(nn.Linear4bit(K, N))
    assert "order=halves, activation=geglu, bias=False" in repr(
        nn.Experts4bit(2, 64, 32, order="halves", activation="geglu")
    )


# ---- state dicts ----------------------------------------------------------------------------


@pytest.mark.parametrize("assign", (False, True))
def test_its_own_state_dict_comes_back(assign, tmp_path):
    layer = nn.Linear4bit.from_quantised(quantised(N, K), torch.randn(N))
    model = torch.nn.ModuleDict({"one": layer})
    torch.save(model.state_dict(), tmp_path / "state.pt")
    state = torch.load(tmp_path / "state.pt", weights_only=True)
    assert {type(x) for x in state.values()} == {torch.Tensor}  # as files of tensors ask
    with torch.device("meta" if assign else "cpu"):
        other = torch.nn.ModuleDict({"one": nn.Linear4bit(K, N)})
    other.load_state_dict(state, assign=assign)
    same(states(model), states(other))
    x = torch.randn(3, K).to(BF16)
    assert torch.equal(layer(x), other["one"](x))


@pytest.mark.parametrize("dtype", (F32, BF16))
@pytest.mark.parametrize("assign", (False, True))
def test_an_ordinary_state_dict_is_quantised(dtype, assign):
    plain = torch.nn.Linear(K, N, dtype=dtype)
    layer, state = nn.Linear4bit(K, N, weights="e2m1_32_e8m0"), plain.state_dict()
    before = {n: x.clone() for n, x in state.items()}
    layer.load_state_dict(state, assign=assign)
    same(states(layer), states(nn.Linear4bit.from_linear(plain, formats.MXFP4)))
    same(state, before)


@pytest.mark.parametrize(
    ("state", "says"),
    (
        (lambda: nn.Linear4bit(K, N, weights="int4_128_f16"), "blocks are of int4_128_f16 70x256, must be of int4_128_bf16 70x256"),
        (lambda: nn.Linear4bit(K, N + 1), "blocks are of int4_128_bf16 71x256"),
        (lambda: {"blocks": nn.Linear4bit(K, N).blocks, "bias": torch.zeros(N)}, "_extra_state"),
        (lambda: {**states(nn.Linear4bit(K, N)), "_extra_state": {}}, "no known format"),
        (lambda: {**states(nn.Linear4bit(K, N)), "blocks": torch.zeros(2, 2, 4224)}, "dtype is torch.float32"),
        (lambda: torch.nn.Linear(K, N + 1), r"weight: is \[71, 256\] of torch.float32"),
        (lambda: {"weight": torch.zeros(N, K).int()}, "of torch.int32"),
        (lambda: nn.Linear4bit(K, N, bias=False), "bias"),
    ),
)  # fmt: skip
def test_state_dicts_that_are_refused(state, says):
    given, layer = state(), nn.Linear4bit.from_packed(PACKED, torch.randn(N))
    given = given.state_dict() if isinstance(given, torch.nn.Module) else given
    before = states(layer)
    with pytest.raises(RuntimeError, match=says):
        layer.load_state_dict(given)
    if says not in ("bias", "_extra_state"):  # keys that torch misses when the others are loaded
        same(before, states(layer))


# ---- experts --------------------------------------------------------------------------------


OF_EXPERTS = {
    "int4": (formats.int4(32, "bf16"), BF16),
    "zeros": (formats.int4(32, "f16", zeros=True), F16),
    "mxfp4": FORMS["mxfp4"],
    "nvfp4 of fp16": FORMS["nvfp4 of fp16"],
}


def sides(experts=EXPERTS):
    return (experts, 2 * INNER, HIDDEN), (experts, HIDDEN, INNER)


def drawn(form="mxfp4"):
    return [four_bits.drawn(OF_EXPERTS[form][0], *s) for s in sides()]


def activated(both, order, activation):
    gate, up = (both[..., ::2], both[..., 1::2]) if order == "alternating" else both.chunk(2, -1)
    if activation == "swiglu_clamped":
        gate, up = gate.clamp(max=7.0), up.clamp(-7.0, 7.0)
        return gate / (1 + (-1.702 * gate).exp()) * (up + 1)
    return GATES[activation](gate) * up


def exactly(x, chosen, weights, packed, biases, order, activation):
    """In float64, of the numbers that were packed."""
    w1, w2 = map(four_bits.exact, packed)
    y = torch.zeros(x.shape, dtype=torch.float64)
    for t in range(len(x)):
        for e, share in zip(chosen[t].tolist(), weights[t].double(), strict=True):
            if 0 <= e < len(w1):
                both = x[t].double() @ w1[e].mT + biases[0][e].double()
                h = activated(both, order, activation)
                y[t] += share * (h @ w2[e].mT + biases[1][e].double())
    return y


def experts(form="mxfp4", biased=True, **how):
    """The layer, what it was packed of, and its biases."""
    packed = [quant.pack(x, OF_EXPERTS[form][1]) for x in drawn(form)]
    shapes = [s[:2] for s in sides()]
    biases = [torch.randn(s) if biased else torch.zeros(s) for s in shapes]
    given = dict(zip(("gate_up_bias", "down_bias"), biases, strict=True)) if biased else {}
    return nn.Experts4bit.from_packed(*packed, **given, **how), packed, biases


def tokens(dtype=BF16, hidden=HIDDEN):
    weights, chosen = torch.rand(TOKENS, EXPERTS).softmax(-1).topk(TOP)
    chosen[0, 0], chosen[1, 1], chosen[2:] = -1, 77, chosen[2:] % 3  # and one without a token
    return torch.randn(TOKENS, hidden).to(dtype), chosen, weights


@pytest.mark.parametrize(
    ("form", "order", "activation"),
    (
        *((form, "alternating", "swiglu") for form in OF_EXPERTS),
        *(("mxfp4", "halves", x) for x in ACTIVATIONS),
        ("mxfp4", "alternating", "swiglu_clamped"),
    ),
)
def test_tokens_get_their_experts(form, order, activation):
    dtype, how = OF_EXPERTS[form][1], {"order": order, "activation": activation}
    layer, packed, biases = experts(form, activation == "swiglu_clamped", **how)
    x, chosen, weights = tokens(dtype)
    y = layer(x, chosen, weights)
    exact = exactly(x, chosen, weights, packed, biases, **how)
    assert y.dtype == dtype and near(y, exact, 4)


def test_what_is_clamped_is():
    layer, packed, biases = experts(activation="swiglu_clamped")
    x, chosen, weights = tokens()
    x *= 30
    y = layer(x, chosen, weights)
    how = {"order": "alternating", "activation": "swiglu_clamped"}
    exact = exactly(x, chosen, weights, packed, biases, **how)
    assert near(y, exact, 4)
    both = x[2].double() @ four_bits.exact(packed[0])[chosen[2, 0]].mT
    assert bool((both > 7).any() and (both < -7).any())


def test_masked_rows_are_those_of_tokens():
    layer, packed, biases = experts()
    x, counts = torch.randn(EXPERTS, 6, HIDDEN).to(BF16), torch.tensor([6, 0, 2, 1]).int()
    y = layer.masked(x, counts, expected_rows=3)
    ids = torch.arange(EXPERTS)[:, None].expand(EXPERTS, 6).reshape(-1, 1)
    exact = exactly(
        x.flatten(0, 1), ids, torch.ones(ids.shape), packed, biases, "alternating", "swiglu"
    ).view(EXPERTS, 6, HIDDEN)
    for e, count in enumerate(counts.tolist()):
        assert not count or near(y[e, :count], exact[e, :count], 4)


@pytest.mark.parametrize("order", ("alternating", "halves"))
@pytest.mark.parametrize(
    ("form", "how"),
    (
        (formats.MXFP4, "e4m3"),
        (formats.MXFP4, "e4m3_128"),
        (formats.int4(128, "bf16"), "e4m3_128"),
    ),
    ids=("mxfp4", "mxfp4 by blocks", "int4 by blocks"),
)
def test_experts_by_fp8(form, how, order):
    """Of tokens, of rows in order and of masked ones."""
    hidden, inner = (256, 128) if form.element == "int4" else (HIDDEN, INNER)
    shapes = (EXPERTS, 2 * inner, hidden), (EXPERTS, hidden, inner)
    weights = [four_bits.drawn(form, *s) for s in shapes]
    packed = [quant.pack(w, FP8) for w in weights]
    layer = nn.Experts4bit.from_packed(*packed, order=order, activations=how)
    if form == formats.MXFP4:
        packed = [quant.pack(w) for w in weights]  # the same numbers
    none = [torch.zeros(s[:2]) for s in shapes]
    x, chosen, of = tokens(hidden=hidden)
    exact = exactly(x, chosen, of, packed, none, order, "swiglu")
    assert distance(layer(x, chosen, of), exact) < BY_FP8
    rows, counts = torch.randn(EXPERTS, 6, hidden).to(BF16), torch.tensor([6, 0, 2, 1]).int()
    ids = torch.arange(EXPERTS)[:, None].expand(EXPERTS, 6).reshape(-1, 1)
    exact = exactly(rows.flatten(0, 1), ids, torch.ones(ids.shape), packed, none, order, "swiglu")
    y, exact = layer.masked(rows, counts), exact.view(EXPERTS, 6, hidden)
    there = torch.arange(6) < counts[:, None]
    assert distance(y[there], exact[there]) < BY_FP8
    assert "by e4m3 " in layer.facts and f"by {how}," in repr(layer)


def test_shares_have_gradients():
    """Of a router, through what no weights have."""
    layer, (x, chosen, weights) = experts()[0], tokens()
    y = layer(x, chosen, weights.requires_grad_())
    (found,) = torch.autograd.grad(y.sum(), weights)
    assert found.shape == weights.shape and bool(found.any())


def test_rows_of_gate_and_up_that_are_no_whole_blocks():
    """As NVFP4's groups allow: 48 features are 96 rows, of blocks of 64."""
    sides = (2, 96, 64), (2, 64, 48)
    packed = [quant.pack(four_bits.drawn(formats.NVFP4, *s)) for s in sides]
    biases = [torch.randn(s[:2]) for s in sides]
    layer = nn.Experts4bit.from_packed(*packed, gate_up_bias=biases[0], down_bias=biases[1])
    x, chosen, shares = torch.randn(9, 64).to(BF16), torch.randint(2, (9, 2)), torch.rand(9, 2)
    exact = exactly(x, chosen, shares, packed, biases, "alternating", "swiglu")
    assert not layer.fused and near(layer(x, chosen, shares), exact, 4)


def test_no_tokens():
    x, chosen, weights = (t[:0] for t in tokens())
    assert experts()[0](x, chosen, weights).shape == (0, HIDDEN)


def test_experts_compiled():
    layer, (x, chosen, weights) = experts(activation="swiglu_clamped")[0], tokens()
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(x, chosen, weights), layer(x, chosen, weights))


def test_experts_state_dict():
    layer = experts(order="halves")[0]
    other = nn.Experts4bit(EXPERTS, HIDDEN, INNER, order="halves", bias=True)
    other.load_state_dict(states(layer))
    same(states(layer), states(other))
    same(states(layer), states(layer.half()))
    with pytest.raises(RuntimeError, match="alternating swiglu"):
        nn.Experts4bit(EXPERTS, HIDDEN, INNER, bias=True).load_state_dict(states(layer))


@pytest.mark.parametrize("biased", (False, True))
@pytest.mark.parametrize("form", OF_EXPERTS)
def test_halves_that_are_packed_here_alternate(form, biased):
    """Gate's rows and up's in turn, biases too: what the rows in two halves give, and one GEMM's epilogue pairs."""
    weights = drawn(form)
    shapes = [s[:2] for s in sides()]
    biases = {f"{n}_bias": torch.randn(s) for n, s in zip(("gate_up", "down"), shapes, strict=True)}
    given = (biases if biased else {}) | {"order": "halves"}
    layer = nn.Experts4bit.from_quantised(*weights, OF_EXPERTS[form][1], **given)
    assert layer.order == "alternating"
    packed = [quant.pack(x, OF_EXPERTS[form][1]) for x in weights]
    x, chosen, of = tokens(OF_EXPERTS[form][1])
    added = [*biases.values()] if biased else [torch.zeros(s) for s in shapes]
    assert near(layer(x, chosen, of), exactly(x, chosen, of, packed, added, "halves", "swiglu"), 4)


@pytest.mark.parametrize("order", ("alternating", "halves"))
@pytest.mark.parametrize(("scale", "dtype"), (("bf16", BF16), ("f16", F16)))
@pytest.mark.parametrize("zeros", (False, True))
def test_experts_whose_scales_are_of_whole_rows(zeros, scale, dtype, order):
    """One group of both: 64 divides 192 columns and 32 the 160."""
    form = formats.int4(0, scale, zeros=zeros)
    weights = [four_bits.drawn(form, *s) for s in sides()]
    layer = nn.Experts4bit.from_quantised(*weights, order=order)
    assert layer.weights == f"int4_32_{scale}{'_zeros' * zeros}" and layer.dtype == dtype
    packed = [quant.pack(x, dtype) for x in weights]
    assert [x.format.group for x in packed] == [64, 32]
    x, chosen, of = tokens(dtype)
    none = [torch.zeros(s[:2]) for s in sides()]
    assert near(layer(x, chosen, of), exactly(x, chosen, of, packed, none, order, "swiglu"), 4)


def test_experts_with_a_format_that_has_one_group():
    """As of a projection whose rows have just so many columns."""
    whole, of_128 = formats.int4(0, "bf16"), formats.int4(128, "bf16")
    gate_up = four_bits.drawn(whole, 1, 256, 320)
    layer = nn.Experts4bit.from_quantised(gate_up, four_bits.drawn(of_128, 1, 320, 128))
    assert layer.weights == "int4_64_bf16"
    with pytest.raises(ArgumentError) as e:
        nn.Experts4bit.from_quantised(gate_up, four_bits.drawn(formats.MXFP4, 1, 320, 128))
    assert e.value.argument == "down format"
    with pytest.raises(ArgumentError) as e:
        nn.Experts4bit.from_quantised(gate_up, four_bits.drawn(whole, 1, 320, 8))
    assert e.value.argument == "K"


def test_what_does_not_alternate():
    with pytest.raises(ArgumentError, match="weights"):
        quant.alternating(PACKED)
    with pytest.raises(ArgumentError, match="weights shape"):
        quant.alternating(quantised(63, K))
    with pytest.raises(ArgumentError, match="gate_up"):
        nn.Experts4bit.from_quantised(PACKED, drawn()[1], order="halves")


def test_experts_of_what_was_quantised():
    weights = drawn()
    one = nn.Experts4bit.from_quantised(*weights, activation="reglu")
    same(
        states(one),
        states(nn.Experts4bit.from_packed(*map(quant.pack, weights), activation="reglu")),
    )


EXPERTS_REFUSED = (
    (lambda: nn.Experts4bit(0, 64, 64), "experts"),
    (lambda: nn.Experts4bit(513, 64, 64), "experts"),
    (lambda: nn.Experts4bit(1, 48, 64), "hidden"),
    (lambda: nn.Experts4bit(1, 64, 0), "intermediate"),
    (lambda: nn.Experts4bit(1, 64, 24, weights="e2m1_16_e4m3"), "intermediate"),
    (lambda: nn.Experts4bit(1, 64, 64, activations="bf16"), "activations"),
    (lambda: nn.Experts4bit.from_packed(quant.pack(drawn()[0], FP8), quant.pack(drawn()[1])), "down format"),
    (lambda: nn.Experts4bit(1, 64, 64, order="rows"), "order"),
    (lambda: nn.Experts4bit(1, 64, 64, activation="silu"), "activation"),
    (lambda: nn.Experts4bit.from_packed(PACKED, PACKED), "gate_up shape"),
    (lambda: nn.Experts4bit.from_quantised(PACKED, PACKED), "gate_up"),
    (lambda: nn.Experts4bit.from_quantised(quantised(1, 64, 128), quantised(1, 128, 128)), "down shape"),
    (lambda: nn.Experts4bit.from_quantised(quantised(1, 63, 128), quantised(1, 128, 128)), "gate_up shape"),
    (lambda: nn.Experts4bit.from_quantised(quantised(1, 256, 128), quantised(1, 128, 128, form="mxfp4")), "down format"),
    (lambda: nn.Experts4bit.from_quantised(quantised(1, 256, 128), quantised(1, 128, 128), down_bias=torch.zeros(1, 128)), "gate_up_bias"),
    (lambda: experts()[0](*(t[..., :1] for t in tokens())), "x shape"),
    (lambda: experts()[0](tokens()[0].half(), *tokens()[1:]), "x dtype"),
    (lambda: experts()[0](tokens()[0], tokens()[1][1:], tokens()[2]), "chosen shape"),
)  # fmt: skip


@pytest.mark.parametrize(("make", "argument"), EXPERTS_REFUSED)
def test_experts_that_are_refused(make, argument):
    with pytest.raises(ArgumentError) as e:
        make()
    assert e.value.argument == argument
