"""On a Hopper GPU: tiles promoted in two parts, bit for bit where the result is exact, and the first GEMM
of FP8 experts with them: SwiGLU, quantised for the second."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from grouped import PROBLEMS, layout, problem
from on_gpu import judged, legal, same_bits

from gemmgen.config import Config
from gemmgen.epilogues import EPILOGUES
from gemmgen.heuristics import choose
from gemmgen.ir.dtypes import E4M3
from gemmgen.ir.expr import PerElement, arguments
from gemmgen.target import H200

pytestmark = pytest.mark.gpu

PROMOTING = tuple(n for n in PROBLEMS if PROBLEMS[n]["family"] != "dense")
GROUPINGS = ("none", "masked", "ends", "batched")
SIDES_M = (1, 63, 64, 65, 129, 300, 1024, 4097)
SIDES_NK = (
    *((2, 16), (130, 144), (256, 128), (258, 400), (514, 272), (1000, 1000)),
    *((1408, 2048), (4096, 7168), (4098, 520)),
)
SHAPES = tuple((m, n, k) for m, (n, k) in itertools.product(SIDES_M, SIDES_NK))
# Rows, consumers and unrolling; parts of one scale block each, of one for both, and straddling.
ROWS = ((128, 2, 4), (64, 1, 1), (128, 1, 1), (192, 3, 4), (256, 2, 1))
WIDTHS = (256, 192, 160, 144, 128, 112, 64, 32, 16)
SIZES = ((1, 0, 3, 17), (130, 0, 41), (64, 128, 1), (7,) * 32, (300, 65))


def in_parts(p, **changes) -> Config | None:
    return legal(p, Config(**{"block_n": 256, "parts": 2, "stages": 2} | changes))


def moe(name: str, grouping: str, epilogue: str):
    """The product paired and quantised; of scaled products, `scaled` first."""
    p = problem(name, grouping)
    return replace(p, d=E4M3, epilogue=EPILOGUES[epilogue])


@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: "x".join(map(str, s)))
@pytest.mark.parametrize("name", ["fp8_block", "fp8_rowwise"])
def test_shapes(name, shape):
    """128 x 256 in parts, and the experts' GEMM with both tiles that are chosen for it."""
    p = problem(name, "none")
    multicast = ("none", "a", "b")[sum(shape) % 3]
    config = in_parts(p, stages=3, unroll=4, multicast=multicast)
    assert config is not None
    judged(p, config, shape, pad=shape[0] % 3, seed=shape[0])
    rows = ({"stages": 4}, {"block_m": 64, "consumers": 1, "stages": 5})[shape[0] % 2]
    for epilogue in ("reglu", "swiglu"):
        q = moe(name, "none", epilogue)
        config = in_parts(q, unroll=4, multicast=multicast, **rows)
        assert config is not None
        judged(q, config, shape, pad=shape[1] % 2, seed=shape[1])


@pytest.mark.parametrize("block_n", WIDTHS)
@pytest.mark.parametrize("name", PROMOTING)
def test_tiles(name, block_n):
    """Two ways to share out rows that are legal, others each time."""
    p, tried = problem(name, "none"), 0
    ways = [*itertools.product(ROWS, ("none", "a", "b"))]
    first = 4 * (PROMOTING.index(name) + WIDTHS.index(block_n))
    for i in range(first, first + 4 * len(ways), 4):
        (block_m, consumers, unroll), multicast = ways[i % len(ways)]
        changes = {"block_m": block_m, "consumers": consumers, "unroll": unroll}
        config = in_parts(p, block_n=block_n, multicast=multicast, **changes)
        if config and tried < 2:
            tried += 1
            shape = ((130, 522, 272), (300, 777, 1000), (65, 1024, 384))[i % 3]
            judged(p, config, shape, pad=i % 3, seed=i)
    assert tried or p.a.integer


@pytest.mark.parametrize(
    ("swizzle_ab", "swizzle_d"), [(0, None), (32, 0), (64, 32), (None, 64), (64, 0), (0, 64)]
)
def test_swizzles(swizzle_ab, swizzle_d):
    for p in (problem("fp8_block", "none"), moe("fp8_block", "none", "reglu")):
        config = in_parts(p, swizzle_ab=swizzle_ab, swizzle_d=swizzle_d)
        assert config is not None
        judged(p, config, (300, 530, 400), pad=1)


