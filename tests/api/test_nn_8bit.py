"""Linear layers of INT8 and FP8 weights: made, loaded, saved, moved, multiplied on the CPU and on the emulator, and what is refused."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from emulated_ops import computed_on_cpu, real_torch  # noqa: E402, F401
from four_bits import packed  # noqa: E402
from roundings import UNIT  # noqa: E402

from gemmgen import formats, nn, quant  # noqa: E402
from gemmgen.errors import ArgumentError  # noqa: E402
from gemmgen.nn.kinds import Kind  # noqa: E402

pytestmark = pytest.mark.usefixtures("computed_on_cpu")

BF16, F16 = torch.bfloat16, torch.float16
FORMS = {
    "int8_column_f32": (formats.INT8_ROWS, BF16),
    "int8_column_f32_f16": (formats.INT8_ROWS, F16),
    "e4m3_column_f32": (formats.FP8_ROWS, BF16),
    "e4m3_column_f32_f16": (formats.FP8_ROWS, F16),
}
N, K = 70, 90
named = pytest.mark.parametrize("name", FORMS)


def layer_of(name, bias=True):
    form, dtype = FORMS[name]
    plain = torch.nn.Linear(K, N, bias)
    return plain, nn.Linear8bit.from_linear(plain, form, dtype)


@named
@pytest.mark.parametrize("bias", (False, True))
@pytest.mark.parametrize("lead", ((5,), (2, 3), ()))
def test_it_multiplies_by_what_was_quantised(name, bias, lead):
    form, dtype = FORMS[name]
    plain, layer = layer_of(name, bias)
    x = torch.randn(*lead, K).to(dtype)
    want = x.double() @ quant.of(plain.weight, form).dequantise().mT
    want = want + (plain.bias.double() if bias else 0.0)
    got = layer(x)
    assert got.dtype == dtype and got.shape == (*lead, N) and layer.weights == name
    assert bool(((got.double() - want).abs() <= UNIT[dtype] * want.abs() + 2.0**-15).all())


@named
def test_a_state_dict_of_its_own_and_a_wide_one(name):
    plain, layer = layer_of(name)
    state = layer.state_dict()
    assert {*state} == {"blocks", "factors", "bias", "_extra_state"}
    assert state["blocks"].shape == (2, 1, 8192) and state["factors"].shape == (N,)
    for given in (state, plain.state_dict()):
        empty = nn.Linear8bit(K, N, weights=name)
        empty.load_state_dict(given)
        assert all(torch.equal(a, b) for a, b in zip(empty.buffers(), layer.buffers(), strict=True))
    other = nn.Linear8bit(K, N, weights=next(x for x in FORMS if x != name))
    with pytest.raises(RuntimeError, match=f"blocks are of {name} {N}x{K}, must be of"):
        other.load_state_dict(state)


@named
def test_no_change_of_dtype_touches_it(name):
    _, layer = layer_of(name)
    before = [x.clone() for x in layer.buffers()]
    assert all(
        torch.equal(a, b) for a, b in zip(before, layer.half().bfloat16().buffers(), strict=True)
    )
    assert f"weight={name}, x={FORMS[name][1]}" in repr(layer) and not [*layer.parameters()]


@named
def test_checkpoints_of_channels_become_layers(name):
    form, dtype = FORMS[name]
    codes = torch.randint(-99, 99, (N, K)).to(torch.int8)
    codes = codes if form == formats.INT8_ROWS else codes.float().to(torch.float8_e4m3fn)
    tensors = {"up.weight": codes, "up.weight_scale": torch.rand(N, 1).bfloat16()}
    weights = quant.load(tensors, "channels")["up"]
    layer = nn.Linear8bit.from_quantised(weights, dtype=dtype)
    x = torch.eye(K).to(dtype)
    want = (codes.double() * tensors["up.weight_scale"].double()).mT
    assert torch.equal(layer(x).double(), want.to(dtype).double())


@named
def test_a_kind_makes_it_of_a_layer(name):
    """As other libraries' ways of changing a model do."""
    plain, layer = layer_of(name)
    kind, dtype = Kind(weights=name), FORMS[name][1]
    assert kind.obstacle(plain.to(dtype)) == "" and kind.quantises and kind.coded
    made, empty = kind.of(plain), kind.empty(plain)
    assert type(made) is type(empty) is nn.Linear8bit and kind.has(made)
    assert made.weights == empty.weights == name
    assert {*kind.quantised(plain.weight)} == {"blocks", "factors"}
    assert not Kind(weights="int4_128_bf16").has(layer) and not kind.has(nn.Linear4bit(256, N))
    odd = torch.nn.Linear(91, N).to(dtype)
    assert kind.obstacle(odd) == "in_features is 91, must be a multiple of 2"


