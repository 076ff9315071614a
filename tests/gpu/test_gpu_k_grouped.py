"""On a Hopper GPU: groups that split K, each against its own GEMM."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from kernels import DENSE_F32, DENSE_TN, VECTOR
from on_gpu import judged

from gemmgen.config import Config
from gemmgen.epilogues import EPILOGUES
from gemmgen.errors import ArgumentError
from gemmgen.heuristics import choose
from gemmgen.ir.dtypes import BF16, F16, F32
from gemmgen.ir.groupings import Layout
from gemmgen.problem import depth_step
from gemmgen.target import H200

pytestmark = pytest.mark.gpu

FLAT = replace(VECTOR, grouping="k_flat")
COLUMNS = replace(VECTOR, grouping="k_columns")
TURNED = replace(DENSE_TN, d=F32, grouping="k_columns")
STRAIGHT = replace(DENSE_F32, grouping="k_columns")

SIDES = (1, 8, 24, 63, 64, 100, 128, 129, 200, 256, 264, 384, 520, 1000)


def random_cases(count, step, seed):
    """(M, N, K), K of each group: 1 to 9 groups, empty ones among them, sometimes K left over."""
    random = Random(seed)
    fixed = [(0, 2, 1), (1, 0, 2), (2, 1, 0), (0, 0, 0), (3,), (1,), (0, 0, 5, 0, 0, 1)]
    for i in range(count):
        groups = fixed[i] if i < len(fixed) else [random.choice((0, 1, 2, 3, 5, 9)) for _ in SIDES]
        table = groups if i < len(fixed) else groups[: random.randint(1, 9)]
        sizes = tuple(128 * g // step * step for g in table)
        if step == 1:
            sizes = tuple(max(0, s - random.choice((0, 1, 37, 64, 100))) for s in sizes)
        k = max(sum(sizes), 128) + random.choice((0, 0, 128))
        yield (random.choice(SIDES), random.choice(SIDES), k), sizes


FP8_SHAPES = list(random_cases(112, 128, 5))
BF16_SHAPES = list(random_cases(112, 1, 6))


def of(sizes):
    return Layout(groups=len(sizes), table=tuple(sizes))


def chosen(p, shape, sizes):
    m, n, k = shape
    return choose(p, (m, n, max(1, k // len(sizes))), H200, len(sizes))


@pytest.mark.parametrize("chunk", range(8))
@pytest.mark.parametrize("problem", (FLAT, COLUMNS), ids=("flat", "columns"))
def test_fp8(problem, chunk):
    for i, (shape, sizes) in enumerate(FP8_SHAPES[chunk::8]):
        added = replace(problem, epilogue=EPILOGUES["residual_f32"])
        p = (problem, added, replace(problem, accumulate=True))[i % 3]
        judged(p, chosen(p, shape, sizes), shape, of(sizes), pad=i % 3, seed=i)


@pytest.mark.parametrize("chunk", range(8))
@pytest.mark.parametrize("problem", (TURNED, STRAIGHT), ids=("tn", "nt"))
def test_bf16(problem, chunk):
    step = depth_step(problem)
    for i, (shape, sizes) in enumerate(BF16_SHAPES[chunk::8]):
        sizes = tuple(s // step * step for s in sizes)
        p = (problem, replace(problem, d=BF16), replace(problem, accumulate=True))[i % 3]
        judged(p, chosen(p, shape, sizes), shape, of(sizes), pad=i % 3, seed=i)


@pytest.mark.parametrize("multicast", ("none", "a", "b"))
@pytest.mark.parametrize("block_m", (64, 128, 256))
def test_tiles(block_m, multicast):
    """Odd numbers of tiles per group under clusters among them."""
    config = Config(
        block_m=block_m,
        block_n=64,
        consumers=min(2, block_m // 64),
        stages=3,
        multicast=multicast,
    )
    for i, (shape, sizes) in enumerate(FP8_SHAPES[:10]):
        judged(FLAT, config, shape, of(sizes), seed=i)
    for i, (shape, sizes) in enumerate(BF16_SHAPES[:10]):
        judged(TURNED, replace(config, in_flight=1), shape, of(sizes), seed=i)


# DeepGEMM #415 and #429: hang or corruption where a group has an odd number of tiles.
@pytest.mark.parametrize("multicast", ("none", "a", "b"))
def test_published_fp8(multicast):
    for block_n in (64, 128):
        config = Config(block_n=block_n, stages=3, multicast=multicast)
        for repeat in range(5):
            judged(FLAT, config, (192, 3072, 384), of((128, 256)), seed=repeat)


@pytest.mark.parametrize("multicast", ("none", "a", "b"))
def test_published_bf16(multicast):
    config = Config(stages=4, multicast=multicast, in_flight=1)
    for repeat in range(5):
        judged(TURNED, config, (1408, 1408, 640), of((384, 256)), seed=repeat)


def test_repeats_are_equal():
    """DeepGEMM #365: a map rewritten under a load shows as results that differ from call to call."""
    import torch

    from gemmgen import ops

    a, b, depths, scales = fp8_operands((512, 0, 128, 1024, 384, 128), 1000, 1048)
    call = {"packing": "flat", "scale_layout": "mn"}
    first = ops.fp8_k_grouped_gemm(a, scales[0], b, scales[1], depths, **call)
    for _ in range(500):
        again = ops.fp8_k_grouped_gemm(a, scales[0], b, scales[1], depths, **call)
        assert torch.equal(first, again)


