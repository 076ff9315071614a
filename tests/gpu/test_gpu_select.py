"""On a Hopper GPU: experts that logits choose, in one launch, as torch's operators choose them on the CPU."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.gpu

# Experts, choices, groups, groups that are kept, whether a bias chooses.
CASES = (
    *((1, 1, 1, 1, False), (8, 2, 1, 1, False), (128, 4, 1, 1, False), (128, 8, 1, 1, True)),
    *((256, 8, 8, 4, True), (256, 8, 8, 4, False), (384, 8, 1, 1, True), (512, 10, 1, 1, False)),
    *((60, 4, 1, 1, False), (512, 32, 64, 16, True), (160, 6, 8, 3, False)),
)
every_case = pytest.mark.parametrize("case", CASES, ids=str)


def drawn(tokens, experts, dtype="float32"):
    """Logits that differ by so much that rounding changes no choice."""
    import torch

    places = torch.rand(tokens, experts, device="cuda").argsort(-1)
    return ((places - experts / 2) * (8 / experts)).to(getattr(torch, dtype))


def said_of(case, **more):
    import torch

    _, _, groups, kept, biased = case
    bias = torch.linspace(-0.3, 0.3, case[0], device="cuda") if biased else None
    return {"groups": groups, "kept_groups": kept, "bias": bias, **more}


def on_cpu(x):
    return None if x is None else x.cpu()


@pytest.mark.parametrize("shared", (0, 1))
@pytest.mark.parametrize("dtype", ("float32", "bfloat16", "float16"))
@pytest.mark.parametrize("score", ("softmax", "sigmoid"))
@every_case
def test_the_gpu_chooses_what_the_cpu_does(case, score, dtype, shared):
    import torch
    from select_reference import ROUNDING

    from gemmgen import ops

    shared *= case[1] < 32
    for tokens in (1, 7, 1000):
        logits = drawn(tokens, case[0], dtype)
        said = said_of(case, score=score, scale=2.5, shared=shared)
        chosen, weights = ops.select(logits, case[1], **said)
        wanted = ops.select(logits.cpu(), case[1], **said | {"bias": on_cpu(said["bias"])})
        assert torch.equal(chosen.cpu(), wanted[0])
        assert torch.allclose(weights.cpu(), wanted[1], rtol=2 * ROUNDING, atol=0)  # either


@every_case
def test_it_is_one_launch_that_a_graph_holds(case):
    import torch

    from gemmgen import ops

    logits, said = drawn(300, case[0]), said_of(case)
    want = ops.select(logits, case[1], **said)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as seen:
        ops.select(logits, case[1], **said)
        torch.cuda.synchronize()
    assert sum(e.count for e in seen.key_averages() if e.key.startswith("select_")) == 1
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = ops.select(logits, case[1], **said)
    for _ in range(200):
        for x in found:
            x.zero_()
        graph.replay()
        assert all(torch.equal(a, b) for a, b in zip(found, want, strict=True))


@pytest.mark.parametrize("score", ("softmax", "sigmoid"))
def test_the_operator_compiled_and_with_gradients(score):
    """One launch forward; gradients are those of torch's operators."""
    import torch
    from select_reference import ROUNDING

    import gemmgen.torch_ops  # noqa: F401
    from gemmgen import ops

    select, logits = torch.ops.gemmgen.select, drawn(100, 128).requires_grad_()

    def loss(f, x):
        return f(x, 8, score=score)[1].square().sum()

    compiled = torch.compile(lambda x: loss(select, x), backend="aot_eager", fullgraph=True)
    compiled(logits).backward()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as seen:
        compiled(logits)
        torch.cuda.synchronize()
    assert sum(e.count for e in seen.key_averages() if e.key.startswith("select_")) == 1
    want = torch.autograd.grad(loss(ops.select, logits), logits)[0]
    # Either's weights, and what comes of them, are off by that of numbers below 1.
    assert torch.allclose(logits.grad, want, rtol=0, atol=2 * ROUNDING)


def test_numbers_that_are_none():
    import torch

    from gemmgen import ops

    logits = torch.zeros(4, 256, device="cuda")
    logits[0, 17], logits[1, 3], logits[2] = float("nan"), float("inf"), float("-inf")
    found = ops.select(logits, 4, score="sigmoid")
    wanted = ops.select(logits.cpu(), 4, score="sigmoid")
    assert torch.equal(found[0].cpu(), wanted[0])
    assert torch.allclose(found[1].cpu(), wanted[1], equal_nan=True)


def test_a_shared_expert_in_the_layers_launches():
    """What a layer gives whose shared expert is one more, and what it adds is not apart."""
    import torch
    from mixtures import drawn as tokens_of
    from mixtures import weights_of
    from roundings import of_length

    from gemmgen import ops

    x, of = tokens_of(50, 512, device="cuda"), weights_of(9, 512, 256, "cuda")
    logits = drawn(50, 8)
    chosen, weights = ops.select(logits, 2, scale=2.5, shared=1)
    together = ops.moe(x, chosen=chosen, weights=weights, **of)
    routed = {name: t[:8] for name, t in of.items()}
    alone = {name: t[8:] for name, t in of.items()}
    one = torch.ones(50, 1, device="cuda")
    shared = ops.moe(
        x, chosen=torch.zeros(50, 1, dtype=torch.int32, device="cuda"), weights=one, **alone
    )
    apart = ops.moe(x, chosen=chosen[:, :2], weights=weights[:, :2], add=shared, **routed)
    # Of either are rounded what an expert gives and the sum.
    off = (together.float() - apart.float()).norm()
    assert off <= of_length(x.dtype, 4) * apart.float().norm()
