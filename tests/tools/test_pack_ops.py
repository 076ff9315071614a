"""Packs of grouped problems: C launches what Python launches over the same tensors."""

from __future__ import annotations

import itertools

import pytest
from fake_torch import Placed, fake_torch_fixture, launches_fixture  # noqa: F401
from grouped import problem
from kernels import GROUPED
from packs import (  # noqa: F401
    OK,
    SMS,
    STREAM,
    build_fixture,
    compiles_nothing_fixture,
    driver_fixture,
    encoded_as,
    launched_as,
    logged,
    needs_cc,
)

from gemmgen import ops
from gemmgen.config import Config
from gemmgen.epilogues import EPILOGUES
from gemmgen.ir.argument_names import group_stride, row_stride
from gemmgen.ir.expr import ACC, PerColumn, PerElement, PerRow
from gemmgen.ir.groupings import GROUPINGS
from gemmgen.ops import building
from gemmgen.pack.groups import place
from gemmgen.pipeline import lower
from gemmgen.runtime.bind import bind
from gemmgen.verification.inputs import random_normal
from gemmgen.verification.trial import pitches

G, N = 3, 264
FP8, BYTES, INT = "float8_e4m3fn", "int8", "int32"
SMALL, LARGE = Config(block_n=128, stages=2, raster="n"), Config(block_n=128, stages=3)
CHANGES_AT = 40  # rows (or K) of a group: SMALL up to there


