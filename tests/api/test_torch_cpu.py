"""`compute_on_cpu`: the operators by torch on the CPU, against float64, against kernels that the emulator runs, and against fakes."""

from __future__ import annotations

from functools import partial
from itertools import product

import pytest

torch = pytest.importorskip("torch")

from emulated_ops import Memory, computed_on_cpu, emulated, real_torch  # noqa: E402, F401
from mixtures import distance  # noqa: E402
from roundings import UNIT, of_length  # noqa: E402
from torch_reference import (  # noqa: E402
    BY_NAME,
    GEMMS,
    arguments_of,
    by_name,
    described,
    every,
    faked,
    overload,
    reference,
)

from gemmgen import formats, ops, quant, torch_ops  # noqa: E402
from gemmgen.errors import ArgumentError  # noqa: E402
from gemmgen.ir.dtypes import DTYPES  # noqa: E402
from gemmgen.ir.packed import named_for  # noqa: E402
from gemmgen.runtime.torch_tensors import torch_dtype  # noqa: E402
from gemmgen.torch_ops import compute_on_cpu, computes_on_cpu  # noqa: E402
from gemmgen.torch_ops.logits import fake as faked_scores  # noqa: E402

# A sum is rounded to FP32, and again by each of two scales and by what is added, which has size 1 and is 4 at most.
FP32 = 4 * UNIT[torch.float32]
# Where FP32 decides how a number is rounded to fewer bits, which is of one in thousands, results are a step apart.
SELDOM = 2.0**-8
# Between float64 and a tensor core: of sums of size 16 in FP32, at most 64, 16 steps are each off by some 2^-23 of that. Of FP8 eight
# steps each cut 33 terms by up to 2^-13 of the largest, a sixteenth of all sizes: 2^-13.8 of these in the mean, never 3.5 times that.
SUMS, FP8_SUMS = 2.0**-13, 2.0**-12
# Of layers of experts: what is gated, an expert's result and the sum; gate, up and what is gated of rows in FP8.
LAYERS = {"bf16": of_length(torch.bfloat16, 3), "fp8": of_length(torch.float8_e4m3fn, 3)}


def near(found, wanted, added=1.0):
    """Integers are the same, FP32 within its roundings of the result and of what is added, others within a step, and seldom that."""
    assert found.dtype == wanted.dtype and found.shape == wanted.shape
    size = wanted.double().abs()
    far = (found.double() - wanted.double()).abs()
    if found.dtype == torch.int32:
        assert torch.equal(found, wanted)
    elif found.dtype == torch.float32:
        assert (far <= FP32 * (size + added)).all(), far.max()
    else:
        assert (far <= 2 * UNIT[found.dtype] * size).all(), far.max()
        assert (found != wanted).double().mean() <= SELDOM


def same_codes(found, wanted):
    """FP8 with its scales: of codes few are the next ones, which below 2^-6 are 2^-9 apart."""
    (q, scale), (codes, scales) = found, wanted
    near(scale, scales, added=0.0)
    size = codes.double().abs()
    far = (q.double() - codes.double()).abs()
    assert (far <= (2 * UNIT[q.dtype] * size).clamp(min=2.0**-9)).all()
    assert (q.view(torch.uint8) != codes.view(torch.uint8)).double().mean() <= SELDOM


CASES = [(op, x) for op in GEMMS for x in op.outputs]


@pytest.mark.parametrize(("op", "dtype"), CASES, ids=lambda x: x if isinstance(x, str) else x.name)
def test_every_gemm_and_dtype(op, dtype):
    args, given = arguments_of(op)
    given["out_dtype"] = dtype
    near(overload(op, "")(*args, **given), reference(op, "")(*args, **given))


