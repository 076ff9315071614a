"""NVFP4 of checkpoints: read by both namings, packed, multiplied by a kernel; and what is refused."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from emulated_ops import Memory, computing_on_cpu, emulated, real_torch  # noqa: E402, F401
from roundings import UNIT  # noqa: E402

from gemmgen import formats, nn, ops, quant  # noqa: E402
from gemmgen.errors import ArgumentError  # noqa: E402

NAME = "model.layers.0.mlp.up_proj"
E2M1 = torch.tensor([*formats.E2M1_VALUES, *(-x for x in formats.E2M1_VALUES)], dtype=torch.float64)
READERS = {"nvfp4": quant.nvfp4, "nvfp4_packed": quant.nvfp4_packed}


def stored(method, rows=70, columns=96, scale=0.013):
    """A layer's tensors, and what they stand for."""
    codes = torch.randint(0, 16, (rows, columns))
    scales = (torch.rand(rows, columns // 16) * 448).to(torch.float8_e4m3fn)
    half = (codes[:, ::2] | codes[:, 1::2] << 4).to(torch.uint8)
    of = torch.tensor(scale) if method == "nvfp4" else 1 / torch.tensor([scale])
    names = ("weight", "weight_scale_2") if method == "nvfp4" else ("weight_packed", "weight_global_scale")  # fmt: skip
    tensors = {f"{NAME}.{names[0]}": half, f"{NAME}.weight_scale": scales, f"{NAME}.{names[1]}": of}
    whole = of if method == "nvfp4" else (1 / of).float()
    groups = scales.double().repeat_interleave(16, -1)
    return tensors, E2M1[codes] * groups * whole.double()


@pytest.mark.parametrize("method", READERS)
def test_a_layer_stands_for_what_was_stored(method):
    tensors, exact = stored(method)
    found = READERS[method](tensors, NAME)
    assert found.format == formats.NVFP4 and found.shape == (70, 96)
    assert torch.equal(found.dequantise(), exact)
    loaded = quant.load({**tensors, "model.norm.weight": torch.ones(4).half()}, method)
    assert [*loaded] == [NAME] and torch.equal(loaded[NAME].dequantise(), exact)
    assert found.codes.data_ptr() == next(iter(tensors.values())).data_ptr()


@pytest.mark.parametrize("method", READERS)
@pytest.mark.parametrize(
    ("at", "changed"),
    (
        (0, None),
        (0, torch.zeros(70, 48, dtype=torch.int8)),
        (0, torch.zeros(70, 44, dtype=torch.uint8)),
        (1, torch.zeros(70, 3).to(torch.float8_e4m3fn)),
        (1, torch.zeros(70, 6)),
        (1, torch.full((70, 6), torch.nan).to(torch.float8_e4m3fn)),
        (2, torch.ones(2)),
        (2, torch.ones(1).half()),
        (2, torch.full((1,), torch.inf)),
    ),
)
def test_what_is_not_taken_is_named(method, at, changed):
    tensors, _ = stored(method)
    name = [*tensors][at]
    if changed is None:
        del tensors[name]
    else:
        tensors[name] = changed
    with pytest.raises(ArgumentError) as e:
        READERS[method](tensors, NAME)
    assert e.value.argument.split()[0] == name


def test_nothing_is_divided_by_0():
    tensors, _ = stored("nvfp4_packed")
    tensors[f"{NAME}.weight_global_scale"] = torch.zeros(1)
    with pytest.raises(ArgumentError, match="must have a finite inverse"):
        quant.nvfp4_packed(tensors, NAME)


def test_numbers_times_their_factor_are_the_weights():
    weights = quant.nvfp4(*(stored("nvfp4")[0], NAME))
    packed = quant.pack(weights)
    assert packed.factors.shape == (70,) and {*packed.factors.tolist()} == {float(torch.tensor(0.013) * 128)}  # fmt: skip
    numbers = packed.numbers()
    assert numbers.dtype == torch.bfloat16
    assert torch.equal(numbers.double() * packed.factors.double()[:, None], weights.dequantise())
    with pytest.raises(ArgumentError, match="e2m1_16_e4m3 is not multiplied with it"):
        quant.pack(weights, torch.float8_e4m3fn)


@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float16), ids=str)
def test_factors_of_one_are_kept(dtype):
    """A layer holds factors of a form that has some, whatever they are: here the tensor's scale is 1 / 128."""
    weights = quant.of(torch.full((70, 64), 21.0), formats.NVFP4)
    packed = quant.pack(weights, dtype)
    assert weights.tensor_scale == 2**-7 and packed.factors.tolist() == [1.0] * 70
    layer = nn.Linear4bit.from_packed(packed)
    empty = nn.Linear4bit(64, 70, bias=False, weights=packed.weights)
    empty.load_state_dict(layer.state_dict())
    assert torch.equal(empty.factors, layer.factors)


@pytest.mark.parametrize("how", ({}, {"epilogue": "bias_silu"}), ids=str)
def test_a_product_is_that_of_the_weights(how, monkeypatch):
    pytest.importorskip("cuda.bindings.nvrtc", exc_type=ImportError)
    weights = quant.of(torch.randn(200, 384) / 384**0.5, formats.NVFP4)
    packed, a, bias = quant.pack(weights), torch.randn(17, 384).bfloat16(), torch.randn(200)
    memory = Memory(a, packed.blocks, packed.factors, bias)
    emulated(monkeypatch, memory)
    read = {"bias": bias} if how else {}
    with memory:
        got = ops.w4a16_gemm(
            a, packed.blocks, weights=packed.weights, scale_b=packed.factors, columns=200, **how, **read
        )  # fmt: skip
    want = a.double() @ weights.dequantise().mT
    want = torch.nn.functional.silu(want + bias.double()) if how else want
    off = (got.double() - want).abs()
    assert bool((off <= UNIT[torch.bfloat16] * want.abs() + 2.0**-15).all())


