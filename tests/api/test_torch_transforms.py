"""What torch asks of operators besides their results: `vmap`, `autocast`, the count of operations."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from emulated_ops import computed_on_cpu, real_torch  # noqa: E402, F401
from four_bits import packed  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode, flop_registry  # noqa: E402
from torch_reference import BY_NAME, GEMMS, arguments_of, by_name, overload  # noqa: E402

from gemmgen import formats, torch_ops  # noqa: E402
from gemmgen.errors import ArgumentError  # noqa: E402
from gemmgen.ir.dtypes import BF16  # noqa: E402
from gemmgen.ir.groupings import GROUPINGS  # noqa: E402
from gemmgen.ops import quantise_blocks, quantise_rows  # noqa: E402

REGISTERED = torch.ops.gemmgen
B, M, N, K = 3, 8, 16, 32
PACKED_FOR = {
    "int4_128_bf16": torch.bfloat16,
    "int4_32_bf16": torch.bfloat16,
    "int4_32_f16_zeros": torch.float16,
    "e2m1_32_e8m0": torch.bfloat16,
}
OCTETS = {
    "int8_column_f32": torch.bfloat16,
    "int8_column_f32_f16": torch.float16,
    "e4m3_column_f32": torch.bfloat16,
    "e4m3_column_f32_f16": torch.float16,
}


class Seen(TorchDispatchMode):
    """The GEMMs that are computed, by name."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function.namespace == "gemmgen":
            self.names.append(function._overloadpacket.__name__)
        return function(*args, **(kwargs or {}))


def halves(*shape):
    return torch.randn(*shape).bfloat16()


FP8 = torch.float8_e4m3fn


def blocks(name, *shape, of=None):
    to = of or (PACKED_FOR | OCTETS)[name]
    return packed(formats.named(name.removesuffix("_f16")), to, *shape).blocks


def seen(run, *args):
    with Seen() as mode:
        return run(*args), mode.names


# ---- vmap ---------------------------------------------------------------------------------


@pytest.mark.parametrize("at", (0, 1, 2))
@pytest.mark.parametrize("epilogue", ("none", "bias"))
def test_a_batch_of_rows_is_one_gemm(at, epilogue):
    a, b = halves(B, M, K).movedim(0, at), halves(N, K)
    more = {"epilogue": "bias", "bias": torch.randn(N)} if epilogue == "bias" else {}
    found, names = seen(torch.vmap(lambda x: REGISTERED.gemm(x, b, **more), in_dims=at), a)
    assert names == ["gemm"]
    wanted = torch.stack(
        [REGISTERED.gemm(a.select(at, i).contiguous(), b, **more) for i in range(B)]
    )
    assert torch.equal(found, wanted)


BOTH = {
    "gemm": (lambda: (halves(B, M, K), halves(B, N, K)), {}),
    "int8_gemm": (lambda: (torch.randint(-9, 9, (B, M, K)).char(), torch.randint(-9, 9, (B, N, K)).char()), {"out_dtype": "s32"}),
    "fp8_gemm": (lambda: (halves(B, M, K).to(torch.float8_e4m3fn), halves(B, N, K).to(torch.float8_e4m3fn)), {}),
    "w4a16_gemm": (lambda: (halves(B, M, K), blocks("int4_32_bf16", B, N, K)), {"weights": "int4_32_bf16", "columns": N}),
    "w8a16_gemm": (lambda: (halves(B, M, K), blocks("e4m3_column_f32", B, N, K)), {"weights": "e4m3_column_f32", "columns": N}),
    "w4a8_gemm": (lambda: (halves(B, M, K).to(FP8), blocks("e2m1_32_e8m0", B, N, K, of=FP8)), {"weights": "e2m1_32_e8m0", "columns": N}),
}  # fmt: skip