@pytest.mark.parametrize("op", every("quantised"), ids=by_name)
def test_every_epilogue(op):
    for epilogue in op.epilogues:
        args, given = arguments_of(op, epilogue)
        found = overload(op, "")(*args, **given, out_dtype="f32")
        wanted = reference(op, "")(*args, **given, out_dtype="f32").double()
        far = (found.double() - wanted).abs()
        # Each operation of some ten rounds to FP32, and what nearly cancels is as wrong as what it is made of.
        assert (far <= 2.0**-20 * wanted.abs() + 2.0**-21 * wanted.abs().max()).all(), epilogue


@pytest.mark.parametrize("op", every("quantised"), ids=by_name)
def test_outputs_with_scales(op):
    args, given = arguments_of(op)
    same_codes(
        overload(op, "quantised")(*args, **given), reference(op, "quantised")(*args, **given)
    )


@pytest.mark.parametrize("op", every("out"), ids=by_name)
@pytest.mark.parametrize("dtype", ("f32", "bf16"))
def test_rows_that_are_written_and_no_others(op, dtype):
    args, given = arguments_of(op)
    outs = [overload(op, "")(*args, **given, out_dtype=dtype).fill_(7) for _ in range(2)]
    overload(op, "out")(*args, **given, out=outs[0])
    reference(op, "out")(*args, **given, out=outs[1])
    near(*outs)
    untouched = (outs[1] == 7).all(-1)
    assert torch.equal(untouched, (outs[0] == 7).all(-1))
    assert untouched.any() == (op.grouping in ("masked",))


@pytest.mark.parametrize("op", every("quantised"), ids=by_name)
def test_codes_and_scales_that_are_written(op):
    args, given = arguments_of(op)
    found, wanted = (
        tuple(x.clone() for x in overload(op, "quantised")(*args, **given)) for _ in range(2)
    )
    for x in (*found, *wanted):
        x.view(torch.uint8).fill_(1) if x.itemsize == 1 else x.fill_(1)
    overload(op, "out")(*args, **given, out=found[0], scale_out=found[1])
    reference(op, "out")(*args, **given, out=wanted[0], scale_out=wanted[1])
    same_codes(found, wanted)


@pytest.mark.parametrize("op", GEMMS, ids=by_name)
def test_results_lie_as_fakes_say(op):
    args, given = arguments_of(op)
    for name in op.overloads:
        if name != "out":
            run = overload(op, name)
            assert described(run(*args, **given)) == described(faked(run, args, given))


@pytest.mark.parametrize("layout", ("nt", "nn", "tn", "tt"))
@pytest.mark.parametrize("name", ("gemm", "batched_gemm"))
def test_layouts(name, layout):
    op, lead = BY_NAME[name], (3,) * (name != "gemm")
    a, b = torch.randn(*lead, 24, 40).half(), torch.randn(*lead, 16, 40).half()
    stored = [
        x.mT.contiguous() if t else x
        for x, t in zip((a, b), (layout[0] == "t", layout[1] == "n"), strict=True)
    ]
    found = overload(op, "")(*stored, layout=layout)
    near(found, (a.double() @ b.double().mT).half())


ENDS = [op for op in GEMMS if op.grouping == "ends"]


@pytest.mark.parametrize("op", ENDS, ids=by_name)
@pytest.mark.parametrize("alignment", (1, 4, 64, 128))
@pytest.mark.parametrize(
    "ends", ([5, 130, 300], [0, 0, 200], [128, 256, 384], [384, 384, 384], [64, 64, 0])
)
def test_groups_by_their_ends(op, alignment, ends):
    """What is between two groups is NaN, and stays as it was."""
    alignment = max(alignment, 4 if "block" in op.name else 1)  # scales lie side by side
    args, given = arguments_of(op)
    del given["row_groups"]
    given |= {"group_ends": torch.tensor(ends).int(), "alignment": alignment, "out_dtype": "f32"}
    found, wanted = overload(op, "")(*args, **given), reference(op, "")(*args, **given)
    near(found, wanted)
    out = torch.full_like(found, float("nan"))
    del given["out_dtype"]
    overload(op, "out")(*args, **given, out=out)
    kept = out.isnan().all(-1)
    assert torch.equal(out[~kept], found[~kept])
    assert kept.any() == (ends not in ([128, 256, 384], [384, 384, 384]))


