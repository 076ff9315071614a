"""On a Hopper GPU: where the largest numbers of rows, and an indexer's largest scores, are; repeatable, and in a graph."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.gpu


def agree(x, count, **tables):
    import torch
    from largest_reference import reference

    from gemmgen import ops

    found = ops.top_k(x, count, **tables)
    given = {n: t.cpu().numpy() for n, t in tables.items()}
    want = reference(x.double().cpu().numpy(), count, **given)
    assert torch.equal(found.cpu(), torch.from_numpy(want))
    return found


def ints(*x):
    import torch

    return torch.tensor(x, dtype=torch.int32, device="cuda")


@pytest.mark.parametrize("name", ("float32", "bfloat16", "float16"))
@pytest.mark.parametrize("columns", (1, 7, 2048, 4097, 65536, 131075))
@pytest.mark.parametrize("count", (1, 64, 2048, 4096))
def test_rows(count, columns, name):
    import torch

    x = torch.randn(5, columns, device="cuda").to(getattr(torch, name))
    agree(x, count)
    agree(x.abs(), count, first=ints(0, 1, 2, 3, columns), end=ints(columns, columns // 2, 9, 0, 1))


@pytest.mark.parametrize(
    "alike", ("zeros", "two numbers", "near one", "nearer", "none", "infinite")
)
def test_numbers_that_many_bits_do_not_decide(alike):
    import torch

    x = torch.randn(300, 20000, device="cuda")
    x = {
        "zeros": torch.where(x > 0, 0.0, -0.0),
        "two numbers": (x > 1).float(),
        "near one": 1 + x.abs() * 2.0**-8,
        "nearer": 1 + x.abs() * 2.0**-20,
        "none": x.masked_fill(x > 1, float("nan")),
        "infinite": x.masked_fill(x > 0.5, float("inf")),
    }[alike]
    agree(x, 2048)


@pytest.mark.parametrize("windows", ("full", "causal", "parallel"))
@pytest.mark.parametrize(
    "shape", ((300, 5000, 64, 128), (1000, 16384, 32, 64), (8, 40000, 64, 128))
)
def test_of_scores(shape, windows):
    from gemmgen.bench import logits, top_keys

    given, _ = logits.drawn(*shape, windows)
    for count in (100, 2048):
        top_keys.verify(given, count, top_keys._calls(given, count))


@pytest.mark.parametrize(
    ("sequences", "queries", "mean"), ((1, 1, 70), (64, 1, 8192), (300, 2, 4096))
)
def test_of_scores_in_pages(sequences, queries, mean):
    import torch

    from gemmgen import ops
    from gemmgen.bench.paged_logits import Shape, drawn

    of = drawn(Shape(sequences=sequences, queries=queries, mean=mean, heads=64, depth=128))
    given = of.q, *ops.paged_cache(of.cache), of.weights, of.lengths, of.table, of.longest
    found = ops.fp8_paged_mqa_top_k(*given, 2048)
    scores = ops.fp8_paged_mqa_logits(*given)
    want = ops.top_k(scores.flatten(0, 1), 2048, end=of.lengths.flatten())
    assert torch.equal(found.flatten(0, 1), want)


def test_repeated_beside_other_work_and_in_a_graph():
    import torch

    from gemmgen import ops
    from gemmgen.bench import logits

    given, _ = logits.drawn(1100, 32000, 64, 128, "parallel")
    want = ops.fp8_mqa_top_k(*given, 512)
    a, beside = torch.randn(2048, 2048, device="cuda"), torch.cuda.Stream()
    wrong = torch.zeros((), dtype=torch.int64, device="cuda")
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for i in range(300):
            if i % 4 == 0:
                with torch.cuda.stream(beside):
                    a @ a
            wrong += (ops.fp8_mqa_top_k(*given, 512) != want).sum()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert int(wrong) == 0
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = ops.fp8_mqa_top_k(*given, 512)
    given[5].sub_(300).clamp_(min=0)
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(captured, ops.fp8_mqa_top_k(*given, 512))


def test_the_command(capsys):
    import json

    from gemmgen.bench import top_keys

    sizes = ("--queries", "256", "--keys", "4096", "--heads", "32", "--count", "512")
    top_keys.main([*sizes, "--repeats", "3", "--json"])
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {top_keys.OURS, top_keys.SCORES, top_keys.THEIRS} <= {r["way"] for r in rows}
    assert all(r["microseconds"] > 0 for r in rows)
