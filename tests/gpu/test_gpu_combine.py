"""On a Hopper GPU: sums of experts' results, the same bits as on the CPU, read in place, in one launch."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.gpu

DTYPES = ("bfloat16", "float16", "float32")


def drawn(tokens, top, hidden, dtype="bfloat16", weights="float32", add=False, missing=0.1):
    """Copies in rows of their own, some missing; rows of no copy are NaN."""
    import torch

    kind, of_weights = getattr(torch, dtype), getattr(torch, weights)
    rows = tokens * top + 130
    slots = torch.randperm(rows, device="cuda")[: tokens * top].view(tokens, top).int()
    slots[torch.rand(slots.shape, device="cuda") < missing] = -1
    y = torch.full((rows, hidden), float("nan"), device="cuda", dtype=kind)
    used = slots[slots >= 0].long()
    y[used] = torch.randn(len(used), hidden, device="cuda").to(kind)
    given = {"y": y, "slots": slots}
    given["weights"] = torch.rand(tokens, top, device="cuda").to(of_weights)
    if add:
        given["add"] = torch.randn(tokens, hidden, device="cuda").to(kind)
    return given


def bits(x):
    import torch

    return x.contiguous().view(torch.uint8)


def agree(given):
    """To the bit with the torch code on the CPU."""
    import torch

    from gemmgen import ops

    found = ops.combine(**given)
    want = ops.combine(**{name: x.cpu() for name, x in given.items()})
    assert found.is_cuda and (found.shape, found.dtype) == (want.shape, want.dtype)
    assert found.is_contiguous() and not found.isnan().any()
    assert torch.equal(bits(found).cpu(), bits(want))
    return found


SHAPES = (
    *[(1, 1, 8), (1, 8, 7168), (7, 2, 40), (128, 8, 7168), (333, 6, 5120), (1024, 4, 2880)],
    *[(64, 9, 1000), (50, 8, 61), (3, 17, 4096), (4096, 8, 2048), (2, 2, 65544)],
)


@pytest.mark.parametrize("add", (False, True))
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_gpu_gives_what_the_cpu_gives(shape, add):
    agree(drawn(*shape, add=add))


@pytest.mark.parametrize("hidden", (264, 61))
@pytest.mark.parametrize("weights", DTYPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype(dtype, weights, hidden):
    for top in range(1, 10):
        agree(drawn(77, top, hidden, dtype, weights, add=top % 2 == 0))


def test_tokens_without_a_copy():
    import torch

    given = drawn(300, 4, 264, add=True, missing=1.1)
    assert torch.equal(bits(agree(given)), bits(given["add"]))
    del given["add"]
    assert not bits(agree(given)).any()


def test_slots_that_are_no_rows():
    """Whatever they are: they are not read."""
    import torch

    given = drawn(64, 4, 264)
    wrong = torch.tensor([-1, -(2**31), len(given["y"]), 2**31 - 1], device="cuda").int()
    given["slots"][::3] = wrong
    agree(given)


LAYOUTS = {
    "columns of wider matrices": lambda x: x.repeat(1, 3)[:, x.shape[1] : 2 * x.shape[1]],
    "from odd addresses": lambda x: x.repeat(1, 2)[:, 1 : 1 + x.shape[1]],
    "every other row": lambda x: x.repeat_interleave(2, 0)[::2],
    "transposed": lambda x: x.mT.contiguous().mT,
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(layout):
    given = drawn(130, 4, 264, add=True, missing=0)
    given["y"].nan_to_num_()
    agree({name: LAYOUTS[layout](x) for name, x in given.items()})


def test_nothing_else_is_written():
    import torch

    given = drawn(130, 8, 264, add=True)
    before = {name: bits(x).clone() for name, x in given.items()}
    guards = [torch.full((1 << 16,), 7, dtype=torch.uint8, device="cuda") for _ in range(8)]
    del guards[::2]
    first = agree(given)
    for _ in range(20):
        assert torch.equal(bits(agree(given)), bits(first))
    assert all((g == 7).all() for g in guards)
    assert all(torch.equal(bits(x), before[name]) for name, x in given.items())


def test_one_launch_a_call():
    import torch

    from gemmgen import ops

    given = drawn(260, 8, 264, add=True)
    ops.combine(**given)
    torch.cuda.synchronize()
    activities = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities, acc_events=True) as profile:
        ops.combine(**given)
        torch.cuda.synchronize()
    cuda = torch.autograd.DeviceType.CUDA
    ran = [e.name for e in profile.events() if e.device_type == cuda]
    assert [name for name in ran if "Sync" not in name] == ["combine_bf16_by_f32_8"]


def test_few_sms():
    """Fewer CTAs take longer, and do the same."""
    from gemmgen import ops

    ops.limit_sms(16)
    try:
        agree(drawn(700, 8, 1000))
    finally:
        ops.limit_sms(None)


def test_on_the_current_stream_and_in_a_graph():
    import torch

    from gemmgen import ops

    given, side = drawn(300, 8, 264, add=True), torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        agree(given)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = ops.combine(**given)
    for name, x in drawn(300, 8, 264, add=True).items():
        given[name].copy_(x)
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(bits(captured), bits(agree(given)))


def test_the_operator():
    """Compiled, it runs the kernel; a router gets its gradient."""
    import torch

    from gemmgen import ops
    from gemmgen.torch_ops import register

    register()
    run = torch.ops.gemmgen.combine
    given = drawn(130, 8, 264, "float32", add=True)
    compiled = torch.compile(lambda **of: run(**of), backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(**given), ops.combine(**given))
    given["weights"].requires_grad_()
    dout = torch.randn(130, 264, device="cuda")
    (found,) = torch.autograd.grad(run(**given), given["weights"], dout)
    named = given["slots"] >= 0
    copies = given["y"][given["slots"].clamp(min=0).long()].double()
    want = torch.where(named, (copies * dout.double().unsqueeze(1)).sum(-1), 0.0)
    assert (found - want).abs().max() < 1e-4