def test_many_groups():
    """DeepGEMM #238: 128 groups, N = 768, most of them empty; and more groups than SMs."""
    for groups in (128, 300):
        sizes = tuple(128 * (g % 11 == 3) for g in range(groups))
        shape = (256, 768, sum(sizes))
        judged(FLAT, chosen(FLAT, shape, sizes), shape, of(sizes))


def test_more_than_2_to_31_elements():
    """DeepGEMM #226: the second group begins past 2^31 elements of A."""
    import torch

    from gemmgen import ops

    m, n, first = 4096, 64, 1 << 19
    depths = torch.tensor([first, 128], device="cuda", dtype=torch.int32)
    a = torch.zeros(m * (first + 128), device="cuda", dtype=torch.uint8)
    tail = torch.randint(-2, 3, (m, 128), device="cuda").to(torch.float8_e4m3fn)
    a[m * first :] = tail.view(torch.uint8).reshape(-1)
    b = torch.randint(-2, 3, (n * (first + 128),), device="cuda").to(torch.float8_e4m3fn)
    blocks = first // 128 + 1
    scales = [torch.ones(blocks, x, device="cuda").mT for x in (m, n)]
    out = ops.fp8_k_grouped_gemm(
        a.view(torch.float8_e4m3fn),
        scales[0],
        b,
        scales[1],
        depths,
        packing="flat",
        scale_layout="mn",
    )
    want = tail.double() @ b[n * first :].view(n, 128).double().mT
    assert (out[0] == 0).all() and (out[1] == want).all()


def integers(*shape):
    import torch

    return torch.randint(-2, 3, shape, device="cuda").float()


