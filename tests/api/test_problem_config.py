"""What users hand in: every wrong value is refused by name, everything survives JSON."""

from __future__ import annotations

import ast
import json
from dataclasses import MISSING, fields, replace
from pathlib import Path

import numpy as np
import pytest
from kernels import DENSE, FP8, VARIETY

import gemmgen
from gemmgen import problem
from gemmgen.config import FIELDS, Config
from gemmgen.epilogues import EPILOGUES
from gemmgen.errors import ArgumentError, GemmgenError, IRError
from gemmgen.families import FAMILIES, build
from gemmgen.ir.collectives import WIRES
from gemmgen.ir.dtypes import BF16, DTYPES, E4M3, E5M2, F16, F32, S8, S32
from gemmgen.ir.expr import ACC, Call, Const, PerColumn, PerElement, PerRow, Scalar
from gemmgen.ir.packed import plain_weights
from gemmgen.ir.resources import Wgmma
from gemmgen.problem import LAYOUTS, OUTPUTS, Problem
from gemmgen.recipes import recipe


def through_text(data):
    return json.loads(json.dumps(data))


# ---- Config -------------------------------------------------------------------------------


@pytest.mark.parametrize("config", [c for _, c in VARIETY.values()], ids=list(VARIETY))
def test_config_survives_json(config):
    assert Config.from_json(through_text(config.to_json())) == config
    assert hash(config) == hash(Config.from_json(config.to_json()))


def test_missing_config_fields_take_their_defaults():
    assert Config.from_json({}) == Config()
    assert Config.from_json({"stages": 3}) == Config(stages=3)


def test_headers_of_kernels_that_exchange_nothing_stay_as_they_are():
    assert not {
        *(
            "swap_ab",
            "parts",
            "split_k",
            "pdl",
            "d_columns",
            "ping_pong",
            "peek",
            "order",
            "stream",
        ),
        "lane_scales",
        "weights_ahead",
        "direct",
        "slots",
        "shares",
        "outbox",
        "slice_k",
        "one_block",
    } & set(Config().to_json())
    assert Config(swap_ab=True).to_json()["swap_ab"] is True


INTEGERS = ("64", 64.0, True, None, [64], -64, 0)
BAD_CONFIG = {
    "block_m": (*INTEGERS, 4, 12, 264, 320),
    "block_n": (*INTEGERS, 4, 12, 264),
    "block_k_bytes": (*INTEGERS, 16, 96, 512),
    "stages": ("4", 4.0, True, None, 0, 17),
    "consumers": ("2", 2.0, True, None, 0, 5),
    "multicast": (None, "c", "A", "", 2, True, ["a"]),
    "raster": (None, "k", "M", 1, ["m"]),
    "panel": ("8", 8.0, True, None, 0, 65, -1),
    "unroll": ("1", 1.0, True, None, 0, 9, -1),
    "in_flight": ("0", 0.0, False, None, 2, -1),
    "swizzle_ab": ("128", 128.0, True, 16, 256, -1),
    "swizzle_d": ("128", 128.0, False, 16, 256, -1),
    "watchdog": (0, 1, "true", None),
    "swap_ab": (0, 1, "true", None),
    "parts": (*INTEGERS, 3, -1),
    "split_k": ("2", 2.0, True, None, 0, 3, 16, -2),
    "pdl": (1, 0, "true", None),
    "d_columns": ("64", 64.0, True, [64], -64, 0, 4, 12, 264),
    "ping_pong": (1, 0, "true", None),
    "peek": (1, 0, "true", None),
    "stream": (1, 0, "true", None),
    "lane_scales": (1, 0, "true", None),
    "weights_ahead": (1, 0, "true", None),
    "direct": (1, 0, "true", None),
    "slots": (1, 0, "true", None),
    "shares": (0, 3, 16, 2.0, "2", None, True),
    "outbox": (1, 0, "true", None),
    "slice_k": (1, 0, "true", None),
    "one_block": (1, 0, "true", None),
    "order": ("hilbert", "", None, 1, True, ["panels"]),
    "registers": (232, "40,232", (40,), (40, 232, 0), (40.0, 232), ("40", "232"), (None, 232)),
}


def test_every_config_field_is_tried():
    assert set(BAD_CONFIG) == set(FIELDS) == {f.name for f in fields(Config)} - {"more"}


@pytest.mark.parametrize(
    ("name", "value"), [(n, v) for n, values in BAD_CONFIG.items() for v in values], ids=repr
)
def test_config_refuses(name, value):
    for make in (lambda: Config(**{name: value}), lambda: Config.from_json({name: value})):
        with pytest.raises(ArgumentError) as e:
            make()
        assert e.value.argument == name
        assert e.value.value == value
        assert e.value.allowed.strip()


