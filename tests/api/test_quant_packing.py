"""`quant.pack`: torch tensors packed in parts as NumPy packs them whole; the generated kernel, emulated, and NumPy give the same numbers."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import stored_weights  # noqa: E402
from emulated_plain import emulated  # noqa: E402

from gemmgen import formats, quant  # noqa: E402
from gemmgen.errors import ArgumentError  # noqa: E402
from gemmgen.formats import MXFP4, NVFP4, int4  # noqa: E402
from gemmgen.ir.dtypes import BF16, E4M3, F16  # noqa: E402
from gemmgen.quant import packing  # noqa: E402
from gemmgen.unpacking import source  # noqa: E402

FP8 = torch.float8_e4m3fn
KINDS = [
    (MXFP4, None, BF16),
    (MXFP4, FP8, E4M3),
    (MXFP4, torch.float16, F16),
    (int4(128, "bf16"), torch.bfloat16, BF16),
    (int4(64, "f16", zeros=True), torch.float16, F16),
]
kinds = pytest.mark.parametrize(("form", "dtype", "to"), KINDS, ids=[f"{f.name}-{t}" for f, _, t in KINDS])  # fmt: skip


def drawn(form, *shape):
    torch.manual_seed(0)
    return quant.of(torch.randn(*shape), form)


def bits(x):
    return x.contiguous().view(torch.uint8)


@kinds
def test_parts_are_those_of_the_whole(form, dtype, to, monkeypatch):
    """Of rows that end inside of a part, of several experts."""
    weights = drawn(form, 2, 200, 256)
    whole = formats.pack(weights.numpy(), to)
    monkeypatch.setattr(packing, "CHUNK", 128)
    seen = []
    got = quant.pack(weights, dtype, progress=lambda *x: seen.append(x))
    assert np.array_equal(got.blocks.numpy(), whole.blocks) and got.dtype == to
    assert seen == [(x, 400) for x in (0, 128, 200, 328, 400)] and got.shape == (2, 200, 256)
    assert (got.factors is None) == (whole.bases is None)
    if got.factors is not None:
        assert got.factors.dtype == torch.float32
        assert np.array_equal(got.factors.numpy(), np.exp2(whole.bases.astype(np.float64)))


@pytest.mark.parametrize("zeros", (False, True))
@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float16))
@pytest.mark.parametrize(("k", "group"), ((256, 128), (320, 64), (96, 32)))
def test_scales_of_whole_rows(k, group, dtype, zeros, monkeypatch):
    """Packed in parts, as weights of groups whose scales are the row's."""
    scale = "bf16" if dtype == torch.bfloat16 else "f16"
    weights = drawn(int4(0, scale, zeros=zeros), 2, 200, k)
    monkeypatch.setattr(packing, "CHUNK", 128)
    widths = []
    pack = formats.pack
    monkeypatch.setattr(formats, "pack", lambda x, to: widths.append(len(x.scales)) or pack(x, to))
    packed = quant.pack(weights, dtype)
    assert widths == [128, 72, 128, 72]  # no more rows have their scales repeated at once
    form = int4(group, scale, zeros=zeros)
    assert packed.format == form and packed.weights == form.name and packed.factors is None
    assert torch.equal(bits(packed.numbers()), bits(weights.dequantise(dtype)))
    narrower = quant.pack(weights, dtype, group=32)
    assert narrower.format.group == 32
    assert torch.equal(bits(narrower.numbers()), bits(packed.numbers()))


@pytest.mark.parametrize("method", ("awq", "gptq"))
@pytest.mark.parametrize(("k", "group"), ((256, 128), (128, 128), (192, 64), (160, 32)))
def test_checkpoints_whose_scales_are_of_whole_rows(method, k, group):
    stored = stored_weights.drawn(k, k)
    read, write = getattr(quant, method), getattr(stored_weights, method)
    weights = read(write(*stored), stored_weights.NAME)
    assert weights.format == int4(0 if k != 128 else 128, "f16", zeros=True)
    packed = quant.pack(weights, torch.float16)
    assert packed.weights == f"int4_{group}_f16_zeros"
    exact = torch.from_numpy(stored_weights.exact(*stored))
    assert torch.equal(bits(packed.numbers()), bits(exact.to(torch.float16)))
    both = quant.joined(
        [quant.pack(x, torch.float16) for x in (drawn(int4(0, zeros=True), 64, k), weights)]
    )
    assert both.weights == packed.weights and both.shape == (64 + stored_weights.N, k)