def fp8_operands(table, m, n):
    """Flat a and b, depths, and scales along M and N, all of which multiply exactly."""
    import torch

    k = sum(table)
    depths = torch.tensor(table, device="cuda", dtype=torch.int32)
    a, b = (integers(x * k).to(torch.float8_e4m3fn) for x in (m, n))
    scales = [
        torch.exp2(torch.randint(-2, 3, (k // 128, -(-x // 4) * 4), device="cuda").float())[
            :, :x
        ].mT
        for x in (m, n)
    ]
    return a, b, depths, scales


def unpacked(x, scale, table, g):
    """Group g's matrix in float64, of flat `x`."""
    rows, at = scale.shape[0], sum(table[:g])
    part = x[rows * at : rows * (at + table[g])].view(rows, table[g]).double()
    return part * scale[:, at // 128 : (at + table[g]) // 128].repeat_interleave(128, 1)


class TestOps:
    table = (128, 0, 384, 256)

    @pytest.mark.parametrize("added", ("no", "other", "in place"))
    @pytest.mark.parametrize("scale_layout", ("mn", "row"))
    @pytest.mark.parametrize("packing", ("flat", "columns"))
    def test_fp8(self, packing, scale_layout, added):
        import torch

        from gemmgen import ops

        m, n = 200, 264
        a, b, depths, scales = fp8_operands(self.table, m, n)
        sides = ((a, scales[0]), (b, scales[1]))
        parts = [[unpacked(x, s, self.table, g) for x, s in sides] for g in range(len(self.table))]
        want = torch.stack([x @ y.mT for x, y in parts])
        if packing == "columns":
            a, b = (
                torch.cat(
                    [
                        x[s.shape[0] * at : s.shape[0] * (at + k)].view(s.shape[0], k)
                        for at, k in ((sum(self.table[:g]), k) for g, k in enumerate(self.table))
                    ],
                    1,
                )
                for x, s in sides
            )
        given = [s if scale_layout == "mn" else s.contiguous() for s in scales]
        c = integers(len(self.table), m, n) if added != "no" else None
        want = want if c is None else want + c.double()
        out = c if added == "in place" else None
        got = ops.fp8_k_grouped_gemm(
            a, given[0], b, given[1], depths, out, packing=packing, scale_layout=scale_layout, c=c
        )
        assert (got == want).all()

    @pytest.mark.parametrize("layout", ("tn", "nt", "nn", "tt"))
    @pytest.mark.parametrize("dtype", ("bf16", "f16"))
    def test_dense_in_a_cuda_graph(self, dtype, layout):
        """Replayed with other depths, which the host never reads."""
        import torch

        from gemmgen import ops
        from gemmgen.runtime.torch_tensors import torch_dtype

        m, n, k = 136, 264, 512
        kind = torch_dtype({"bf16": BF16, "f16": F16}[dtype])
        a, b = integers(m, k).to(kind), integers(k, n).to(kind)
        given_a = a.mT.contiguous() if layout[0] == "t" else a
        given_b = b if layout[1] == "n" else b.mT.contiguous()
        depths = torch.zeros(3, device="cuda", dtype=torch.int32)
        c, out = integers(3, m, n), torch.empty(3, m, n, device="cuda")
        ops.k_grouped_gemm(given_a, given_b, depths, out, c=c, layout=layout)
        torch.cuda.synchronize()
        assert (out == c).all()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            ops.k_grouped_gemm(given_a, given_b, depths, out, c=c, layout=layout)
        step = 1 if layout == "tn" else 8
        for counts in ((100, 0, 412), (1, 300, 33), (0, 0, 512)):
            counts = tuple(x // step * step for x in counts)
            depths.copy_(torch.tensor(counts))
            graph.replay()
            torch.cuda.synchronize()
            for g, count in enumerate(counts):
                ks = slice(sum(counts[:g]), sum(counts[:g]) + count)
                assert (out[g] == a[:, ks].double() @ b[ks].double() + c[g].double()).all()

    @pytest.mark.parametrize("out_dtype", ("bf16", "f16"))
    def test_16_bit_outputs(self, out_dtype):
        import torch

        from gemmgen import ops

        a, b = (integers(256, x).to(torch.bfloat16) for x in (72, 136))
        depths = torch.tensor([130, 0, 126], device="cuda", dtype=torch.int32)
        out = ops.k_grouped_gemm(a, b, depths, out_dtype=out_dtype)
        want = a[:130].double().mT @ b[:130].double()
        assert (out[0] == want.to(out.dtype)).all() and (out[1] == 0).all()

    def test_no_k_at_all(self):
        import torch

        from gemmgen import ops

        depths = torch.zeros(2, device="cuda", dtype=torch.int32)
        a, b = (torch.empty(0, x, device="cuda", dtype=torch.bfloat16) for x in (24, 40))
        assert (ops.k_grouped_gemm(a, b, depths) == torch.zeros(2, 24, 40, device="cuda")).all()
        c = integers(2, 24, 40)
        assert (ops.k_grouped_gemm(a, b, depths, c=c) == c).all()

    @pytest.mark.parametrize(
        ("argument", "change"),
        [
            ("packing", lambda t: t | {"packing": "rows"}),
            ("scale_layout", lambda t: t | {"scale_layout": "k"}),
            ("out_dtype", lambda t: t | {"out_dtype": "f64"}),
            ("a shape", lambda t: t | {"a": t["a"][:-128]}),
            ("a dtype", lambda t: t | {"a": t["a"].float()}),
            ("b shape", lambda t: t | {"b": t["b"][:-128]}),
            ("scale_a shape", lambda t: t | {"scale_a": t["scale_a"][0]}),
            ("scale_b stride along N", lambda t: t | {"scale_b": t["scale_b"].contiguous()}),
            ("group_depths dtype", lambda t: t | {"group_depths": t["group_depths"].long()}),
            ("group_depths device", lambda t: t | {"group_depths": t["group_depths"].cpu()}),
            ("group_depths shape", lambda t: t | {"group_depths": t["group_depths"][None]}),
            ("out shape", lambda t: t | {"out": integers(3, 200, 264)}),
            ("c shape", lambda t: t | {"c": integers(200, 264)}),
            ("c dtype", lambda t: t | {"c": integers(4, 200, 264).half()}),
            ("b shape", lambda t: t | {"packing": "columns"} | as_columns(t, 128)),
            ("a columns", lambda t: t | {"packing": "columns"} | as_columns(t, 0)),
        ],
    )
    def test_wrong_arguments(self, argument, change):
        from gemmgen import ops

        a, b, depths, scales = fp8_operands(self.table, 200, 264)
        right = {"a": a, "scale_a": scales[0], "b": b, "scale_b": scales[1], "group_depths": depths}
        right |= {"packing": "flat", "scale_layout": "mn"}
        with pytest.raises(ArgumentError) as e:
            ops.fp8_k_grouped_gemm(**change(right))
        assert e.value.argument == argument


def as_columns(t, fewer):
    """a and b as matrices, K of b by `fewer` or of both by 16 less than the scales say."""
    a, b = t["a"].view(200, -1), t["b"].view(264, -1)
    if fewer:
        return {"a": a, "b": b[:, :-fewer]}
    return {"a": a[:, :-16], "b": b[:, :-16]}
