"""`ops.quantise_rows` and `ops.quantise_blocks` against float64, on real tensors on the CPU."""

from __future__ import annotations

import itertools

import pytest

from gemmgen import ops
from gemmgen.errors import ArgumentError
from gemmgen.runtime import torch_tensors

torch = pytest.importorskip("torch")

LIMITS = {"e4m3": 448.0, "s8": 127.0}
SHAPES = ((1, 1), (5, 128), (3, 300), (130, 129), (2, 131, 260), (2, 3, 4, 130))
SIDES = {"rows": (1, 128), "blocks": (128, 128), "row": (1, None)}


@pytest.fixture(autouse=True)
def real_torch():
    for cached in (torch_tensors.torch, torch_tensors.torch_dtype):
        cached.cache_clear()
    torch.manual_seed(0)


def quantise(how, x, **options):
    if how == "blocks":
        return ops.quantise_blocks(x, **options)
    return ops.quantise_rows(x, 128 if how == "rows" else None, **options)


def spread(scale, how, shape):
    """The scale of each element."""
    high, wide = SIDES[how]
    scale = scale if wide else scale.unsqueeze(-1)
    full = scale.repeat_interleave(wide or shape[-1], -1)[..., : shape[-1]]
    return full.repeat_interleave(high, -2)[..., : shape[-2], :]


