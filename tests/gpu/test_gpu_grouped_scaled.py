"""On a Hopper GPU: grouped FP8 and INT8 functions on torch tensors, each group against float64."""

from __future__ import annotations

import pytest

from gemmgen.epilogues import EPILOGUES
from gemmgen.errors import ArgumentError

pytestmark = pytest.mark.gpu

GROUPS, M, N, K = 3, 256, 264, 400
SCALES = ("none", "float", "tensor", "vector")


def integers(*shape):
    import torch

    return torch.randint(-2, 3, shape, device="cuda").float()


def operands(kind, own):
    """a (of each group, if they have their `own`) and b, which multiply exactly."""
    import torch

    dtypes = {"fp8": (torch.float8_e4m3fn, torch.float8_e5m2), "int8": (torch.int8, torch.int8)}
    a, b = integers(*(GROUPS,) * own, M, K), integers(GROUPS, N, K)
    return a.to(dtypes[kind][0]), b.to(dtypes[kind][1])


def powers(*shape):
    import torch

    return torch.exp2(torch.randint(-2, 3, shape, device="cuda").float())


def scales(form, own):
    """scale_a and scale_b, and by what they multiply [M] (or [G, M]) and [G, N]."""
    import torch

    rows, columns = powers(*(GROUPS,) * own, M), powers(GROUPS, N)
    ones = torch.ones_like(rows), torch.ones_like(columns)
    if form == "vector":
        return (rows, columns), (rows, columns)
    numbers = {"none": (None, None), "float": (0.5, 4.0)}.get(form)
    if form == "tensor":
        numbers = (torch.tensor(0.5, device="cuda"), torch.tensor([4.0], device="cuda"))
    factors = (1.0, 1.0) if form == "none" else (0.5, 4.0)
    return numbers, tuple(x * f for x, f in zip(ones, factors, strict=True))


def product(a, b, by_row, by_column, g, rows):
    """Rows `rows` of group g in float64."""
    own = a.dim() == 3
    x = (a[g] if own else a)[rows].double() @ b[g].double().T
    return x * (by_row[g] if own else by_row)[rows].double()[:, None] * by_column[g].double()


def function(kind, name):
    from gemmgen import ops

    return getattr(ops, f"{kind}_{name}")


VARIANTS = [("fp8", {"accurate": True}), ("fp8", {"accurate": False}), ("int8", {})]


@pytest.mark.parametrize("form", SCALES)
@pytest.mark.parametrize(("kind", "options"), VARIANTS)
def test_batched(kind, options, form):
    a, b = operands(kind, own=True)
    given, by = scales(form, own=True)
    named = {"scale_a": given[0], "scale_b": given[1], "out_dtype": "f32", **options}
    out = function(kind, "batched_gemm")(a, b, **named)
    for g in range(GROUPS):
        assert (out[g] == product(a, b, *by, g, slice(None))).all()


@pytest.mark.parametrize("form", SCALES)
@pytest.mark.parametrize(("kind", "options"), VARIANTS)
def test_masked_in_a_cuda_graph(kind, options, form):
    """Replayed with other counts, which the host never reads."""
    import torch

    a, b = operands(kind, own=True)
    given, by = scales(form, own=True)
    out = torch.full((GROUPS, M, N), 7.0, device="cuda")
    rows = torch.zeros(GROUPS, device="cuda", dtype=torch.int32)
    named = {"scale_a": given[0], "scale_b": given[1], "out_dtype": "f32", **options}

    def launch():
        return function(kind, "masked_gemm")(a, b, rows, out, expected_rows=100, **named)

    assert launch() is out
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        launch()
    for counts in ((0, M, 1), (130, 0, M - 1)):
        out.fill_(7.0)
        rows.copy_(torch.tensor(counts))
        graph.replay()
        torch.cuda.synchronize()
        for g, count in enumerate(counts):
            assert (out[g, :count] == product(a, b, *by, g, slice(count))).all()
            assert (out[g, count:] == 7.0).all()


@pytest.mark.parametrize("table", ("row_groups", "group_ends"))
@pytest.mark.parametrize("form", SCALES)
@pytest.mark.parametrize(("kind", "options"), VARIANTS)
def test_grouped(kind, options, form, table):
    import torch

    a, b = operands(kind, own=False)
    given, by = scales(form, own=False)
    groups = torch.full((M,), -1, device="cuda", dtype=torch.int32)
    groups[:100], groups[128:200] = 0, 2
    ends = torch.tensor([100, 128, 200], device="cuda", dtype=torch.int32)
    out = torch.full((M, N), 7.0, device="cuda")
    named = {"scale_a": given[0], "scale_b": given[1], "out_dtype": "f32", **options}
    named |= {table: {"row_groups": groups, "group_ends": ends}[table]}
    function(kind, "grouped_gemm")(a, b, out, **named)
    for g, rows in ((0, slice(0, 100)), (2, slice(128, 200))):
        assert (out[rows] == product(a, b, *by, g, rows)).all()
    rest = 0.0 if table == "row_groups" else 7.0
    assert (out[100:128] == rest).all() and (out[200:] == rest).all()


