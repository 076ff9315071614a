"""Scales on real tensors: the values stay, the strides are what the copy engine reads; casts to FP8."""

from __future__ import annotations

import pytest

from gemmgen.compat import deep_gemm
from gemmgen.compat.scales import aligned
from gemmgen.errors import ArgumentError
from gemmgen.runtime import torch_tensors

torch = pytest.importorskip("torch")

SHAPES = ((1, 1), (1, 5), (3, 1), (4, 4), (5, 7), (257, 3), (2, 6, 4), (3, 129, 2), (1, 1, 1))


@pytest.fixture(autouse=True)
def real_torch():
    for cached in (torch_tensors.torch, torch_tensors.torch_dtype):
        cached.cache_clear()


def scales(shape):
    return torch.arange(1, 1 + torch.Size(shape).numel(), dtype=torch.float32).reshape(shape)


def strided(x, how):
    """The values of `x` in other strides."""
    *lead, rows, blocks = x.shape
    if how == "by row":
        return x
    if how == "by column":
        return x.mT.contiguous().mT
    if how == "padded rows":
        return torch.zeros(*lead, rows, blocks + 3)[..., :blocks].copy_(x)
    pitch = {"padded columns": rows // 4 * 4 + 8, "odd columns": rows + 1 + (rows + 1) % 4 // 3}[
        how
    ]
    return torch.zeros(*lead, blocks, pitch).mT[..., :rows, :].copy_(x)


HOW = ("by row", "by column", "padded rows", "padded columns", "odd columns")


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_aligned_tensors(shape, how):
    given = strided(scales(shape), how)
    got = deep_gemm.get_mn_major_tma_aligned_tensor(given)
    *lead, rows, blocks = shape
    pitch = -(-rows // 4) * 4
    assert torch.equal(got, scales(shape))
    assert got.stride() == (*(blocks * pitch,) * len(lead), 1, pitch)
    assert deep_gemm.get_mn_major_tma_aligned_tensor(got) is got


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_what_a_tensor_map_reads(shape, how):
    """In place wherever strides allow, copied elsewhere; equal either way."""
    given = strided(scales(shape), how)
    got = aligned("sf", given)
    *lead, rows, blocks = shape
    assert torch.equal(got, scales(shape))
    assert rows == 1 or got.stride(-2) == 1
    assert blocks == 1 or (got.stride(-1) % 4 == 0 and got.stride(-1) >= rows)
    assert not lead or lead == [1] or got.stride(0) % 4 == 0
    assert got.data_ptr() % 16 == 0
    if how == "padded columns":
        assert got is given


def test_an_address_that_the_copy_engine_cannot_read():
    flat = torch.arange(64, dtype=torch.float32)
    given = flat[1:49].view(4, 12).mT
    assert given.data_ptr() % 16 and given.stride() == (1, 12)
    for got in (aligned("sf", given), deep_gemm.get_mn_major_tma_aligned_tensor(given)):
        assert got.data_ptr() % 16 == 0 and torch.equal(got, given)


@pytest.mark.parametrize("groups", (None, 3))
def test_transformed(groups):
    lead = () if groups is None else (groups,)
    rows, blocks = scales((*lead, 200, 3)), scales((*lead, 2, 3))

    def transformed(sf, recipe, **more):
        return deep_gemm.transform_sf_into_required_layout(
            sf, 200, 300, recipe, num_groups=groups, **more
        )

    assert torch.equal(transformed(rows, (1, 128)), rows)
    assert transformed(rows, (1, 128)).stride()[-2:] == (1, 200)
    assert transformed(blocks, (1, 128, 128), is_sfa=False) is blocks
    assert torch.equal(transformed(rows, (1, 1, 128), is_sfa=False), rows)


CASTS = {  # rows and columns that share a scale
    "per_token_cast_to_fp8": (1, 128),
    "per_channel_cast_to_fp8": (128, 1),
    "per_block_cast_to_fp8": (128, 128),
}


@pytest.mark.parametrize("name", CASTS)
@pytest.mark.parametrize("powers", (False, True))
def test_casts(name, powers):
    """Scales of amax / 448, or the next power of two; codes within half a step of E4M3."""
    rows, columns = CASTS[name]
    x = torch.randn(256, 384) * torch.exp2(torch.randint(-9, 9, (256, 384)).float())
    x[:128, :256] = 0.0
    q, sf = getattr(deep_gemm, name)(x, powers)
    assert (q.dtype, sf.dtype) == (torch.float8_e4m3fn, torch.float32)
    assert q.shape == x.shape and q.is_contiguous()
    parts = x.double().view(256 // rows, rows, 384 // columns, columns)
    exact = parts.abs().amax((1, 3)).clamp(min=1e-4) / 448.0
    assert sf.shape == exact.shape
    if powers:
        assert ((sf >= exact * (1 - 2**-20)) & (sf < 2 * exact)).all()
        assert (torch.frexp(sf)[0] == 0.5).all()
    else:
        assert ((sf - exact).abs() <= exact * 2**-22).all()
    wide = sf.double().repeat_interleave(rows, 0).repeat_interleave(columns, 1)
    lost = (q.double() * wide - x.double()).abs()
    assert (lost <= x.double().abs() * 2**-4 * (1 + 2**-16) + wide * 2**-10).all()


@pytest.mark.parametrize(
    ("name", "shape", "options", "argument"),
    (
        ("per_token_cast_to_fp8", (4, 128), {"gran_k": 32}, "gran_k"),
        ("per_token_cast_to_fp8", (4, 128), {"use_packed_ue8m0": True}, "use_packed_ue8m0"),
        ("per_token_cast_to_fp8", (2, 4, 128), {}, "x shape"),
        ("per_channel_cast_to_fp8", (130, 4), {}, "x rows"),
        ("per_block_cast_to_fp8", (128,), {}, "x shape"),
    ),
)
def test_casts_that_are_refused(name, shape, options, argument):
    with pytest.raises(ArgumentError) as e:
        getattr(deep_gemm, name)(torch.zeros(shape), False, **options)
    assert e.value.argument == argument
