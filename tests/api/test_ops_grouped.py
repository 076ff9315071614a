"""Grouped FP8 and INT8 functions of `gemmgen.ops`: what they check, and what reaches the kernel."""

from __future__ import annotations

import pytest
from fake_torch import Device, Placed, fake_torch_fixture, launches_fixture  # noqa: F401

from gemmgen import ops
from gemmgen.config import Config
from gemmgen.epilogues import EPILOGUES
from gemmgen.errors import ArgumentError
from gemmgen.heuristics import choose
from gemmgen.ir.argument_names import parameter
from gemmgen.ir.dtypes import E4M3, E5M2, S8, S32
from gemmgen.ir.expr import ACC, DeviceScalar, PerColumn, PerRow, Scalar, arguments
from gemmgen.target import H200

GROUPS, M, N, K = 3, 256, 72, 160
CONFIG = Config(block_n=64, stages=2)
TABLES = {
    "batched": {},
    "masked": {"group_rows": (GROUPS,)},
    "rows": {"row_groups": (M,)},
    "ends": {"group_ends": (GROUPS,)},
}
FUNCTIONS = {"batched": "batched_gemm", "masked": "masked_gemm"}
OPERANDS = {"fp8": ("float8_e4m3fn", "float8_e5m2"), "int8": ("int8", "int8")}


def operands(kind: str, grouping: str) -> dict[str, Placed]:
    """Operands and table of a right call."""
    a, b = OPERANDS[kind]
    lead = (GROUPS,) * (grouping in ("batched", "masked"))
    tables = {name: Placed(*shape, dtype="int32") for name, shape in TABLES[grouping].items()}
    return {
        "a": Placed(*lead, M, K, dtype=a),
        "b": Placed(GROUPS, N, K, dtype=b),
        "out": Placed(*lead, M, N),
        **tables,
    }


def call(kind: str, grouping: str, **changes):
    function = getattr(ops, f"{kind}_{FUNCTIONS.get(grouping, 'grouped_gemm')}")
    right = operands(kind, grouping) | {"out_dtype": "f32", "config": CONFIG}
    return function(**right | changes)


def row_scales(grouping: str) -> Placed:
    return Placed(*(GROUPS,) * (grouping in ("batched", "masked")), M)


@pytest.mark.parametrize("grouping", TABLES)
@pytest.mark.parametrize("kind", OPERANDS)
def test_launches(kind, grouping, launches):
    """Scales per row and column, by address; the table; A with the groups it has."""
    given = operands(kind, grouping)
    scale_a, scale_b = row_scales(grouping), Placed(GROUPS, N)
    assert call(kind, grouping, **given, scale_a=scale_a, scale_b=scale_b) is given["out"]
    (found,) = launches
    p, values = found.problem, found.values
    assert (p.grouping, p.family) == (grouping, "fp8" if kind == "fp8" else "dense")
    assert (p.a, p.b) == ((E4M3, E5M2) if kind == "fp8" else (S8, S8))
    assert p.epilogue == ACC * PerRow("scale_a") * PerColumn("scale_b")
    assert found.shape == (M, N, K) and values["groups"] == GROUPS
    assert (
        values[parameter("scale_a")] == scale_a.address
        and values[parameter("scale_b")] == scale_b.address
    )
    for name in TABLES[grouping]:
        assert values[name] == given[name].address
    own = grouping in ("batched", "masked")
    assert found.matrices["a"].groups == (GROUPS if own else 1)
    assert found.matrices["b"].groups == GROUPS


@pytest.mark.parametrize("grouping", TABLES)
@pytest.mark.parametrize("kind", OPERANDS)
def test_scales_of_a_tensor(kind, grouping, launches):
    """One number of the host's, one of the device's."""
    on_device = Placed(1)
    call(kind, grouping, scale_a=0.5, scale_b=on_device)
    (found,) = launches
    assert found.problem.epilogue == ACC * Scalar("scale_a") * DeviceScalar("scale_b")
    assert found.values[parameter("scale_a")] == 0.5
    assert found.values[parameter("scale_b")] == on_device.address


@pytest.mark.parametrize("grouping", TABLES)
def test_sums_without_scales(grouping, launches):
    call("fp8", grouping)
    call("fp8", grouping, accurate=False)
    call("int8", grouping, out=None, out_dtype="s32")
    assert [x.problem.family for x in launches] == ["fp8", "dense", "dense"]
    assert launches[-1].problem.d == S32
    assert all(not arguments(x.problem.epilogue) for x in launches)