@kinds
def test_numbers_are_the_weights_rounded_once(form, dtype, to):
    weights = drawn(form, 3, 72, 256)
    packed = quant.pack(weights, dtype)
    exact = weights.dequantise()
    factor = 1.0 if packed.factors is None else packed.factors[..., None].double()
    wanted = (exact / factor).to(torch.bfloat16 if dtype is None else dtype)
    got = packed.numbers()
    assert got.dtype == wanted.dtype and torch.equal(bits(got), bits(wanted))
    if form == MXFP4:
        assert torch.equal(got.double() * factor, exact)


def on_gpu(tensor):
    """A result of the CPU that says it is on a GPU."""
    return SimpleNamespace(
        shape=tensor.shape, data_ptr=tensor.data_ptr, device=torch.device("cuda", 0)
    )


def sizes(kernel, values):
    rows, columns = values["rows"], values["columns"]
    return {
        "blocks": kernel.tiles(rows, columns) * kernel.block_bytes,
        "numbers": rows * columns * kernel.to.bytes,
    }


@kinds
def test_a_kernel_makes_the_same_numbers(form, dtype, to, monkeypatch):
    pytest.importorskip("cuda.bindings.nvrtc", exc_type=ImportError)
    packed = quant.pack(drawn(form, 2, 72, 256), dtype)
    made = emulated(source, sizes, ("numbers",))
    made.made = []
    monkeypatch.setattr(packing, "loaded", made)
    monkeypatch.setattr(packing, "current_stream", lambda device: 7)
    wanted = packed.numbers()
    out = torch.empty_like(wanted)
    for i in range(2):
        packed._launch(packed.blocks[i], on_gpu(out[i]))
    assert torch.equal(bits(out), bits(wanted)) and len(made.made) == 2
    assert [x.tiles for x in made.made] == [4, 4] and made.made[0].stream == 7


def test_scales_are_rounded_to_another_dtype():
    weights = drawn(int4(128, "f16", zeros=True), 64, 128)
    got = weights.rescaled(torch.bfloat16)
    assert got.format == int4(128, "bf16", zeros=True) and torch.equal(got.codes, weights.codes)
    assert torch.equal(got.scales, weights.scales.to(torch.bfloat16)) and got.zeros is weights.zeros
    quant.pack(got)


@pytest.mark.parametrize(
    ("argument", "call"),
    [
        ("weights", lambda: quant.pack(torch.ones(64, 64))),
        ("dtype", lambda: quant.pack(drawn(MXFP4, 64, 128), torch.float32)),
        ("dtype", lambda: quant.pack(drawn(MXFP4, 64, 128), "bf16")),
        ("dtype", lambda: quant.pack(drawn(NVFP4, 64, 128), FP8)),
        ("scales", lambda: quant.pack(drawn(int4(128, "f16"), 64, 128))),
        ("K", lambda: quant.pack(drawn(int4(0, "bf16"), 64, 72))),
        ("group", lambda: quant.pack(drawn(int4(0, "bf16"), 64, 192), group=128)),
        ("group", lambda: quant.pack(drawn(int4(64, "bf16"), 64, 128), group=128)),
        ("group", lambda: quant.pack(drawn(int4(0, "bf16"), 64, 128), group="64")),
        ("group", lambda: quant.pack(drawn(NVFP4, 64, 128), group=64)),
        ("progress", lambda: quant.pack(drawn(MXFP4, 64, 128), progress=True)),
        ("format", lambda: drawn(MXFP4, 64, 128).rescaled(torch.bfloat16)),
        ("dtype", lambda: drawn(int4(128), 64, 128).rescaled(torch.int8)),
        ("dtype", lambda: quant.of(torch.full((1, 128), 1e9), int4(128, "f32")).rescaled(torch.float16)),
    ],
)  # fmt: skip
def test_wrong_arguments_are_named(argument, call):
    with pytest.raises(ArgumentError) as e:
        call()
    assert e.value.argument == argument