def test_rows_of_no_group_do_not_meet_what_is_computed():
    a, b = torch.full((384, 16), float("nan")).half(), torch.ones(1, 8, 16).half()
    a[:3] = 1
    run = torch.ops.gemmgen.grouped_gemm
    found = run(a, b, group_ends=torch.tensor([3]).int(), out_dtype="f32")
    assert (found[:3] == 16).all() and (found[3:] == 0).all()


def test_groups_along_k_of_flat_operands():
    op = BY_NAME["fp8_k_grouped_gemm"]
    m, n, depths = 24, 16, [128, 0, 256]
    given = {"group_depths": torch.tensor(depths).int(), "packing": "flat", "scale_layout": "row"}
    a, b = (torch.randn(x * sum(depths)).to(torch.float8_e4m3fn) for x in (m, n))
    scales = torch.rand(m, 3) + 0.5, torch.rand(n, 3) + 0.5
    args = (a, scales[0], b, scales[1], given.pop("group_depths"))
    c = torch.randn(3, m, n)
    for more in ({}, {"c": c}):
        near(overload(op, "")(*args, **given, **more), reference(op, "")(*args, **given, **more))


@pytest.mark.parametrize("name", ("k_grouped_gemm", "fp8_wgrad_gemm"))
def test_what_is_added(name):
    op = BY_NAME[name]
    args, given = arguments_of(op)
    given["c"] = torch.randn(overload(op, "")(*args, **given, out_dtype="f32").shape)
    near(
        overload(op, "")(*args, **given, out_dtype="f32"),
        reference(op, "")(*args, **given, out_dtype="f32"),
    )


def test_products_that_are_added_to_what_is_there():
    a, b = torch.randn(9, 16).bfloat16(), torch.randn(8, 16).bfloat16()
    out = torch.ones(9, 8)
    torch.ops.gemmgen.gemm.out(a, b, out=out, accumulate=True)
    near(out, 1 + a.float() @ b.float().T)


def test_integers_are_exact():
    a, b = (torch.randint(-128, 128, (n, 4096), dtype=torch.int8) for n in (16, 32))
    wanted = a.long() @ b.long().T
    assert torch.equal(torch.ops.gemmgen.int8_gemm(a, b, out_dtype="s32").long(), wanted)
    wide = torch.ops.gemmgen.int8_gemm(a, b, out_dtype="f32")
    assert torch.equal(wide, wanted.float())


@pytest.mark.parametrize("scales", ("tensor", "row"))
def test_scales_of_one_number(scales):
    a, b = (torch.randn(n, 32).to(torch.float8_e4m3fn) for n in (8, 16))
    of_a = torch.tensor([0.5]) if scales == "tensor" else torch.full((8,), 0.5)
    of_b = torch.tensor(3.0) if scales == "tensor" else torch.full((16,), 3.0)
    found = torch.ops.gemmgen.fp8_gemm(a, b, scale_a=of_a, scale_b=of_b, out_dtype="f32")
    near(found, (1.5 * a.double() @ b.double().T).float())


NAMED = named_for(None, 4)
PACKED = [(name, form.to) for name, form in NAMED.items()]


@pytest.mark.parametrize(("name", "dtype"), PACKED, ids=str)
@pytest.mark.parametrize(("n", "columns"), ((70, 70), (128, None)))
def test_weights_of_4_bits(name, dtype, n, columns):
    """By what they stand for, each rounded once to a's dtype, exactly where rows have factors: nothing of it was packed."""
    to, form = torch_dtype(dtype), formats.named(NAMED[name].format)
    weights = quant.of(torch.randn(n, 192 if form.group < 128 else 256), form)
    a = torch.randn(9, weights.shape[-1]).to(to)
    packed = quant.pack(weights, to)
    blocks = packed.blocks
    said = {"weights": name, "columns": columns, "scale_b": packed.factors}
    values = weights.dequantise(None if NAMED[name].factors else to).double()
    found = torch.ops.gemmgen.w4a16_gemm(a, blocks, **said, out_dtype="f32")
    near(found, (a.double() @ values.mT).float())
    some = torch.ops.gemmgen.w4a16_gemm(a[:, :72].contiguous(), blocks[:, :1], **said)
    near(some, (a[:, :72].double() @ values[:, :72].mT).to(to))


