"""Where the largest numbers of rows, and an indexer's largest scores, are: over torch tensors, on the CPU and emulated."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from emulated_ops import Memory, computing_on_cpu, emulated, real_torch  # noqa: E402, F401
from largest_reference import reference  # noqa: E402
from test_paged_logits import drawn as in_pages  # noqa: E402

import gemmgen.torch_ops  # noqa: E402, F401
from gemmgen import ops  # noqa: E402
from gemmgen.errors import ArgumentError  # noqa: E402
from gemmgen.ops import top_keys, top_scores  # noqa: E402

nvrtc = pytest.mark.nvrtc


def ints(*x):
    return torch.tensor(x, dtype=torch.int32)


def wanted(x, count, **tables):
    given = {n: t.numpy() for n, t in tables.items()}
    return torch.from_numpy(reference(x.double().numpy(), count, **given))


def odd(rows, columns, dtype=torch.float32):
    x = torch.randn(rows, columns).mul(4).round().div(4).to(dtype)
    x[0, ::50], x[-1, 3], x[-1, 7], x[-1, ::9] = float("nan"), -0.0, 0.0, float("-inf")
    return x


TABLES = ({}, {"first": ints(-7, 3, 290, 100)}, {"end": ints(300, 0, 12, 299)}, {"first": ints(0, 3, 290, 100), "end": ints(900, 2, 299, 140)})  # fmt: skip


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16, torch.float16), ids=str)
@pytest.mark.parametrize("tables", TABLES, ids=lambda t: " ".join(t))
@pytest.mark.parametrize("count", (1, 33, 400))
def test_on_the_cpu(count, tables, dtype):
    x = odd(4, 300, dtype)
    found = ops.top_k(x, count, **tables)
    assert found.dtype == torch.int32 and torch.equal(found, wanted(x, count, **tables))
    assert torch.equal(torch.ops.gemmgen.top_k(x, count, **tables), found)


@pytest.mark.parametrize("shape", ((0, 5), (3, 0), (0, 0)))
def test_nothing(shape):
    assert torch.equal(ops.top_k(torch.empty(shape), 2), torch.full((shape[0], 2), -1).int())


@nvrtc
@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16), ids=str)
def test_emulated(dtype, monkeypatch):
    """Rows that begin at multiples of 16 bytes are read where they lie; others from a copy."""
    x, tables = odd(4, 300, dtype), TABLES[-1]
    wide = torch.zeros(4, 320, dtype=dtype)
    wide[:, 3:303] = x
    memory = Memory(x, wide, *tables.values())
    emulated(monkeypatch, memory)
    with memory:
        found = [ops.top_k(y, 33, **tables) for y in (x, wide[:, 3:303])]
        whole = ops.top_k(x, 33)
    assert all(torch.equal(y, wanted(x, 33, **tables)) for y in found)
    assert torch.equal(whole, wanted(x, 33))


def scores(queries, heads=32, keys=301, depth=64):
    q = torch.randn(queries, heads, depth).to(torch.float8_e4m3fn)
    kv = torch.randn(keys, depth).to(torch.float8_e4m3fn)
    first = torch.randint(0, keys // 2, (queries,), dtype=torch.int32)
    end = torch.randint(keys // 2, keys + 40, (queries,), dtype=torch.int32)
    first[0], end[0] = 5, 5
    return q, kv, torch.rand(keys) + 0.5, torch.randn(queries, heads), first, end


@nvrtc
@pytest.mark.parametrize("columns", (None, 120))
@pytest.mark.parametrize("at_once", (512, 4))
def test_of_scores(at_once, columns, monkeypatch):
    """Some queries at a time, the last of them fewer, find what all scores at once have."""
    given = scores(10)
    monkeypatch.setattr(top_scores, "STEP", at_once)
    monkeypatch.setattr(top_scores, "MOST_BYTES", 1)
    memory = Memory(*given)
    emulated(monkeypatch, memory)
    with memory:
        all_of_them = ops.fp8_mqa_logits(*given)
        found = ops.fp8_mqa_top_k(*given, 16, columns=columns)
    first, end = given[4:]
    end = end if columns is None else torch.minimum(end, first + columns)
    assert torch.equal(found, wanted(all_of_them, 16, first=first, end=end))


def test_of_scores_on_the_cpu():
    given = scores(6)
    run = torch.ops.gemmgen
    with computing_on_cpu():
        found, all_of_them = run.fp8_mqa_top_k(*given, 16), run.fp8_mqa_logits(*given)
        assert torch.equal(found, wanted(all_of_them, 16, first=given[4], end=given[5]))
        few = run.fp8_mqa_top_k(*given, 16, columns=50)
        assert torch.equal(
            few, wanted(all_of_them, 16, first=given[4], end=torch.minimum(given[5], given[4] + 50))
        )


@nvrtc
@pytest.mark.parametrize("queries", (1, 2))
@pytest.mark.parametrize("at_once", (512, 4))
def test_in_pages(at_once, queries, monkeypatch):
    """Some sequences at a time, the last of them fewer, find what all scores at once have; what lies behind `max_context_len` is nobody's."""
    q, cache, weights, lengths, table = in_pages(queries, 32, 64)
    given = q, *ops.paged_cache(cache), weights, lengths, table
    monkeypatch.setattr(top_scores, "STEP", at_once)
    monkeypatch.setattr(top_scores, "MOST_BYTES", 1)
    memory = Memory(q, cache, weights, lengths, table)
    emulated(monkeypatch, memory)
    for columns in (301, 120):
        with memory:
            all_of_them = ops.fp8_paged_mqa_logits(*given, columns)
            found = ops.fp8_paged_mqa_top_k(*given, columns, 16)
        ends = lengths.clamp(max=columns).flatten()
        assert found.shape == (len(q), queries, 16)
        assert torch.equal(found.flatten(0, 1), wanted(all_of_them.flatten(0, 1), 16, end=ends))
    with computing_on_cpu():
        run = torch.ops.gemmgen
        scores = run.fp8_paged_mqa_logits(*given, 120).flatten(0, 1)
        found = run.fp8_paged_mqa_top_k(*given, 120, 16).flatten(0, 1)
        assert torch.equal(found, wanted(scores, 16, end=ends))