def experts_of(name, order="alternating", *, experts=3, hidden=72, inner=40, **given):
    """The layer, and gate_up and down as it multiplies them, of alternating rows."""
    form, dtype = FORMS[name]
    shapes = (experts, 2 * inner, hidden), (experts, hidden, inner)
    held = [quant.of(torch.randn(s) * s[-1] ** -0.5, form) for s in shapes]
    layer = nn.Experts8bit.from_quantised(*held, dtype=dtype, order=order, **given)
    first = quant.alternating(held[0]) if order == "halves" else held[0]
    return layer, first.dequantise().double(), held[1].dequantise().double()


@named
@pytest.mark.parametrize("order", ("alternating", "halves"))
@pytest.mark.parametrize("inner", (40, 64), ids=("no whole blocks", "blocks"))
def test_experts_of_8_bits(name, order, inner):
    """Tokens, and masked rows; whole blocks of rows are `ops.moe`'s."""
    layer, w1, w2 = experts_of(name, order, inner=inner)
    dtype = FORMS[name][1]
    assert layer.fused is (inner == 64) and layer.weights == name
    x, chosen = torch.randn(7, 72).to(dtype), torch.rand(7, 3).topk(2).indices
    of = torch.rand(7, 2)
    both = torch.einsum("th,enh->ten", x.double(), w1)
    gate, up = both[..., ::2], both[..., 1::2]
    results = torch.einsum("tei,ehi->teh", gate.sigmoid() * gate * up, w2)
    want = (results.gather(1, chosen[..., None].expand(7, 2, 72)) * of[..., None].double()).sum(1)
    got = layer(x, chosen, of)
    assert got.dtype == dtype and (got - want).abs().max() <= 4 * UNIT[dtype] * want.abs().max()
    rows, counts = x[None, :6].expand(3, 6, 72).contiguous(), torch.tensor([6, 0, 2]).int()
    masked = layer.masked(rows, counts)
    for e, count in enumerate(counts.tolist()):
        near = results[:count, e]
        off = (masked[e, :count] - near).abs().max() if count else 0.0
        assert off <= 4 * UNIT[dtype] * results.abs().max()


@named
def test_a_state_dict_of_experts(name):
    layer = experts_of(name)[0]
    empty = nn.Experts8bit(3, 72, 40, weights=name)
    empty.load_state_dict(layer.state_dict())
    assert all(torch.equal(a, b) for a, b in zip(empty.buffers(), layer.buffers(), strict=True))
    assert {*layer.state_dict()} == {
        "gate_up",
        "gate_up_factors",
        "down",
        "down_factors",
        "_extra_state",
    }
    other = nn.Experts8bit(3, 72, 40, weights=next(x for x in FORMS if x != name))
    with pytest.raises(RuntimeError, match=f"blocks are of {name} 3x72x40 alternating swiglu"):
        other.load_state_dict(layer.state_dict())


@pytest.mark.parametrize(
    ("argument", "call"),
    (
        ("weights", lambda: nn.Linear8bit(K, N, weights="int4_128_bf16")),
        ("weights", lambda: nn.Linear8bit(K, N, weights="int8")),
        ("weights", lambda: nn.Linear4bit(K, N, weights="int8_column_f32")),
        ("activations", lambda: nn.Linear8bit(K, N, activations="e4m3")),
        ("activations", lambda: nn.Linear8bit(K, N, activations="bf16")),
        ("in_features", lambda: nn.Linear8bit(K + 1, N)),
        ("out_features", lambda: nn.Linear8bit(K, 0)),
        ("weights", lambda: nn.Linear8bit.from_packed(packed(formats.MXFP4, BF16, N, 96))),
        ("weights", lambda: nn.Linear4bit.from_packed(packed(formats.INT8_ROWS, BF16, N, 96))),
        ("weights", lambda: nn.Experts4bit(2, 64, 64, weights="int8_column_f32")),
        ("weights", lambda: nn.Experts8bit(2, 64, 64, weights="int4_32_bf16")),
        ("activations", lambda: nn.Experts8bit(2, 64, 64, activations="e4m3")),
        ("hidden", lambda: nn.Experts8bit(2, 66, 64)),
        ("hidden", lambda: nn.Experts8bit(2, 0, 64)),
        ("intermediate", lambda: nn.Experts8bit(2, 64, 68)),
        (
            "weights",
            lambda: nn.Experts8bit.from_packed(
                *[packed(formats.MXFP4, BF16, 1, 64, 32), packed(formats.MXFP4, BF16, 1, 32, 32)]
            ),
        ),
        ("x dtype", lambda: nn.Linear8bit(K, N)(torch.zeros(2, K))),
        ("x shape", lambda: nn.Linear8bit(K, N)(torch.zeros(2, N).to(BF16))),
        ("x", lambda: nn.Linear8bit(K, N)(torch.zeros(2, K).to(BF16).requires_grad_())),
    ),
)
def test_what_is_refused(argument, call):
    with pytest.raises(ArgumentError) as e:
        call()
    assert e.value.argument == argument
