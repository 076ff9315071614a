"""On a Hopper GPU: the compatible functions on torch tensors, each against float64, bit for bit.

Operands are small integers and scales powers of two, so that every FP32 sum is exact.
"""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.gpu

DEVICE = "cuda"
GROUPS, M, N, K = 3, 320, 264, 400
TOTAL = 640  # K of all groups where they split it


def deep_gemm():
    from gemmgen.compat import deep_gemm

    return deep_gemm


def integers(*shape):
    import torch

    return torch.randint(-2, 3, shape, device=DEVICE).float()


def powers(*shape):
    import torch

    return torch.exp2(torch.randint(-2, 3, shape, device=DEVICE).float())


def by_row(*shape):
    """FP8 codes with a scale per row and 128 columns."""
    import torch

    scales = powers(*shape[:-1], -(-shape[-1] // 128))
    return integers(*shape).to(torch.float8_e4m3fn), scales


def by_block(*shape):
    """FP8 codes with a scale per 128 rows and columns."""
    import torch

    scales = powers(*shape[:-2], *(-(-side // 128) for side in shape[-2:]))
    return integers(*shape).to(torch.float8_e4m3fn), scales


def value(pair):
    """What a pair stands for, in float64."""
    x, scales = pair
    wide = scales.double().repeat_interleave(128, -1)[..., : x.shape[-1]]
    if scales.shape[-2] != x.shape[-2]:
        wide = wide.repeat_interleave(128, -2)[..., : x.shape[-2], :]
    return x.double() * wide


def rounded(want, dtype):
    """Exact sums, stored once."""
    return want.float().to(dtype)


def dtype_of(name):
    import torch

    return getattr(torch, name)


def output(*shape, dtype):
    import torch

    return torch.full(shape, 7.0, device=DEVICE, dtype=dtype_of(dtype))


def table(values):
    import torch

    return torch.tensor(values, device=DEVICE, dtype=torch.int32)


def along_rows(scales):
    return scales.mT.contiguous().mT


# ---- DeepGEMM: one GEMM -------------------------------------------------------------------


@pytest.mark.parametrize("scales", ("row", "column"))
@pytest.mark.parametrize("added", ("nothing", "c", "d"))
@pytest.mark.parametrize("dtype", ("bfloat16", "float32"))
@pytest.mark.parametrize("recipe", ((1, 128, 128), (1, 1, 128)))
def test_fp8(recipe, dtype, added, scales):
    a, b = by_row(M, K), (by_block if recipe[1] == 128 else by_row)(N, K)
    a = a if scales == "row" else (a[0], along_rows(a[1]))
    d, other = output(M, N, dtype=dtype), integers(M, N).to(dtype_of(dtype))
    c = {"nothing": None, "c": other, "d": d}[added]
    want = value(a) @ value(b).T + (0 if c is None else c.double())
    assert deep_gemm().fp8_gemm_nt(a, b, d, c, recipe=recipe) is None
    assert (d == rounded(want, d.dtype)).all()


@pytest.mark.parametrize("recipe", ((1, 128, 128), (1, 1, 128)))
def test_fp8_padded_rows(recipe):
    a, b = by_row(M, K), (by_block if recipe[1] == 128 else by_row)(N, K)
    want = value(a) @ value(b).T
    a, b = ((padded(x), scales) for x, scales in (a, b))
    d = output(M, N, dtype="float32")
    deep_gemm().fp8_gemm_nt(a, b, d, recipe=recipe)
    assert (d == rounded(want, d.dtype)).all()


def padded(x):
    """`x` in wider rows, NaN beside it."""
    import torch

    wide = torch.full((x.shape[0], x.shape[1] + 112), 0x7F, device=DEVICE, dtype=torch.uint8)
    wide[:, : x.shape[1]] = x.view(torch.uint8)
    return wide.view(x.dtype)[:, : x.shape[1]]


@pytest.mark.parametrize("layout", ("nn", "tn", "tt"))
def test_fp8_views(layout):
    a, b = by_row(M, K), by_block(N, K)
    d = output(M, N, dtype="bfloat16")
    given_a = a if layout[0] == "n" else tuple(t.mT for t in a)
    given_b = b if layout[1] == "t" else tuple(t.mT for t in b)
    getattr(deep_gemm(), f"fp8_gemm_{layout}")(given_a, given_b, d)
    assert (d == rounded(value(a) @ value(b).T, d.dtype)).all()


@pytest.mark.parametrize("added", ("nothing", "c", "d"))
@pytest.mark.parametrize("dtype", ("bfloat16", "float32"))
@pytest.mark.parametrize("lying", ("nt", "nn", "tn", "tt"))
@pytest.mark.parametrize("function", ("nt", "nn", "tn", "tt"))
def test_bf16(function, lying, dtype, added):
    a, b = integers(M, K).bfloat16(), integers(N, K).bfloat16()
    want = a.double() @ b.double().T
    a = a if lying[0] == "n" else along_rows(a)
    b = b if lying[1] == "t" else along_rows(b)
    d, other = output(M, N, dtype=dtype), integers(M, N).to(dtype_of(dtype))
    c = {"nothing": None, "c": other, "d": d}[added]
    want = want if c is None else want + c.double()
    a = a if function[0] == "n" else a.mT
    b = b if function[1] == "t" else b.mT
    getattr(deep_gemm(), f"bf16_gemm_{function}")(a, b, d, c)
    assert (d == rounded(want, d.dtype)).all()


@pytest.mark.parametrize("name", ("fp8_gemm_nt", "bf16_gemm_nt"))
def test_nothing_to_sum(name):
    import torch

    def empty(rows):
        if name == "bf16_gemm_nt":
            return integers(rows, 0).bfloat16()
        return integers(rows, 0).to(torch.float8_e4m3fn), powers(rows, 0)

    d, c = output(M, N, dtype="bfloat16"), integers(M, N).bfloat16()
    function = getattr(deep_gemm(), name)
    function(empty(M), empty(N), d, c)
    assert (d == c).all()
    function(empty(M), empty(N), d)
    assert (d == 0).all()


# ---- DeepGEMM: groups ---------------------------------------------------------------------


def experts(kind, own):
    """a (of each group, if they have their `own`), b, and their values."""
    lead = (GROUPS,) * own
    if kind == "fp8":
        a, b = by_row(*lead, M, K), by_block(GROUPS, N, K)
        return a, b, value(a), value(b)
    a, b = integers(*lead, M, K).bfloat16(), integers(GROUPS, N, K).bfloat16()
    return a, b, a.double(), b.double()


@pytest.mark.parametrize("psum", (False, True))
@pytest.mark.parametrize("alignment", (128, 64))
@pytest.mark.parametrize("kind", ("fp8", "bf16"))
def test_contiguous_groups(kind, alignment, psum):
    a, b, x, y = experts(kind, own=False)
    parts = {0: (0, 100), 2: (128, 300)}  # group 1 has no rows
    rows, ends = [-1] * M, [100, 128, 300]
    for g, (first, end) in parts.items():
        rows[first:end] = [g] * (end - first)
    d = output(M, N, dtype="bfloat16")
    function = getattr(deep_gemm(), f"m_grouped_{kind}_gemm_nt_contiguous")
    deep_gemm().set_mk_alignment_for_contiguous_layout(alignment)
    try:
        function(a, b, d, table(ends if psum else rows), use_psum_layout=psum)
    finally:
        deep_gemm().set_mk_alignment_for_contiguous_layout(128)
    rest = d.new_full(d.shape, 7.0 if psum else 0.0)
    for g, (first, end) in parts.items():
        rest[first:end] = rounded(x[first:end] @ y[g].T, d.dtype)
    assert (d == rest).all()


@pytest.mark.parametrize("name", ("fp8", "bf16", "bf16 along n"))
def test_contiguous_groups_of_turned_b(name):
    kind = name.split()[0]
    a, b, x, y = experts(kind, own=False)
    if kind == "fp8":
        given = tuple(t.mT for t in b)
    else:
        given = b.mT.contiguous() if name == "bf16 along n" else b.mT
    d = output(M, N, dtype="bfloat16")
    function = getattr(deep_gemm(), f"m_grouped_{kind}_gemm_nn_contiguous")
    function(a, given, d, table([1] * M))
    assert (d == rounded(x @ y[1].T, d.dtype)).all()


@pytest.mark.parametrize("kind", ("fp8", "bf16"))
def test_masked_groups_in_a_cuda_graph(kind):
    """Replayed with other counts, which the host never reads."""
    import torch

    a, b, x, y = experts(kind, own=True)
    if kind == "fp8":
        a = a[0], deep_gemm().get_mn_major_tma_aligned_tensor(a[1])
    d, counts = output(GROUPS, M, N, dtype="bfloat16"), table([0] * GROUPS)
    function = getattr(deep_gemm(), f"m_grouped_{kind}_gemm_nt_masked")
    function(a, b, d, counts, 100)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        function(a, b, d, counts, 100)
    for rows in ((0, M, 1), (130, 0, M - 1)):
        d.fill_(7.0)
        counts.copy_(torch.tensor(rows))
        graph.replay()
        torch.cuda.synchronize()
        for g, count in enumerate(rows):
            assert (d[g, :count] == rounded(x[g, :count] @ y[g].T, d.dtype)).all()
            assert (d[g, count:] == 7.0).all()


KS = (128, 0, 384, 128)


@pytest.mark.parametrize("added", ("nothing", "c", "d"))
@pytest.mark.parametrize("kind", ("fp8", "bf16"))
def test_groups_that_split_k(kind, added):
    import torch

    d, other = output(len(KS), M, N, dtype="float32"), integers(len(KS), M, N)
    c = {"nothing": None, "c": other, "d": d}[added]
    before = torch.zeros_like(d) if c is None else c.clone()
    if kind == "fp8":
        a, b = by_row(M, TOTAL), by_row(N, TOTAL)
        x, y = value(a), value(b)
        a, b = flat(a), flat(b)
        function = deep_gemm().k_grouped_fp8_gemm_nt_contiguous
    else:
        a, b = integers(TOTAL, M).bfloat16(), integers(TOTAL, N).bfloat16()
        x, y = a.double().T, b.double().T
        function = deep_gemm().k_grouped_bf16_gemm_tn_contiguous
    function(a, b, d, [*KS], table(KS), c)
    first = 0
    for g, k in enumerate(KS):
        ks = slice(first, first := first + k)
        assert (d[g] == rounded(before[g].double() + x[:, ks] @ y[:, ks].T, d.dtype)).all()


def flat(pair):
    """Each group's columns as a dense matrix of its own, one after the other."""
    import torch

    x, scales = pair
    parts, first = [], 0
    for k in KS:
        parts.append(x.view(torch.uint8)[:, first : first + k].reshape(-1))
        first += k
    return torch.cat(parts).view(torch.float8_e4m3fn), scales


# ---- DeepGEMM: the rest -------------------------------------------------------------------


@pytest.mark.parametrize("added", (False, True))
@pytest.mark.parametrize("expr", ("bhr,hdr->bhd", "bhd,hdr->bhr"))
def test_einsum(expr, added):
    import torch

    b, h, r, d = 130, 4, 128, 72
    inner, outer = (r, d) if expr == "bhr,hdr->bhd" else (d, r)
    x, y = integers(b, h, inner).bfloat16(), integers(h, d, r).bfloat16()
    z, c = output(b, h, outer, dtype="bfloat16"), integers(b, h, outer).bfloat16()
    deep_gemm().einsum(expr, x, y, z, c if added else None)
    want = torch.einsum(expr, x.double(), y.double()) + (c.double() if added else 0)
    assert (z == rounded(want, z.dtype)).all()


@pytest.mark.parametrize("dtype", ("bfloat16", "float32"))
@pytest.mark.parametrize("added", ("nothing", "c", "d"))
@pytest.mark.parametrize("batch", (1, 129, 900))
def test_einsum_over_the_batch(batch, added, dtype):
    """Few tiles: all SMs divide the sum."""
    import torch

    m, n, k = 100, 136, 72
    a, b = integers(batch, m, k).bfloat16(), integers(batch, n, k).bfloat16()
    d, other = output(m, n, dtype=dtype), integers(m, n).to(dtype_of(dtype))
    c = {"nothing": None, "c": other, "d": d}[added]
    want = torch.einsum("bmk,bnk->mn", a.double(), b.double()) + (0 if c is None else c.double())
    assert deep_gemm().einsum("bmk,bnk->mn", a, b, d, c) is None
    assert (d == rounded(want, d.dtype)).all()


@pytest.mark.parametrize("rows", (32, 128))
def test_einsum_of_few_rows_has_the_bits_of_one_pass_over_k(rows):
    """As near to torch's, which does not divide K either, as DeepGEMM's own tests want it."""
    import torch

    h, r, d = 8, 4096, 1024
    x = torch.randn(rows, h, r, device=DEVICE, dtype=torch.bfloat16)
    y = torch.randn(h, d, r, device=DEVICE, dtype=torch.bfloat16)
    z = output(rows, h, d, dtype="bfloat16")
    deep_gemm().einsum("bhr,hdr->bhd", x, y, z)
    assert deep_gemm().testing.calc_diff(z, torch.einsum("bhr,hdr->bhd", x, y)) < 1e-10


def test_fp8_einsum():
    import torch

    b, h, r, d = 130, 4, 256, 144
    x, y = by_row(b, h, r), by_block(h, d, r)
    z = output(b, h, d, dtype="bfloat16")
    deep_gemm().fp8_einsum("bhr,hdr->bhd", x, y, z)
    assert (z == rounded(torch.einsum("bhr,hdr->bhd", value(x), value(y)), z.dtype)).all()


def test_fewer_sms_give_the_same():
    """The same tensors again, so that whatever is kept of a launch knows the limit."""
    a, b = by_row(2048, K), by_block(2048, K)
    want = rounded(value(a) @ value(b).T, dtype_of("bfloat16"))
    there = deep_gemm().get_num_sms()
    d = output(2048, 2048, dtype="bfloat16")
    try:
        for sms in (64, 9, 8, 0):
            deep_gemm().set_num_sms(sms)
            assert deep_gemm().get_num_sms() == (sms or there)
            d.fill_(7.0)
            deep_gemm().fp8_gemm_nt(a, b, d)
            assert (d == want).all()
    finally:
        deep_gemm().set_num_sms(0)


def test_a_launch_takes_no_more_sms(monkeypatch):
    """CTAs of one SM each, counted where they are launched, also where a plan is used again."""
    from gemmgen.ops import front
    from gemmgen.runtime import driver

    front.KEPT.clear()  # plans keep the driver's own function
    grids, start = [], driver.driver().cuLaunchKernelEx

    def counted(config, *rest):
        grids.append(config.gridDimX)
        return start(config, *rest)

    monkeypatch.setattr(driver.driver(), "cuLaunchKernelEx", counted)
    a, b = integers(4096, K).bfloat16(), integers(4096, K).bfloat16()
    d = output(4096, 4096, dtype="bfloat16")
    try:
        for sms in (0, 32, 32, 0):
            deep_gemm().set_num_sms(sms)
            deep_gemm().bf16_gemm_nt(a, b, d)
    finally:
        deep_gemm().set_num_sms(0)
    assert grids[1] == grids[2] <= 32 < grids[0] == grids[3]


# ---- beside DeepGEMM ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    (
        "fp8_gemm_nt",
        "m_grouped_fp8_gemm_nt_contiguous",
        "m_grouped_fp8_gemm_nt_masked",
        "bf16_gemm_nt",
    ),
)
def test_deep_gemm_itself_gives_the_same_bits(name):
    """One call, both libraries, where DeepGEMM is installed."""
    theirs = pytest.importorskip("deep_gemm")
    m, n, k = 256, 256, 512
    a, b, more = by_row(m, k), by_block(n, k), ()
    d = output(m, n, dtype="bfloat16")
    if name == "bf16_gemm_nt":
        a, b = integers(m, k).bfloat16(), integers(n, k).bfloat16()
    if name.endswith("contiguous"):
        b, more = by_block(2, n, k), (table([0] * 128 + [1] * 128),)
    if name.endswith("masked"):
        a, b, more = by_row(2, m, k), by_block(2, n, k), (table([m, m]), m)
        d = output(2, m, n, dtype="bfloat16")
    results = []
    for library in (theirs, deep_gemm()):
        out = d.clone()
        assert getattr(library, name)(a, b, out, *more) is None
        results.append(out)
    assert (results[0] == results[1]).all()


# ---- FlagGems -----------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ("bfloat16", "float16", "float32"))
@pytest.mark.parametrize("rows", (1, 48, 130))
def test_batched(dtype, rows):
    from gemmgen.compat import flag_gems

    x, y = by_row(GROUPS, rows, 384), by_block(GROUPS, 256, 384)
    z = flag_gems.w8a8_block_fp8_bmm(x[0], y[0], x[1], y[1], [128, 128], None, dtype_of(dtype))
    assert z.dtype == dtype_of(dtype)
    assert (z == rounded(value(x) @ value(y).mT, z.dtype)).all()


def test_batched_permuted_views():
    from gemmgen.compat import flag_gems

    x, y = by_row(48, GROUPS, 384), by_block(GROUPS, 256, 384)
    z = output(48, GROUPS, 256, dtype="bfloat16")
    here, scales, there = (t.transpose(0, 1) for t in (*x, z))
    assert flag_gems.w8a8_block_fp8_bmm(here, y[0], scales, y[1], z=there) is there
    want = rounded(value((here, scales)) @ value(y).mT, z.dtype)
    assert (there == want).all()
    other = flag_gems.fp8_einsum("bhr,hdr->bhd", x[0], x[1], y[0], y[1])
    assert other.is_contiguous() and (other == z).all()