def test_no_sequences_in_pages(monkeypatch):
    q, cache, weights, lengths, table = in_pages(2, 32, 64)
    given = q[:0], *ops.paged_cache(cache), weights[:0], lengths[:0], table[:0]
    memory = Memory(cache)
    emulated(monkeypatch, memory)
    with memory:
        found = ops.fp8_paged_mqa_top_k(*given, 120, 16)
    assert found.shape == (0, 2, 16) and found.dtype == torch.int32


def test_no_matrix_of_all_scores():
    """Of any number of queries and keys no more scores are there than of 512, or 128 MiB."""
    for queries in (1, 64, 128, 2048, 8192):
        for keys in (1, 1000, 4096, 65536, 65537, 1 << 20):
            rows = top_scores.rows_at_once(queries, keys)
            assert 1 <= rows <= queries
            assert rows == queries or rows % 512 == 0
            assert rows <= 512 or rows * keys * 4 <= 128 << 20
            assert rows == queries or (rows + 512) * keys * 4 > 128 << 20


def test_shapes_of_tensors_that_are_not_there():
    given = [x.to("meta") for x in scores(6)]
    run = torch.ops.gemmgen
    assert run.fp8_mqa_top_k(*given, 16).shape == (6, 16)
    assert run.top_k(torch.empty(5, 9, device="meta"), 3).dtype == torch.int32
    q, cache, weights, lengths, table = in_pages(2, 32, 64)
    pages = [x.to("meta") for x in (q, *ops.paged_cache(cache), weights, lengths, table)]
    assert run.fp8_paged_mqa_top_k(*pages, 120, 16).shape == (len(q), 2, 16)
    with pytest.raises(ArgumentError, match="count"):
        run.fp8_paged_mqa_top_k(*pages, 120, 0)
    for name, of, more in (
        ("count", given, (0,)),
        ("count", given, (4097,)),
        ("weights side 0", [*given[:3], given[3][:2], *given[4:]], (3,)),
    ):
        with pytest.raises(ArgumentError) as e:
            run.fp8_mqa_top_k(*of, *more)
        assert e.value.argument == name


def test_compiled():
    x = odd(4, 300)
    run = torch.compile(
        lambda x: torch.ops.gemmgen.top_k(x, 9) + 1, backend="aot_eager", fullgraph=True
    )
    assert torch.equal(run(x), ops.top_k(x, 9) + 1)
    traced = torch.compile(lambda x: ops.top_k(x, 9) + 1, backend="aot_eager", fullgraph=True)
    assert torch.equal(traced(x), ops.top_k(x, 9) + 1)


def test_counted_operations():
    from torch.utils.flop_counter import FlopCounterMode

    given = scores(6)
    with computing_on_cpu(), FlopCounterMode(display=False) as counter:
        torch.ops.gemmgen.fp8_mqa_top_k(*given, 4)
    assert counter.get_total_flops() == 2 * 6 * 32 * 64 * 301
    q, cache, weights, lengths, table = in_pages(2, 32, 64)
    with computing_on_cpu(), FlopCounterMode(display=False) as counter:
        given = q, *ops.paged_cache(cache), weights, lengths, table
        torch.ops.gemmgen.fp8_paged_mqa_top_k(*given, 120, 4)
    assert counter.get_total_flops() == 2 * q.numel() * 120


def test_what_both_ways_share():
    x = odd(4, 300)
    assert torch.equal(top_keys.by_torch(x, 5, None, None), ops.top_k(x, 5))
