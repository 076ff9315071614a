"""On a Hopper GPU: repeated, bound and captured launches give the bits of a first call, from any thread."""

from __future__ import annotations

import gc
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from gemmgen.config import Config
from gemmgen.errors import ArgumentError

pytestmark = pytest.mark.gpu

M, N, K, GROUPS = 200, 264, 512, 3


@pytest.fixture(autouse=True)
def fresh():
    """No call kept from another test, whose memory this one may get."""
    from gemmgen.ops import front

    front.KEPT.clear()
    yield
    front.KEPT.clear()


def normal(*shape, dtype="bfloat16", device="cuda"):
    import torch

    return torch.randn(*shape, device=device).to(getattr(torch, dtype))


def cases(device="cuda"):
    """By name: a function, the tensors that it reads, what else it wants, and an output to fill."""
    import torch

    from gemmgen import ops

    out = torch.empty(M, N, dtype=torch.bfloat16, device=device)
    rows = torch.tensor([M, 0, 77], dtype=torch.int32, device=device)
    depths = torch.tensor([100, 0, 412], dtype=torch.int32, device=device)
    fp8 = [normal(M, K, dtype="float8_e4m3fn", device=device), torch.rand(K // 128, M, device=device).mT,
           normal(N, K, dtype="float8_e4m3fn", device=device), torch.rand(3, K // 128, device=device)]  # fmt: skip
    a, b = normal(M, K, device=device), normal(N, K, device=device)
    experts = normal(GROUPS, N, K, device=device)
    options = {"config": Config(block_n=96)}
    return {
        "gemm": (ops.gemm, [a, b], options, out),
        "fp8 mn": (ops.fp8_block_gemm, fp8, {"scale_a_layout": "mn", **options}, out),
        "fp8 row": (ops.fp8_block_gemm, fp8, {"scale_a_layout": "row", **options}, out),
        "masked": (
            ops.masked_gemm,
            [normal(GROUPS, M, K, device=device), experts, rows],
            options,
            torch.zeros(GROUPS, M, N, dtype=torch.bfloat16, device=device),
        ),
        "k grouped": (
            ops.k_grouped_gemm,
            [normal(K, M, device=device), normal(K, N, device=device), depths],
            options,
            torch.empty(GROUPS, M, N, device=device),
        ),
    }


NAMES = ("gemm", "fp8 mn", "fp8 row", "masked", "k grouped")
BOUND = [name for name in NAMES if name != "fp8 row"]


def first(function, given, options, out):
    """The result of a call that nobody made before, in another output."""
    import torch

    return function(*given, torch.zeros_like(out), **options).clone()


@pytest.mark.parametrize("name", NAMES)
def test_a_repeated_call_has_the_bits_of_the_first(name):
    import torch

    from gemmgen.ops import front

    function, given, options, out = cases()[name]
    want = first(function, given, options, out)
    for _ in range(4):
        out.zero_()
        assert function(*given, out, **options) is out
        assert torch.equal(out, want)
    assert len(front.KEPT) == 2
    for x in given[:1]:  # new values in the same place
        x.copy_(x.flip(0) if x.dtype == torch.bfloat16 else x.float().flip(0).to(x.dtype))
    want = first(function, given, options, out)
    assert torch.equal(function(*given, out.zero_(), **options), want)


@pytest.mark.parametrize("name", NAMES)
def test_outputs_that_are_not_given(name):
    """Some are freed, so that their memory comes back, some are kept."""
    import torch

    function, given, options, out = cases()[name]
    if name == "masked":
        pytest.skip("rows past a group's are not written")
    want = first(function, given, options, out)
    held = []
    for i in range(24):
        got = function(*given, **options)
        assert torch.equal(got, want)
        held = [*held, got][-1 - i % 5 :]
        del got


@pytest.mark.parametrize("name", NAMES)
def test_four_threads_on_four_streams_each(name):
    """All with the same operands, each with outputs and streams of its own."""
    import torch

    function, given, options, out = cases()[name]
    want = first(function, given, options, out)
    torch.cuda.synchronize()

    def work(_):
        streams = [torch.cuda.Stream() for _ in range(4)]
        outs = [torch.zeros_like(out) for _ in streams]
        torch.cuda.synchronize()
        for _ in range(50):
            for stream, mine in zip(streams, outs, strict=True):
                with torch.cuda.stream(stream):
                    function(*given, mine, **options)
        torch.cuda.synchronize()
        return all(torch.equal(x, want) for x in outs)

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(4)))


@pytest.mark.parametrize("name", BOUND)
def test_bound_launches(name):
    import torch

    from gemmgen import bind

    function, given, options, out = cases()[name]
    want = first(function, given, options, out)
    launch = bind(function, *given, out, **options)
    out.zero_()
    for _ in range(3):
        assert launch() is out
    assert torch.equal(out, want)

    stream = torch.cuda.Stream()
    elsewhere = launch.with_stream(stream)
    out.zero_()
    torch.cuda.synchronize()
    elsewhere()
    stream.synchronize()
    assert torch.equal(out, want)


@pytest.mark.parametrize("name", BOUND)
def test_rebound_launches(name):
    import torch

    from gemmgen import bind

    function, given, options, out = cases()[name]
    launch = bind(function, *given, out, **options)
    other = cases()[name]
    names = [n for n in launch.tensors if n != "out"]
    want = first(function, other[1], options, out)
    where = torch.zeros_like(out)
    moved = launch.rebind(**dict(zip(names, other[1], strict=True)), out=where)
    assert moved() is where and torch.equal(where, want)
    want = first(function, given, options, out)
    assert torch.equal(launch.rebind(out=where.zero_())(), want)
    with pytest.raises(ArgumentError):
        launch.rebind(a=other[1][0][..., :-8])


def test_a_bound_launch_holds_what_it_reads():
    import torch

    from gemmgen import bind

    function, given, options, out = cases()["k grouped"]
    want = first(function, given, options, out)
    launch = bind(function, *given, **options)
    del given, out
    gc.collect()
    filled = [torch.full((1 << 20,), 7.0, device="cuda") for _ in range(64)]
    assert torch.equal(launch(), want) and filled


@pytest.mark.parametrize("bound", (False, True))
@pytest.mark.parametrize("name", NAMES)
def test_captured_and_replayed(name, bound):
    """In a CUDA graph, twice in a row, and then over other values."""
    import torch

    from gemmgen import bind

    function, given, options, out = cases()[name]
    if bound and name not in BOUND:
        pytest.skip("a bound launch copies nothing")
    function(*given, out, **options)  # compiled and loaded before
    launch = bind(function, *given, out, **options) if bound else None
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        if launch:
            held = launch.with_stream(torch.cuda.current_stream())
            held()
            held()
        else:
            function(*given, out, **options)
            function(*given, out, **options)
    for _ in range(2):
        want = first(function, given, options, out)
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(out, want)
        given[0].copy_(given[0].float().flip(-1).to(given[0].dtype))
        out.zero_()


def test_a_replay_beside_eager_calls():
    """A captured k-grouped launch has a workspace of its own."""
    import torch

    function, given, options, out = cases()["k grouped"]
    want = first(function, given, options, out)
    captured, eager = torch.zeros_like(out), torch.zeros_like(out)
    for x in (captured, eager):
        function(*given, x, **options)
    torch.cuda.synchronize()
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    with torch.cuda.graph(graph):
        function(*given, captured, **options)
    for _ in range(50):
        with torch.cuda.stream(stream):
            graph.replay()
        function(*given, eager, **options)
    torch.cuda.synchronize()
    assert torch.equal(captured, want) and torch.equal(eager, want)


def test_a_thread_without_a_context():
    """The driver refuses its first launch, which is then made with the kernel's context current."""
    import torch

    from gemmgen import bind

    function, given, options, out = cases()["gemm"]
    want = first(function, given, options, out)
    launch = bind(function, *given, out.zero_(), **options)
    torch.cuda.synchronize()
    failed = []

    def work():
        try:
            for _ in range(3):
                launch()
        except Exception as e:
            failed.append(e)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    torch.cuda.synchronize()
    assert not failed and torch.equal(out, want)


@pytest.mark.parametrize("name", NAMES)
def test_another_device_than_the_current_one(name):
    """It is used, and the current one stays."""
    import torch

    from gemmgen import bind

    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    torch.cuda.set_device(0)
    function, given, options, out = cases("cuda:1")[name]
    want = first(function, given, options, out)
    assert torch.cuda.current_device() == 0
    for _ in range(3):
        assert torch.equal(function(*given, out.zero_(), **options), want)
        assert torch.cuda.current_device() == 0
    if name in BOUND:
        launch = bind(function, *given, out.zero_(), **options)
        launch()
        torch.cuda.synchronize(1)
        assert torch.equal(out, want) and torch.cuda.current_device() == 0
    assert torch.empty(1, device="cuda").device.index == 0


def test_the_table_may_be_too_small(monkeypatch):
    import torch

    from gemmgen.ops import front, kept

    monkeypatch.setattr(front, "KEPT", kept.Kept(2))
    made = cases()
    wants = {name: first(*made[name]) for name in NAMES}
    for _ in range(3):
        for name, (function, given, options, out) in made.items():
            got = function(*given, out.zero_(), **options)
            assert torch.equal(got, wants[name])
    assert len(front.KEPT) == 2
