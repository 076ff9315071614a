"""What `gemmgen.ops` checks of its arguments, on tensors that only say what they are."""

from __future__ import annotations

import pytest
from fake_torch import Placed, Tensor, fake_torch_fixture, launches_fixture  # noqa: F401
from kernels import DENSE

from gemmgen import ops
from gemmgen.config import Config
from gemmgen.errors import ArgumentError
from gemmgen.ir.expr import ACC
from gemmgen.ops import by_row, calls, compute
from gemmgen.problem import LAYOUTS

STORED = {  # the shapes of a and b at M, N, K = 24, 40, 72
    "nt": ((24, 72), (40, 72)),
    "nn": ((24, 72), (72, 40)),
    "tn": ((72, 24), (72, 40)),
    "tt": ((72, 24), (40, 72)),
}


@pytest.fixture
def ran(monkeypatch):
    """The problem and the shape that reach the kernel."""
    reached = []
    monkeypatch.setattr(
        compute,
        "run",
        lambda p, config, a, b, out, shape, *rest, **more: reached.append((p.layout, shape)),
    )
    return reached


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts_name_the_sides(layout, ran):
    a, b = (Tensor(*shape) for shape in STORED[layout])
    ops.gemm(a, b, layout=layout)
    assert ran == [(layout, (24, 40, 72))]


def test_the_layout_is_nt_by_default(ran):
    ops.gemm(*(Tensor(*shape) for shape in STORED["nt"]))
    assert ran == [(DENSE.layout, (24, 40, 72))]


@pytest.mark.parametrize("layout", ("NT", "n", "", None, "tnt"))
def test_an_unknown_layout(layout):
    with pytest.raises(ArgumentError, match="nt, nn, tn, tt") as e:
        ops.gemm(*(Tensor(*shape) for shape in STORED["nt"]), layout=layout)
    assert e.value.argument == "layout" and e.value.value == layout


@pytest.mark.parametrize(
    ("layout", "a", "b", "argument", "allowed"),
    (
        ("nt", (24, 72), (72, 40), "b shape", "[any, 72]"),
        ("nn", (24, 72), (40, 72), "b shape", "[72, any]"),
        ("tn", (24, 72), (72, 40), "b shape", "[24, any]"),
        ("tt", (72, 24), (72, 40), "b shape", "[any, 72]"),
        ("nt", (24, 72), (0, 72), "b rows", "at least 1"),
        ("nn", (24, 72), (72, 0), "b columns", "at least 1"),
        ("nt", (24, 0), (40, 0), "a columns", "at least 1"),
        ("tt", (0, 24), (40, 0), "a rows", "at least 1"),
        ("tn", (72, 24, 1), (72, 40), "a shape", "[any, any]"),
    ),
)
def test_shapes_follow_the_layout(layout, a, b, argument, allowed):
    with pytest.raises(ArgumentError) as e:
        ops.gemm(Tensor(*a), Tensor(*b), layout=layout)
    assert e.value.argument == argument
    assert allowed in str(e.value)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("which", (0, 1))
def test_the_last_dimension_is_contiguous(layout, which):
    given = [Tensor(*shape) for shape in STORED[layout]]
    given[which].strides = (1, given[which].shape[0])
    with pytest.raises(ArgumentError, match="must be 1") as e:
        ops.gemm(*given, layout=layout)
    assert e.value.argument == f"{'ab'[which]} last stride"


def test_copies_of_scales_are_held_until_the_launch(monkeypatch):
    """What `mn_major` copies nobody else holds; the allocator would give the second copy the memory of
    the first."""
    copies = []

    class Copy(Tensor):
        mT = property(lambda self: self)

    def copied(scales):
        copies.append(Copy(*scales.shape, dtype="float32"))
        return copies[-1]

    monkeypatch.setattr(by_row, "mn_major", copied)
    a, b = (Tensor(side, 256, dtype="float8_e4m3fn") for side in (24, 40))
    scale_a, scale_b = (Tensor(side, 2, dtype="float32") for side in (24, 40))
    scales, _ = calls.vector_scales(a, scale_a, b, scale_b, "row", "scale_layout")
    assert [scales["scale_a"].tensor, scales["scale_b"].tensor] == copies


def k_grouped(**changes):
    """Flat FP8 operands of M, N, sum K = 24, 40, 256, right but for `changes`."""
    right = {
        "a": Tensor(24 * 256, dtype="float8_e4m3fn", stride=(1,)),
        "scale_a": Tensor(24, 2, dtype="float32"),
        "b": Tensor(40 * 256, dtype="float8_e4m3fn", stride=(1,)),
        "scale_b": Tensor(40, 2, dtype="float32"),
        "group_depths": Tensor(3, dtype="int32", stride=(1,)),
        "packing": "flat",
        "scale_layout": "mn",
    }
    return ops.fp8_k_grouped_gemm(**right | changes)


@pytest.mark.parametrize(
    ("argument", "changes", "allowed"),
    (
        ("packing", {"packing": "guess"}, "columns"),
        ("packing", {"packing": None}, "flat"),
        ("out_dtype", {"out_dtype": "s32"}, "bf16, f16, f32"),
        ("scale_a shape", {"scale_a": Tensor(24, dtype="float32", stride=(1,))}, "[any, any]"),
        ("a shape", {"a": Tensor(24, 256, dtype="float8_e4m3fn")}, "[6144]"),
        ("a dtype", {"a": Tensor(6144, dtype="int8", stride=(1,))}, "float8_e4m3fn"),
        ("a shape", {"packing": "columns"}, "[any, any]"),
    ),
)
def test_k_grouped_arguments(argument, changes, allowed):
    with pytest.raises(ArgumentError) as e:
        k_grouped(**changes)
    assert e.value.argument == argument and allowed in str(e.value)


@pytest.mark.parametrize("packing", ("flat", "columns"))
@pytest.mark.parametrize("added", ("no", "other", "in place"))
def test_k_grouped_launches(packing, added, launches):
    """What reaches the kernel: its problem, maps over all of K, pointers, and room for every map."""
    flat = packing == "flat"
    a = Placed(*((24 * 256,) if flat else (24, 256)), dtype="float8_e4m3fn")
    b = Placed(*((40 * 256,) if flat else (40, 256)), dtype="float8_e4m3fn")
    out, c = Placed(3, 24, 40), Placed(3, 24, 40)
    tables = Placed(3, dtype="int32")
    got = ops.fp8_k_grouped_gemm(
        a,
        Placed(24, 2, stride=(1, 24)),
        b,
        Placed(40, 2, stride=(1, 40)),
        tables,
        out,
        packing=packing,
        scale_layout="mn",
        c={"no": None, "other": c, "in place": out}[added],
        config=Config(block_n=64, stages=2),
    )
    assert got is out
    (found,) = launches
    p, shape, matrices, values = found.problem, found.shape, found.matrices, found.values
    assert shape == (24, 40, 256) and p.grouping == f"k_{packing}"
    assert (p.accumulate, p.epilogue != ACC) == (added == "in place", added == "other")
    sizes = {name: (x.outer, x.inner, x.stride) for name, x in matrices.items()}
    assert sizes["a"] == (24, 256, 256) and sizes["b"] == (40, 256, 256)
    assert sizes["scale_a"] == (2, 24, 24) and sizes["scale_b"] == (2, 40, 40)
    if flat:
        assert (values["a"], values["b"]) == (a.address, b.address)
    assert values["group_depths"] == tables.address and values["groups"] == 3
    maps = next(x for x in Placed.made if x.address == values["group_maps"])
    assert maps.shape == (6 * 3 * 2 * 128,)