def test_weights_of_4_bits_for_fp8():
    """Their rows' factors are given."""
    weights = quant.of(torch.randn(70, 192), formats.MXFP4)
    packed = quant.pack(weights, torch.float8_e4m3fn)
    a, scale = torch.randn(9, 192).to(torch.float8_e4m3fn), torch.rand(9) + 0.5
    given = {"scale_a": scale, "scale_b": packed.factors, "columns": 70, "out_dtype": "f32"}
    found = torch.ops.gemmgen.w4a8_gemm(a, packed.blocks, **given)
    wanted = scale.double()[:, None] * (a.double() @ weights.dequantise().double().mT)
    near(found, wanted.float())


@pytest.mark.parametrize("experts", (0, 2))
def test_packed_weights_of_no_numbers(experts):
    blocks = torch.zeros(experts, 1, 0, 4224, dtype=torch.uint8)
    a = torch.zeros(experts, 5, 0).bfloat16()
    found = torch.ops.gemmgen.w4a16_batched_gemm(a, blocks, weights="int4_128_bf16")
    assert torch.equal(found, torch.zeros(experts, 5, 64).bfloat16())


def test_packed_weights_whose_columns_pair():
    """Rounded once, of what is not."""
    x, w = torch.randn(24, 256).bfloat16(), torch.randn(32, 256).bfloat16()
    packed = quant.pack(quant.of(w, formats.int4(64, "bf16", zeros=True)))
    gemm = partial(torch.ops.gemmgen.w4a16_gemm, x, packed.blocks, columns=32)
    both = gemm(weights=packed.weights, out_dtype="f32")
    want = torch.nn.functional.silu(both[:, ::2]) * both[:, 1::2]
    found = gemm(weights=packed.weights, epilogue="swiglu")
    assert found.shape == (24, 16)
    torch.testing.assert_close(found.float(), want, rtol=UNIT[found.dtype], atol=0)


@pytest.mark.parametrize(
    ("argument", "changes"),
    (
        ("weights", {"weights": "int4_128_f16"}),
        ("weights", {"weights": "int4_column_bf16"}),
        ("columns", {"columns": 64}),
        ("b dtype", {"b": torch.zeros(2, 1, 4224, dtype=torch.int8)}),
        ("blocks of b along K", {"a": torch.zeros(3, 136).bfloat16()}),
        ("bytes of a block of b", {"weights": "int4_64_bf16"}),
        ("columns of the product", {"columns": 99, "epilogue": "swiglu"}),
        ("epilogue", {"epilogue": "swish"}),
    ),
)
def test_packed_weights_that_are_refused(argument, changes):
    given = {"a": torch.zeros(3, 128).bfloat16(), "b": torch.zeros(2, 1, 4224, dtype=torch.uint8)}
    given |= {"weights": "int4_128_bf16", "columns": 100} | changes
    with pytest.raises(ArgumentError) as e:
        torch.ops.gemmgen.w4a16_gemm(**given)
    assert e.value.argument == argument


# ---- what kernels write --------------------------------------------------------------------


def of_kernels(name):
    """A small call of it: positional and by keyword."""
    x, w = torch.randn(24, 256).bfloat16(), torch.randn(32, 256).bfloat16()
    if name == "gemm":
        return (x, w), {"epilogue": "bias_gelu", "bias": torch.randn(32)}
    if name == "w4a16_gemm":
        packed = quant.pack(quant.of(w, formats.int4(64, "bf16", zeros=True)))
        said = {"weights": packed.weights, "columns": 32}
        return (x, packed.blocks), said | {"epilogue": "bias_gelu", "bias": torch.randn(32)}
    (a, sa), (b, sb) = (
        ops.quantise.by_torch(x, "columns", "e4m3", False),
        ops.quantise.by_torch(w, "block", "e4m3", False),
    )
    return (a, sa, b, sb), {"scale_a_layout": "row"}


