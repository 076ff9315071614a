"""On a Hopper GPU: batched, masked and grouped launches, each against one GEMM per group."""

from __future__ import annotations

from dataclasses import replace

import pytest
from grouped import PROBLEMS, layout, problem, random_cases
from kernels import GROUPED, fitting
from on_gpu import judged

from gemmgen.config import Config
from gemmgen.epilogues import EPILOGUES
from gemmgen.errors import ArgumentError
from gemmgen.heuristics import choose
from gemmgen.ir.dtypes import BF16, E4M3
from gemmgen.problem_checks import row_step
from gemmgen.target import H200

pytestmark = pytest.mark.gpu

SHAPES = random_cases(112, 5)
CHUNKS = [SHAPES[i::8] for i in range(8)]


@pytest.mark.parametrize("chunk", range(len(CHUNKS)))
@pytest.mark.parametrize("grouping", GROUPED)
@pytest.mark.parametrize("name", ["fp8_block", "bf16"])
def test_chosen_config(name, grouping, chunk):
    p = problem(name, grouping)
    for i, (shape, sizes) in enumerate(CHUNKS[chunk]):
        mean = max(1, sum(sizes) // len(sizes)), *shape[1:]
        config = choose(p, mean, H200, len(sizes))
        judged(p, config, shape, layout(p, shape, sizes), pad=i % 3, seed=i)


@pytest.mark.parametrize("grouping", GROUPED)
@pytest.mark.parametrize("name", [n for n in PROBLEMS if n not in ("fp8_block", "bf16")])
def test_other_dtypes(name, grouping):
    p = problem(name, grouping)
    for i, (shape, sizes) in enumerate(SHAPES[:24]):
        config = choose(p, (max(1, sum(sizes) // len(sizes)), *shape[1:]), H200, len(sizes))
        judged(p, config, shape, layout(p, shape, sizes), pad=i % 2, seed=i)


@pytest.mark.parametrize("grouping", GROUPED)
@pytest.mark.parametrize("name", ["fp8_block", "bf16", "s8_scaled", "fp8_rowwise"])
@pytest.mark.parametrize("d", [E4M3, BF16], ids=str)
def test_outputs(name, grouping, d):
    """FP8 with scales beside it; and pairs of columns, every other time quantised."""
    for i, (shape, sizes) in enumerate(SHAPES[:24]):
        p = problem(name, grouping)
        paired = d == BF16 or i % 2
        p = replace(p, d=d, epilogue=EPILOGUES["reglu" if paired else "bias"])
        shape = fitting(p, shape)
        config = choose(p, (max(1, sum(sizes) // len(sizes)), *shape[1:]), H200, len(sizes))
        judged(p, config, shape, layout(p, shape, sizes), pad=i % 2, seed=20 + i)


@pytest.mark.parametrize("multicast", ["none", "a", "b"])
@pytest.mark.parametrize("block_m", [64, 128, 256])
@pytest.mark.parametrize("alignment", [64, 128])
@pytest.mark.parametrize("grouping", GROUPED)
def test_tiles(grouping, alignment, block_m, multicast):
    """Every legal tile, odd numbers of them per group under clusters among them."""
    p = problem("fp8_block", grouping, alignment)
    config = Config(block_m=block_m, consumers=min(2, block_m // 64), stages=2, multicast=multicast)
    for i, (shape, sizes) in enumerate(SHAPES[:10]):
        judged(p, config, shape, layout(p, shape, sizes), seed=i)


@pytest.mark.parametrize("name", PROBLEMS)
def test_few_rows_between_groups(name):
    """Groups end, and others begin, anywhere in a tile."""
    step = row_step(problem(name, "ends"))
    for i, (shape, sizes) in enumerate(SHAPES[:24]):
        p = problem(name, "ends", (step, 8)[i % 2])
        config = choose(p, (max(1, sum(sizes) // len(sizes)), *shape[1:]), H200, len(sizes))
        judged(p, config, shape, layout(p, shape, sizes), pad=i % 2, seed=i)


def test_many_groups():
    """More groups than SMs, few of them with rows."""
    for grouping in GROUPED:
        p = problem("bf16", grouping)
        sizes = tuple((i * 7) % 40 if i % 5 == 0 else 0 for i in range(300))
        rows = 40 if grouping in ("batched", "masked") else 128 * 61
        config = choose(p, (16, 768, 128), H200, len(sizes))
        shape = rows, 768, 128
        judged(p, config, shape, layout(p, shape, sizes))


class TestOps:
    def operands(self, m=256, n=264, k=400, groups=3, rows=False):
        import torch

        def integers(*shape):
            return torch.randint(-2, 3, shape, device="cuda").float()

        a = integers(*(groups,) * rows, m, k)
        return a.to(torch.bfloat16), integers(groups, n, k).to(torch.bfloat16)

    def test_batched(self):
        from gemmgen import ops

        a, b = self.operands(rows=True)
        assert (ops.batched_gemm(a, b, out_dtype="f32") == a.double() @ b.double().mT).all()

    def test_permuted_views(self):
        """Batches that alternate row by row, read and written in place."""
        import torch

        from gemmgen import ops

        a, b = self.operands(rows=True)
        view = a.transpose(0, 1).contiguous().transpose(0, 1)
        out = torch.empty(256, 3, 264, device="cuda", dtype=torch.float32).transpose(0, 1)
        assert ops.batched_gemm(view, b, out, out_dtype="f32") is out
        assert (out == a.double() @ b.double().mT).all()

    def test_masked_in_a_cuda_graph(self):
        """Replayed with other counts, which the host never reads."""
        import torch

        from gemmgen import ops

        a, b = self.operands(rows=True)
        out = torch.full((3, 256, 264), 7.0, device="cuda")
        rows = torch.tensor([0, 0, 0], device="cuda", dtype=torch.int32)
        ops.masked_gemm(a, b, rows, out, out_dtype="f32")
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            ops.masked_gemm(a, b, rows, out, out_dtype="f32")
        want = a.double() @ b.double().mT
        for counts in ((0, 256, 1), (130, 0, 255)):
            out.fill_(7.0)
            rows.copy_(torch.tensor(counts))
            graph.replay()
            torch.cuda.synchronize()
            for g, count in enumerate(counts):
                assert (out[g, :count] == want[g, :count]).all()
                assert (out[g, count:] == 7.0).all()

    @pytest.mark.parametrize("form", ["row_groups", "group_ends"])
    def test_grouped(self, form):
        import torch

        from gemmgen import ops

        a, b = self.operands(m=512)
        table = torch.full((512,), -1, device="cuda", dtype=torch.int32)
        table[:100], table[128:384] = 0, 2
        ends = torch.tensor([100, 128, 384], device="cuda", dtype=torch.int32)
        out = torch.full((512, 264), 7.0, device="cuda")
        given = {"row_groups": table, "group_ends": ends}[form]
        ops.grouped_gemm(a, b, out, out_dtype="f32", **{form: given})
        assert (out[:100] == a[:100].double() @ b[0].double().T).all()
        assert (out[128:384] == a[128:384].double() @ b[2].double().T).all()
        rest = 0.0 if form == "row_groups" else 7.0
        assert (out[100:128] == rest).all() and (out[384:] == rest).all()

    def test_rows_of_no_group_in_a_cuda_graph(self):
        """Replayed with other groups and other rows in none."""
        import torch

        from gemmgen import ops

        a, b = self.operands(m=384)
        table = torch.full((384,), -1, device="cuda", dtype=torch.int32)
        out = torch.full((384, 264), 7.0, device="cuda")
        ops.grouped_gemm(a, b, out, row_groups=table, out_dtype="f32")
        torch.cuda.synchronize()
        assert (out == 0).all()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            ops.grouped_gemm(a, b, out, row_groups=table, out_dtype="f32")
        for groups in ((0, -1, 2), (1, 1, -1)):
            table.copy_(torch.tensor(groups).repeat_interleave(128))
            table[127] = -1
            graph.replay()
            torch.cuda.synchronize()
            for i, g in enumerate(table.tolist()):
                want = a[i].double() @ b[g].double().T if g >= 0 else 0.0
                assert (out[i] == want).all()

    def fp8(self, x):
        import torch

        return x.to(torch.float8_e4m3fn)

    @pytest.mark.parametrize("scale_a_layout", ["row", "mn"])
    def test_fp8_block(self, scale_a_layout):
        import torch

        from gemmgen import ops
        from gemmgen.runtime.torch_tensors import mn_major

        a, b = self.operands(rows=True)

        def powers(*shape):
            return torch.exp2(torch.randint(-2, 3, shape, device="cuda").float())

        scale_a, scale_b = powers(3, 256, 4), powers(3, 3, 4)
        rows = scale_a.repeat_interleave(128, 2)[..., :400]
        columns = scale_b.repeat_interleave(128, 1).repeat_interleave(128, 2)[:, :264, :400]
        want = (a.double() * rows) @ (b.double() * columns).mT
        given = mn_major(scale_a) if scale_a_layout == "mn" else scale_a
        options = {"scale_a_layout": scale_a_layout, "out_dtype": "f32"}
        x, y = self.fp8(a), self.fp8(b)
        assert (ops.fp8_block_batched_gemm(x, given, y, scale_b, **options) == want).all()
        counts = torch.tensor([3, 0, 256], device="cuda", dtype=torch.int32)
        out = ops.fp8_block_masked_gemm(x, given, y, scale_b, counts, expected_rows=64, **options)
        assert (out[0, :3] == want[0, :3]).all() and (out[2] == want[2]).all()
        ends = torch.tensor([256, 256, 256], device="cuda", dtype=torch.int32)
        flat = ops.fp8_block_grouped_gemm(x[0], given[0], y, scale_b, group_ends=ends, **options)
        assert (flat == want[0]).all()

    @pytest.mark.parametrize(
        ("argument", "change"),
        [
            ("a shape", lambda t: t | {"a": t["a"][0]}),
            ("a last stride", lambda t: t | {"a": t["a"].mT.contiguous().mT}),
            ("b shape", lambda t: t | {"b": t["b"][..., :64]}),
            ("b groups", lambda t: t | {"b": t["b"][:2]}),
            ("b dtype", lambda t: t | {"b": t["b"].half()}),
            ("group_rows shape", lambda t: t | {"group_rows": t["group_rows"][:2]}),
            ("group_rows dtype", lambda t: t | {"group_rows": t["group_rows"].long()}),
            ("group_rows device", lambda t: t | {"group_rows": t["group_rows"].cpu()}),
            ("expected_rows", lambda t: t | {"expected_rows": 0}),
            ("out", lambda t: t | {"out": t["a"][..., :264]}),
            ("out shape", lambda t: t | {"out": t["a"]}),
            ("out_dtype", lambda t: t | {"out_dtype": "f64"}),
            ("a group stride", lambda t: t | {"a": odd_groups(t["a"])}),
            ("beta", lambda t: t | {"beta": 2.0}),
        ],
    )
    def test_wrong_arguments(self, argument, change):
        import torch

        from gemmgen import ops

        a, b = self.operands(rows=True)
        rows = torch.zeros(3, device="cuda", dtype=torch.int32)
        with pytest.raises(ArgumentError) as e:
            ops.masked_gemm(**change({"a": a, "b": b, "group_rows": rows}))
        assert e.value.argument == argument

    def test_one_table_of_two(self):
        from gemmgen import ops

        a, b = self.operands()
        with pytest.raises(ArgumentError, match="exactly one"):
            ops.grouped_gemm(a, b)


def odd_groups(t):
    """`t` with a group stride that is no multiple of 16 bytes."""
    import torch

    groups, m, k = t.shape
    flat = torch.zeros(groups * (m * k + 4), device="cuda", dtype=t.dtype)
    return flat.as_strided((groups, m, k), (m * k + 4, k, 1))


@pytest.mark.parametrize("grouping", ["batched", "masked", "ends", "rows"])
@pytest.mark.parametrize(
    "kernel",
    [["dense"], ["fp8_block"], ["fp8"], ["dense", "--ab", "e4m3"], ["dense", "--ab", "s8"]],
    ids=" ".join,
)
def test_bench(kernel, grouping, capsys):
    rows = benched([*kernel, "--grouping", grouping], "3x200x256x256", capsys)
    assert [r["groups"] for r in rows] == [3, 3]


@pytest.mark.parametrize(
    "kernel",
    [
        ["fp8_1d1d", "--grouping", "k_flat", "--d", "f32", "--accumulate"],
        ["fp8_1d1d", "--grouping", "k_columns", "--d", "bf16"],
        ["dense", "--grouping", "k_columns", "--layout", "tn", "--d", "f32", "--accumulate"],
        ["dense", "--grouping", "k_columns", "--d", "bf16"],
    ],
    ids=" ".join,
)
def test_bench_of_groups_of_k(kernel, capsys):
    rows = benched(kernel, "3x200x256x1000", capsys)
    assert [(r["groups"], r["k"]) for r in rows] == [(3, 1000)] * 2


def benched(kernel, shape, capsys):
    """The rows of one shape, verified and timed."""
    import json

    from gemmgen.cli import main

    assert main(["bench", *kernel, "--shapes", shape, "--repeats", "3", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert all(r["tflops"] > 0 for r in rows) and rows[0]["kernels"] != rows[1]["kernels"]
    return rows
