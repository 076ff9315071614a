"""On a Hopper GPU: grouped GEMMs whose rows come by index give the bits of copied rows, launch after launch, and through both ways of a layer."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.gpu


def routed(tokens, top, experts):
    import torch

    from gemmgen import ops

    torch.manual_seed(tokens + top)
    chosen = torch.randint(0, experts, (tokens, top), dtype=torch.int32, device="cuda")
    return ops.route(chosen, experts)


@pytest.mark.parametrize(("tokens", "top", "experts"), ((1, 1, 1), (5, 2, 4), (700, 8, 16)))
@pytest.mark.parametrize("sides", ((256, 256), (7168, 512), (2880, 768)), ids=str)
def test_16_bits(tokens, top, experts, sides):
    import torch

    from gemmgen import ops

    hidden, wide = sides
    r = routed(tokens, top, experts)
    x = torch.randn(tokens, hidden, device="cuda").bfloat16()
    w = torch.randn(experts, wide, hidden, device="cuda").bfloat16()
    copies, _ = ops.spread(x, None, r.slots, r.rows)
    there = r.copies >= 0
    want = ops.grouped_gemm(copies, w, group_ends=r.ends, invariant=True)[there]
    for _ in range(20):
        got = ops.grouped_gemm(x, w, group_ends=r.ends, rows=r.copies, top=top, invariant=True)
        assert torch.equal(got[there], want)


@pytest.mark.parametrize(("tokens", "top", "experts"), ((5, 2, 4), (64, 8, 32), (2048, 8, 16)))
@pytest.mark.parametrize("changes", ({}, {"multicast": "b"}, {"stages": 3}, {"pdl": True}), ids=str)
def test_fp8(tokens, top, experts, changes):
    import torch

    from gemmgen import Config, ops

    hidden, wide = 2048, 1024
    r = routed(tokens, top, experts)
    q, scale = ops.quantise_rows(torch.randn(tokens, hidden, device="cuda"))
    w, scale_w = ops.quantise_blocks(torch.randn(experts, wide, hidden, device="cuda"))
    copies, scales = ops.spread(q, scale, r.slots, r.rows)
    said = {"group_ends": r.ends, "out_dtype": "e4m3", "epilogue": "swiglu"}
    said |= {"scale_a_layout": "mn"}
    there = r.copies >= 0
    tile = {"block_m": 128, "block_n": 256, "stages": 4, "parts": 2, "unroll": 4} | changes
    want = ops.fp8_block_grouped_gemm(copies, scales, w, scale_w, **said)
    for _ in range(20):
        got = ops.fp8_block_grouped_gemm(
            q, scales, w, scale_w, rows=r.copies, top=top, config=Config(**tile), **said
        )
        for mine, theirs in zip(got, want, strict=True):
            mine, theirs = (x[there].float() for x in (mine, theirs))
            assert torch.equal(mine, theirs)


@pytest.mark.parametrize("kind", ("fp8", "bf16"))
@pytest.mark.parametrize("tokens", (3, 300))
def test_layers(tokens, kind, monkeypatch):
    """By index and of copies, against float64."""
    from test_gpu_moe import check, given

    from gemmgen.ops import mixture

    of = given(tokens, 4, kind=kind)
    for most in (0, tokens * 4):
        monkeypatch.setattr(mixture, "MOST_TAKEN", most)
        check(of, kind)
