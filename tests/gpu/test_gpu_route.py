"""On a Hopper GPU: routes, the same integers as on the CPU, in one launch that a graph may hold."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.gpu

# Tokens, choices, experts, first, local: one CTA and the cluster, and where one begins to be several.
CASES = (
    *((1, 1, 1, 0, None), (1, 8, 256, 0, None), (64, 8, 256, 0, None), (513, 1, 8, 0, None)),
    *((512, 8, 256, 0, None), (513, 8, 256, 0, None), (4096, 8, 512, 0, None)),
    *((16384, 8, 256, 0, None), (16384, 8, 256, 64, 32), (100003, 1, 500, 0, None)),
    *((65536, 6, 160, 150, 10), (300000, 8, 2000, 1488, 512), (4096, 8, 1, 0, None)),
)
every_case = pytest.mark.parametrize("case", CASES, ids=str)


def drawn(tokens, top, experts, dtype="int64"):
    """Ids, a few of them of no expert; half of the tokens like the first experts more."""
    import torch

    shape, made = (tokens, top), {"device": "cuda"}
    even = torch.randint(-1, experts + 1, shape, **made)
    uneven = (torch.rand(shape, **made) ** 3 * experts).long()
    return torch.where(torch.rand(tokens, 1, **made) < 0.5, even, uneven).to(getattr(torch, dtype))


def same(found, want):
    import torch

    assert found.rows == want.rows
    for name in ("slots", "copies", "ends"):
        got, x = getattr(found, name), getattr(want, name)
        assert got.is_contiguous() and got.device.type == "cuda" and got.dtype == torch.int32
        assert torch.equal(got.cpu(), x.cpu()), name


def agree(chosen, experts, **said):
    """With the torch code on the CPU."""
    from gemmgen import ops

    found = ops.route(chosen, experts, **said)
    same(found, ops.route(chosen.cpu(), experts, **said))
    return found


@pytest.mark.parametrize("alignment", (1, 8, 128))
@pytest.mark.parametrize("dtype", ("int32", "int64"))
@every_case
def test_the_gpu_gives_what_the_cpu_gives(case, dtype, alignment):
    *sizes, first, local = case
    agree(drawn(*sizes, dtype), sizes[-1], alignment=alignment, first=first, local=local)


@pytest.mark.parametrize("tokens", (5, 700, 20000))
def test_one_expert_has_all(tokens):
    import torch

    for expert in (0, 100, 255):
        agree(torch.full((tokens, 8), expert, device="cuda"), 256)
    found = agree(torch.full((tokens, 8), 256, device="cuda"), 512, first=0, local=256)
    assert (found.slots == -1).all() and (found.copies == -1).all() and not found.ends.any()


@pytest.mark.parametrize("shape", ((0, 8), (8, 0)))
def test_no_copies(shape):
    import torch

    agree(torch.zeros(shape, dtype=torch.long, device="cuda"), 64)


LAYOUTS = {
    "first choices of more": lambda x: x[:, :4],
    "every other token": lambda x: x[::2],
    "the same token": lambda x: x[:1].expand(5000, -1),
    "one choice, apart": lambda x: x[:, 1:2],
    "transposed": lambda x: x.mT,
    "every other choice": lambda x: x[:, ::2],
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(layout):
    agree(LAYOUTS[layout](drawn(3000, 8, 256)), 256)


@pytest.mark.parametrize("tokens", (64, 512, 16384))
def test_every_launch_gives_the_same(tokens):
    """200 of them, among others on another stream that take SMs away."""
    import torch

    from gemmgen import ops

    chosen, side = drawn(tokens, 8, 256), torch.cuda.Stream()
    x = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
    want = agree(chosen, 256)
    side.wait_stream(torch.cuda.current_stream())
    found = []
    for _ in range(200):
        with torch.cuda.stream(side):
            x = (x @ x).clamp(-1, 1)
        found.append(ops.route(chosen, 256))
    torch.cuda.synchronize()
    for routes in found:
        same(routes, want)


def test_nothing_else_is_written():
    """The results of a call lie between others that stay as they were."""
    import torch

    chosen = drawn(2000, 8, 256)
    guards = [torch.full((1 << 16,), 7, dtype=torch.uint8, device="cuda") for _ in range(8)]
    del guards[::2]
    for _ in range(20):
        agree(chosen, 256)
    assert all((g == 7).all() for g in guards)


@pytest.mark.parametrize("tokens", (64, 16384))
def test_one_launch_a_call(tokens):
    """No other kernel runs, and nothing is copied."""
    import torch

    from gemmgen import ops

    chosen = drawn(tokens, 8, 256)
    ops.route(chosen, 256)
    torch.cuda.synchronize()
    activities = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities, acc_events=True) as profile:
        ops.route(chosen, 256)
        torch.cuda.synchronize()
    cuda = torch.autograd.DeviceType.CUDA
    ran = [e.name for e in profile.events() if e.device_type == cuda]
    (name,) = [name for name in ran if "Sync" not in name]
    assert name == "route_s64"


def test_few_sms():
    from gemmgen import ops

    ops.limit_sms(8)
    try:
        agree(drawn(16384, 8, 256), 256)
    finally:
        ops.limit_sms(None)


@pytest.mark.parametrize("tokens", (64, 4096))
def test_on_the_current_stream_and_in_a_graph(tokens):
    """What is replayed reads what is there then; the host waits for nothing, or capturing would fail."""
    import torch

    from gemmgen import ops

    chosen, side = drawn(tokens, 8, 256), torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        agree(chosen, 256)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = ops.route(chosen, 256)
    for _ in range(3):
        chosen.copy_(drawn(tokens, 8, 256))
        graph.replay()
        torch.cuda.synchronize()
        same(captured, ops.route(chosen.cpu(), 256))


def test_without_waiting_for_the_device():
    """Also where nothing is captured: torch would say so."""
    import torch

    from gemmgen import ops

    chosen = drawn(4096, 8, 256)
    agree(chosen, 256)
    torch.cuda.set_sync_debug_mode("error")
    try:
        ops.route(chosen, 256)
        ops.route(chosen[:0], 256)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_compiled_whole():
    """torch.compile traces the torch code; `torch.ops.gemmgen` runs the kernel. Both give the same integers."""
    import torch

    from gemmgen import ops
    from gemmgen.torch_ops import register

    library, chosen = torch.ops.gemmgen, drawn(700, 8, 256)
    register()
    want = ops.route(chosen, 256)

    def by_operator(x):
        slots, copies, ends = library.route(x, 256)
        return ops.Routes(rows=copies.shape[0], slots=slots, copies=copies, ends=ends)

    for function in (by_operator, lambda x: ops.route(x, 256)):
        compiled = torch.compile(function, backend="aot_eager", fullgraph=True)
        same(compiled(chosen), want)


def test_rows_are_what_a_grouped_gemm_reads():
    """Each copy of ones is multiplied by its expert's number."""
    import torch

    from gemmgen import ops

    experts, k = 16, 128
    chosen = torch.randint(experts, (300, 2), device="cuda")
    routes = ops.route(chosen, experts)
    a = torch.ones(routes.rows, k, device="cuda", dtype=torch.bfloat16)
    b = torch.arange(experts, device="cuda").bfloat16().view(-1, 1, 1).expand(-1, 128, k)
    d = ops.grouped_gemm(a, b.contiguous(), group_ends=routes.ends, out_dtype="f32")
    assert torch.equal(d[routes.slots.long(), 0], chosen.float() * k)
    assert (
        routes.copies[routes.slots.long().view(-1)].view(-1) == torch.arange(600, device="cuda")
    ).all()
