"""On a Hopper GPU: `import deep_gemm` served by gemmgen, overlapping launches, scales of a byte, and what torch transforms."""

from __future__ import annotations

import importlib

import pytest

pytestmark = pytest.mark.gpu

DEVICE = "cuda"
M, N, K = 200, 256, 512
# In FP32 of numbers of size 1: K / 16 steps, each off by some 2^-23 of 4 sqrt(K), which no sum exceeds.
SUMS = K / 16 * 2.0**-23 * 4 * K**0.5


@pytest.fixture
def served():
    from gemmgen.compat import deep_gemm

    before = deep_gemm.get_pdl()
    deep_gemm.install()
    try:
        yield importlib.import_module("deep_gemm")
    finally:
        deep_gemm.set_pdl(before)
        deep_gemm.uninstall()


def halves(*shape):
    import torch

    return torch.randn(*shape, device=DEVICE).bfloat16()


def operands(served):
    return served.per_token_cast_to_fp8(halves(M, K), False), served.per_block_cast_to_fp8(
        halves(N, K), False
    )


def test_a_program_of_deep_gemms(served):
    import torch
    from deep_gemm.testing import calc_diff
    from deep_gemm.utils.layout import get_mn_major_tma_aligned_tensor
    from roundings import of_length

    (a, sa), (b, sb) = operands(served)
    d = torch.empty(M, N, device=DEVICE, dtype=torch.bfloat16)
    served.fp8_gemm_nt((a, get_mn_major_tma_aligned_tensor(sa)), (b, sb), d)
    wide = (
        x.double() * s.double().repeat_interleave(128, -1)
        for x, s in ((a, sa), (b, sb.repeat_interleave(128, 0)))
    )
    x, y = wide
    # Half of the square of a distance: BF16 rounds once, and sums in the tensor core's 14 bits lose less than that.
    assert calc_diff(d, x @ y.T) < of_length(d.dtype, 2) ** 2 / 2


@pytest.mark.parametrize("kind", ("fp8", "bf16"))
def test_launches_that_begin_early_give_the_same_bits(served, kind):
    """Each reads what the one before wrote."""
    import torch

    w = [halves(K, K) / 23 for _ in range(8)]
    if kind == "fp8":
        w = [served.per_block_cast_to_fp8(x, False) for x in w]

    def chain():
        x = torch.ones(M, K, device=DEVICE).bfloat16()
        for y in w:
            d = torch.empty(M, K, device=DEVICE, dtype=torch.bfloat16)
            if kind == "fp8":
                served.fp8_gemm_nt(served.per_token_cast_to_fp8(x, False), y, d)
            else:
                served.bf16_gemm_nt(x, y, d)
            x = d
        return x

    wanted = chain()
    served.set_pdl(True)
    for _ in range(5):
        assert torch.equal(chain(), wanted)


@pytest.mark.parametrize("shape", ((130, 9), (3, 50, 8)))
def test_scales_of_a_byte(served, shape):
    import torch

    sf = torch.exp2(torch.randint(-20, 20, shape).float())
    pack = served.get_mn_major_tma_aligned_packed_ue8m0_tensor
    found, wanted = pack(sf.to(DEVICE)), pack(sf)
    assert torch.equal(found.cpu(), wanted) and found.stride() == wanted.stride()


def test_legacy_groups(served):
    import torch

    a, b = halves(256, K), halves(2, N, K)
    groups = torch.tensor([1] * 128 + [0] * 100 + [-1] * 28, device=DEVICE, dtype=torch.int32)
    found, wanted = (torch.empty(256, N, device=DEVICE, dtype=torch.bfloat16) for _ in range(2))
    served.legacy.m_grouped_bf16_gemm_nt_contiguous_tl(a, b, found, groups)
    served.m_grouped_bf16_gemm_nt_contiguous(a, b, wanted, m_indices=groups)
    assert torch.equal(found, wanted)


def test_operators_of_the_gpu_pay_no_heed_to_the_cpu():
    """The same launches, whether or not tensors of the CPU are computed there."""
    import torch
    from emulated_ops import computing_on_cpu
    from roundings import UNIT

    a, b = halves(M, K), halves(N, K)
    wanted = torch.ops.gemmgen.gemm(a, b)
    with computing_on_cpu():
        assert torch.equal(torch.ops.gemmgen.gemm(a, b), wanted)
        near = torch.ops.gemmgen.gemm(a.cpu(), b.cpu()).float()
    step = 2 * UNIT[wanted.dtype] * near.abs()  # each is rounded to BF16
    assert ((near - wanted.cpu().float()).abs() <= step + SUMS).all()


def test_transforms():
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    import gemmgen.torch_ops  # noqa: F401

    gemm = torch.ops.gemmgen.gemm
    a, b = halves(3, M, K), halves(3, N, K)
    assert torch.equal(
        torch.vmap(gemm)(a, b), torch.stack([gemm(x, y) for x, y in zip(a, b, strict=True)])
    )
    with torch.autocast("cuda", dtype=torch.bfloat16), FlopCounterMode(display=False) as mode:
        found = gemm(a[0].float(), b[0].float())
    assert torch.equal(found, gemm(a[0], b[0])) and mode.get_total_flops() == 2 * M * N * K