@pytest.mark.parametrize("name", FIELDS)
def test_config_takes_its_defaults_and_limits(name):
    good = {
        "block_m": (8, 64, 128, 192, 256),
        "block_n": (8, 256),
        "block_k_bytes": (32, 64, 128, 256),
        "stages": (1, 16),
        "consumers": (1, 4),
        "multicast": ("none", "a", "b"),
        "raster": ("m", "n"),
        "panel": (1, 64),
        "unroll": (1, 8),
        "in_flight": (0, 1),
        "swizzle_ab": (None, 0, 32, 64, 128),
        "swizzle_d": (None, 0, 32, 64, 128),
        "watchdog": (False, True),
        "swap_ab": (False, True),
        "parts": (1, 2),
        "split_k": (1, 2, 4, 8),
        "pdl": (False, True),
        "d_columns": (None, 8, 64, 256),
        "ping_pong": (False, True),
        "peek": (False, True),
        "stream": (False, True),
        "lane_scales": (False, True),
        "weights_ahead": (False, True),
        "direct": (False, True),
        "slots": (False, True),
        "shares": (1, 8),
        "outbox": (False, True),
        "slice_k": (False, True),
        "one_block": (False, True),
        "order": ("panels",),
        "registers": (None, (40, 232)),
    }[name]
    for value in (*good, getattr(Config(), name)):
        assert getattr(Config(**{name: value}), name) == value


@pytest.mark.parametrize("data", (None, [], "{}", 3, [("stages", 4)]))
def test_config_from_json_wants_an_object(data):
    with pytest.raises(ArgumentError) as e:
        Config.from_json(data)
    assert e.value.argument == "config"


@pytest.mark.parametrize("name", ("stage", "block_k", "shape_m", "Stages", "hold_a", ""))
def test_config_from_json_names_unknown_fields(name):
    with pytest.raises(ArgumentError) as e:
        Config.from_json({"stages": 4, name: 1})
    assert e.value.argument == name


@pytest.mark.parametrize(
    ("config", "turns", "sharing", "waves"),
    (
        (Config(), 1, 2, 1),
        (Config(block_m=256), 1, 2, 2),
        (Config(ping_pong=True), 2, 1, 2),
        (Config(ping_pong=True, block_m=64), 2, 1, 1),
        (Config(ping_pong=True, block_m=192, consumers=3), 3, 1, 3),
        (Config(ping_pong=True, consumers=1), 1, 1, 2),
        (Config(ping_pong=True, swap_ab=True, block_m=16, block_n=128), 2, 1, 2),
        (Config(swap_ab=True, block_m=16, block_n=128), 1, 2, 1),
    ),
)
def test_consumers_share_a_tile_or_take_turns(config, turns, sharing, waves):
    assert (config.turns, config.sharing, config.waves) == (turns, sharing, waves)
    assert config.turns * config.sharing == config.consumers


def test_config_is_frozen_and_keyword_only():
    with pytest.raises(AttributeError):
        Config().stages = 3
    with pytest.raises(TypeError):
        Config(128)


# ---- Problem ------------------------------------------------------------------------------

PROBLEMS = [DENSE, FP8]
PROBLEMS += [replace(FP8, epilogue=e) for e in EPILOGUES.values()]
PROBLEMS += [replace(DENSE, a=F16, b=F16, d=d) for d in OUTPUTS if not d.integer]
PROBLEMS += [replace(DENSE, layout=layout) for layout in LAYOUTS]
PROBLEMS += [replace(DENSE, d=F32, accumulate=True), replace(FP8, weights_ready=True)]
PROBLEMS += [replace(DENSE, a=S8, b=S8, d=d) for d in OUTPUTS]
SCATTERED = replace(DENSE, collective="reduce_scatter")
PROBLEMS += [SCATTERED, *(replace(SCATTERED, wire=wire) for wire in WIRES)]
PROBLEMS += [replace(DENSE, collective="all_reduce", wire=wire) for wire in (None, *WIRES)]


@pytest.mark.parametrize("problem", PROBLEMS, ids=repr)
def test_problem_survives_json(problem):
    assert Problem.from_json(through_text(problem.to_json())) == problem


def test_missing_problem_fields_take_their_defaults():
    assert Problem.from_json({"family": "dense", "a": "bf16", "b": "bf16"}) == DENSE
    named = Problem(family="dense", a="bf16", b=gemmgen.BF16, d="f32", epilogue="silu")
    assert named == replace(DENSE, d=gemmgen.F32, epilogue=EPILOGUES["silu"])


BAD_PROBLEM = {
    "a": ("bf17", None, 16),
    "b": ("bf17", None, 16),
    "d": ("bf17", None, E5M2),
    "layout": ("NT", "nnt", "n", "", None, 0),
    "epilogue": ("rleu", None, 1.0, float),
    "accumulate": (True, 1, None),  # of BF16
    "weights_ready": (1, 0, None, "true"),
    "wire": (BF16, F16, "bf16", 16, F32, "f32", ""),  # no collective, no dtype or of no 16 bits
}


