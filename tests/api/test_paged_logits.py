"""The indexer's scores of keys in pages over torch tensors, emulated: against torch's own and the scores of keys in a row, by each of their
names."""

from __future__ import annotations

import json

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("cuda.bindings.nvrtc", exc_type=ImportError)

from emulated_ops import Memory, computing_on_cpu, emulated, real_torch  # noqa: E402, F401
from test_mqa_logits import close, reference  # noqa: E402

import gemmgen.torch_ops  # noqa: E402, F401
from gemmgen import Config, ops  # noqa: E402
from gemmgen.compat import deep_gemm  # noqa: E402
from gemmgen.errors import ArgumentError, UnsupportedProblem  # noqa: E402
from gemmgen.ops import paged_logits  # noqa: E402

LENGTHS = ((1, 0), (64, 65), (0, 0), (300, 299), (127, 128))  # of contexts; five sequences


def drawn(queries, heads, depth, columns=301, page=64):
    """A cache with pages that are nobody's, tables with entries that are no page where no context reaches."""
    lengths = torch.tensor(LENGTHS, dtype=torch.int32)[:, :queries]
    q = torch.randn(len(lengths), queries, heads, depth).to(torch.float8_e4m3fn)
    each = -(-columns // page)
    order = torch.randperm(len(lengths) * each + 3)
    table = torch.full((len(lengths), each + 1), -7, dtype=torch.int32)
    for row, of, end in zip(table, order.split(each), lengths.amax(1).tolist(), strict=False):
        used = -(-end // page)
        row[:used] = of[:used]
        junk = torch.tensor([2**31 - 1, len(order), -1, -(2**31), 0] * 2)
        row[used:each] = junk[: each - used]
    cache = torch.empty(len(order), page, 1, depth + 4, dtype=torch.uint8)
    kv, scale = ops.paged_cache(cache)
    kv.copy_(torch.randn(kv.shape).to(torch.float8_e4m3fn))
    scale.copy_(torch.rand(scale.shape) + 0.5)
    weights = torch.randn(len(lengths), queries, heads)
    return q, cache, weights, lengths.contiguous(), table


def contiguous(cache, table, sequence, columns):
    """The keys of a sequence and their scales, one after the other; of no page, zeros."""
    kv, scale = ops.paged_cache(cache)
    pages = table[sequence, : -(-columns // kv.shape[1])].long()
    there = (pages >= 0) & (pages < len(kv))
    pages = pages.clamp(0, len(kv) - 1)
    keys = kv[pages].view(torch.uint8) * there[:, None, None]
    scales = scale[pages] * there[:, None]
    return keys.flatten(0, 1)[:columns].view(torch.float8_e4m3fn), scales.flatten()[:columns]


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize(
    ("queries", "heads", "depth", "page"),
    [(1, 64, 128, 64), (2, 64, 128, 32), (2, 32, 64, 64), (1, 8, 32, 32)],
)
def test_scores_are_those_of_keys_in_a_row(queries, heads, depth, page, dtype, monkeypatch):
    q, cache, weights, lengths, table = drawn(queries, heads, depth, page=page)
    views, columns = ops.paged_cache(cache), 301
    memory = Memory(q, cache, weights, lengths, table)
    emulated(monkeypatch, memory)
    with memory:
        given = (q, *views, weights, lengths, table, columns)
        got = ops.fp8_paged_mqa_logits(*given, out_dtype=dtype)
        out = torch.empty(*got.shape[:2], 304, dtype=got.dtype)[..., :columns]
        again = ops.fp8_paged_mqa_logits(*given, out, out_dtype=dtype)
        assert got.shape == (len(q), queries, columns) and torch.equal(got, again)
        for s in range(len(q)):
            keys, scales = contiguous(cache, table, s, columns)
            row = (q[s], keys.contiguous(), scales.contiguous(), weights[s].contiguous())
            bounds = torch.zeros_like(lengths[s]), lengths[s].contiguous()
            for x in (*row, *bounds):
                memory.keep(x)
            assert torch.equal(got[s], ops.fp8_mqa_logits(*row, *bounds, out_dtype=dtype))
    with computing_on_cpu():
        want = torch.ops.gemmgen.fp8_paged_mqa_logits(*given, out_dtype=dtype)
    assert torch.equal(torch.isneginf(got), torch.arange(columns) >= lengths[..., None])
    for s in range(len(q)):
        keys, scales = contiguous(cache, table, s, columns)
        bounds = torch.zeros_like(lengths[s]), lengths[s]
        exact, size = reference(q[s], keys, scales, weights[s], *bounds)
        close(got[s], exact, size)
        assert torch.equal(want[s], exact.to(want.dtype))


@pytest.mark.parametrize("page", [64, 32])
def test_another_librarys_names(page, monkeypatch):
    q, cache, weights, lengths, table = drawn(2, 32, 128, page=page)
    flat = weights.flatten(0, 1)
    strided = torch.zeros(len(flat), 33)[:, :32].copy_(flat)
    memory = Memory(q, cache, strided, flat, weights, lengths, table)
    emulated(monkeypatch, memory)
    with memory:
        views = ops.paged_cache(cache)
        want = ops.fp8_paged_mqa_logits(q, *views, weights, lengths, table, 300)
        meta = deep_gemm.get_paged_mqa_logits_metadata(lengths, page, 132)
        given = q, cache, strided, lengths, table, meta, 300
        got = deep_gemm.fp8_paged_mqa_logits(*given, clean_logits=True)
        new = deep_gemm.fp8_fp4_paged_mqa_logits((q, None), *given[1:], logits_dtype=torch.float32)
    assert (meta.shape, meta.dtype) == ((133, 2), torch.int32)
    assert torch.equal(got, want.flatten(0, 1)) and torch.equal(new, got)
    assert got.stride(0) * 4 % 1024 == 0


def test_lengths_of_one_query_have_no_second_dimension(monkeypatch):
    q, cache, weights, lengths, table = drawn(1, 32, 128)
    memory = Memory(q, cache, weights, lengths, table)
    emulated(monkeypatch, memory)
    with memory:
        given = (q, cache, weights[:, 0].contiguous())
        found = [
            deep_gemm.fp8_paged_mqa_logits(*given, x, table, None, 200)
            for x in (lengths, lengths[:, 0].contiguous())
        ]
    assert torch.equal(*found)


def test_lengths_of_sequences_are_of_their_last_queries(monkeypatch):
    """Each query before sees one key less, as DeepGEMM's own test asks; of sequences shorter than that some see none."""
    q, cache, weights, _, table = drawn(2, 32, 128)
    lengths = torch.tensor([1, 2, 0, 150, 90], dtype=torch.int32)
    each = torch.stack([(lengths - 1).clamp(min=0), lengths], 1).contiguous()
    memory = Memory(q, cache, weights, lengths, each, table)
    emulated(monkeypatch, memory)
    with memory:
        given = (q, cache, weights.flatten(0, 1).contiguous())
        found = [
            deep_gemm.fp8_paged_mqa_logits(*given, x, table, None, 200) for x in (lengths, each)
        ]
    assert torch.equal(*found)
    seen = (found[0] > float("-inf")).sum(1)
    assert seen.tolist() == each.flatten().tolist()


def test_weights_that_are_not_dense_are_told_so(monkeypatch):
    q, cache, weights, lengths, table = drawn(2, 32, 128)
    wide = torch.zeros(*weights.shape[:2], 33)[..., :32]
    memory = Memory(q, cache, wide, lengths, table)
    emulated(monkeypatch, memory)
    with memory, pytest.raises(ArgumentError, match=r"^weights strides"):
        ops.fp8_paged_mqa_logits(q, *ops.paged_cache(cache), wide, lengths, table, 200)


def test_what_no_kernel_here_reads():
    q, cache, weights, lengths, table = drawn(1, 32, 128)
    given = cache, weights[:, 0], lengths, table, None, 300
    with pytest.raises(UnsupportedProblem, match="scales of q"):
        deep_gemm.fp8_fp4_paged_mqa_logits((q, q), *given)
    with pytest.raises(UnsupportedProblem, match="indices"):
        deep_gemm.fp8_fp4_paged_mqa_logits((q, None), *given, indices=lengths)
    with pytest.raises(ArgumentError, match="block_kv"):
        deep_gemm.get_paged_mqa_logits_metadata(lengths, 16, 132)


def test_a_cache_is_seen_as_codes_and_scales():
    cache = torch.arange(3 * 64 * 36, dtype=torch.int32).to(torch.uint8).view(3, 64, 36)
    kv, scale = ops.paged_cache(cache)
    assert (kv.shape, kv.stride()) == ((3, 64, 32), (64 * 36, 32, 1))
    assert (scale.shape, scale.stride()) == ((3, 64), (16 * 36, 1))
    page = cache[1].flatten()
    assert torch.equal(kv[1].view(torch.uint8).flatten(), page[: 64 * 32])
    assert torch.equal(scale[1].view(torch.uint8), page[64 * 32 :])
    assert kv.data_ptr() == cache.data_ptr()


def test_pages_may_be_padded():
    wide = torch.arange(3 * 2320, dtype=torch.int32).to(torch.uint8).view(3, 2320)
    cache = wide.as_strided((3, 64, 1, 36), (2320, 36, 36, 1))
    views, dense = ops.paged_cache(cache), ops.paged_cache(cache.contiguous())
    for one, other in zip(views, dense, strict=True):
        assert torch.equal(one.view(torch.uint8), other.view(torch.uint8))
        assert one.data_ptr() - wide.data_ptr() in (0, 64 * 32)


def test_a_cache_is_viewed_where_torch_compiles():
    cache = torch.zeros(3, 64, 1, 36, dtype=torch.uint8)
    found = torch.compile(ops.paged_cache, fullgraph=True, backend="eager")(cache)
    for one, other in zip(found, ops.paged_cache(cache), strict=True):
        assert one.shape == other.shape and one.stride() == other.stride()


def test_keys_of_no_page_are_zeros_on_the_cpu():
    """Whatever other pages hold."""
    q, cache, weights, lengths, table = drawn(2, 8, 32)
    kv, scale = ops.paged_cache(cache)
    table[3, 1], table[3, 2] = -1, 10**6
    kv.view(torch.uint8)[0], kv.view(torch.uint8)[-1] = 0x7F, 0x7F
    table[:, 0] = 1
    table[3, 3:] = 2
    with computing_on_cpu():
        found = torch.ops.gemmgen.fp8_paged_mqa_logits(q, kv, scale, weights, lengths, table, 300)
    assert (found[3, 0, 64:192] == 0).all() and found[3, 0, 192:299].isfinite().all()


def test_launches_that_overlap(monkeypatch):
    """As engines ask for: `set_pdl(True)`."""
    q, cache, weights, lengths, table = drawn(1, 32, 128)
    views = ops.paged_cache(cache)
    memory = Memory(q, cache, weights, lengths, table)
    emulated(monkeypatch, memory)
    with memory:
        plain = ops.fp8_paged_mqa_logits(q, *views, weights, lengths, table, 200)
        ops.set_pdl(True)
        try:
            overlapped = ops.fp8_paged_mqa_logits(q, *views, weights, lengths, table, 200)
        finally:
            ops.set_pdl(False)
    assert torch.equal(plain, overlapped) and len({*memory.launched}) == 2


@pytest.mark.parametrize(
    ("wrong", "argument"),
    [
        (torch.zeros(3, 64, 36), "cache dtype"),
        (torch.zeros(3, 16, 36, dtype=torch.uint8), "cache shape"),
        (torch.zeros(3, 64, 2, 36, dtype=torch.uint8), "cache shape"),
        (torch.zeros(3, 64, 35, dtype=torch.uint8), "cache shape"),
        (torch.zeros(3, 64, 12, dtype=torch.uint8), "cache shape"),
        (torch.zeros(0, 64, 36, dtype=torch.uint8), "cache shape"),
        (torch.zeros(3, 64, 4, dtype=torch.uint8), "cache shape"),
        (torch.zeros(3, 64, 40, dtype=torch.uint8)[..., :36], "cache strides"),
        (
            torch.zeros(3, 64 * 36 + 8, dtype=torch.uint8).as_strided((3, 64, 36), (2312, 36, 1)),
            "cache strides",
        ),
        (
            torch.zeros(3, 64, 36, dtype=torch.uint8)
            .transpose(0, 1)[:, :, None]
            .expand(64, 3, 1, 36),
            "cache shape",
        ),
        (None, "cache"),
    ],
)
def test_what_is_no_cache(wrong, argument):
    with pytest.raises(ArgumentError, match=f"^{argument}"):
        ops.paged_cache(wrong)


def test_as_an_operator(monkeypatch):
    q, cache, weights, lengths, table = drawn(2, 32, 64)
    given, passed = (q, *ops.paged_cache(cache), weights, lengths, table, 150), []
    made = torch.empty(5, 2, 152, dtype=torch.bfloat16)[..., :150]

    def called(*of, **said):
        passed.append((of, said))
        return made

    monkeypatch.setattr(paged_logits, "fp8_paged_mqa_logits", called)
    config = Config(swap_ab=True, block_m=64, stages=3)
    said = {"out_dtype": "bf16", "config": json.dumps(config.to_json())}
    got = torch.ops.gemmgen.fp8_paged_mqa_logits(*given, **said)
    ((of, told),) = passed
    assert of[-1] == 150
    assert all(x.data_ptr() == y.data_ptr() for x, y in zip(of[:-1], given[:-1], strict=True))
    assert told == {"out_dtype": "bf16", "config": config} and got.data_ptr() == made.data_ptr()
    with torch._subclasses.FakeTensorMode() as mode:
        tensors = map(mode.from_tensor, given[:-1])
        faked = torch.ops.gemmgen.fp8_paged_mqa_logits(*tensors, 150, **said)
    facts = (made.shape, made.dtype, made.stride())
    assert (faked.shape, faked.dtype, faked.stride()) == facts


@pytest.mark.parametrize(
    ("at", "wrong", "argument"),
    [
        (0, torch.zeros(5, 2, 24, 64).to(torch.float8_e4m3fn), "q heads"),
        (1, torch.zeros(33, 16, 64).to(torch.float8_e4m3fn), "kv shape"),
        (1, torch.zeros(28, 32, 64).to(torch.float8_e4m3fn), "kv_scale side 1"),
        (2, torch.zeros(32, 64), "kv_scale side 0"),
        (3, torch.zeros(5, 32), "weights shape"),
        (4, torch.zeros(5, 2), "context_lens dtype"),
        (5, torch.zeros(4, 6, dtype=torch.int32), "block_table side 0"),
        (6, 385, "max_context_len"),
        (6, 0, "max_context_len"),
    ],
)
def test_fakes_refuse(at, wrong, argument):
    q, cache, weights, lengths, table = drawn(2, 32, 64)
    given = [q, *ops.paged_cache(cache), weights, lengths, table, 150]
    given[at] = wrong
    with torch._subclasses.FakeTensorMode() as mode, pytest.raises(ArgumentError, match=argument):
        torch.ops.gemmgen.fp8_paged_mqa_logits(*map(mode.from_tensor, given[:-1]), given[-1])