@pytest.mark.parametrize("name", ("batched_gemm", "masked_gemm", "grouped_gemm"))
def test_int32(name):
    """Exact where FP32 is not, K in a tail."""
    import torch

    own = name != "grouped_gemm"
    a, b = (
        torch.randint(-128, 128, shape, device="cuda").to(torch.int8)
        for shape in ((*(GROUPS,) * own, M, K), (GROUPS, N, K))
    )
    tables = {
        "masked_gemm": {"group_rows": torch.full((GROUPS,), M, device="cuda", dtype=torch.int32)},
        "grouped_gemm": {"row_groups": torch.ones(M, device="cuda", dtype=torch.int32)},
    }.get(name, {})
    out = function("int8", name)(a, b, **tables)
    want = a.double() @ b.double().mT if own else a.double() @ b[1].double().T
    assert out.dtype == torch.int32 and (out == want).all()


@pytest.mark.parametrize(("kind", "accurate"), (("fp8", True), ("fp8", False), ("int8", True)))
def test_an_epilogue_and_quantised_outputs(kind, accurate):
    """Pairs of columns of the scaled product, in FP8 with scales beside it."""
    import torch

    a, b = operands(kind, own=True)
    a, b = a[..., :256].contiguous(), b[:, :256, :256].contiguous()
    rows = powers(GROUPS, M)
    counts = torch.tensor([M, 0, 77], device="cuda", dtype=torch.int32)
    options = {"out_dtype": "e4m3", "epilogue": EPILOGUES["reglu"], "scale_a": rows}
    options |= {"accurate": accurate} if kind == "fp8" else {}
    out, scale_out = function(kind, "masked_gemm")(a, b, counts, **options)
    for g, count in enumerate(counts.tolist()):
        x = (a[g].double() @ b[g].double().T) * rows[g].double()[:, None]
        y = (x[:, 0::2].clamp(0) * x[:, 1::2]).float()[:count]
        amax = y.abs().amax(1, keepdim=True).clamp(1e-4)
        largest = torch.full_like(amax, 448.0)
        assert (scale_out[g, :count] == amax / largest).all()
        want = (y * (largest / amax)).to(torch.float8_e4m3fn)
        assert (out[g, :count].view(torch.uint8) == want.view(torch.uint8)).all()


def test_permuted_views():
    """Groups that alternate row by row, read and written in place."""
    import torch

    from gemmgen import ops

    a, b = operands("int8", own=True)
    view = a.transpose(0, 1).contiguous().transpose(0, 1)
    out = torch.empty(M, GROUPS, N, device="cuda").transpose(0, 1)
    rows = powers(GROUPS, M)
    assert ops.int8_batched_gemm(view, b, out, scale_a=rows, out_dtype="f32") is out
    assert (out == (a.double() @ b.double().mT) * rows.double()[..., None]).all()


@pytest.mark.parametrize("kind", ("fp8", "int8"))
@pytest.mark.parametrize(
    ("argument", "change"),
    [
        ("a dtype", lambda t: {"a": t["a"].float()}),
        ("a last stride", lambda t: {"a": t["a"].mT.contiguous().mT}),
        ("a row stride", lambda t: {"a": padded(t["a"], 8)[..., :-8]}),
        ("b shape", lambda t: {"b": t["b"][..., :64]}),
        ("b groups", lambda t: {"b": t["b"][:2]}),
        ("scale_a shape", lambda t: {"scale_a": t["scale_a"][0]}),
        ("scale_a dtype", lambda t: {"scale_a": t["scale_a"].half()}),
        ("scale_b strides", lambda t: {"scale_b": t["scale_b"].mT.contiguous().mT}),
        ("scale_b shape", lambda t: {"scale_b": t["scale_b"][:, 0]}),
        ("scale_b device", lambda t: {"scale_b": t["scale_b"].cpu()}),
        ("group_rows dtype", lambda t: {"group_rows": t["group_rows"].long()}),
        ("group_rows device", lambda t: {"group_rows": t["group_rows"].cpu()}),
        ("expected_rows", lambda t: {"expected_rows": 0}),
        ("out", lambda t: overlapping(t["a"])),
        ("out shape", lambda t: {"out": integers(M, N)}),
        ("beta", lambda t: {"beta": 2.0}),
    ],
)
def test_wrong_arguments(kind, argument, change):
    import torch

    a, b = operands(kind, own=True)
    right = {"a": a, "b": b, "scale_a": powers(GROUPS, M), "scale_b": powers(GROUPS, N)}
    right |= {"group_rows": torch.zeros(GROUPS, device="cuda", dtype=torch.int32)}
    with pytest.raises(ArgumentError) as e:
        function(kind, "masked_gemm")(**{**right, "out_dtype": "f32"} | change(right))
    assert e.value.argument == argument


def padded(t, columns):
    """`t` with more columns."""
    wide = t.new_empty(*t.shape[:-1], t.shape[-1] + columns)
    wide[..., : t.shape[-1]] = t
    return wide


def overlapping(t):
    """a, and out over it."""
    import torch

    storage = torch.empty(GROUPS * M * N * 4, dtype=torch.uint8, device="cuda")
    out = storage.view(torch.float32).view(GROUPS, M, N)
    return {"a": storage[: t.nbytes].view(t.dtype).view(t.shape), "out": out}