@pytest.mark.parametrize(
    ("name", "value"), [(n, v) for n, values in BAD_PROBLEM.items() for v in values], ids=repr
)
def test_problem_refuses(name, value):
    with pytest.raises(ArgumentError) as e:
        Problem(**({"family": "dense", "a": BF16, "b": BF16} | {name: value}))
    assert e.value.argument == name


@pytest.mark.parametrize("collective", ("reduce_scatter", "all_reduce"))
@pytest.mark.parametrize("wire", (F32, E4M3, S32, "f32", "bf17", 16, True, ""), ids=repr)
def test_sums_travel_in_no_other_dtype(wire, collective):
    with pytest.raises(ArgumentError) as e:
        Problem(family="dense", a=BF16, b=BF16, collective=collective, wire=wire)
    assert e.value.argument == "wire"


def test_only_sums_of_fp32_are_rounded_before_they_travel():
    for collective in ("none", "all_gather"):
        with pytest.raises(ArgumentError, match=rf"wire=.*collective={collective}"):
            Problem(family="dense", a=BF16, b=BF16, collective=collective, wire=BF16)
    for collective in ("reduce_scatter", "all_reduce"):
        with pytest.raises(ArgumentError, match=r"wire=.*INT32"):
            Problem(family="dense", a=S8, b=S8, collective=collective, wire=BF16)
    promoted = Problem(family="fp8_block", a=S8, b=S8, collective="reduce_scatter", wire="bf16")
    assert promoted.wire == BF16 and promoted.to_json()["wire"] == "bf16"
    assert "wire" not in SCATTERED.to_json()
    assert Problem.from_json(SCATTERED.to_json() | {"wire": None}) == SCATTERED


BAD_JSON = {
    "a": ("fp8", None, 16, ["bf16"], "BF16"),
    "b": ("int8", None, 16, {}),
    "d": ("e5m2", "bf17", None, 16),
    "layout": ("nm", None, 1),
    "epilogue": (
        "celu",
        None,
        True,
        ["relu", 1, "x"],
        ["scalar", "not a name"],
        ["%", 1, 2],
        [],
        {},
    ),
}


@pytest.mark.parametrize(
    ("name", "value"), [(n, v) for n, values in BAD_JSON.items() for v in values], ids=repr
)
def test_problem_from_json_refuses(name, value):
    good = {"family": "dense", "a": "bf16", "b": "bf16"}
    with pytest.raises(ArgumentError) as e:
        Problem.from_json(good | {name: value})
    assert e.value.argument == name


@pytest.mark.parametrize("name", ("family", "a", "b"))
def test_problem_from_json_names_missing_fields(name):
    data = DENSE.to_json()
    del data[name]
    with pytest.raises(ArgumentError) as e:
        Problem.from_json(data)
    assert e.value.argument == name


@pytest.mark.parametrize("name", ("c", "shape", "A", ""))
def test_problem_from_json_names_unknown_fields(name):
    with pytest.raises(ArgumentError) as e:
        Problem.from_json(DENSE.to_json() | {name: "bf16"})
    assert e.value.argument == name


@pytest.mark.parametrize("data", (None, [], "dense", 3))
def test_problem_from_json_wants_an_object(data):
    with pytest.raises(ArgumentError) as e:
        Problem.from_json(data)
    assert e.value.argument == "problem"


def test_an_epilogue_without_a_name_survives_json():
    epilogue = Call("max", (ACC * 3.0 + PerColumn("shift") - Scalar("s"), Const(-1.0)))
    problem = replace(DENSE, epilogue=epilogue / PerRow("norm"))
    assert Problem.from_json(through_text(problem.to_json())) == problem


def test_layouts_say_which_side_is_contiguous():
    """n is [rows, columns] of the factor as it stands in A @ B, t the other way round."""
    found = {layout: replace(DENSE, layout=layout).mn_major for layout in LAYOUTS}
    assert found == {
        "nt": (False, False),
        "nn": (False, True),
        "tn": (True, True),
        "tt": (True, False),
    }
    for layout, (a, b) in found.items():
        instr = build(replace(DENSE, layout=layout), Config()).instr
        assert (instr.a_major == "mn", instr.b_major == "mn") == (a, b)
        assert instr.immediates == f", 1, 1, {int(a)}, {int(b)}"


@pytest.mark.parametrize("dtype", [BF16, F16, F32], ids=str)
def test_a_residual_survives_json_with_its_dtype(dtype):
    problem = replace(DENSE, epilogue=ACC * 2.0 + PerElement("c", dtype))
    data = through_text(problem.to_json())
    assert data["epilogue"][2] == ["per_element", "c", dtype.name]
    assert Problem.from_json(data) == problem


