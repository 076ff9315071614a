"""On a Hopper GPU: quantised operands, the same bits as on the CPU and as kernels write, read in place."""

from __future__ import annotations

import pytest

from gemmgen.epilogues import EPILOGUES

pytestmark = pytest.mark.gpu


def values(*shape):
    """N(0, 1) with rows of other magnitudes, some of them 0."""
    import torch

    x = torch.randn(*shape, device="cuda")
    x *= torch.exp2(torch.randint(-9, 9, (*shape[:-1], 1), device="cuda").float())
    x[..., ::7, :] = 0.0
    return x


def same(x, y):
    import torch

    return torch.equal(x.cpu().view(torch.uint8), y.cpu().view(torch.uint8))


@pytest.mark.parametrize("power_of_two", (False, True))
@pytest.mark.parametrize("dtype", ("e4m3", "s8"))
@pytest.mark.parametrize("how", ("rows", "row", "blocks"))
def test_the_gpu_gives_what_the_cpu_gives(how, dtype, power_of_two):
    from gemmgen import ops

    x = values(2, 300, 400)
    options = {"dtype": dtype, "power_of_two": power_of_two}

    def quantise(t):
        if how == "blocks":
            return ops.quantise_blocks(t, **options)
        return ops.quantise_rows(t, 128 if how == "rows" else None, **options)

    (q, scale), (q_there, scale_there) = quantise(x), quantise(x.cpu())
    assert same(q, q_there) and same(scale.contiguous(), scale_there.contiguous())


def test_kernels_write_the_same_bits():
    """An FP8 output beside the FP32 one of the same exact sums, quantised here."""
    import torch

    from gemmgen import ops

    a, b = (torch.randint(-2, 3, (s, 400), device="cuda").bfloat16() for s in (300, 264))
    factor = torch.rand(300, device="cuda") * 1e-3
    named = {"epilogue": EPILOGUES["scaled"], "row_scale": factor}
    named["column_scale"] = torch.rand(264, device="cuda")
    wide = ops.gemm(a, b, out_dtype="f32", **named)
    out, scale_out = ops.gemm(a, b, out_dtype="e4m3", **named)
    q, scale = ops.quantise_rows(wide)
    assert same(scale.contiguous(), scale_out.contiguous())
    assert same(q, out.contiguous())


@pytest.mark.parametrize("power_of_two", (False, True))
def test_what_is_quantised_is_multiplied(power_of_two):
    """The product of what the codes stand for, to the bits that the tensor core keeps."""
    from gemmgen import ops

    x, w = values(300, 512), values(264, 512)
    (a, sa), (b, sb) = (
        ops.quantise_rows(x, power_of_two=power_of_two),
        ops.quantise_blocks(w, power_of_two=power_of_two),
    )
    d = ops.fp8_block_gemm(a, sa, b, sb, scale_a_layout="mn", out_dtype="f32")
    wide_a = a.double() * sa.double().repeat_interleave(128, 1)
    wide_b = b.double() * sb.double().repeat_interleave(128, 1).repeat_interleave(128, 0)[:264]
    want, largest = wide_a @ wide_b.T, wide_a.abs() @ wide_b.abs().T
    assert ((d - want).abs() <= largest * 2**-7).all()


@pytest.mark.parametrize("dtype", ("e4m3", "s8"))
def test_what_is_not_finite_reaches_its_sums(dtype):
    from gemmgen import ops

    x, w = values(256, 512), values(256, 512)
    x[130, 200] = float("inf")
    a, sa = ops.quantise_rows(x, dtype=dtype)
    b, sb = ops.quantise_blocks(w, dtype=dtype)
    function = ops.fp8_block_gemm if dtype == "e4m3" else ops.int8_block_gemm
    d = function(a, sa, b, sb, scale_a_layout="mn")
    rows = d.isnan().all(1)
    assert rows[130] and not d[rows.logical_not()].isnan().any() and rows.sum() == 1
