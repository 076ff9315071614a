"""Layouts of scales on real tensors: the values stay, the strides are what the copy engine reads."""

from __future__ import annotations

import pytest

from gemmgen.compat import deep_gemm
from gemmgen.compat.scales import aligned
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