def amax_of(x, how):
    """The greatest |x| of each block, block by block."""
    high, wide = SIDES[how]
    wide = wide or x.shape[-1]
    starts = itertools.product(range(0, x.shape[-2], high), range(0, x.shape[-1], wide))
    parts = [x[..., i : i + high, j : j + wide].abs().amax((-2, -1)) for i, j in starts]
    sides = -(-x.shape[-2] // high), -(-x.shape[-1] // wide)
    found = torch.stack(parts, -1).view(*x.shape[:-2], *sides)
    return found if SIDES[how][1] else found.squeeze(-1)


def values(shape, dtype="float32"):
    """N(0, 1) times a factor per row, some rows 0 or tiny."""
    x = torch.randn(shape) * torch.exp2(torch.randint(-20, 20, (*shape[:-1], 1)).float())
    x[..., ::7, :] = 0.0
    return x.to(getattr(torch, dtype))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("how", SIDES)
@pytest.mark.parametrize("dtype", LIMITS)
@pytest.mark.parametrize("given", ("float32", "bfloat16"))
def test_scales_and_codes(shape, how, dtype, given):
    """Scales rounded once from amax / limit; codes the nearest to x * (limit / amax)."""
    x = values(shape, given)
    q, scale = quantise(how, x, dtype=dtype)
    limit = LIMITS[dtype]
    amax = amax_of(x.double(), how).clamp(min=1e-4)
    least = torch.tensor(1e-4).double()
    amax = torch.where(amax == 1e-4, least, amax)
    assert torch.equal(scale, (amax / limit).float())
    factor = spread((limit / amax).float(), how, shape)
    exact = (x.float() * factor).double()
    want = nearest_e4m3(exact) if dtype == "e4m3" else exact.round()
    assert torch.equal(q.double(), want) and q.double().abs().max() <= limit
    assert q.is_contiguous() and q.shape == x.shape


def nearest_e4m3(x):
    """To the nearest multiple of the spacing at |x|, ties to even."""
    _, exponent = torch.frexp(x)
    step = torch.exp2((exponent - 4).clamp(min=-9).double())
    return (x / step).round() * step


@pytest.mark.parametrize("how", SIDES)
@pytest.mark.parametrize(("dtype", "error"), (("e4m3", 2**-4), ("s8", 0.5 / 127)))
def test_what_is_lost(how, dtype, error):
    """Of an element in E4M3 a sixteenth, of the block's greatest in INT8 half a step."""
    x = torch.randn(130, 300)
    q, scale = quantise(how, x, dtype=dtype)
    wide = spread(scale, how, x.shape).double()
    lost = (q.double() * wide - x.double()).abs()
    greatest = wide * LIMITS[dtype]
    bound = x.double().abs() * error + greatest * 2**-18 if dtype == "e4m3" else greatest * error
    assert (lost <= bound * (1 + 2**-20)).all()


@pytest.mark.parametrize("how", SIDES)
@pytest.mark.parametrize("dtype", LIMITS)
def test_powers_of_two(how, dtype):
    x = values((130, 300))
    q, scale = quantise(how, x, dtype=dtype, power_of_two=True)
    _, plain = quantise(how, x, dtype=dtype)
    mantissa, _ = torch.frexp(scale)
    assert (mantissa == 0.5).all() and (scale >= plain).all() and (scale < 2 * plain).all()
    exact = x.double() / spread(scale, how, x.shape).double()
    want = nearest_e4m3(exact) if dtype == "e4m3" else exact.round()
    assert torch.equal(q.double(), want)


def test_a_scale_that_is_a_power_of_two_stays():
    q, scale = ops.quantise_rows(torch.full((1, 128), 448.0), power_of_two=True)
    assert scale.item() == 1.0 and (q.float() == 448.0).all()


@pytest.mark.parametrize("how", SIDES)
@pytest.mark.parametrize("dtype", LIMITS)
@pytest.mark.parametrize("power_of_two", (False, True))
@pytest.mark.parametrize("bad", (float("nan"), float("inf"), float("-inf")))
def test_what_is_not_finite(how, dtype, power_of_two, bad):
    """Its block is NaN, the others are as they were."""
    x = torch.randn(256, 256)
    q, _ = quantise(how, x, dtype=dtype, power_of_two=power_of_two)
    x[130, 7] = bad
    q_bad, scale_bad = quantise(how, x, dtype=dtype, power_of_two=power_of_two)
    touched = spread(scale_bad, how, x.shape).isnan()
    high, wide = SIDES[how]
    rows = slice(130, 131) if high == 1 else slice(128, 256)
    want = torch.zeros_like(touched)
    want[rows, : wide or 256] = True
    assert torch.equal(touched, want)
    assert (q_bad.double()[touched] == 0).all()
    assert torch.equal(q_bad.double()[~touched], q.double()[~touched])


@pytest.mark.parametrize("shape", ((5, 300), (2, 6, 128), (1, 1)), ids=str)
def test_scales_lie_as_the_kernels_read_them(shape):
    """In place, without the copy that layout "row" makes."""
    _, scale = ops.quantise_rows(torch.randn(shape))
    pitch = -(-shape[-2] // 4) * 4
    assert scale.stride()[-2:] == (1, pitch)
    _, scale = ops.quantise_blocks(torch.randn(shape))
    assert scale.is_contiguous()
    _, scale = ops.quantise_rows(torch.randn(shape), None)
    assert scale.is_contiguous() and scale.shape == shape[:-1]


@pytest.mark.parametrize("how", ("rows", "blocks"))
@pytest.mark.parametrize("shape", ((0, 128), (4, 0), (0, 0)), ids=str)
def test_empty_tensors(how, shape):
    q, scale = quantise(how, torch.empty(shape))
    high = SIDES[how][0]
    assert q.shape == shape and scale.shape == (-(-shape[0] // high), -(-shape[1] // 128))


def test_zeros():
    for how, dtype in itertools.product(SIDES, LIMITS):
        q, scale = quantise(how, torch.zeros(130, 200), dtype=dtype)
        assert (q.double() == 0).all() and (scale > 0).all()


def test_other_strides():
    x = torch.randn(300, 131).mT
    for how in SIDES:
        for got, want in zip(quantise(how, x), quantise(how, x.contiguous()), strict=True):
            assert torch.equal(got.float(), want.float())


@pytest.mark.parametrize(
    ("function", "x", "options", "argument"),
    (
        ("quantise_rows", (4, 128), {"block": 64}, "block"),
        ("quantise_blocks", (4, 128), {"block": None}, "block"),
        ("quantise_rows", (4, 128), {"dtype": "e5m2"}, "dtype"),
        ("quantise_rows", (128,), {}, "x shape"),
        ("quantise_rows", (4, 0), {"block": None}, "x shape"),
        ("quantise_blocks", (128,), {}, "x shape"),
    ),
)
def test_refusals(function, x, options, argument):
    with pytest.raises(ArgumentError) as e:
        getattr(ops, function)(torch.zeros(x), **options)
    assert e.value.argument == argument


@pytest.mark.parametrize("dtype", ("float64", "int8", "float8_e4m3fn"))
def test_dtypes_that_are_refused(dtype):
    with pytest.raises(ArgumentError) as e:
        ops.quantise_rows(torch.zeros(4, 128).to(getattr(torch, dtype)))
    assert e.value.argument == "x dtype"