def sum_of_sizes(a, scale_a, b, scale_b):
    """Of all products, whose largest one the tensor core cuts the others by."""
    sides = (a.double().abs(), scale_a), (b.double().abs(), scale_b.repeat_interleave(128, 0)[:32])
    x, y = (q * scale.double().repeat_interleave(128, 1) for q, scale in sides)
    return x @ y.T


@pytest.mark.parametrize("name", ("gemm", "fp8_block_gemm", "w4a16_gemm"))
def test_against_a_kernel(name, monkeypatch):
    """As the emulator runs it: D is seldom rounded otherwise."""
    pytest.importorskip("cuda.bindings.nvrtc", exc_type=ImportError)
    args, given = of_kernels(name)
    wanted = getattr(torch.ops.gemmgen, name)(*args, **given)
    with (
        monkeypatch.context() as patch,
        Memory(*(x for x in (*args, *given.values()) if isinstance(x, torch.Tensor))) as memory,
    ):
        emulated(patch, memory)
        found = getattr(ops, name)(*args, **given)
    assert memory.launched
    sums = FP8_SUMS * sum_of_sizes(*args) if name == "fp8_block_gemm" else SUMS
    far = (found.double() - wanted.double()).abs()
    assert (far <= 2 * UNIT[found.dtype] * wanted.double().abs() + sums).all()
    assert (found == wanted).float().mean() > 0.9


# ---- layers -------------------------------------------------------------------------------


def experts(kind):
    w1, w2 = torch.randn(4, 64, 128) / 11, torch.randn(4, 128, 32) / 6
    if kind == "bf16":
        return {"w1": w1.bfloat16(), "w2": w2.bfloat16()}
    (q1, s1), (q2, s2) = ops.quantise_blocks(w1), ops.quantise_blocks(w2)
    return {"w1": q1, "w2": q2, "scale_w1": s1, "scale_w2": s2}


@pytest.mark.parametrize("kind", ("bf16", "fp8"))
def test_a_layer_of_experts(kind):
    w = experts(kind)
    x = torch.randn(10, 128).bfloat16()
    chosen, weights = torch.randint(0, 4, (10, 2)), torch.rand(10, 2)
    found = torch.ops.gemmgen.moe(x, chosen=chosen, weights=weights, **w)
    wide = {n: w[n].double() for n in ("w1", "w2")}
    if kind == "fp8":
        wide["w1"] = wide["w1"] * w["scale_w1"].repeat_interleave(128, 1)[:, :64].repeat_interleave(
            128, 2
        )
        wide["w2"] = (
            wide["w2"] * w["scale_w2"].repeat_interleave(128, 1).repeat_interleave(128, 2)[..., :32]
        )
    wanted = torch.zeros(10, 128, dtype=torch.float64)
    for t in range(10):
        for e, p in zip(chosen[t], weights[t], strict=True):
            gate, up = (wide["w1"][e][i::2] @ x[t].double() for i in (0, 1))
            wanted[t] += p * (wide["w2"][e] @ (torch.nn.functional.silu(gate) * up))
    assert distance(found, wanted) < LAYERS[kind]


