"""On a Hopper GPU: copies of tokens in the rows of their experts, byte by byte, in one launch; what a GEMM makes of them."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.gpu

DTYPES = ("float8_e4m3fn", "int8", "bfloat16", "float32")


def drawn(tokens, top, columns, dtype="float8_e4m3fn", blocks=3, missing=0.1):
    """Copies in rows of their own, some missing; any bytes."""
    import torch

    kind = getattr(torch, dtype)
    rows = tokens * top + 130
    slots = torch.randperm(rows, device="cuda")[: tokens * top].view(tokens, top).int()
    slots[torch.rand(slots.shape, device="cuda") < missing] = -1
    shape = (tokens, columns * kind.itemsize)
    q = torch.randint(256, shape, device="cuda", dtype=torch.uint8).view(kind)
    scale = None if blocks is None else torch.rand(tokens, blocks, device="cuda")
    return {"q": q, "scale": scale, "slots": slots, "rows": rows}


def bits(x):
    import torch

    return x.contiguous().view(torch.uint8)


def check(given, found=None):
    """Every copy is its token, to the bit, and lies as documented."""
    import torch

    from gemmgen import ops

    codes, scales = found or ops.spread(**given)
    q, scale, slots, rows = given.values()
    assert codes.dtype == q.dtype and codes.shape == (rows, q.shape[1]) and codes.is_contiguous()
    assert scales.shape == (rows, 0 if scale is None else scale.shape[1])
    named = (slots >= 0) & (slots < rows)
    token, at = named.nonzero()[:, 0], slots[named].long()
    assert torch.equal(bits(codes)[at], bits(q)[token])
    if scale is not None:
        assert scales.stride(0) == 1 and scales.stride(1) % 4 == 0
        assert torch.equal(scales[at], scale[token])
    return codes, scales


SHAPES = (
    *[(1, 1, 16), (1, 8, 7168), (7, 2, 48), (128, 8, 7168), (333, 6, 5120), (4096, 8, 2048)],
    *[(64, 9, 1000), (50, 8, 61), (3, 17, 4096), (2, 2, 65552)],
)


@pytest.mark.parametrize("blocks", (None, 1, 56))
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_copies(shape, blocks):
    check(drawn(*shape, blocks=blocks))


@pytest.mark.parametrize("columns", (264, 20, 61))
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype(dtype, columns):
    for top in range(1, 10):
        check(drawn(77, top, columns, dtype))


def test_what_quantise_rows_returns():
    import torch

    from gemmgen import ops

    q, scale = ops.quantise_rows(torch.randn(300, 1000, device="cuda"))
    check(drawn(300, 4, 1000) | {"q": q, "scale": scale})


LAYOUTS = {
    "columns of wider matrices": lambda x: x.repeat(1, 3)[:, x.shape[1] : 2 * x.shape[1]],
    "from odd addresses": lambda x: x.repeat(1, 2)[:, 1 : 1 + x.shape[1]],
    "every other row": lambda x: x.repeat_interleave(2, 0)[::2],
    "transposed": lambda x: x.mT.contiguous().mT,
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(layout):
    given = drawn(130, 4, 264, "bfloat16")
    given |= {name: LAYOUTS[layout](given[name]) for name in ("q", "scale", "slots")}
    check(given)


def test_nothing_else_is_written():
    """What lies beside the results, and what is read."""
    import torch

    given = drawn(130, 4, 264, missing=0.5)
    before = {name: bits(x).clone() for name, x in given.items() if name != "rows"}
    guards = [torch.full((1 << 16,), 7, dtype=torch.uint8, device="cuda") for _ in range(8)]
    del guards[::2]
    for _ in range(20):
        check(given)
    assert all((g == 7).all() for g in guards)
    assert all(torch.equal(bits(given[name]), x) for name, x in before.items())


def test_rows_of_no_copy_stay_as_they_were():
    """Of a graph, whose results are in the same memory at every replay."""
    import torch

    from gemmgen import ops

    given = drawn(130, 4, 264, missing=0.5)
    check(given)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        codes, scales = ops.spread(**given)
    codes.view(torch.uint8).fill_(9)
    scales.fill_(-3.0)
    graph.replay()
    torch.cuda.synchronize()
    check(given, (codes, scales))
    nobodys = torch.ones(given["rows"], dtype=torch.bool, device="cuda")
    nobodys[given["slots"][given["slots"] >= 0].long()] = False
    assert nobodys.any()
    assert (codes.view(torch.uint8)[nobodys] == 9).all() and (scales[nobodys] == -3.0).all()


def test_one_launch_a_call():
    import torch

    from gemmgen import ops

    given = drawn(260, 8, 512)
    ops.spread(**given)
    torch.cuda.synchronize()
    activities = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities, acc_events=True) as profile:
        ops.spread(**given)
        torch.cuda.synchronize()
    cuda = torch.autograd.DeviceType.CUDA
    ran = [e.name for e in profile.events() if e.device_type == cuda]
    assert [name for name in ran if "Sync" not in name] == ["spread_16_bytes"]


def test_few_sms():
    """Fewer CTAs take longer, and do the same."""
    from gemmgen import ops

    ops.limit_sms(16)
    try:
        check(drawn(700, 8, 1000))
    finally:
        ops.limit_sms(None)


def test_on_the_current_stream_and_in_a_graph():
    import torch

    from gemmgen import ops

    given, side = drawn(300, 8, 264), torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        check(given)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = ops.spread(**given)
    for name, x in drawn(300, 8, 264).items():
        if name != "rows":
            bits(given[name]).copy_(bits(x))
    graph.replay()
    torch.cuda.synchronize()
    check(given, captured)


def test_the_operator_compiled():
    import torch

    from gemmgen.torch_ops import register

    register()
    run, given = torch.ops.gemmgen.spread, drawn(130, 8, 264)
    compiled = torch.compile(lambda **of: run(**of), backend="aot_eager", fullgraph=True)
    check(given, compiled(**given))


def test_around_a_gemm():
    """NaN in rows and scales of no copy reaches no row that is somebody's."""
    import torch

    from gemmgen import ops

    tokens, top, k, n, groups = 200, 2, 512, 384, 3
    x, w = torch.randn(tokens, k, device="cuda"), torch.randn(groups, n, k, device="cuda")
    chosen = torch.rand(tokens, groups, device="cuda").topk(top).indices
    slots, ends, end = torch.full_like(chosen, -1).int(), [], 0
    for g in range(groups):
        begin, mine = -(-end // 128) * 128, chosen == g
        end = begin + int(mine.sum())
        slots[mine] = torch.arange(begin, end, device="cuda").int()
        ends.append(end)
    group_ends = torch.tensor(ends, device="cuda").int()
    rows = -(-end // 128) * 128 + 256
    q, scale = ops.quantise_rows(x)
    b, scale_b = ops.quantise_blocks(w)
    weights = torch.rand(tokens, top, device="cuda")
    found = []
    for beside in (0, 255):
        codes, scales = ops.spread(q, scale, slots, rows)
        nobodys = torch.ones(rows, dtype=torch.bool, device="cuda")
        nobodys[slots.flatten().long()] = False
        codes.view(torch.uint8)[nobodys] = beside
        scales[nobodys] = float("nan") if beside else 1.0
        d = ops.fp8_block_grouped_gemm(
            codes, scales, b, scale_b, group_ends=group_ends, alignment=128, scale_a_layout="mn"
        )
        d[nobodys] = float("nan")
        found.append(ops.combine(d, slots, weights))
    assert torch.equal(bits(found[0]), bits(found[1])) and not found[0].isnan().any()
    want = sum(
        weights[:, j, None] * torch.einsum("tk,tnk->tn", x, w[chosen[:, j]]) for j in range(top)
    )
    assert (found[0] - want).norm() / want.norm() < 0.06
