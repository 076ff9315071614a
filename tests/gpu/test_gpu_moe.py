"""On a Hopper GPU: layers of experts, against a layer in float64; in one graph; the same bits for any order of tokens."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.gpu

PLAIN = ("fp8", "bf16", "fp8 rows", "int8")
OF_8_BITS = ("int8 by bf16", "fp8 by f16")
BY_FP8 = ("mxfp4 fp8", "mxfp4 fp8 blocks", "int4 fp8 blocks")
CODED = ("int4", "mxfp4", "nvfp4", "mxfp4 f16", *OF_8_BITS, *BY_FP8)
KINDS = (*PLAIN, *CODED)
BOUND = {"fp8": 0.09, "bf16": 0.015, "fp8 rows": 0.09, "int8": 0.04}
BOUND |= dict.fromkeys(CODED, BOUND["bf16"]) | dict.fromkeys(("mxfp4 f16", "fp8 by f16"), 0.002)
BOUND |= dict.fromkeys(BY_FP8, 0.09)
ORDERS = ("alternating", "halves")
CASES = (*((k, o) for k in PLAIN for o in ORDERS), *((k, ORDERS[0]) for k in CODED))


def given(tokens, top, experts=16, hidden=1024, inner=512, kind="fp8", order="alternating"):
    """Arguments of a layer."""
    import torch
    from mixtures import choices, drawn, weights_of

    torch.manual_seed(tokens * top)
    of = {"x": drawn(tokens, hidden, device="cuda", kind=kind), "order": order}
    of |= weights_of(experts, hidden, inner, "cuda", kind, order)
    return of | choices(tokens, top, experts, "cuda")


def check(of, kind, y=None):
    from mixtures import distance, layer

    from gemmgen import ops

    y = ops.moe(**of) if y is None else y
    assert y.is_cuda and not y.isnan().any()
    assert distance(y, layer(**of)) < BOUND[kind]
    return y


@pytest.mark.parametrize(("kind", "order"), CASES)
@pytest.mark.parametrize(("tokens", "top"), ((1, 1), (1, 8), (40, 3), (300, 8)))
def test_against_float64(tokens, top, kind, order):
    check(given(tokens, top, kind=kind, order=order), kind)


@pytest.mark.parametrize("kind", PLAIN)
@pytest.mark.parametrize("sides", ((16, 4096, 768), (128, 2048, 768), (8, 1536, 896)), ids=str)
def test_sides_of_models(sides, kind):
    check(given(64, 6, *sides, kind=kind), kind)


@pytest.mark.parametrize("kind", CODED)
def test_sides_of_gpt_oss(kind):
    """Fewer experts, which are packed here on the CPU; INT4 by FP8 is of whole 128 of K."""
    side = 2944 if kind == "int4 fp8 blocks" else 2880
    check(given(64, 2, 4, side, side, kind=kind), kind)


@pytest.mark.parametrize(("kind", "order"), CASES)
def test_what_is_missing(kind, order):
    """No tokens, no choices, ids of nobody, parts of the experts; what is added stays."""
    import torch

    from gemmgen import ops

    assert ops.moe(**given(0, 4, kind=kind, order=order)).shape == (0, 1024)
    of = given(50, 4, kind=kind, order=order)
    of["chosen"][::3, 1], of["chosen"][1::5, 0] = -1, 16
    check(of, kind)
    add = torch.randn_like(of["x"])
    check(of | {"add": add}, kind)
    nobody = torch.full_like(of["chosen"], 99)
    assert torch.equal(ops.moe(**of | {"chosen": nobody, "add": add}), add)
    mine = {n: x[4:8] for n, x in of.items() if n.startswith(("w1", "w2", "scale"))}
    check(of | mine | {"first": 4, "experts": 16}, kind)


@pytest.mark.parametrize(("kind", "order"), CASES)
def test_bits(kind, order):
    """Repeated, and for tokens in another order, the same."""
    import torch

    from gemmgen import ops

    of, at = given(200, 6, kind=kind, order=order), torch.randperm(200, device="cuda")
    y = ops.moe(**of)
    for _ in range(3):
        assert torch.equal(ops.moe(**of), y)
    moved = of | {n: of[n][at].contiguous() for n in ("x", "chosen", "weights")}
    assert torch.equal(ops.moe(**moved), y[at])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("tokens", (1, 64, 700))
def test_a_thousand_launches_beside_other_work(tokens, kind):
    """The same bits in each, whatever else the GPU does; the host waits for none."""
    import torch

    from gemmgen import ops

    of, beside = given(tokens, 6, kind=kind), torch.cuda.Stream()
    y, a = ops.moe(**of), torch.randn(2048, 2048, device="cuda")
    wrong = torch.zeros((), dtype=torch.int64, device="cuda")
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for i in range(1000):
            if i % 4 == 0:
                with torch.cuda.stream(beside):
                    a @ a
            wrong += (ops.moe(**of) != y).sum()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert int(wrong) == 0


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("tokens", (1, 100, 1500))
def test_one_expert_has_all(tokens, kind):
    import torch

    of = given(tokens, 1, kind=kind)
    for expert in (0, 7, 15):
        check(of | {"chosen": torch.full_like(of["chosen"], expert)}, kind)


@pytest.mark.parametrize(("kind", "order"), CASES)
@pytest.mark.parametrize("epilogue", ("geglu", "geglu_tanh", "reglu", "swiglu_clamped"))
def test_other_gates_and_biases(epilogue, kind, order):
    from mixtures import biases_of

    for tokens, top in ((3, 2), (150, 4)):
        of = given(tokens, top, kind=kind, order=order)
        check(of | {"epilogue": epilogue}, kind)
        check(of | biases_of(16, 1024, 512, "cuda") | {"epilogue": epilogue}, kind)


@pytest.mark.parametrize(("kind", "order"), CASES)
def test_in_a_cuda_graph(kind, order):
    """Other tokens and other choices, the same graph; the host waits for nothing."""
    import torch

    from gemmgen import ops

    of = given(77, 4, kind=kind, order=order)
    ops.moe(**of)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = ops.moe(**of)
    for _ in range(3):
        of["x"].normal_()
        of["weights"].uniform_()
        of["chosen"].random_(0, 16)  # of one expert twice, too
        graph.replay()
        check(of, kind, captured)
        assert torch.equal(captured, ops.moe(**of))


@pytest.mark.parametrize(("kind", "order", "most"), (
    *(("fp8", "alternating", 6), ("fp8", "halves", 7)),
    *(("bf16", "alternating", 5), ("bf16", "halves", 6)),
    *(("fp8 rows", "alternating", 7), ("fp8 rows", "halves", 9)),  # of which a copy of scales
    *(("int8", "alternating", 7), ("int8", "halves", 9)),
    *(("mxfp4", "alternating", 5), ("mxfp4 fp8", "alternating", 7), ("mxfp4 fp8 blocks", "alternating", 7)),
))  # fmt: skip
def test_launches(kind, order, most):
    """As many as are said, and no copy."""
    import torch

    from gemmgen import ops

    of = given(64, 4, kind=kind, order=order)
    ops.moe(**of)
    torch.cuda.synchronize()
    activities = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities, acc_events=True) as profile:
        ops.moe(**of)
        torch.cuda.synchronize()
    cuda = torch.autograd.DeviceType.CUDA
    on_gpu = [e.name for e in profile.events() if e.device_type == cuda]
    on_gpu = [name for name in on_gpu if "Sync" not in name]
    assert len(on_gpu) == most, on_gpu


@pytest.mark.parametrize("kind", KINDS)
def test_the_operator_compiled(kind):
    import torch

    from gemmgen import ops
    from gemmgen.torch_ops import register

    register()
    torch.compiler.reset()  # of other kinds: one function is compiled a few times only
    run, of = torch.ops.gemmgen.moe, given(33, 4, kind=kind)
    compiled = torch.compile(lambda **of: run(**of) + 1, backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(**of), ops.moe(**of) + 1)


def test_what_a_module_gives():
    import torch

    from gemmgen import nn, ops

    of = given(100, 4)
    mine = nn.GroupedExperts(16, 1024, 512, device="cuda")
    names = {"w1": "gate_up", "w2": "down", "scale_w1": "gate_up_scale", "scale_w2": "down_scale"}
    mine.load_state_dict({name: of[x] for x, name in names.items()})
    assert torch.equal(mine(of["x"], of["chosen"], of["weights"]), ops.moe(**of))


@pytest.mark.parametrize("kind", PLAIN)
def test_what_vllm_calls(kind):
    """In place, and of ranks that have any of the experts; in a graph."""
    import torch
    from mixtures import distance, layer

    from gemmgen import ops
    from gemmgen.compat.fused_experts import fused_experts

    of = given(50, 4, kind=kind, order="halves")
    said = {n: of[n] for n in ("w1", "w2")} | {
        "topk_weights": of["weights"],
        "topk_ids": of["chosen"],
    }
    if kind != "bf16":
        said |= {f"{n}_scale": of[f"scale_{n}"] for n in ("w1", "w2")}
        said |= {"use_int8_w8a8" if kind == "int8" else "use_fp8_w8a8": True}
        said |= {"block_shape": [128, 128]} if kind == "fp8" else {"per_channel_quant": True}
    y, x = ops.moe(**of), of["x"].clone()
    assert fused_experts(x, **said, inplace=True) is x and torch.equal(x, y)
    weights = [n for n in said if n.startswith(("w1", "w2"))]
    total = torch.zeros_like(y, dtype=torch.float64)
    for mine in (range(0, 16, 2), range(15, 0, -2)):
        at = torch.full((16,), -1, device="cuda", dtype=torch.int32)
        at[list(mine)] = torch.arange(8, device="cuda").int()
        part = said | {n: said[n][list(mine)] for n in weights} | {"expert_map": at}
        fused_experts(of["x"], **part)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = fused_experts(of["x"], **part)
        graph.replay()
        total += captured.double()
    assert distance(total, layer(**of)) < BOUND[kind]


def test_the_command(capsys):
    """Verified and timed, all ways."""
    import json

    from gemmgen.cli import main

    sizes = ("--experts", "16", "--top", "4", "--hidden", "1024", "--intermediate", "528")
    for router in ("even", "zipf"):
        options = ["--tokens", "1,300", "--router", router, "--repeats", "3", "--json"]
        assert main(["moe", *sizes, *options]) == 0
        rows = json.loads(capsys.readouterr().out)["rows"]
        assert [r["tokens"] for r in rows] == [1, 300]
        for r in rows:
            stages = ["route", "cast", "spread", "GEMM 1", "GEMM 2", "combine"]
            assert [*r["launches"]] == stages and not r["left_out"]
            assert r["over_gemms"] > 1 and r["over_read"] > 0.5 and r["over_torch"] > 0
            assert r["eager"]["gemmgen"] > 0 and r["eager"]["torch"] > 0


@pytest.mark.parametrize(
    "kind",
    (
        "bf16",
        "int4",
        "mxfp4",
        "mxfp4-fp8",
        "mxfp4-fp8-blocks",
        "int4-fp8-blocks",
        "int8-bf16",
        "fp8-bf16",
    ),
)
def test_the_command_of_other_kinds(kind, capsys):
    import json

    from gemmgen.cli import main

    sizes = ("--experts", "16", "--top", "4", "--hidden", "1024", "--intermediate", "512")
    options = ["--tokens", "1,300", "--kind", kind, "--repeats", "3", "--json"]
    assert main(["moe", *sizes, *options]) == 0
    for r in json.loads(capsys.readouterr().out)["rows"]:
        casts = ["cast"] * ("-fp8" in kind)
        assert [*r["launches"]] == ["route", *casts, "spread", "GEMM 1", "GEMM 2", "combine"]
        assert not r["left_out"] and r["over_torch"] > 0


def test_the_command_beside_a_chain_of_deep_gemm(capsys, monkeypatch):
    """`gemmgen.compat.deep_gemm` stands in where DeepGEMM is not installed: both chains verified, eager and in graphs."""
    import json
    import sys
    from importlib.util import find_spec

    from gemmgen.cli import main
    from gemmgen.compat import deep_gemm

    if find_spec("deep_gemm") is None:
        monkeypatch.setitem(sys.modules, "deep_gemm", deep_gemm)
    sizes = ("--experts", "16", "--top", "4", "--hidden", "1024", "--intermediate", "512")
    options = ["--tokens", "1,300", "--providers", "gemmgen,deep_gemm", "--repeats", "3", "--json"]
    assert main(["moe", *sizes, *options]) == 0
    for r in json.loads(capsys.readouterr().out)["rows"]:
        assert r["left_out"] == {} and r["torch"] is None
        assert [*r["chains"]] == ["deep_gemm", "deep_gemm casts"]
        assert [*r["eager"]] == ["gemmgen", *r["chains"]] and all(r["eager"].values())
        assert r["over_deep_gemm"] > 0 and r["over_deep_gemm_casts"] > 0


@pytest.mark.parametrize("tokens", (1, 64, 700))
def test_the_explanation_is_of_what_runs(tokens):
    """Kernels by the profiler's names, and the memory that is said, of the scales' rows a little more."""
    import torch

    from gemmgen import ops
    from gemmgen.bench import moe_layer
    from gemmgen.bench.moe_sizes import Sizes
    from gemmgen.cli.moe_launches import layer
    from gemmgen.runtime.devices import by_name

    s = Sizes(experts=16, top=4, hidden=1024, intermediate=512)
    w, t = moe_layer.drawn(s, 0, False), moe_layer.tokens(s, tokens, "even", 0)
    said = layer("", s, tokens, by_name(torch.cuda.get_device_name()))
    w.layer(t)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    # What is asked for: torch hands out a free block whole where less than a MiB of it would be left.
    asked = "requested_bytes.all"
    before = torch.cuda.memory_stats()[f"{asked}.current"]
    activities = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities, acc_events=True) as profile:
        y = ops.moe(t.x, w.w1, w.w2, t.chosen, t.weights, scale_w1=w.scale_w1, scale_w2=w.scale_w2)
        torch.cuda.synchronize()
    most = torch.cuda.memory_stats()[f"{asked}.peak"] - before
    assert y.numel() * 2 == said.output
    assert said.peak <= most <= 1.1 * (said.peak + said.output)
    cuda = torch.autograd.DeviceType.CUDA
    events = [e for e in profile.events() if e.device_type == cuda and "Sync" not in e.name]
    names = [e.name for e in sorted(events, key=lambda e: e.time_range.start)]
    assert len(names) == 6
    for name, launch in zip(names, said.launches, strict=True):
        assert launch.kernel.split("(")[0] in name


def test_the_example():
    from example_runs import on_a_gpu

    out = on_a_gpu("moe_layer.py")
    assert "gemmgen, FP8" in out and "same bits: True" in out