@pytest.mark.parametrize("dtype", ("f32", "bf16", "f16"))
def test_an_indexers_scores(dtype):
    """Of windows that are empty, of one key, of all, past the last one."""
    q, kv = (torch.randn(*x).to(torch.float8_e4m3fn) for x in ((4, 8, 32), (70, 32)))
    scale, weights = torch.rand(70) + 0.5, torch.randn(4, 8)
    first, end = torch.tensor([5, 69, 0, 9]).int(), torch.tensor([5, 70, 70, 99]).int()
    found = torch.ops.gemmgen.fp8_mqa_logits(q, kv, scale, weights, first, end, out_dtype=dtype)
    for i, j in product(range(4), range(70)):
        inside = first[i] <= j < end[i]
        terms = (
            weights[i, h].double() * max(0, q[i, h].double() @ kv[j].double()) for h in range(8)
        )
        wanted = scale[j].double() * sum(terms) if inside else torch.tensor(-torch.inf)
        assert found[i, j] == wanted.to(found.dtype)
    fake = faked_scores(q, kv, scale, weights, first, end, out_dtype=dtype)
    assert (found.dtype, found.stride()) == (fake.dtype, fake.stride())
    with pytest.raises(ArgumentError, match="kv side 1=16: must be 32"):
        torch.ops.gemmgen.fp8_mqa_logits(q, kv[:, :16], scale, weights, first, end)


def test_layers_train():
    x, w = (
        torch.randn(6, 32).bfloat16().requires_grad_(),
        torch.randn(16, 32).bfloat16().requires_grad_(),
    )
    torch_ops.linear(x, w).sum().backward()
    near(x.grad, w.detach().double().sum(0).expand(6, -1).bfloat16())
    near(w.grad, x.detach().double().sum(0).expand(16, -1).bfloat16())
    compiled = torch.compile(
        lambda x: torch.ops.gemmgen.gemm(x, w.detach()), backend="eager", fullgraph=True
    )
    assert torch.equal(compiled(x.detach()), torch.ops.gemmgen.gemm(x.detach(), w.detach()))


# ---- the switch ---------------------------------------------------------------------------


def test_it_is_asked_for():
    args, given = arguments_of(BY_NAME["gemm"])
    compute_on_cpu()  # again
    assert computes_on_cpu()
    compute_on_cpu(False)
    assert not computes_on_cpu()
    with pytest.raises(NotImplementedError, match="CPU"):
        torch.ops.gemmgen.gemm(*args, **given)
    with pytest.raises(NotImplementedError, match="CPU"):
        torch_ops.linear(torch.ones(2, 8).bfloat16(), torch.ones(8, 8).bfloat16())
    compute_on_cpu(False)  # again
    compute_on_cpu()
    torch.ops.gemmgen.gemm(*args, **given)


@pytest.mark.parametrize("value", (1, None, "yes"))
def test_what_is_no_answer(value):
    with pytest.raises(ArgumentError) as e:
        compute_on_cpu(value)
    assert e.value.argument == "on" and computes_on_cpu()


@pytest.mark.parametrize(
    ("argument", "changes"),
    (
        ("a dtype", {"a": torch.ones(4, 16)}),
        ("K of b", {"b": torch.ones(8, 24).bfloat16()}),
        ("epilogue", {"epilogue": "nothing"}),
        ("config", {"config": "{"}),
        ("bias", {"epilogue": "bias"}),
        ("out_dtype", {"out_dtype": "e4m3"}),
    ),
)
def test_refusals_are_those_of_a_launch(argument, changes):
    given = {"a": torch.ones(4, 16).bfloat16(), "b": torch.ones(8, 16).bfloat16()} | changes
    with pytest.raises(ArgumentError) as e:
        torch.ops.gemmgen.gemm(**given)
    assert e.value.argument == argument


def test_depths_that_are_not_there():
    op = BY_NAME["k_grouped_gemm"]
    args, given = arguments_of(op)
    for depths in ([300, 0, 0], [-8, 8, 0]):
        with pytest.raises(ArgumentError, match="group_depths"):
            overload(op, "")(*args[:2], torch.tensor(depths).int(), **given)


def test_dtypes_of_results_are_those_that_are_compared():
    compared = {torch.int32, torch.float32, torch.bfloat16, torch.float16}
    assert {torch_dtype(DTYPES[x]) for op in GEMMS for x in op.outputs} == compared
