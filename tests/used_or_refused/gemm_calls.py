"""GEMMs over tensors of no GPU, drawn: what a launch is made of says whether an argument was used."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import fake_torch
import pytest
from bad_arguments import gemms
from fake_torch import Placed
from hypothesis import strategies as st

from gemmgen import ops
from gemmgen.epilogues import EPILOGUES, named
from gemmgen.ir.expr import ACC, Expr, PerColumn, PerElement, PerRow, Scalar, arguments
from gemmgen.problem import LAYOUTS
from gemmgen.recipes import recipe

from .values import CONFIG, JUNK, Call, mostly, some

TAKEN = {f.name: f for f in gemms.FUNCTIONS}
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
    "alignment": mostly(st.sampled_from([64, 128])),
    "expected_rows": mostly(st.sampled_from([1, 7, 256])),
    "config": mostly(CONFIG | st.none()),
    "epilogue": mostly(
        st.sampled_from(["relu", "silu", "gelu", ACC * 3.0, "bias", "residual", "alpha"])
    ),
    "scale_a_layout": mostly(st.sampled_from(["mn", "row"])),
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
    given = draw(some({k: KEYWORDS[k] for k in names}))
    e = given.get("epilogue")
    if isinstance(e, Expr) or (isinstance(e, str) and e in EPILOGUES):
        right = f.right()
        lead, (m, n) = right["a"].shape[:-2], (right["a"].shape[-2], right["b"].shape[-2])
        groups = right["b"].shape[:-2]
        for x in arguments(named(e)):
            of_columns = isinstance(x, PerColumn)
            given[x.name] = READS[type(x)]((groups if of_columns else lead, m, n))
    return Call(name, given)


def ignored(call: Call) -> list[str]:
    """The arguments that a launch does not show."""
    f, given = TAKEN[call.function], call.given
    LAUNCHES.clear()
    CHOSEN.clear()
    f.call(**(f.right() | given))
    launch = LAUNCHES[-1]
    p = launch.problem
    told = {
        "layout": lambda v: p.layout == v,
        "out_dtype": lambda v: v is None or p.d.name == v,
        "accumulate": lambda v: p.accumulate is bool(v),
        "weights_ready": lambda v: p.weights_ready is v,
        "accurate": lambda v: recipe(p.family).promotes is bool(v),
        "alignment": lambda v: p.alignment == v,
        "expected_rows": lambda v: v is None or not CHOSEN or CHOSEN[-1][1][0] == v,
        "config": lambda v: launch.config == (v or gemms.CONFIG),
        "epilogue": lambda v: p.epilogue == named(v),
    }
    return [k for k, v in given.items() if k in told and not told[k](v)]


LAUNCHES: list[SimpleNamespace] = []
CHOSEN: list[tuple[Any, ...]] = []


def without_gpu(stack: ExitStack) -> None:
    """Tensors of nothing but shapes; launches are written down."""
    global LAUNCHES
    patch = stack.enter_context(pytest.MonkeyPatch.context())
    stack.enter_context(fake_torch.faked(patch))
    patch.setattr(ops.building, "chosen", lambda *asked: CHOSEN.append(asked) or gemms.CONFIG)
    patch.setattr(sys.modules["torch"], "cuda", SimpleNamespace(current_device=int), False)
    LAUNCHES = fake_torch.recorded(patch)