@pytest.mark.parametrize("name", BOTH)
@pytest.mark.parametrize("dims", ((0, 0), (0, None), (None, 0)))
def test_batches_of_both_are_a_batched_gemm(name, dims):
    make, more = BOTH[name]
    operands = [x if d == 0 else x[0] for x, d in zip(make(), dims, strict=True)]
    one = getattr(REGISTERED, name)
    found, names = seen(torch.vmap(lambda x, y: one(x, y, **more), in_dims=dims), *operands)
    alone = name in ("gemm", "w4a16_gemm", "w8a16_gemm") and dims == (0, None)
    assert names == [name if alone else name.replace("gemm", "batched_gemm")]
    of = [[x[i] if d == 0 else x for x, d in zip(operands, dims, strict=True)] for i in range(B)]
    assert torch.equal(found, torch.stack([one(*x, **more) for x in of]))


@pytest.mark.parametrize("dims", ((0, 0, 0, 0), (0, 0, None, None), (None, None, 0, 0)))
def test_batches_with_scales_of_blocks(dims):
    (a, sa), (b, sb) = (
        quantise_rows(torch.randn(B, M, 256)),
        quantise_blocks(torch.randn(B, N, 256)),
    )
    operands = [x if d == 0 else x[0] for x, d in zip((a, sa, b, sb), dims, strict=True)]

    def one(*x):
        return REGISTERED.fp8_block_gemm(*x, scale_a_layout="row")

    found, names = seen(torch.vmap(one, in_dims=dims), *operands)
    assert names == ["fp8_block_batched_gemm"]
    of = [[x[i] if d == 0 else x for x, d in zip(operands, dims, strict=True)] for i in range(B)]
    assert torch.equal(found, torch.stack([one(*x) for x in of]))


@pytest.mark.parametrize("scale", ("numbers", "rows", "shared"))
def test_batches_with_scales_of_sums(scale):
    a, b = (halves(B, n, K).to(torch.float8_e4m3fn) for n in (M, N))
    sides = {"numbers": (B,), "rows": (B, M), "shared": (M,)}[scale]
    scales = torch.rand(sides)
    at = None if scale == "shared" else 0

    def one(x, y, s):
        return REGISTERED.fp8_gemm(x, y, scale_a=s, out_dtype="f32")

    found, names = seen(torch.vmap(one, in_dims=(0, 0, at)), a, b, scales)
    assert names == (["fp8_gemm"] * B if scale == "numbers" else ["fp8_batched_gemm"])
    wanted = [one(a[i], b[i], scales if at is None else scales[i]) for i in range(B)]
    assert torch.equal(found, torch.stack(wanted))


def test_what_no_launch_does_at_once_is_done_one_by_one():
    a, b, c = halves(B, M, K), halves(N, K), halves(B, M, N)
    run = torch.vmap(lambda x, y: REGISTERED.gemm(x, b, epilogue="residual", c=y))
    found, names = seen(run, a, c)
    assert names == ["gemm"] * B
    wanted = [REGISTERED.gemm(a[i], b, epilogue="residual", c=c[i]) for i in range(B)]
    assert torch.equal(found, torch.stack(wanted))


def test_results_in_fp8():
    a, b = halves(B, M, K), halves(B, 128, K)
    found, names = seen(torch.vmap(REGISTERED.gemm.quantised), a, b)
    assert names == ["batched_gemm"]
    q, scale = found
    for i in range(B):
        one, of = REGISTERED.gemm.quantised(a[i], b[i])
        assert torch.equal(q[i].view(torch.uint8), one.view(torch.uint8)) and torch.equal(
            scale[i], of
        )


def test_batches_of_batches():
    a, b = halves(2, B, M, K), halves(2, N, K)
    found = torch.vmap(lambda x, y: torch.vmap(lambda z: REGISTERED.gemm(z, y))(x))(a, b)
    wanted = torch.stack([torch.stack([REGISTERED.gemm(a[i, j], b[i]) for j in range(B)]) for i in range(2)])  # fmt: skip
    assert torch.equal(found, wanted)


# ---- autocast -----------------------------------------------------------------------------

HALF = [op for op in GEMMS if op.scaling == "none" and "s32" not in op.outputs and not op.coded]
CODED = [op for op in GEMMS if op.coded and BF16 in op.operands]