@pytest.mark.parametrize("grouping", GROUPINGS)
@pytest.mark.parametrize("name", PROMOTING)
def test_groups(name, grouping):
    p = problem(name, grouping)
    multicast = ("none", "a", "b")[(PROMOTING.index(name) + GROUPINGS.index(grouping)) % 3]
    block_n = 192 if p.family == "fp8_1d1d" else 256
    config = in_parts(p, block_n=block_n, multicast=multicast)
    assert config is not None
    for i, sizes in enumerate(SIZES):
        rows = max(sizes) if grouping != "ends" else sum(-(-s // 128) * 128 for s in sizes)
        shape = rows, (130, 522, 1024)[i % 3], (272, 400, 128)[i % 3]
        judged(p, config, shape, layout(p, shape, sizes), pad=i % 3, seed=i)


@pytest.mark.parametrize("grouping", GROUPINGS)
@pytest.mark.parametrize("name", [n for n in PROMOTING if n != "fp8_block_f32"])
def test_first_gemm_of_experts(name, grouping):
    """What the heuristics choose for the groups' mean, but for raster and panel: two parts, of few rows A and B exchanged instead."""
    parts = set()
    for i, (sizes, (n, k)) in enumerate(itertools.product(SIZES, SIDES_NK[:7])):
        rows = max(sizes) if grouping != "ends" else sum(-(-s // 128) * 128 for s in sizes)
        shape = rows, n, k
        p = moe(name, grouping, ("reglu", "swiglu")[i % 2])
        mean = max(1, sum(sizes) // len(sizes)), n, k
        config = choose(p, mean, H200, 1 if grouping == "none" else len(sizes))
        assert config.parts == (1 if config.swap_ab else 2)
        parts.add(config.parts)
        config = replace(config, raster="m", panel=8, stages=min(4, config.stages))
        judged(p, config, shape, layout(p, shape, sizes), pad=i % 2, seed=i)
    assert parts == {1, 2}


@pytest.mark.parametrize("epilogue", EPILOGUES)
def test_epilogues(epilogue):
    """Tensors read beside 256 columns find no registers: of those half as many."""
    p = moe("fp8_block", "none", epilogue)
    reads = any(isinstance(x, PerElement) for x in arguments(p.epilogue))
    config = in_parts(p, stages=3, unroll=4, block_n=128 if reads else 256)
    assert config is not None
    for shape in ((130, 522, 272), (300, 260, 1000)):
        judged(p, config, shape, pad=1, seed=3)


@pytest.mark.parametrize("name", ["fp8_block", "fp8_rowwise", "fp8_1d1d"])
def test_parts_change_no_bit(name):
    """On random data: the tensor core adds the same products in the same order."""
    p = problem(name, "none")
    configs = Config(stages=2), in_parts(p, block_n=128), in_parts(p, block_n=192)
    for shape in ((150, 500, 700), (64, 576, 7168), (1000, 1408, 2048)):
        assert same_bits(p, shape, configs, 4)


@pytest.mark.parametrize("name", ["gemm", "masked_gemm", "batched_gemm", "grouped_gemm"])
def test_public_functions(name):
    """`out_dtype="e4m3"` with pairs of columns: to the bit what quantising the FP32 output gives."""
    import torch

    from gemmgen import ops

    groups, m, n, k = 3, 256, 776, 512
    lead = (groups,) * (name in ("masked_gemm", "batched_gemm"))
    torch.manual_seed(1)
    a = torch.randn(*lead, m, k, device="cuda").to(torch.float8_e4m3fn)
    b = torch.randn(*(groups,) * (name != "gemm"), n, k, device="cuda").to(torch.float8_e4m3fn)
    scale_a = torch.rand(*lead, m, k // 128, device="cuda")
    scale_b = torch.rand(*b.shape[:-2], -(-n // 128), k // 128, device="cuda")
    counts = torch.tensor([m, 0, 77], device="cuda", dtype=torch.int32)
    tables = {
        "masked_gemm": {"group_rows": counts},
        "grouped_gemm": {"row_groups": torch.arange(m, device="cuda", dtype=torch.int32) // 128},
    }.get(name, {})
    function = getattr(ops, f"fp8_block_{name}")

    def call(out_dtype):
        return function(
            *(a, scale_a, b, scale_b),
            **tables,
            scale_a_layout="row",
            out_dtype=out_dtype,
            epilogue=EPILOGUES["reglu"],
        )

    x, (out, scale_out) = call("f32"), call("e4m3")
    assert out.dtype == torch.float8_e4m3fn and out.shape[-1] == n // 2
    blocks = -(-n // 256)
    wide = torch.zeros(*x.shape[:-1], blocks * 128, device="cuda")
    wide[..., : n // 2] = x
    wide = wide.view(*x.shape[:-1], blocks, 128)
    amax = wide.abs().amax(-1, keepdim=True).clamp(1e-4)
    largest = torch.full_like(amax, 448.0)
    want = (wide * (largest / amax)).to(torch.float8_e4m3fn).flatten(-2)[..., : n // 2]
    for g, count in enumerate(counts.tolist() if name == "masked_gemm" else [None]):
        at = (g, slice(count)) if count is not None else ()
        assert (scale_out[at] == (amax / largest)[..., 0][at]).all()
        assert (out[at].view(torch.uint8) == want[at].view(torch.uint8)).all()