@pytest.mark.parametrize(
    ("epilogue", "argument", "value"),
    [
        (["per_element", "c", "s8"], "dtype of c", "s8"),
        (["per_element", "c", "f64"], "dtype of c", "f64"),
        (["per_element", "c"], "epilogue", ["per_element", "c"]),
        (["per_element", "no name", "f32"], "epilogue", ["per_element", "no name", "f32"]),
        (["+", ["per_element", "c", "f32"], ["per_element", "c", "f16"]], "epilogue argument", "c"),
        (["+", ["per_element", "c", "f32"], ["per_row", "c"]], "epilogue argument", "c"),
    ],
    ids=repr,
)
def test_wrong_epilogue_arguments_are_named(epilogue, argument, value):
    with pytest.raises(ArgumentError) as caught:
        Problem.from_json(replace(DENSE).to_json() | {"epilogue": epilogue})
    assert (caught.value.argument, caught.value.value) == (argument, value)
    assert caught.value.allowed


def test_an_element_has_a_dtype_that_the_epilogue_reads():
    with pytest.raises(ArgumentError, match="dtype of c='e4m3': must be one of bf16, f16, f32"):
        PerElement("c", E4M3)


def test_rows_that_come_out_as_0_cannot_be_added_to():
    with pytest.raises(ArgumentError, match="grouping=rows"):
        replace(DENSE, d=F32, grouping="rows", accumulate=True)


# ---- what no config would help: refused before there is one -------------------------------


@pytest.mark.parametrize("family", ("sparse", "", "Dense", None, ["dense"]))
def test_unknown_family(family):
    with pytest.raises(ArgumentError, match="must be one of fp8_block, ") as e:
        Problem(family=family, a=BF16, b=BF16)
    assert (e.value.argument, e.value.value) == ("family", family)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_takes_exactly_its_operands(family):
    pairs, coded = recipe(family).operands, recipe(family).coded
    config = Config(block_k_bytes=128)
    if coded:
        config = replace(config, block_k_bytes=256, swap_ab=True)
    for a in DTYPES.values():
        for b in DTYPES.values():
            if (a, b) in pairs:
                weights = plain_weights(b, coded) if coded else ""
                problem = Problem(family=family, a=a, b=b, weights=weights)
                assert build(problem, config).instr.a is a
                continue
            with pytest.raises(ArgumentError, match=f"{pairs[0][0]} x {pairs[0][1]}") as e:
                Problem(family=family, a=a, b=b)
            wrong = "b" if a in {x for x, _ in pairs} else "a"
            assert (e.value.argument, e.value.value) == (wrong, {"a": a, "b": b}[wrong].name)


@pytest.mark.parametrize("layout", ("nn", "tn", "tt"))
@pytest.mark.parametrize("family, dtype", [("fp8_block", E4M3), ("dense", S8), ("dense", E4M3)])
def test_no_layout_but_nt_for_8_bits(family, dtype, layout):
    with pytest.raises(ArgumentError, match="must be nt") as e:
        Problem(family=family, a=dtype, b=dtype, layout=layout)
    assert (e.value.argument, e.value.value) == ("layout", layout)


def test_nor_has_wgmma_one():
    with pytest.raises(IRError, match="K-major only"):
        Wgmma(n=64, a=E4M3, b=E4M3, d=F32, b_major="mn")


def test_families_say_what_they_do():
    assert all(f.says.strip() for f in FAMILIES.values())


def test_argument_errors_are_value_errors():
    assert issubclass(ArgumentError, ValueError) and issubclass(ArgumentError, GemmgenError)
    assert F32 in OUTPUTS


def test_integers_of_numpy_are_integers():
    """Normalised, so that JSON and names are as they are of Python's; what is out of range is refused as given."""
    given = Config(block_m=np.int64(64), consumers=np.uint8(1), registers=(np.int32(40), 232))
    assert given == Config(block_m=64, consumers=1, registers=(40, 232))
    assert json.dumps(given.to_json()) == json.dumps(Config.from_json(given.to_json()).to_json())
    for wrong in (np.int64(63), np.float64(64), np.array([64, 64])):
        with pytest.raises(ArgumentError, match="block_m"):
            Config(block_m=wrong)


def test_a_type_checker_knows_the_fields_of_a_problem():
    """What it reads as the constructor has the fields, in their order."""
    tree = ast.parse(Path(problem.__file__).read_text())
    (init,) = (x for x in ast.walk(tree) if isinstance(x, ast.FunctionDef) and x.name == "__init__")
    assert [x.arg for x in init.args.kwonlyargs] == [f.name for f in fields(Problem)]
    optional = [f.name for f in fields(Problem) if f.default is not MISSING]
    given = zip(init.args.kwonlyargs, init.args.kw_defaults, strict=True)
    assert [x.arg for x, default in given if default is not None] == optional
