"""GEMMs over tensors of no GPU, drawn: what a launch is made of says whether an argument was used."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import fake_torch
import pytest
from bad_arguments import coded, coded_blocks, coded_fp8, coded_octets, gemms, heads
from fake_torch import Placed
from hypothesis import strategies as st

from gemmgen import ops
from gemmgen.config import Config
from gemmgen.epilogues import EPILOGUES, named
from gemmgen.heuristics import ANY
from gemmgen.heuristics.tuned import adds_up
from gemmgen.ir.dtypes import BF16
from gemmgen.ir.expr import ACC, Expr, PerColumn, PerElement, PerRow, Scalar, arguments
from gemmgen.ir.heads import heads_of
from gemmgen.ir.indices import TOP
from gemmgen.ir.packed import FORMS, OF_8_BITS, every_name
from gemmgen.ops import invariance, scaled
from gemmgen.problem import LAYOUTS, Problem
from gemmgen.recipes import recipe

from . import host_calls
from .values import CONFIG, JUNK, Call, mostly, some

OF_BF16 = FORMS[BF16] | OF_8_BITS[BF16]
# Of functions that are given one table or another, each.
TABLES = ("row_groups", "group_ends")
TAKEN = {
    " by ".join((f.name, *(t for t in TABLES if t in f.right()))): f
    for f in (
        *gemms.FUNCTIONS,
        *coded.FUNCTIONS,
        *coded_fp8.FUNCTIONS,
        *coded_blocks.FUNCTIONS,
        *coded_octets.FUNCTIONS,
    )
}
READS = {
    PerColumn: lambda p: Placed(*p[0], p[2]),
    PerRow: lambda p: Placed(*p[0], p[1]),
    PerElement: lambda p: Placed(*p[0], p[1], p[2], dtype="bfloat16"),
    Scalar: lambda p: 2.0,
}
KEYWORDS: dict[str, st.SearchStrategy[Any]] = {
    "layout": mostly(st.sampled_from(LAYOUTS)),
    "out_dtype": mostly(st.sampled_from(["bf16", "f16", "f32", "e4m3", "s32"])),
    "accumulate": mostly(st.booleans()),
    "weights_ready": mostly(st.booleans()),
    "accurate": mostly(st.booleans()),
    "alignment": mostly(st.sampled_from([1, 4, 64, 128])),
    "expected_rows": mostly(st.sampled_from([1, 7, 256])),
    "expected_groups": mostly(st.sampled_from([1, 2])),
    "config": mostly(
        CONFIG
        | st.none()
        | st.sampled_from([coded.CONFIG, coded_fp8.CONFIG, replace(coded.CONFIG, in_flight=0)])
    ),
    "epilogue": mostly(
        st.sampled_from(["relu", "silu", "gelu", ACC * 3.0, "bias", "residual", "alpha"])
    ),
    "scale_a_layout": mostly(st.sampled_from(["mn", "row"])),
    "scale_layout": mostly(st.sampled_from(["mn", "row"])),
    "packing": mostly(st.sampled_from(["columns", "flat"])),
    "invariant": mostly(st.sampled_from([None, False, True])),
    "scale_out": mostly(st.none()),  # an FP8 output's is made to fit
    "squares": mostly(st.none()),  # as are sums of squares
    "c": mostly(st.none()),  # as is what is added
    "scale_a": mostly(st.just(2.0)),
    "scale_b": mostly(st.just(0.5)),
    "row_groups": mostly(st.none()),
    "group_ends": mostly(st.none()),
    "rows": mostly(st.none()),  # rows of the product are made to fit
    "top": mostly(st.sampled_from([1, 2, 3])),  # without rows one is all there can be
    "heads": mostly(st.sampled_from([None, heads.SPLITS, [0, 8, 16]])),
    "weights": mostly(st.sampled_from([*every_name()])),
    "columns": mostly(st.sampled_from([None, 65, 72, 128])),
    "table": mostly(st.none()),
    "out": st.none(),
    "nobody": JUNK,
}


@st.composite
def gemm_calls(draw: Callable[..., Any]) -> Call:
    """Right calls, with other values of what they leave to defaults."""
    name = draw(st.sampled_from(sorted(TAKEN)))
    f = TAKEN[name]
    takes = inspect.signature(f.call).parameters
    open_ended = any(p.kind is p.VAR_KEYWORD for p in takes.values())
    names = [k for k in KEYWORDS if k in takes or (k == "nobody" and open_ended)]
    right = f.right()
    needed = {"scale_a", "scale_b", *TABLES} & {*right}  # other values of these are wrong
    given = draw(some({k: KEYWORDS[k] for k in names if k not in needed}))
    given = draw(_fitting(given, f))
    e = given.get("epilogue")
    if isinstance(e, Expr) or (isinstance(e, str) and e in EPILOGUES):
        lead, (m, n) = right["a"].shape[:-2], right["out"].shape[-2:]
        groups = right["b"].shape[: -3 if right["b"].dtype == "uint8" else -2]
        for x in arguments(named(e)):
            of_columns = isinstance(x, PerColumn)
            given[x.name] = READS[type(x)]((groups if of_columns else lead, m, n))
    return Call(name, given, bound=draw(st.booleans()))


@st.composite
def _fitting(draw: Callable[..., Any], given: dict[str, Any], f: Any) -> dict[str, Any]:
    """With tensors of the sides that this function's have, where none are given and drawn."""
    m, n = f.right()["out"].shape[-2:]
    if given.get("out_dtype") == "e4m3" and "scale_out" in given and draw(st.booleans()):
        steps = -(-n // gemms.K)
        given = given | {"out": None, "scale_out": Placed(m, steps, stride=(1, m))}
    if "c" in given and draw(st.booleans()):
        lead = f.right()["out"].shape[:-2]
        given = given | {"c": Placed(*lead, m, n), "out_dtype": "f32"}
    if "rows" in given and draw(st.booleans()):
        given = given | {"rows": Placed(m, dtype="int32")}
    if given.get("heads") == heads.SPLITS and draw(st.booleans()):
        given = given | {x: v for x, v in heads.right().items() if x in ("b", "scale_b", "out")}
    weights = given.get("weights")
    if isinstance(weights, str) and weights in OF_BF16 and draw(st.booleans()):
        sides = (*f.right()["b"].shape[:-1], OF_BF16[weights].block_bytes)
        given = given | {"b": Placed(*sides, dtype="uint8")}
    return given


def ignored(call: Call) -> list[str]:
    """The arguments that a launch does not show."""
    f, given = TAKEN[call.function], call.given
    LAUNCHES.clear()
    CHOSEN.clear()
    made = f.right() | given
    if call.bound:
        ops.bind(f.call, **made)()
    else:
        f.call(**made)
    launch = LAUNCHES[-1]
    p, values = launch.problem, [*launch.values.values()]
    told = {
        "layout": lambda v: p.layout == v,
        "out_dtype": lambda v: v is None or p.d.name == v,
        "accumulate": lambda v: p.accumulate is bool(v),
        "weights_ready": lambda v: p.weights_ready is v,
        "accurate": lambda v: recipe(p.family).promotes is bool(v),
        "alignment": lambda v: p.alignment == v,
        "expected_rows": lambda v: v is None or not CHOSEN or CHOSEN[-1][1][0] == v,
        "expected_groups": lambda v: v is None or not CHOSEN or CHOSEN[-1][2] == v,
        "config": lambda v: launch.config == (v or _chosen(p)),
        "epilogue": lambda v: p.epilogue in (named(v), _of_scaled(p, made, v)),
        "scale_a_layout": lambda v: (v == "mn") is _in_place(launch, made["scale_a"]),
        "scale_layout": lambda v: (v == "mn") is _in_place(launch, made["scale_a"]),
        "packing": lambda v: p.grouping == f"k_{v}",
        "invariant": lambda v: _is_as_asked(launch, v),
        "scale_out": lambda v: v is None or v.data_ptr() in values,
        "squares": lambda v: v is None or v.data_ptr() in values,
        "rows": lambda v: v is None or v.data_ptr() in values,
        "top": lambda v: v == launch.values.get(TOP, 1),
        "heads": lambda v: p.heads == (v if v is None else heads_of(v)),
        "weights": lambda v: p.weights == v,
        "columns": lambda v: v is None or launch.shape[1] == v,
        "c": lambda v: v is None or p.accumulate or v.data_ptr() in values,
        "scale_a": lambda v: v is None or _reads(launch, v),
        "scale_b": lambda v: v is None or _reads(launch, v),
    }
    return [k for k, v in given.items() if k in told and not told[k](v)]


def _chosen(p: Problem) -> Config:
    """In the place of what the cost model finds."""
    if p.weights:
        of_fp8 = coded_blocks.CONFIG if recipe(p.family).scaled else coded_fp8.CONFIG
        return coded.CONFIG if p.a.bytes == 2 else of_fp8
    return gemms.CONFIG


def _reads(launch: SimpleNamespace, scale: Any) -> bool:
    """Whether it is handed over: a number as a kernel has it, for not every integer is a float, or a tensor, also as a matrix of scales."""
    if isinstance(scale, int | float):
        return float(scale) in launch.values.values()
    pointers = (*launch.values.values(), *(m.pointer for m in launch.matrices.values()))
    return scale.data_ptr() in pointers


def _is_as_asked(launch: SimpleNamespace, invariant: bool | None) -> bool:
    """The config that was given adds up as invariant ones do; where one is chosen, such a one is asked for."""
    p, (_, n, k) = launch.problem, launch.shape
    wanted = invariance.split_of(p, n, k, invariant)
    if CHOSEN:
        return bool(CHOSEN[-1][-1] == wanted)
    return not invariant or wanted == ANY or adds_up(p, launch.config, k, wanted)


def _of_scaled(p: Problem, made: dict[str, Any], epilogue: Any) -> Expr:
    """Of the product times the scales that a call has, which are numbers, of rows or of columns; those of A that sums are promoted by are no part of it."""
    scale_a = None if recipe(p.family).scaled else made.get("scale_a")
    return scaled._scaled((scale_a, made.get("scale_b")), epilogue, {})[0]


def _in_place(launch: SimpleNamespace, scale: Any) -> bool:
    """Scales are read where they lie, or a copy of them is."""
    return bool(launch.matrices["scale_a"].pointer == scale.data_ptr())


LAUNCHES: list[SimpleNamespace] = []
CHOSEN: list[tuple[Any, ...]] = []


def without_gpu(stack: ExitStack) -> None:
    """Tensors of nothing but shapes; launches are written down."""
    global LAUNCHES
    patch = stack.enter_context(pytest.MonkeyPatch.context())
    stack.enter_context(fake_torch.faked(patch))
    patch.setattr(
        ops.building, "chosen", lambda p, *asked: CHOSEN.append((p, *asked)) or _chosen(p)
    )
    host_calls.without_gpu(patch)
    LAUNCHES = fake_torch.recorded(patch)
