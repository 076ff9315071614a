"""What fakes of `torch.ops.gemmgen` say, against results computed in float64 on the CPU."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch_reference import (  # noqa: E402
    BY_NAME,
    GEMMS,
    arguments_of,
    by_name,
    described,
    every,
    faked,
    on_cpu,  # noqa: F401
    overload,
)

from gemmgen import ops  # noqa: E402
from gemmgen.errors import ArgumentError  # noqa: E402
from gemmgen.ir.dtypes import BF16  # noqa: E402
from gemmgen.runtime import torch_tensors  # noqa: E402

REGISTERED = torch.ops.gemmgen


CASES = [(op, x) for op in GEMMS for x in op.outputs] + [(op, "e4m3") for op in every("quantised")]


@pytest.mark.parametrize(("op", "dtype"), CASES, ids=lambda x: x if isinstance(x, str) else x.name)
def test_fakes_say_what_comes_out(op, dtype):
    args, given = arguments_of(op)
    given |= {"out_dtype": dtype} if dtype != "e4m3" else {}
    run = overload(op, "quantised" if dtype == "e4m3" else "")
    assert described(faked(run, args, given)) == described(run(*args, **given))


@pytest.mark.parametrize("op", every("quantised"), ids=by_name)
def test_fakes_of_epilogues(op):
    for epilogue in op.epilogues:
        args, given = arguments_of(op, epilogue)
        for name in ("", "quantised"):
            said = {"out_dtype": "bf16"} if not name else {}
            run = overload(op, name)
            found = faked(run, args, given | said)
            assert described(found) == described(run(*args, **given | said)), epilogue


@pytest.mark.parametrize("layout", ("nt", "nn", "tn", "tt"))
@pytest.mark.parametrize("n", (1, 33, 64))
def test_fakes_of_layouts_and_ragged_sides(layout, n):
    a, b = torch.randn(5, 24).bfloat16(), torch.randn(n, 24).bfloat16()
    stored = (a.mT if layout[0] == "t" else a, b.mT if layout[1] == "n" else b)
    args = tuple(torch_tensors.empty(tuple(x.shape), BF16, "cpu").copy_(x) for x in stored)
    for run in (REGISTERED.gemm.default, REGISTERED.gemm.quantised):
        found = run(*args, layout=layout)
        assert described(faked(run, args, {"layout": layout})) == described(found)
        assert (found[0] if isinstance(found, tuple) else found).shape == (5, n)


@pytest.mark.parametrize("m", (0, 1, 5))
def test_fakes_of_few_rows(m):
    args = torch.randn(3, m, 24).bfloat16(), torch.randn(3, 33, 24).bfloat16()
    for run in (REGISTERED.batched_gemm.default, REGISTERED.batched_gemm.quantised):
        out = torch_tensors.empty((3, m, 33), BF16, "cpu")
        found = described(faked(run, args, {}))
        assert found[0][0] == (3, m, 33)
        if run is REGISTERED.batched_gemm.default:
            assert found == described(out)


def test_flat_groups():
    op = BY_NAME["fp8_k_grouped_gemm"]
    args, given = arguments_of(op)
    a, b = (torch.cat([x[:, :128].flatten(), x[:, 128:].flatten()]) for x in (args[0], args[2]))
    flat = (a, args[1], b, *args[3:])
    found = overload(op, "")(*flat, **given | {"packing": "flat"})
    assert torch.equal(found, overload(op, "")(*args, **given))
    assert described(faked(overload(op, ""), flat, given | {"packing": "flat"})) == described(found)


REFUSED = (
    ("gemm", {"b": torch.randn(48, 264).bfloat16()}, "K of b"),
    ("gemm", {"b": torch.randn(48, 256)}, "b dtype"),
    ("gemm", {"a": torch.randn(2, 20, 256).bfloat16()}, "a shape"),
    ("gemm", {"out_dtype": "e4m3"}, "out_dtype"),
    ("gemm", {"layout": "xy"}, "layout"),
    ("gemm", {"epilogue": "no such"}, "epilogue"),
    ("gemm", {"epilogue": "bias"}, "bias"),
    ("gemm", {"bias": torch.rand(48)}, "bias"),
    ("gemm", {"epilogue": "bias", "bias": torch.rand(47)}, "elements of bias"),
    ("gemm", {"epilogue": "residual", "c": torch.rand(20, 48)}, "c dtype"),
    (
        "gemm",
        {"b": torch.randn(47, 256).bfloat16(), "epilogue": "swiglu"},
        "columns of the product",
    ),
    ("gemm", {"b": torch.randn(48, 256, device="meta").bfloat16()}, "b device"),
    ("fp8_gemm", {"epilogue": "tensor_scaled"}, "epilogue"),
    ("int8_gemm", {"scale_a": torch.rand(1)}, "scale_a"),
    ("int8_gemm", {"epilogue": "relu"}, "d"),
    ("fp8_block_gemm", {"scale_b": torch.rand(1, 3)}, "scale_b side 1"),
    ("fp8_wgrad_gemm", {"scale_b": torch.rand(1, 2)}, "scale_b side 0"),
    ("fp8_wgrad_gemm", {"c": torch.rand(20, 47)}, "c side 1"),
    ("grouped_gemm", {"row_groups": None}, "row_groups, group_ends"),
    ("grouped_gemm", {"alignment": 7}, "alignment"),
    ("masked_gemm", {"group_rows": torch.zeros(3)}, "group_rows dtype"),
    ("fp8_k_grouped_gemm", {"packing": "loose"}, "packing"),
    ("w4a16_gemm", {"weights": "int4"}, "weights"),
    ("w4a16_gemm", {"weights": "int4_128_f16"}, "weights"),
    ("w4a16_gemm", {"b": torch.zeros(1, 2, 4224).bfloat16()}, "b dtype"),
    ("w4a16_gemm", {"b": torch.zeros(1, 2, 4225).byte()}, "bytes of a block of b"),
    ("w4a16_gemm", {"b": torch.zeros(1, 3, 4224).byte()}, "blocks of b along K"),
    ("w4a16_gemm", {"b": torch.zeros(2, 4224).byte()}, "b shape"),
    ("w4a16_gemm", {"columns": 65}, "columns"),
    ("w4a16_gemm", {"b": torch.zeros(2, 2, 4224).byte()}, "columns"),
    ("w4a16_gemm", {"epilogue": "swiglu", "columns": 63}, "columns of the product"),
    ("w4a16_batched_gemm", {"b": torch.zeros(2, 1, 2, 4224).byte()}, "groups of b"),
)


@pytest.mark.parametrize(
    ("name", "changes", "argument"), REFUSED, ids=lambda x: x if isinstance(x, str) else "-".join(x)
)
def test_fakes_refuse(name, changes, argument):
    op = BY_NAME[name]
    args, given = arguments_of(op)
    names = [x for x, p in op.parameters.items() if p.kind is p.POSITIONAL_OR_KEYWORD]
    args = tuple(changes.get(x, value) for x, value in zip(names, args, strict=False))
    given |= {x: value for x, value in changes.items() if x not in names}
    with pytest.raises(ArgumentError) as found:
        faked(overload(op, ""), args, given)
    assert found.value.argument == argument


def test_fakes_refuse_a_wrong_out():
    a = torch.randn(5, 16).bfloat16()
    for out, more in ((torch.empty(5, 6), {}), (torch.empty(5, 5).to(torch.float8_e4m3fn), {})):
        with pytest.raises(ArgumentError):
            faked(REGISTERED.gemm.out, (a, a), {"out": out, **more})


QUANTISE = (
    ("quantise_rows", (128,)),
    ("quantise_rows", (None,)),
    ("quantise_blocks", ()),
)


@pytest.mark.parametrize(("name", "block"), QUANTISE)
@pytest.mark.parametrize("shape", ((5, 300), (2, 130, 128), (1, 1), (2, 2, 3, 7)))
def test_quantising(name, block, shape):
    x, run = torch.randn(shape), getattr(REGISTERED, name).default
    for given in ({}, {"dtype": "s8"}, {"power_of_two": True}):
        q, scale = run(x, *block, **given)
        expected = getattr(ops, name)(x, *block, **given)
        assert torch.equal(q.float(), expected[0].float()) and torch.equal(scale, expected[1])
        assert described(faked(run, (x, *block), given)) == described((q, scale))


REFUSED_QUANTISE = (
    ("quantise_rows", (torch.rand(4),), {}, "x shape"),
    ("quantise_rows", (torch.rand(4, 4).double(),), {}, "x dtype"),
    ("quantise_rows", (torch.rand(4, 4), 64), {}, "block"),
    ("quantise_blocks", (torch.rand(4, 4), 64), {}, "block"),
    ("quantise_blocks", (torch.rand(4, 4),), {"dtype": "e5m2"}, "dtype"),
)


@pytest.mark.parametrize(("name", "args", "given", "argument"), REFUSED_QUANTISE)
def test_quantising_refuses_the_same(name, args, given, argument):
    run = getattr(REGISTERED, name).default
    for refused in (lambda: run(*args, **given), lambda: faked(run, args, given)):
        with pytest.raises(ArgumentError) as found:
            refused()
        assert found.value.argument == argument