@pytest.mark.parametrize("op", HALF, ids=by_name)
@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float16))
def test_operands_are_cast(op, dtype):
    (a, b, *rest), given = arguments_of(op)
    wanted = overload(op, "")(a.to(dtype), b.to(dtype), *rest, **given)
    with torch.autocast("cpu", dtype=dtype):
        found = overload(op, "")(a.float(), b.float(), *rest, **given)
        assert torch.equal(overload(op, "")(a.to(dtype), b.float(), *rest, **given), wanted)
        with torch.autocast("cpu", enabled=False), pytest.raises(ArgumentError, match="a dtype"):
            overload(op, "")(a.float(), b.float(), *rest, **given)
    assert torch.equal(found, wanted)


@pytest.mark.parametrize(
    ("op", "name"),
    [(op, x) for op in CODED for x in (OCTETS if "w8" in op.name else PACKED_FOR)],
    ids=lambda x: getattr(x, "name", x),
)
@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float16))
def test_operands_of_packed_weights_are_cast_to_what_these_are_packed_for(op, name, dtype):
    (a, b, *rest), given = arguments_of(op)
    b, given["weights"], to = (
        blocks(name, *b.shape[:-3], 48, 256),
        name,
        (PACKED_FOR | OCTETS)[name],
    )
    a = torch.randn(a.shape)
    bits, run = b.clone(), overload(op, "")
    wanted = run(a.to(to), b, *rest, **given)
    with torch.autocast("cpu", dtype=dtype):
        assert torch.equal(run(a, b, *rest, **given), wanted)
        other = a.half() if to == torch.bfloat16 else a.bfloat16()
        assert torch.equal(run(other, b, *rest, **given), run(other.to(to), b, *rest, **given))
        with torch.autocast("cpu", enabled=False), pytest.raises(ArgumentError, match="a dtype"):
            run(a, b, *rest, **given)
    assert wanted.dtype == to and torch.equal(b, bits)


@pytest.mark.parametrize("name", ("int4", "int4_column_bf16", "int4_64_f32"))
def test_names_of_no_packed_weights_cast_nothing(name):
    given = {"weights": name, "columns": N}
    b = blocks("int4_32_bf16", N, K)
    with torch.autocast("cpu", dtype=torch.float16):
        with pytest.raises(ArgumentError, match="a dtype=torch"):
            REGISTERED.w4a16_gemm(torch.randn(M, K), b, **given)
        with pytest.raises(ArgumentError, match="weights="):
            REGISTERED.w4a16_gemm(halves(M, K), b, **given)


def test_numbers_that_are_no_operands_stay():
    a, b, bias = torch.randn(M, K), torch.randn(N, K), torch.rand(N) * 1e-3 + 1
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = REGISTERED.gemm(a, b, epilogue="bias", bias=bias, out_dtype="f32")
        q, scale = quantise_rows(torch.randn(M, 128))
        assert scale.dtype == torch.float32 and q.dtype == torch.float8_e4m3fn
    assert torch.equal(found, REGISTERED.gemm(a.bfloat16(), b.bfloat16(), epilogue="bias", bias=bias, out_dtype="f32"))  # fmt: skip


def test_wider_numbers_are_refused_as_elsewhere():
    with torch.autocast("cpu", dtype=torch.bfloat16), pytest.raises(ArgumentError, match="a dtype"):
        REGISTERED.gemm(torch.randn(M, K).double(), torch.randn(N, K).double())


