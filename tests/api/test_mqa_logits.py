"""The indexer's scores over torch tensors, emulated: against torch's own, by each of their names."""

from __future__ import annotations

import json

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("cuda.bindings.nvrtc", exc_type=ImportError)

from emulated_ops import Memory, computing_on_cpu, emulated, real_torch  # noqa: E402, F401
from roundings import UNIT  # noqa: E402

import gemmgen.torch_ops  # noqa: E402, F401
from gemmgen import Config, ops  # noqa: E402
from gemmgen.compat import deep_gemm  # noqa: E402
from gemmgen.errors import ArgumentError, UnsupportedProblem  # noqa: E402
from gemmgen.ops import logits as ops_logits  # noqa: E402


def drawn(queries, heads, keys, depth):
    """Random operands, and windows of which one is empty, one of a single key, one of all."""
    q = torch.randn(queries, heads, depth).to(torch.float8_e4m3fn)
    kv = torch.randn(keys, depth).to(torch.float8_e4m3fn)
    first = torch.randint(0, keys // 2, (queries,), dtype=torch.int32)
    end = torch.randint(keys // 2, keys + 1, (queries,), dtype=torch.int32)
    first[0], end[0] = 5, 5
    first[1], end[1] = keys - 1, keys
    first[2], end[2] = 0, keys
    return q, kv, torch.rand(keys) + 0.5, torch.randn(queries, heads), first, end


def reference(q, kv, scale, weights, first, end):
    """In float64, and the sum of the sizes of what is added, whose share an FP32 sum may be off."""
    products = torch.einsum("ihd,jd->ihj", q.double(), kv.double()).relu()
    terms = products * weights.double()[..., None]
    columns = torch.arange(kv.shape[0])
    outside = (columns < first[:, None]) | (columns >= end[:, None])
    want = (terms.sum(1) * scale.double()).masked_fill(outside, -torch.inf)
    size = torch.einsum("ihd,jd->ihj", q.double().abs(), kv.double().abs())
    return want, (size * weights.double().abs()[..., None]).sum(1) * scale.double()


# Of the sizes of what is added. A step cuts its terms by up to 2^-13 of the largest, a fifth of sizes where D is 16: 17 terms and 8 heads
# of either sign lose sqrt(17 / 3 / 8) / 5 of 2^-13, which is 2^-15.6, and more terms or heads a lesser part. No score is off by 3 times that.
FP8_SUMS = 2.0**-14


def close(got, want, size):
    """FP8 products are cut in the tensor core; a score is rounded once."""
    infinite = torch.isneginf(want)
    assert torch.equal(torch.isneginf(got), infinite)
    off = (got.double() - want).abs().masked_fill(infinite, 0)
    assert (off <= UNIT[got.dtype] * want.abs() + FP8_SUMS * size).all()


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize(("heads", "depth"), [(64, 128), (32, 64), (32, 32), (8, 16), (128, 128)])
def test_scores(heads, depth, dtype, monkeypatch):
    given = drawn(5, heads, 301, depth)
    memory = Memory(*given)
    emulated(monkeypatch, memory)
    with memory:
        got = ops.fp8_mqa_logits(*given, out_dtype=dtype)
        out = torch.empty(5, 304, dtype=got.dtype)[:, :301]
        again = ops.fp8_mqa_logits(*given, out, out_dtype=dtype)
    assert got.shape == (5, 301) and torch.equal(got, again)
    close(got, *reference(*given))


def test_padded_operands_and_an_output_of_ones_own(monkeypatch):
    q, kv, scale, weights, first, end = drawn(4, 32, 130, 64)
    wide = torch.zeros(4, 32, 80).to(torch.float8_e4m3fn)
    wide[..., :64] = q
    keys = torch.zeros(130, 96).to(torch.float8_e4m3fn)
    keys[:, :64] = kv
    out = torch.full((4, 140), 7.0)
    given = (wide[..., :64], keys[:, :64], scale, weights, first, end)
    memory = Memory(wide, keys, scale, weights, first, end, out)
    emulated(monkeypatch, memory)
    with memory:
        config = Config(
            swap_ab=True, block_m=64, block_n=64, consumers=1, stages=3, block_k_bytes=64
        )
        got = ops.fp8_mqa_logits(*given, out[:, :130], config=config)
    assert got.data_ptr() == out.data_ptr() and (out[:, 130:] == 7).all()
    close(got, *reference(q, kv, scale, weights, first, end))


def test_by_deep_gemms_names(monkeypatch):
    q, kv, scale, weights, first, end = drawn(3, 64, 200, 128)
    strided = torch.zeros(3, 70)
    strided[:, :64] = weights
    memory = Memory(q, kv, scale, weights, first, end, strided)
    emulated(monkeypatch, memory)
    with memory:
        want = ops.fp8_mqa_logits(q, kv, scale, weights, first, end)
        half = ops.fp8_mqa_logits(q, kv, scale, weights, first, end, out_dtype="bf16")
        got = deep_gemm.fp8_mqa_logits(q, (kv, scale), strided[:, :64], first, end)
        bare = deep_gemm.fp8_mqa_logits(q, (kv, scale), weights, first, end, clean_logits=False)
        new = deep_gemm.fp8_fp4_mqa_logits(
            (q, None), (kv, scale), weights, first, end, logits_dtype=torch.bfloat16
        )
    assert torch.equal(got, want) and torch.equal(bare, want) and torch.equal(new, half)
    assert got.stride(0) * 4 % 1024 == 0 and new.stride(0) * 2 % 1024 == 0


def test_as_an_operator(monkeypatch):
    given, passed = drawn(3, 32, 150, 64), []
    made = torch.empty(3, 152, dtype=torch.bfloat16)[:, :150]

    def called(*of, **said):
        passed.append((of, said))
        return made

    monkeypatch.setattr(ops_logits, "fp8_mqa_logits", called)
    config = Config(swap_ab=True, block_m=64, stages=3)
    said = {"out_dtype": "bf16", "config": json.dumps(config.to_json())}
    got = torch.ops.gemmgen.fp8_mqa_logits(*given, **said)
    ((of, told),) = passed
    assert all(x.data_ptr() == y.data_ptr() for x, y in zip(of, given, strict=True))
    assert (
        told == {"out_dtype": "bf16", "columns": None, "config": config}
        and got.data_ptr() == made.data_ptr()
    )
    with torch._subclasses.FakeTensorMode() as mode:
        faked = torch.ops.gemmgen.fp8_mqa_logits(*map(mode.from_tensor, given), **said)
    facts = (made.shape, made.dtype, made.stride())
    assert (faked.shape, faked.dtype, faked.stride()) == facts


@pytest.mark.parametrize(
    ("at", "wrong", "argument"),
    [
        (0, torch.zeros(3, 24, 64).to(torch.float8_e4m3fn), "q heads"),
        (0, torch.zeros(3, 32, 64), "q dtype"),
        (1, torch.zeros(150, 32).to(torch.float8_e4m3fn), "kv side 1"),
        (2, torch.zeros(149), "kv_scale side 0"),
        (3, torch.zeros(3, 31), "weights side 1"),
        (4, torch.zeros(3), "window_first dtype"),
        (5, torch.zeros(2, dtype=torch.int32), "window_end side 0"),
    ],
)
def test_fakes_refuse(at, wrong, argument):
    given = list(drawn(3, 32, 150, 64))
    given[at] = wrong
    with torch._subclasses.FakeTensorMode() as mode, pytest.raises(ArgumentError, match=argument):
        torch.ops.gemmgen.fp8_mqa_logits(*map(mode.from_tensor, given))


def from_windows(whole, first, end, columns, left):
    """Of scores of all keys those of each row's window, as many as there are columns for; the others are what was `left`."""
    keys = first[:, None].long() + torch.arange(columns)
    there = (keys < end[:, None]) & (keys < whole.shape[1])
    moved = whole.gather(1, keys.clamp(max=whole.shape[1] - 1))
    return torch.where(there, moved, torch.as_tensor(left, dtype=whole.dtype))


@pytest.mark.parametrize("columns", [1, 77, 301])
def test_rows_that_begin_with_their_windows(columns, monkeypatch):
    """Bit for bit the scores of whole rows; nothing else is written, in a row or behind it."""
    given = drawn(5, 32, 301, 64)
    wide = torch.full((5, 320), 7.0)
    memory = Memory(*given, wide)
    emulated(monkeypatch, memory)
    with memory:
        whole = ops.fp8_mqa_logits(*given)
        got = ops.fp8_mqa_logits(*given, wide[:, :columns], columns=columns)
        made = ops.fp8_mqa_logits(*given, columns=columns)
    assert got.data_ptr() == wide.data_ptr() and (wide[:, columns:] == 7).all()
    assert torch.equal(got, from_windows(whole, *given[-2:], columns, 7.0))
    assert made.shape == (5, columns)


def test_windows_by_deep_gemms_names(monkeypatch):
    """As DeepGEMM 2.6.1 is asked for them, and as 2.8.1 is, whose sixth argument is max_seqlen_k."""
    q, kv, scale, weights, first, end = given = drawn(4, 32, 200, 128)
    most = int((end - first).max())
    memory = Memory(*given)
    emulated(monkeypatch, memory)
    with memory:
        whole = ops.fp8_mqa_logits(*given)
        half = ops.fp8_mqa_logits(*given, out_dtype="bf16")
        old = deep_gemm.fp8_mqa_logits(
            q, (kv, scale), weights, first, end, clean_logits=False, max_seqlen_k=most
        )
        new = deep_gemm.fp8_fp4_mqa_logits(
            (q, None), (kv, scale), weights, first, end, most, schedule_meta=None
        )
        bf16 = deep_gemm.fp8_fp4_mqa_logits(
            (q, None), (kv, scale), weights, first, end, False, most, torch.bfloat16
        )
    for got, of in ((old, whole), (new, whole), (bf16, half)):
        there = torch.arange(most) < (end - first)[:, None]
        assert got.shape == (4, most) and got.stride(0) * got.element_size() % 1024 == 0
        assert torch.equal(got[there], from_windows(of, first, end, most, 0)[there])


@pytest.mark.parametrize("columns", [1, 60, 150])
def test_windows_on_the_cpu(columns):
    """And as an operator that is traced."""
    given = drawn(4, 32, 150, 64)
    with computing_on_cpu():
        whole = torch.ops.gemmgen.fp8_mqa_logits(*given)
        got = torch.ops.gemmgen.fp8_mqa_logits(*given, columns=columns)
        assert torch.equal(got, from_windows(whole, *given[-2:], columns, 0.0))
    with torch._subclasses.FakeTensorMode() as mode:
        of = map(mode.from_tensor, given)
        faked = torch.ops.gemmgen.fp8_mqa_logits(*of, columns=columns)
    facts = (got.shape, got.dtype, got.stride())
    assert (faked.shape, faked.dtype, faked.stride()) == facts


@pytest.mark.parametrize(
    ("argument", "wrong"),
    [
        ("max_seqlen_k", (False, -1)),
        ("max_seqlen_k", (False, 2.0)),
        ("clean_logits", (True, 5)),
        ("clean_logits", (5, 5)),
        ("clean_logits", ("no",)),
        ("max_seqlen_k", (-5,)),
    ],
)
def test_what_is_neither_form_is_refused(argument, wrong):
    q, kv, scale, weights, first, end = drawn(3, 32, 150, 64)
    with pytest.raises(ArgumentError, match=f"^{argument}="):
        deep_gemm.fp8_mqa_logits(q, (kv, scale), weights, first, end, *wrong)


@pytest.mark.parametrize("columns", [0, True, 2.0, 2**31])
def test_columns_that_no_output_has(columns):
    with pytest.raises(ArgumentError, match=r"^columns="):
        ops.fp8_mqa_logits(*drawn(3, 32, 150, 64), columns=columns)


def test_scales_of_queries_are_refused():
    q, kv, scale, weights, first, end = drawn(3, 32, 150, 64)
    with pytest.raises(UnsupportedProblem, match="scales of q"):
        deep_gemm.fp8_fp4_mqa_logits((q, scale), (kv, scale), weights, first, end)