def padded(*shape, dtype="bfloat16"):
    """Rows and groups further apart than they must be."""
    *lead, rows, columns = shape
    row = -(-columns // 16) * 16 + 32
    return Placed(*shape, dtype=dtype, stride=(*(rows * row + 64,) * len(lead), row, 1))


def columns_of(*shape):
    """float32 scales [..., rows, blocks], contiguous along the rows."""
    *lead, rows, blocks = shape
    return padded(*lead, blocks, rows, dtype="float32").mT


def blocks(k):
    return -(-k // 128)


def table(entries):
    return Placed(entries, dtype=INT)


def operands(lead, m, k, dtype, layout="nt"):
    """a [*lead, M, K] and b [G, N, K]."""
    a = (k, m) if layout[0] == "t" else (m, k)
    b = (k, N) if layout[1] == "n" else (N, k)
    return {"a": padded(*lead, *a, dtype=dtype), "b": padded(G, *b, dtype=dtype)}


def block_scaled(lead, m, k):
    found = operands(lead, m, k, FP8)
    scales = {"scale_a": columns_of(*lead, m, blocks(k))}
    scales["scale_b"] = padded(G, blocks(N), blocks(k), dtype="float32")
    return {**found, **scales, "scale_a_layout": "mn"}


def vectors(lead, m):
    return {"scale_a": Placed(*lead, m), "scale_b": Placed(G, N)}


def output(lead, m, dtype="bfloat16", n=N):
    return {"out": padded(*lead, m, n, dtype=dtype)}


READS = ACC * PerRow("row") + PerColumn("column") + PerElement("c")


def reads(lead, m):
    given = {"row": Placed(*lead, m), "column": Placed(G, N), "c": padded(*lead, m, N)}
    return {"epilogue": READS, **given}


def rows_of(name):
    """What says which rows are whose, where A has no groups."""
    return lambda m: {name: table({"row_groups": m, "group_ends": G}[name])}


def dense(lead, m, k, more):
    return {**operands(lead, m, k, "bfloat16"), **output(lead, m), **more}


def fp8(lead, m, k, more):
    return {**operands(lead, m, k, FP8), **output(lead, m), **vectors(lead, m), **more}


def int8(lead, m, k, more):
    return {**operands(lead, m, k, BYTES), **output(lead, m, INT), **more}


def block(lead, m, k, more):
    return {**block_scaled(lead, m, k), **output(lead, m), **more}


def quantised(lead, m, k, more):
    """D in FP8, with scales."""
    d = {"out_dtype": "e4m3", "scale_out": columns_of(*lead, m, blocks(N))}
    return {**block_scaled(lead, m, k), **output(lead, m, FP8), **d, **more}


def swiglu(lead, m, k, more):
    """D of half as many columns."""
    given = {**output(lead, m, n=N // 2), "epilogue": EPILOGUES["swiglu"]}
    return {**operands(lead, m, k, "bfloat16"), **given, **more}


def reading(lead, m, k, more):
    return {**dense(lead, m, k, more), **reads(lead, m)}


def mn_major(layout):
    def found(lead, m, k, more):
        return {
            **dense(lead, m, k, more),
            **operands(lead, m, k, "bfloat16", layout),
            "layout": layout,
        }

    return found


def deep(layout):
    """Groups that split K, in columns of one matrix."""

    def found(m, k):
        a = (k, m) if layout[0] == "t" else (m, k)
        b = (k, N) if layout[1] == "n" else (N, k)
        return {
            "a": padded(*a),
            "b": padded(*b),
            "group_depths": table(G),
            "layout": layout,
            **output((G,), m, "float32"),
        }

    return found


def adding(m, k):
    """To what D holds, by the copy engine."""
    given = deep("tn")(m, k)
    return {**given, "c": given["out"]}


def added(m, k):
    """To another matrix, by the epilogue."""
    return {**deep("tn")(m, k), "c": padded(G, m, N, dtype="float32")}


def deep_fp8(packing):
    def found(m, k):
        a, b = (padded(x, k, dtype=FP8) for x in (m, N))
        if packing == "flat":
            a, b = Placed(m * k, dtype=FP8), Placed(N * k, dtype=FP8)
        return {
            "a": a,
            "scale_a": columns_of(m, k // 128),
            "b": b,
            "scale_b": columns_of(N, k // 128),
            "group_depths": table(G),
            "packing": packing,
            "scale_layout": "mn",
            **output((G,), m, "float32"),
        }

    return found


PREFIXES = {"dense": "", "fp8": "fp8_", "int8": "int8_", "block": "fp8_block_"}
FAMILIES = {"dense": dense, "fp8": fp8, "int8": int8, "block": block}
# By name: the function of gemmgen.ops and its arguments for M rows (of a group, or of all) and K.
CASES = {}
for _family, _given in FAMILIES.items():
    CASES[f"{_family} batched"] = (f"{PREFIXES[_family]}batched_gemm", _given, (G,), lambda m: {})
    CASES[f"{_family} masked"] = (
        f"{PREFIXES[_family]}masked_gemm",
        _given,
        (G,),
        lambda m: {"group_rows": table(G)},
    )
    for _name, _short in (("row_groups", "rows"), ("group_ends", "ends")):
        function = f"{PREFIXES[_family]}grouped_gemm"
        CASES[f"{_family} {_short}"] = (function, _given, (), rows_of(_name))
CASES |= {
    "batched nn": ("batched_gemm", mn_major("nn"), (G,), lambda m: {}),
    "ends tn": ("grouped_gemm", mn_major("tn"), (), rows_of("group_ends")),
    "masked reading": ("masked_gemm", reading, (G,), lambda m: {"group_rows": table(G)}),
    "rows reading": ("grouped_gemm", reading, (), rows_of("row_groups")),
    "masked quantised": (
        "fp8_block_masked_gemm",
        quantised,
        (G,),
        lambda m: {"group_rows": table(G)},
    ),
    "rows quantised": ("fp8_block_grouped_gemm", quantised, (), rows_of("row_groups")),
    "batched swiglu": ("batched_gemm", swiglu, (G,), lambda m: {}),
    "expected rows": (
        "masked_gemm",
        dense,
        (G,),
        lambda m: {"group_rows": table(G), "expected_rows": max(1, m // 2)},
    ),
    "ends alignment": (
        "grouped_gemm",
        dense,
        (),
        lambda m: {"group_ends": table(G), "alignment": 64},
    ),
}
DEEP = {
    "k_columns tn": ("k_grouped_gemm", deep("tn")),
    "k_columns nt": ("k_grouped_gemm", deep("nt")),
    "k_columns nn": ("k_grouped_gemm", deep("nn")),
    "k_columns accumulate": ("k_grouped_gemm", adding),
    "k_columns adds": ("k_grouped_gemm", added),
    "fp8 k_columns": ("fp8_k_grouped_gemm", deep_fp8("columns")),
    "fp8 k_flat": ("fp8_k_grouped_gemm", deep_fp8("flat")),
}


def asked(name, m, k):
    """The function and the arguments of a case."""
    if name in DEEP:
        function, given = DEEP[name]
        return function, given(m, k)
    function, given, lead, more = CASES[name]
    return function, given(lead, m, k, more(m))


def sizes_of(name):
    """Some M and K that two configs serve."""
    if name in DEEP:
        return ((70, 384), (200, 384), (70, 30 * 128), (1, 384))
    return ((1, 264), (77, 264), (300, 264), (4096, 264))


def chosen_by_size(p, shape, groups, *of):
    """As the cost model is asked: M or K of one group, as far as the host knows."""
    _, size = place(p, (groups, *shape))
    return SMALL if size <= CHANGES_AT or 128 <= size <= 140 else LARGE


def in_c(face, given, plan):
    """What a C caller passes for the arguments of a function of gemmgen.ops and the workspace that it made."""
    t = {name: x for name, x in given.items() if hasattr(x, "data_ptr")}
    by_map = {"a": t["a"], "b": t["b"], "d": t["out"]}
    by_map |= {x: t[x].mT for x in ("scale_a", "scale_b", "scale_out") if x in t and t[x].dim() > 1}
    by_map["scale_d"] = by_map.get("scale_out")
    values = plan.values
    found = dict(zip("mnk", plan.shape, strict=True), groups=values["groups"], stream=STREAM)
    found["expected_rows"] = given.get("expected_rows", 0)
    if "group_maps" in values:
        found |= {"group_maps": values["group_maps"], "group_maps_bytes": 1 << 40}
    for x in t.keys() - {"a", "b", "out"}:
        found |= {x: t[x].data_ptr(), f"arg_{x}": t[x].data_ptr()}
        if t[x].dim() > 1:
            # Python packs 0 where a single row is never stepped from.
            found[row_stride(x)] = t[x].stride(-2) if t[x].shape[-2] > 1 else 0
            found[group_stride(x)] = t[x].stride(0)
    for tensor in (*face.tensors, *face.outputs):
        x = by_map[tensor.name]
        found |= {tensor.name: x.data_ptr(), tensor.stride: x.stride(-2) if x.dim() > 1 else 0}
        found[f"{tensor.stride}_g"] = x.stride(0)
    if "scale_b" in t and "scale_b" not in (x.name for x in face.tensors):
        sides = zip(("n", "k", "g"), (-2, -1, 0), strict=True)
        if t["scale_b"].dim() > 2:
            found |= {f"scale_b_stride_{side}": t["scale_b"].stride(i) for side, i in sides}
    return {
        name: found[name] for name in ("m", "n", "k", "stream", *(x.name for x in face.members))
    }


def ran(launches, monkeypatch, name):
    """What gemmgen.ops launches of a case, by its sizes: the arguments and the plan."""
    monkeypatch.setattr(building, "chosen", chosen_by_size)
    found = []
    for m, k in sizes_of(name):
        function, given = asked(name, m, k)
        getattr(ops, function)(**given)
        found.append((given, launches.pop()))
    return found


def packed(plans):
    """What a pack is asked for, so that it serves `plans`: the problem, and configs by shape."""
    p, found = plans[0].problem, {}
    for m, n, k in (plan.shape for plan in plans):
        for size in (1, CHANGES_AT, 127, 140, 4096):
            shape = (m, n, size) if GROUPINGS[p.grouping].depths else (size, n, k)
            found[(G, *shape)] = chosen_by_size(p, shape, G, 0)
    return p, found


@needs_cc
@pytest.mark.parametrize("name", (*CASES, *DEEP))
def test_a_launch_is_the_one_of_ops(build, launches, monkeypatch, name):
    cases = ran(launches, monkeypatch, name)
    built = build(*packed([plan for _, plan in cases]))
    given = [in_c(built.pack.interface, x, plan) for x, plan in cases]
    results, log = built.call(*given)
    assert results == [[OK, ""]] * (1 + len(cases))
    encoded = iter([list(map(int, line)) for line in logged(log, "cuTensorMapEncodeTiled")])
    lines = logged(log, "cuLaunchKernelEx")
    names = {x.config: x.kernel for x in built.pack.kernels}
    for line, (_, plan) in zip(lines, cases, strict=True):
        maps, wanted = launched_as(names[plan.config], plan.shape, plan.matrices, plan.values)
        assert [next(encoded) for _ in maps] == maps and line == wanted
    assert len({line[0] for line in lines}) == 2, "both configs are to be chosen"


@needs_cc
@pytest.mark.parametrize("grouping", GROUPED)
@pytest.mark.parametrize("name", ("fp8_block", "fp8_1d1d", "fp8_rowwise", "f16_f32", "s8_scaled"))
def test_a_launch_is_the_one_that_is_verified(build, name, grouping):
    """By `gemmgen run`: also of what no function of gemmgen.ops launches."""
    p, shape, config = problem(name, grouping), (130, 136, 384), Config(block_n=64, stages=2)
    operands = random_normal(p, *shape, 0)
    kernel, groups = lower(p, config), operands.layout.groups
    asked = (130, 136, 128) if GROUPINGS[grouping].depths else shape
    built = build(p, {(groups, *asked): config})
    places = itertools.count(1)
    bound = bind(operands, pitches(kernel, shape, 1), 1 << 50, lambda data: next(places) << 32)
    values = {**bound.values, "group_maps": 1 << 51, "group_maps_bytes": 1 << 30}
    call = {**values, **dict(zip("mnk", shape, strict=True)), "expected_rows": 0}
    for x, matrix in bound.matrices.items():
        call |= {x: matrix.pointer, f"{x}_stride": matrix.stride}
        call[f"{x}_stride_g"] = matrix.group_stride
    members = ("m", "n", "k", *(x.name for x in built.pack.interface.members))
    results, log = built.call({**{x: call[x] for x in members}, "stream": STREAM})
    assert results == [[OK, ""]] * 2
    maps, wanted = launched_as(kernel, shape, bound.matrices, values)
    assert [list(map(int, line)) for line in logged(log, "cuTensorMapEncodeTiled")] == maps
    assert logged(log, "cuLaunchKernelEx") == [wanted]


def test_every_grouping_is_launched():
    """Of those that gemmgen.ops has, in every family that has them."""
    words = {"rows", "ends", "batched", "masked"}
    assert {name.split()[-1] for name in CASES if name.split()[0] in FAMILIES} == words
    assert {f"{f} {w}" for f in FAMILIES for w in words} <= CASES.keys()
    assert set(GROUPED) == words | {"k_columns", "k_flat"}