@pytest.mark.parametrize("name", ("linear", "fp8_linear"))
def test_layers_are_cast_and_learn(name):
    layer = getattr(torch_ops, name)
    x, w = torch.randn(M, K, requires_grad=True), torch.randn(N, K, requires_grad=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = layer(x, w)
    y.sum().backward()
    assert y.dtype == torch.bfloat16 and x.grad.dtype == w.grad.dtype == torch.float32
    assert torch.equal(y, layer(x.detach().bfloat16(), w.detach().bfloat16()))


def test_compiled():
    """Inside a region and around one."""
    x, w = torch.randn(M, K), torch.randn(N, K)

    def run(x, w):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return REGISTERED.gemm(x, w) + torch_ops.linear(x, w)

    def rows(x):
        return torch.vmap(lambda y: REGISTERED.gemm(y, w.bfloat16()))(x.bfloat16())

    torch._dynamo.reset()
    compiled = torch.compile(run, backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(x, w), run(x, w))
    batch = torch.randn(B, M, K)
    assert torch.equal(torch.compile(rows, backend="aot_eager")(batch), rows(batch))


# ---- operations ---------------------------------------------------------------------------


def counted(run, *args, **given):
    with FlopCounterMode(display=False) as mode:
        run(*args, **given)
    return mode.get_total_flops()


@pytest.mark.parametrize("op", GEMMS, ids=by_name)
@pytest.mark.parametrize("name", ("", "out"))
def test_operations_of_every_gemm(op, name):
    args, given = arguments_of(op)
    if name == "out":
        given["out"] = overload(op, "")(*args, **given, out_dtype="f32")
    m = 384 if op.grouping == "ends" else 20
    groups = 3 if GROUPINGS[op.grouping].rows else 1
    assert counted(overload(op, name), *args, **given) == 2 * groups * m * 48 * 256


@pytest.mark.parametrize("layout", ("nt", "nn", "tn", "tt"))
def test_operations_follow_the_layout(layout):
    a, b = halves(M, K), halves(N, K)
    a, b = (
        a.mT.contiguous() if layout[0] == "t" else a,
        b.mT.contiguous() if layout[1] == "n" else b,
    )
    assert counted(REGISTERED.gemm, a, b, layout=layout) == 2 * M * N * K


@pytest.mark.parametrize(("columns", "n"), ((None, 64), (N, N)))
def test_operations_of_packed_weights(columns, n):
    a, b = halves(M, K), blocks("int4_32_bf16", N, K)
    said = {"weights": "int4_32_bf16", "columns": columns}
    assert counted(REGISTERED.w4a16_gemm, a, b, **said) == 2 * M * n * K


def test_operations_of_flat_groups():
    a, b = (torch.randn(x * 384).to(torch.float8_e4m3fn) for x in (M, N))
    depths = torch.tensor([128, 256]).int()
    args = (a, torch.rand(M, 3), b, torch.rand(N, 3), depths)
    run = REGISTERED.fp8_k_grouped_gemm
    assert counted(run, *args, packing="flat", scale_layout="row") == 2 * M * N * 384


def test_operations_of_layers_and_their_gradients():
    x, w = (halves(n, K).requires_grad_() for n in (M, N))
    assert counted(lambda: torch_ops.linear(x, w).sum().backward()) == 3 * 2 * M * N * K


def test_operations_of_experts():
    count = flop_registry[REGISTERED.moe]
    shapes = (torch.randn(10, 64, device="meta"), torch.randn(4, 96, 64, device="meta"), torch.randn(4, 64, 48, device="meta"))  # fmt: skip
    chosen = torch.randn(10, 2, device="meta")
    assert count(*shapes, chosen, chosen, out_val=shapes[0]) == 2 * 20 * (96 * 64 + 64 * 48)


def test_operations_of_an_indexers_scores():
    q, kv = torch.randn(10, 8, 32, device="meta"), torch.randn(70, 32, device="meta")
    out = torch.randn(10, 70, device="meta")
    found = flop_registry[REGISTERED.fp8_mqa_logits](q, kv, out, out, out, out, out_val=out)
    assert found == 2 * 10 * 8 * 32 * 70
    q = torch.randn(10, 2, 8, 32, device="meta")
    count = flop_registry[REGISTERED.fp8_paged_mqa_logits]
    assert count(q, *[kv] * 5, 70, out_val=out) == 2 * 20 * 8 * 32 * 70


@pytest.mark.parametrize(
    ("name", "rows"),
    (("gemm_reduce_scatter", M), ("gemm_all_reduce", M), ("all_gather_gemm", 2 * M)),
)
def test_operations_of_a_rank(name, rows):
    """Of its own part of K, or of its own columns."""
    a, b = torch.randn(M, K, device="meta"), torch.randn(N, K, device="meta")
    for out in (torch.randn(rows, N, device="meta"), (torch.randn(rows, N, device="meta"), a)):
        found = flop_registry[getattr(REGISTERED, name)](a, b, "group", out_val=out)
        assert found == 2 * rows * N * K


def test_every_gemm_has_a_formula():
    assert all(getattr(REGISTERED, name) in flop_registry for name in BY_NAME if "gemm" in name)