@pytest.mark.parametrize("grouping", TABLES)
def test_an_epilogue_of_the_scaled_product(grouping, launches):
    """What it reads per column has groups; out has half the columns."""
    changes = {"epilogue": EPILOGUES["bias_swiglu"], "bias": Placed(GROUPS, N), "out": None}
    out = call("int8", grouping, scale_b=Placed(GROUPS, N), **changes)
    assert out.shape[-1] == N // 2
    names = {x.name for x in arguments(launches[0].problem.epilogue)}
    assert names == {"scale_b", "bias"}


@pytest.mark.parametrize("kind", OPERANDS)
@pytest.mark.parametrize("expected", (None, 7, 10**6))
def test_the_cost_model_hears_of_expected_rows(kind, expected, launches, monkeypatch):
    asked = []
    monkeypatch.setattr(
        ops.building,
        "chosen",
        lambda p, shape, groups, *of: asked.append((shape, groups)) or CONFIG,
    )
    call(kind, "masked", expected_rows=expected, config=None)
    assert asked == [((min(expected or M, M), N, K), GROUPS)]
    call(kind, "ends", expected_rows=expected, config=None)
    assert asked[1:] == [((min(expected or -(-M // GROUPS), M), N, K), GROUPS)]


@pytest.mark.parametrize("kind", OPERANDS)
@pytest.mark.parametrize("filled", (1, 2, GROUPS, 10**6))
def test_the_cost_model_hears_of_groups_that_have_rows(kind, filled, launches, monkeypatch):
    """It costs those, and the launch walks all."""
    asked, groups = [], min(filled, GROUPS)
    monkeypatch.setattr(
        ops.building,
        "chosen",
        lambda p, shape, groups, *of: asked.append((shape, groups)) or CONFIG,
    )
    call(kind, "masked", expected_groups=filled, config=None)
    call(kind, "ends", expected_groups=filled, config=None)
    call(kind, "ends", expected_groups=filled, expected_rows=5, config=None)
    assert asked == [((m, N, K), groups) for m in (M, -(-M // groups), 5)]
    assert [x.values["groups"] for x in launches] == [GROUPS] * 3


@pytest.mark.parametrize("grouping", TABLES)
@pytest.mark.parametrize("kind", OPERANDS)
def test_no_rows(kind, grouping, launches):
    given = operands(kind, grouping)
    shape = list(given["a"].shape)
    shape[-2] = 0
    changes = {"a": Placed(*shape, dtype=given["a"].dtype), "out": None}
    if grouping == "rows":
        changes["row_groups"] = Placed(0, dtype="int32")
    out = call(kind, grouping, **changes)
    assert out.shape[-2] == 0 and not launches


def elsewhere(t: Placed) -> Placed:
    t.device = Device("cpu")
    return t


def at(address: int, t: Placed) -> Placed:
    t.address = address
    return t


WRONG = (  # the argument named, the grouping, what is changed, what the message allows
    ("a shape", "masked", lambda t: {"a": Placed(M, K, dtype=t["a"].dtype)}, "[any, any, any]"),
    ("a shape", "ends", lambda t: {"a": Placed(GROUPS, M, K, dtype=t["a"].dtype)}, "[any, any]"),
    ("a dtype", "batched", lambda t: {"a": Placed(GROUPS, M, K)}, "must be"),
    ("a last stride", "rows", lambda t: {"a": Placed(M, K, dtype=t["a"].dtype, stride=(1, M))}, "1"),
    ("a row stride", "ends", lambda t: {"a": Placed(M, K, dtype=t["a"].dtype, stride=(K + 8, 1))}, "16"),
    ("a group stride", "masked", lambda t: {"a": Placed(GROUPS, M, K, dtype=t["a"].dtype, stride=(M * K + 8, K, 1))}, "16"),
    ("a", "masked", lambda t: {"a": at(8, t["a"])}, "16 bytes"),
    ("a device", "batched", lambda t: {"a": elsewhere(t["a"])}, "CUDA"),
    ("b shape", "batched", lambda t: {"b": Placed(GROUPS, N, K - 16, dtype=t["b"].dtype)}, str(K)),
    ("b shape", "rows", lambda t: {"b": Placed(N, K, dtype=t["b"].dtype)}, f"[any, any, {K}]"),
    ("b groups", "masked", lambda t: {"b": Placed(2, N, K, dtype=t["b"].dtype)}, "3"),
    ("b rows", "ends", lambda t: {"b": Placed(GROUPS, 0, K, dtype=t["b"].dtype)}, "at least 1"),
    ("b dtype", "ends", lambda t: {"b": Placed(GROUPS, N, K, dtype="bfloat16")}, "must be"),
    ("b device", "ends", lambda t: {"b": elsewhere(t["b"])}, "as a is"),
    ("scale_a shape", "masked", lambda t: {"scale_a": Placed(M)}, f"[3, {M}]"),
    ("scale_a shape", "rows", lambda t: {"scale_a": Placed(GROUPS, M)}, f"[{M}]"),
    ("scale_a dtype", "ends", lambda t: {"scale_a": Placed(M, dtype="bfloat16")}, "float32"),
    ("scale_a", "ends", lambda t: {"scale_a": "one"}, "torch tensor"),
    ("scale_b shape", "ends", lambda t: {"scale_b": Placed(N)}, f"[3, {N}]"),
    ("scale_b shape", "batched", lambda t: {"scale_b": Placed(GROUPS)}, f"[3, {N}]"),
    ("scale_b strides", "batched", lambda t: {"scale_b": Placed(GROUPS, N, stride=(1, 3))}, "contiguous"),
    ("scale_b device", "masked", lambda t: {"scale_b": elsewhere(Placed(GROUPS, N))}, "as a is"),
    ("group_rows shape", "masked", lambda t: {"group_rows": Placed(2, dtype="int32")}, "[3]"),
    ("group_rows dtype", "masked", lambda t: {"group_rows": Placed(3)}, "int32"),
    ("group_rows device", "masked", lambda t: {"group_rows": elsewhere(t["group_rows"])}, "as a is"),
    ("row_groups shape", "rows", lambda t: {"row_groups": Placed(3, dtype="int32")}, f"[{M}]"),
    ("group_ends shape", "ends", lambda t: {"group_ends": Placed(M, dtype="int32")}, "[3]"),
    ("group_ends last stride", "ends", lambda t: {"group_ends": Placed(3, dtype="int32", stride=(2,))}, "1"),
    ("row_groups, group_ends", "rows", lambda t: {"row_groups": None}, "exactly one"),
    ("row_groups, group_ends", "rows", lambda t: {"group_ends": Placed(3, dtype="int32")}, "exactly one"),
    ("alignment", "ends", lambda t: {"alignment": 32}, "128, 64, 8, 4, 1"),
    ("expected_rows", "masked", lambda t: {"expected_rows": 0}, "positive"),
    ("expected_groups", "masked", lambda t: {"expected_groups": 0}, "positive"),
    ("expected_groups", "ends", lambda t: {"expected_groups": 1.0}, "positive"),
    ("expected_groups", "rows", lambda t: {"expected_groups": 1}, "masked and ends"),
    ("out_dtype", "batched", lambda t: {"out_dtype": "f64"}, "bf16"),
    ("out shape", "masked", lambda t: {"out": Placed(GROUPS, M, N + 8)}, f"[3, {M}, {N}]"),
    ("out dtype", "rows", lambda t: {"out": Placed(M, N, dtype="bfloat16")}, "float32"),
    ("out", "ends", lambda t: {"out": at(t["a"].address, t["out"])}, "overlap a"),
    ("out", "masked", lambda t: {"out": at(t["b"].address, t["out"])}, "overlap b"),
    ("scale_out", "ends", lambda t: {"scale_out": Placed(M, 1)}, "e4m3"),
    ("beta", "batched", lambda t: {"beta": 2.0}, "reads only"),
    ("bias", "masked", lambda t: {"epilogue": EPILOGUES["bias"]}, "must be given"),
)  # fmt: skip


class Written(Placed):
    """A Placed that says what was written to all of it."""

    written: float | None = None

    def fill_(self, value: float):
        self.written = value
        return self

    def zero_(self):
        return self.fill_(0.0)


@pytest.mark.parametrize("grouping", TABLES)
@pytest.mark.parametrize("kind", OPERANDS)
def test_no_groups(kind, grouping, launches):
    """Rows of no group come out as 0 where a row says whose it is; nothing else is written."""
    lead = (0,) * (grouping in ("batched", "masked"))
    tables = {"batched": {}, "masked": {"group_rows": (0,)}, "rows": {"row_groups": (M,)}}
    entries = tables.get(grouping, {"group_ends": (0,)})
    given = operands(kind, grouping) | {
        "a": Placed(*lead, M, K, dtype=OPERANDS[kind][0]),
        "b": Placed(0, N, K, dtype=OPERANDS[kind][1]),
        **{name: Placed(*shape, dtype="int32") for name, shape in entries.items()},
    }
    zeroed = grouping == "rows"
    out = Written(*lead, M, N)
    assert call(kind, grouping, **given | {"out": out}) is out
    assert out.written == (0.0 if zeroed else None)
    codes, scales = Written(*lead, M, N, dtype="float8_e4m3fn"), Written(*lead, 1, M).mT
    scales.__class__ = Written
    quantised = {"out": codes, "scale_out": scales, "out_dtype": "e4m3"}
    assert call(kind, grouping, **given | quantised) == (codes, scales)
    assert codes.written == (0.0 if zeroed else None)
    assert scales.written == (pytest.approx(1e-4 / 448) if zeroed else None)
    assert not launches


@pytest.mark.parametrize("kind", OPERANDS)
@pytest.mark.parametrize(("argument", "grouping", "change", "allowed"), WRONG)
def test_wrong_arguments(kind, argument, grouping, change, allowed, launches):
    given = operands(kind, grouping)
    with pytest.raises(ArgumentError) as e:
        call(kind, grouping, **given | change(given))
    assert e.value.argument == argument and allowed in str(e.value) and not launches


@pytest.mark.parametrize("grouping", TABLES)
@pytest.mark.parametrize(
    ("argument", "changes"),
    (
        ("a columns", {"deep": True}),
        ("out_dtype", {"out_dtype": "s32", "out": None, "scale_a": 0.5}),
        ("out_dtype", {"out_dtype": "s32", "out": None, "epilogue": EPILOGUES["relu"]}),
    ),
)
def test_sums_that_int32_does_not_hold(grouping, argument, changes, launches):
    changes = dict(changes)
    if changes.pop("deep", False):
        given = operands("int8", grouping)
        changes |= {x: Placed(*given[x].shape[:-1], 1 << 17, dtype="int8") for x in "ab"}
    with pytest.raises(ArgumentError) as e:
        call("int8", grouping, **changes)
    assert e.value.argument == argument and not launches


BLOCK_SCALED = ("gemm", "batched_gemm", "masked_gemm", "grouped_gemm")


@pytest.mark.parametrize("name", BLOCK_SCALED)
def test_pairs_quantised_where_they_are_promoted(name, launches, monkeypatch):
    """The first GEMM of experts: the heuristics' own config, D half as wide, a scale per 128 columns."""
    monkeypatch.setattr(
        ops.building, "chosen", lambda p, shape, groups, *of: choose(p, shape, H200, groups)
    )
    lead, groups = (GROUPS,) * (name in BLOCK_SCALED[1:3]), (GROUPS,) * (name != "gemm")
    n, k = 1000, 512
    out, scale_out = getattr(ops, f"fp8_block_{name}")(
        Placed(*lead, M, k, dtype="float8_e4m3fn"),
        Placed(*lead, M, k // 128, stride=(*(k // 128 * M,) * len(lead), 1, M)),
        Placed(*groups, n, k, dtype="float8_e4m3fn"),
        Placed(*groups, 8, k // 128),
        **{"masked_gemm": {"group_rows": Placed(GROUPS, dtype="int32")}}.get(name, {}),
        **{"grouped_gemm": {"group_ends": Placed(GROUPS, dtype="int32")}}.get(name, {}),
        scale_a_layout="mn",
        out_dtype="e4m3",
        epilogue=EPILOGUES["swiglu"],
    )
    (found,) = launches
    assert (found.config.parts, found.config.block_n) == (2, 256)
    assert (out.dtype, out.shape) == ("float8_e4m3fn", (*lead, M, n // 2))
    assert scale_out.shape == (*lead, M, 4)
    assert found.values["scale_d"] == scale_out.address


@pytest.mark.parametrize("grouping", [g for g in TABLES if g != "rows"])
def test_pairs_of_the_scaled_product_quantised(grouping, launches, monkeypatch):
    monkeypatch.setattr(
        ops.building, "chosen", lambda p, shape, groups, *of: choose(p, shape, H200, groups)
    )
    changes = {"out": None, "out_dtype": "e4m3", "epilogue": EPILOGUES["swiglu"], "config": None}
    out, scale_out = call("fp8", grouping, scale_b=Placed(GROUPS, N), **changes)
    (found,) = launches
    assert found.config.parts == 2 and out.shape[-1] == N // 2 and scale_out.shape[-1] == 1


def test_pairs_quantised_of_columns_scaled_by_each_rows_group(launches, monkeypatch):
    """A column's scale depends on the row's group: registers for it without a scale of the row has one warpgroup."""
    monkeypatch.setattr(
        ops.building, "chosen", lambda p, shape, groups, *of: choose(p, shape, H200, groups)
    )
    changes = {"out": None, "out_dtype": "e4m3", "epilogue": EPILOGUES["swiglu"], "config": None}
    call("fp8", "rows", scale_b=Placed(GROUPS, N), **changes)
    (found,) = launches
    assert (found.config.consumers, found.config.block_m, found.config.parts) == (1, 64, 2)