def test_a_layer_has_its_rows_factors():
    """Also where it is loaded, and where a wide weight is."""
    with computing_on_cpu():
        linear, x = torch.nn.Linear(96, 70).bfloat16(), torch.randn(5, 96).bfloat16()
        made = nn.Linear4bit.from_linear(linear, formats.NVFP4)
        weights = quant.of(linear.weight, formats.NVFP4).dequantise()
        want = torch.nn.functional.linear(x.double(), weights, linear.bias.double())
        assert torch.allclose(made(x).double(), want, rtol=2.0**-8, atol=2.0**-15)
        empty = nn.Linear4bit(96, 70, weights="e2m1_16_e4m3")
        for state in (made.state_dict(), linear.state_dict()):
            empty.load_state_dict(state)
            assert torch.equal(empty(x), made(x))
        assert made.half().factors.dtype == torch.float32
    assert nn.Linear4bit(96, 70, weights="e2m1_32_e8m0").factors is None


def test_experts_have_their_rows_factors():
    gate_up, down = (
        quant.of(torch.randn(3, *x) / 8 * torch.tensor([1.0, 8.0, 64.0])[:, None, None], formats.NVFP4)
        for x in ((64, 48), (48, 32))
    )  # fmt: skip
    with computing_on_cpu():
        made = nn.Experts4bit.from_quantised(gate_up, down)
        x, chosen = torch.randn(6, 48).bfloat16(), torch.randint(3, (6, 2))
        got = made(x, chosen, torch.rand(6, 2))
        other = nn.Experts4bit(3, 48, 32, weights="e2m1_16_e4m3")
        other.load_state_dict(made.state_dict())
        assert torch.isfinite(got).all() and {n for n, _ in other.named_buffers()} == {n for n, _ in made.named_buffers()}  # fmt: skip
        both = (x.double() @ gate_up.dequantise()[1].T).bfloat16()
        one = made.contiguous(x.repeat(64, 1)[:384], torch.tensor([0, 128, 128], dtype=torch.int32))
        h = (torch.nn.functional.silu(both[:, ::2].float()) * both[:, 1::2].float()).bfloat16()
        want = h.double() @ down.dequantise()[1].T
    assert torch.allclose(
        one[:6].double(), want, rtol=2.0**-7, atol=2.0**-6 * float(want.abs().max())
    )


def test_experts_of_a_checkpoint_become_one():
    """Gate, up and down of each expert have tensor scales of their own."""

    def drawn(n, k, scale):
        return quant.of(torch.randn(n, k) * scale, formats.NVFP4)

    gates, ups, downs = (
        [drawn(*sides, scale / 8) for scale in (1.0, 3.0)] for sides in ((64, 48), (64, 48), (48, 64))
    )  # fmt: skip
    both = quant.stacked(
        [quant.joined([quant.pack(g), quant.pack(u)]) for g, u in zip(gates, ups, strict=True)]
    )
    down = quant.stacked([*map(quant.pack, downs)])
    assert both.shape == (2, 128, 48) and both.factors.shape == (2, 128)
    assert {len({*x.tolist()}) for x in both.factors} == {2}
    exact = both.numbers().double() * both.factors.double()[..., None]
    for i, (g, u) in enumerate(zip(gates, ups, strict=True)):
        assert torch.equal(exact[i], torch.cat([g.dequantise(), u.dequantise()]))
    with computing_on_cpu():
        made = nn.Experts4bit.from_packed(both, down, order="halves")
        assert made(torch.randn(3, 48).bfloat16(), torch.tensor([[0], [1], [1]]), torch.ones(3, 1)).shape == (3, 48)  # fmt: skip


def test_factors_are_1_where_a_part_has_none():
    parts = [quant.pack(quant.of(torch.randn(64, 64), formats.MXFP4)) for _ in range(2)]
    assert quant.joined(parts).factors is None and quant.stacked(parts).factors is None
    fp8 = [quant.pack(quant.of(torch.randn(64, 64), formats.MXFP4), torch.float8_e4m3fn) for _ in range(2)]  # fmt: skip
    assert torch.equal(quant.stacked(fp8).factors, torch.stack([x.factors for x in fp8]))


PACKED = quant.pack(quant.of(torch.ones(70, 64), formats.MXFP4))


@pytest.mark.parametrize(
    ("call", "argument"),
    (
        (lambda: quant.joined([]), "parts"),
        (lambda: quant.stacked(PACKED), "parts"),
        (lambda: quant.stacked([PACKED, 1]), "parts[1]"),
        (lambda: quant.joined([PACKED, PACKED]), "parts[0] shape"),
        (lambda: quant.stacked([PACKED, quant.pack(quant.of(torch.ones(71, 64), formats.MXFP4))]), "parts[1] shape"),
        (lambda: quant.joined([quant.pack(quant.of(torch.ones(64, x), formats.MXFP4)) for x in (64, 96)]), "parts[1] shape"),
        (lambda: quant.stacked([PACKED, quant.pack(quant.of(torch.ones(70, 64), formats.NVFP4))]), "parts[1] format"),
        (lambda: quant.stacked([PACKED, quant.pack(quant.of(torch.ones(70, 64), formats.MXFP4), torch.float8_e4m3fn)]), "parts[1] dtype"),
    ),
)  # fmt: skip
def test_parts_that_are_not_alike_are_named(call, argument):
    with pytest.raises(ArgumentError) as e:
        call()
    assert e.value.argument == argument
