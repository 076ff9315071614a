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

    dense = [torch.empty(t.shape, dtype=t.dtype).copy_(t) for t in (x, y)]
    return torch.equal(*(t.view(torch.uint8) for t in dense))


HOW = ("columns", "row", "block")
SHAPES = (
    *[(1, 1), (1, 128), (7, 300), (128, 128), (129, 1000), (300, 400), (513, 4104), (4096, 7168)],
    *[(2, 300, 400), (3, 5, 130), (2, 3, 4, 136), (64, 16384), (3, 32776), (2, 70001), (70001, 8)],
)


def quantise(how, x, **options):
    from gemmgen import ops

    if how == "block":
        return ops.quantise_blocks(x, **options)
    return ops.quantise_rows(x, 128 if how == "columns" else None, **options)


def agree(how, x, **options):
    """To the bit with the torch code on the CPU, and lying as it says."""
    found, wanted = quantise(how, x, **options), quantise(how, x.cpu(), **options)
    for got, want in zip(found, wanted, strict=True):
        assert got.device == x.device and (got.shape, got.dtype) == (want.shape, want.dtype)
        assert got.stride() == want.stride() and same(got, want)


@pytest.mark.parametrize("given", ("bfloat16", "float16", "float32"))
@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_gpu_gives_what_the_cpu_gives(shape, how, given):
    import torch

    agree(how, values(*shape).to(getattr(torch, given)))


@pytest.mark.parametrize("given", ("bfloat16", "float16", "float32"))
@pytest.mark.parametrize("power_of_two", (False, True))
@pytest.mark.parametrize("dtype", ("e4m3", "s8"))
@pytest.mark.parametrize("how", HOW)
def test_every_cast(how, dtype, power_of_two, given):
    """Values of every kind: among them infinities, NaN, subnormals, zeros of both signs."""
    import torch

    x = values(260, 264)
    x[::5, ::3] = -0.0
    x[::9, 1::7] = 2.0**-149
    for i, bad in enumerate((float("inf"), -float("inf"), float("nan"))):
        x[3 + 131 * (i % 2), 100 * i] = bad
    agree(how, x.to(getattr(torch, given)), dtype=dtype, power_of_two=power_of_two)


@pytest.mark.parametrize("power_of_two", (False, True))
@pytest.mark.parametrize("dtype", ("e4m3", "s8"))
@pytest.mark.parametrize("how", HOW)
def test_all_bit_patterns(how, dtype, power_of_two):
    """Of BF16 and of FP16, finite ones and others: next to each other, and in rows of one magnitude."""
    import torch

    every = torch.arange(1 << 16, dtype=torch.int32, device="cuda").to(torch.int16)
    for given in (torch.bfloat16, torch.float16):
        for x in (every.view(256, 256), every.view(256, 256).mT.contiguous()):
            agree(how, x.view(given), dtype=dtype, power_of_two=power_of_two)


LAYOUTS = {
    "columns of a wider matrix": lambda x: x[:, :, 8:144],
    "from an odd address": lambda x: x[:, :, 1:137],
    "every other row": lambda x: x[0, ::2],
    "transposed": lambda x: x.mT,
    "every other column": lambda x: x[:, :, ::2],
    "groups apart": lambda x: x[:, :100],
    "the same row": lambda x: x[0, :1].expand(50, -1),
}


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(layout, how):
    agree(how, LAYOUTS[layout](values(2, 150, 200).bfloat16()))


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("shape", ((0, 128), (2, 0, 136)))
def test_no_rows(how, shape):
    import torch

    agree(how, torch.empty(shape, device="cuda"))


@pytest.mark.parametrize("how", HOW)
def test_nothing_else_is_written(how):
    """The results of a call lie between others that stay as they were."""
    import torch

    x = values(130, 264).bfloat16()
    guards = [torch.full((1 << 16,), 7, dtype=torch.uint8, device="cuda") for _ in range(8)]
    del guards[::2]
    for _ in range(20):
        quantise(how, x)
    assert all((g == 7).all() for g in guards)


@pytest.mark.parametrize("how", HOW)
def test_one_launch_a_call(how):
    """No other kernel runs, whatever the layout that is read in place."""
    import torch

    x = values(260, 264).bfloat16()
    quantise(how, x)
    torch.cuda.synchronize()
    activities = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities, acc_events=True) as profile:
        quantise(how, x)
        torch.cuda.synchronize()
    cuda = torch.autograd.DeviceType.CUDA
    ran = [e.name for e in profile.events() if e.device_type == cuda]
    (name,) = [name for name in ran if "Sync" not in name]
    assert name.startswith("cast_bf16_e4m3_per_")


def test_few_sms():
    """Fewer CTAs take longer, and do the same."""
    from gemmgen import ops

    x = values(700, 1000).bfloat16()
    ops.limit_sms(16)
    try:
        for how in HOW:
            agree(how, x)
    finally:
        ops.limit_sms(None)


def test_on_the_current_stream_and_in_a_graph():
    import torch

    x, side = values(300, 264).bfloat16(), torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for how in HOW:
            agree(how, x)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = [quantise(how, x) for how in HOW]
    x.copy_(values(300, 264))
    graph.replay()
    torch.cuda.synchronize()
    for how, found in zip(HOW, captured, strict=True):
        for got, want in zip(found, quantise(how, x), strict=True):
            assert same(got, want)


@pytest.mark.parametrize("how", HOW)
def test_compiled_whole(how):
    """torch.compile traces the torch code; `torch.ops.gemmgen` runs the cast. Both give the same bits."""
    import torch

    from gemmgen import ops
    from gemmgen.torch_ops import register

    register()
    x = values(130, 264).bfloat16()
    for library in (ops, torch.ops.gemmgen):
        ways = {
            "columns": (library.quantise_rows, 128),
            "row": (library.quantise_rows, None),
            "block": (library.quantise_blocks, 128),
        }
        function, block = ways[how]
        compiled = torch.compile(
            lambda t, f=function, b=block: f(t, b), backend="aot_eager", fullgraph=True
        )
        for got, want in zip(compiled(x), quantise(how, x), strict=True):
            assert got.stride() == want.stride() and same(got, want)


def test_the_benchmark(capsys):
    import json

    from gemmgen.cli import main

    assert main(["casts", "--shapes", "512x1024,100x300", "--repeats", "3", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert len(rows) == 6 and all(r["share"] > 0 for r in rows)


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
