"""On a Hopper GPU: the bits of a row are that row's alone, in every launch."""

from __future__ import annotations

import pytest

from gemmgen import ops
from gemmgen.ops import invariance

pytestmark = pytest.mark.gpu

SIDES = [(576, 7168), (2112, 7168), (4096, 7168), (7168, 2048), (1536, 7168)]
ROWS = (1, 2, 7, 8, 16, 33, 64, 65, 100, 128, 129, 200, 256, 257, 512, 1000, 1024, 2048, 2049, 4096)
MOST = 4096
EXPERTS = 3


@pytest.fixture
def torch():
    import torch

    torch.manual_seed(0)
    return torch


def dense(torch, n, k):
    a = torch.randn(MOST, k, device="cuda").bfloat16()
    b = torch.randn(n, k, device="cuda").bfloat16()

    def of(rows):
        return ops.gemm(a[rows], b, invariant=True)

    def batched(rows):
        return ops.batched_gemm(a[rows][None], b[None], invariant=True)[0]

    def grouped(rows):
        x = a[rows]
        ends = torch.tensor([0, len(x), len(x)], device="cuda", dtype=torch.int32)
        return ops.grouped_gemm(
            x, b.expand(EXPERTS, n, k).contiguous(), group_ends=ends, invariant=True
        )

    def masked(rows):
        x = a[rows]
        held = torch.tensor([len(x)], device="cuda", dtype=torch.int32)
        return ops.masked_gemm(x[None], b[None], held, invariant=True)[0]

    return of, (batched, grouped, masked)


def blocks(torch, n, k):
    a, scale_a = ops.quantise_rows(torch.randn(MOST, k, device="cuda").bfloat16())
    b, scale_b = ops.quantise_blocks(torch.randn(n, k, device="cuda").bfloat16())
    more = {"scale_a_layout": "row", "invariant": True}

    def of(rows):
        return ops.fp8_block_gemm(a[rows], scale_a[rows], b, scale_b, **more)

    def batched(rows):
        x, s = a[rows][None], scale_a[rows][None]
        return ops.fp8_block_batched_gemm(x, s, b[None], scale_b[None], **more)[0]

    def masked(rows):
        x, s = a[rows][None], scale_a[rows][None]
        held = torch.tensor([x.shape[1]], device="cuda", dtype=torch.int32)
        return ops.fp8_block_masked_gemm(x, s, b[None], scale_b[None], held, **more)[0]

    return of, (batched, masked)


@pytest.mark.parametrize("make", [dense, blocks])
@pytest.mark.parametrize(("n", "k"), SIDES)
def test_the_bits_of_a_row_are_its_own(torch, make, n, k):
    """Of M from 1 to 4096, from the first row and from others, in groups and without."""
    one, grouped = make(torch, n, k)
    want = one(slice(0, MOST))
    for m in ROWS:
        for first in {0, (MOST - m) // 2 + 1 if m < MOST else 0, MOST - m}:
            rows = slice(first, first + m)
            for multiply in (one, *grouped):
                assert torch.equal(multiply(rows), want[rows]), (multiply.__name__, m, first)


def test_pairs_at_random(torch):
    """2000 pairs: a row alone, or among others that were drawn, against itself in a launch of all."""
    generator = torch.Generator().manual_seed(1)
    differing = 0
    for make in (dense, blocks):
        one, _ = make(torch, 576, 7168)
        want = one(slice(0, MOST))
        for _ in range(1000):
            m = int(torch.randint(1, 300, (), generator=generator))
            rows = torch.randperm(MOST, generator=generator)[:m].cuda()
            differing += int((one(rows) != want[rows]).sum())
    assert differing == 0


def test_the_free_choice_does_differ(torch):
    """Else the above says nothing."""
    a = torch.randn(MOST, 7168, device="cuda").bfloat16()
    b = torch.randn(576, 7168, device="cuda").bfloat16()
    assert not torch.equal(ops.gemm(a[:1], b), ops.gemm(a, b)[:1])


def test_modules_and_operators_follow_the_process(torch):
    import gemmgen.torch_ops as torch_ops

    a = torch.randn(MOST, 7168, device="cuda").bfloat16()
    b = torch.randn(576, 7168, device="cuda").bfloat16()
    with invariance.asking(True):
        want = torch_ops.linear(a, b)
        for m in (1, 16, 100):
            assert torch.equal(torch_ops.linear(a[:m], b), want[:m])
