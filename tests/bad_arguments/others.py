"""What is public beside the GEMMs: problems and configs, bound launches, preparing, quantising, limits."""

from __future__ import annotations

import reprlib
from types import SimpleNamespace

import pytest
from fake_arrays import Exported
from fake_torch import Placed

import gemmgen
from gemmgen import ops
from gemmgen.compat import deep_gemm
from gemmgen.config import FIELDS, Config
from gemmgen.epilogues import gate
from gemmgen.errors import IllegalConfig
from gemmgen.ir.dtypes import BF16, E4M3, E5M2, F16, F32, S8, S32
from gemmgen.ir.expr import ACC, PerColumn, PerRow, Scalar
from gemmgen.ops import invariance
from gemmgen.pipeline import lower
from gemmgen.problem import Problem

from .gemms import K, M, N, operands
from .model import Function, Given, wrong

OUT_OF_RANGE = {
    "block_m": (0, 7, 12, 264, -128, 128.0, "128", True, None, 10**30),
    "block_n": (0, 4, 257, None),
    "block_k_bytes": (0, 16, 96, "64"),
    "stages": (0, 17, 2.5, True, "4"),
    "consumers": (0, 5, None),
    "multicast": ("c", None, True, ["a"]),
    "raster": ("k", 0, {}),
    "panel": (0, 65),
    "unroll": (0, 9),
    "in_flight": (2, -1, True),
    "swizzle_ab": (16, "128", 256),
    "swizzle_d": (1, float("nan")),
    "registers": (
        24,
        (24,),
        (24, 240, 1),
        (24, -8),
        (24, 10**5000),
        ("a", "b"),
        [24, 240],
        (24.0, 240.0),
    ),
    "d_columns": (0, 7, 264, "64", True),
    "watchdog": (1, "yes"),
    "swap_ab": (0, None),
    "parts": (0, 3, True),
    "split_k": (0, 3, 16),
    "pdl": ("true", 1),
    "ping_pong": (1, None),
    "peek": (0, "yes"),
    "order": (0, None, "hilbert"),
    "stream": (1, None, "yes"),
    "lane_scales": (1, None, "yes"),
    "weights_ahead": (1, None, "yes"),
    "direct": (1, None, "yes"),
    "slots": (1, None, "yes"),
    "shares": (0, 3, 16, "two"),
    "outbox": (1, None, "yes"),
    "slice_k": (1, None, "yes"),
    "one_block": (1, None, "yes"),
}
assert OUT_OF_RANGE.keys() == FIELDS.keys()


def _short(value: object) -> str:
    """As repr; numbers of thousands of digits have none."""
    return reprlib.repr(value) if value != (24, 10**5000) else "(24, 10**5000)"


def _problem() -> Given:
    return {"family": "dense", "a": BF16, "b": BF16}


def _json() -> Given:
    return {"data": {"family": "dense", "a": "bf16", "b": "bf16"}}


def _data(says: str, argument: str, **changes: object):
    return wrong(says, argument, data=_json()["data"] | changes)


LOWERED = (
    *(wrong(f"problem {x!r}", "problem", problem=x) for x in (None, "dense", {})),
    *(wrong("no config", "config", config=x) for x in (None, "{}", {})),
    *(wrong(f"target {x!r}", "target", target=x) for x in (None, "H200")),
    wrong("no observer", "observer", observer=5),
    *(wrong(f"stamps {x!r}", "stamps", stamps=x) for x in (3, -1, 2**18, True, 8.0, "8", None)),
)
COMPILER = (
    Function(name="Config", call=Config, right=dict, wrong=tuple(
        wrong(f"{name}={_short(value)}", name, **{name: value}) for name, values in OUT_OF_RANGE.items() for value in values)),
    Function(name="Config.from_json", call=Config.from_json, right=lambda: {"data": {}}, wrong=(
        *(wrong(f"{x!r}", "config", data=x) for x in (None, [], "{}", 1)),
        wrong("a field that there is not", "tile", data={"tile": 128}),
        wrong("a name that is no text", "1", data={1: 2}),
        wrong("text for a number", "stages", data={"stages": "4"}),
        wrong("registers of three", "registers", data={"registers": [24, 240, 240]}))),
    Function(name="Problem", call=Problem, right=_problem, wrong=(
        wrong("a number for a family", "family", family=5),
        wrong("a family that there is not", "family", family="sparse"),
        wrong("dtypes that the family has not", "a", family="fp8_block"),
        wrong("operands of two dtypes", "b", b=F16),
        wrong("FP8 along N", "layout", a=E4M3, b=E4M3, layout="nn"),
        wrong("no dtype's name", "a", a="bf17"),
        wrong("nothing for a dtype", "b", b=None),
        wrong("an output of no kernel", "d", d=E5M2),
        wrong("INT32 of BF16", "d", d=S32),
        wrong("INT32 and an epilogue", "d", a=S8, b=S8, d=S32, epilogue=ACC * 2.0),
        wrong("a layout that there is not", "layout", layout="row"),
        wrong("a list for a layout", "layout", layout=["nt"]),
        wrong("a grouping that there is not", "grouping", grouping="rowwise"),
        wrong("a list for a grouping", "grouping", grouping=["rows"]),
        wrong("an alignment that there is not", "alignment", alignment=32),
        wrong("a fraction for an alignment", "alignment", alignment=128.0),
        wrong("no epilogue's name", "epilogue", epilogue="rleu"),
        wrong("an argument that is no C identifier", "epilogue argument", epilogue=ACC + PerColumn("1 + x")),
        wrong("an argument that is no text", "epilogue argument", epilogue=ACC + PerColumn(None)),
        wrong("one name twice", "epilogue argument", epilogue=ACC * PerRow("s") * Scalar("s")),
        wrong("an argument's name of 65 characters", "epilogue argument", epilogue=ACC + Scalar("c" * 65)),
        wrong("a column of a pair of a pair", "epilogue", epilogue=gate(gate(ACC))),
        wrong("columns paired and not", "epilogue", epilogue=gate(ACC) * ACC),
        wrong("a number for true", "accumulate", accumulate=1, d=F32),
        wrong("adding to BF16", "accumulate", accumulate=True),
        wrong("adding where rows are set to 0", "accumulate", accumulate=True, d=F32, grouping="rows"),
        wrong("adding pairs", "accumulate", accumulate=True, d=F32, epilogue=gate(ACC)),
        wrong("a number for a promise", "weights_ready", weights_ready=1),
        wrong("a promise of no weights", "weights_ready", weights_ready=True, grouping="k_columns"),
        *(wrong(f"weights {x!r} of a family without", "weights", weights=x) for x in ("int4_128_bf16", None, 4)),
        *(wrong(f"weights {x!r}", "weights", family="w4a16", weights=x) for x in ("", "int4", "int4_128_f16", "e2m1_64_e8m0", None, 4, ["int4_128_bf16"])),
        wrong("exponents for FP16", "weights", family="w4a16", weights="e2m1_32_e8m0", a=F16, b=F16),
        wrong("FP8 by weights of 4 bits", "a", family="w4a16", weights="int4_128_bf16", a=E4M3, b=E4M3),
        *(wrong(f"packed weights in layout {x}", "layout", family="w4a16", weights="int4_128_bf16", layout=x) for x in ("nn", "tn", "tt")),
        wrong("packed weights by rows of an index", "indexed", family="w4a16", weights="int4_128_bf16", grouping="ends", indexed=True),
        wrong("a number for pages", "paged", paged=1),
        wrong("one GEMM in pages", "paged", paged=True),
        wrong("packed weights in pages", "paged", family="w4a16", weights="int4_128_bf16", grouping="batched", paged=True),
        wrong("scaled operands in pages", "paged", family="fp8_block", a=E4M3, b=E4M3, grouping="batched", paged=True),
        *(wrong(f"packed weights by {x}", "grouping", family="w4a16", weights="int4_128_bf16", grouping=x) for x in ("k_columns", "k_flat")))),
    Function(name="Problem.from_json", call=Problem.from_json, right=_json, wrong=(
        *(wrong(f"{x!r}", "problem", data=x) for x in (None, [], "dense", 1.5)),
        wrong("no family", "family", data={"a": "bf16", "b": "bf16"}),
        wrong("no operand", "b", data={"family": "dense", "a": "bf16"}),
        _data("a field that there is not", "c", c="bf16"),
        _data("a dtype that there is not", "a", a="fp4"),
        _data("a list for a dtype", "a", a=["bf16"]),
        _data("an output dtype that there is not", "d", d="f64"),
        _data("an epilogue that there is not", "epilogue", epilogue="softmax"),
        _data("a function that there is not", "epilogue", epilogue=["sin", "acc"]),
        _data("an operator of three", "epilogue", epilogue=["+", "acc", "acc", "acc"]),
        _data("a function of too many", "exp", epilogue=["exp", "acc", "acc"]),
        _data("true for a number", "epilogue", epilogue=["+", "acc", True]),
        _data("a dtype of no element", "dtype of c", epilogue=["+", "acc", ["per_element", "c", "e4m3"]]),
        _data("a list for a grouping", "grouping", grouping=[]),
        _data("weights of a family without", "weights", weights="int4_128_bf16"),
        _data("a family of weights without", "weights", family="w4a16"),
        _data("a list for weights", "weights", family="w4a16", weights=["int4_128_bf16"]))),
    Function(name="lower", call=lower, right=lambda: {"problem": Problem(**_problem()), "config": Config(stages=2)}, wrong=(
        *LOWERED,
        wrong("too many stages", "smem-capacity", IllegalConfig, config=Config(stages=16)),
        wrong("too few rows", "tile-rows", IllegalConfig, config=Config(block_m=8, stages=2)))),
    Function(name="compile_to_source", call=gemmgen.compile_to_source, right=lambda: {"problem": Problem(**_problem()), "shape": (M, N, K)}, wrong=(
        *(x for x in LOWERED if x.says != "no config"),
        *(wrong(f"a side of {x!r}", "n", shape=(M, x, K)) for x in (0, -8, 1.5, "8", None, 2**31)),
        *(wrong(f"shape {x!r}", "shape", shape=x) for x in ((M, N), "MNK", 5)),
        *(wrong(f"{x!r} groups", "groups", groups=x) for x in (0, -1, 2, 1.0, "2", True, None)),
        wrong("groups for a config", "groups", config=Config(), shape=None, groups=2),
        *(wrong(f"invariant={x} for a config", "invariant", config=Config(), shape=None, invariant=x) for x in (True, False)),
        *(wrong(f"invariant={x!r}", "invariant", invariant=x) for x in (1, "1")),
        wrong("neither config nor shape", "config", shape=None),
        wrong("a config and a shape", "shape", config=Config()))),
    Function(name="do_bench", call=gemmgen.do_bench, right=lambda: {"fn": int}, runs=False, wrong=(
        *(wrong(f"{x!r}", "fn", fn=x) for x in (None, "f", 5)),
        *(wrong(f"{x!r} repeats", "repeats", repeats=x) for x in (0, -1, 1.5, "3", True, None, 10**9)),
        *(wrong(f"an L2 of {x!r}", "l2", l2=x) for x in ("cold", None, True, ["flush"])))),
)  # fmt: skip


def _launch() -> ops.Launch:
    return ops.bind(ops.gemm, **operands("bfloat16"))


BOUND = (
    Function(name="ops.bind", call=lambda function, **given: ops.bind(function, **given),
             right=lambda: {"function": ops.gemm, **operands("bfloat16")}, wrong=(
        wrong("no function of gemmgen's", "function", function=len),
        wrong("text for a function", "function", function="gemm"),
        wrong("nothing to launch", "function", a=Placed(0, K, dtype="bfloat16"), out=None),
        wrong("a tensor for a number", "arguments", epilogue=ACC * Scalar("alpha"), alpha=type("One", (Placed,), {"__float__": lambda t: 1.0})(1)),
        wrong("what the function refuses", "out_dtype", out_dtype="f64"))),
    Function(name="Launch.with_stream", call=lambda stream: _launch().with_stream(stream), right=lambda: {"stream": 7}, wrong=(
        *(wrong(f"{x!r}", "stream", stream=x) for x in (None, "0", True, -1, 1.5)),
        wrong("a stream of another device", "stream device", stream=SimpleNamespace(cuda_stream=7, device_index=1)))),
    Function(name="Launch.rebind", call=lambda **tensors: _launch().rebind(**tensors), right=dict, wrong=(
        wrong("a name of no tensor", "bias", bias=Placed(N)),
        wrong("a number", "a", a=1.0),
        wrong("another shape", "a shape", a=Placed(M + 8, K, dtype="bfloat16")),
        wrong("other strides", "b strides", b=Placed(N, K, dtype="bfloat16", stride=(2 * K, 1))),
        wrong("another dtype", "out dtype", out=Placed(M, N, dtype="float16")))),
)  # fmt: skip


def _prepared() -> Given:
    return {"problems": Problem(**_problem()), "shapes": ((M, N, K),), "device": "NVIDIA H200"}


def _x() -> Given:
    return {"x": Placed(M, K, dtype="bfloat16")}


def _is_invariant(said: str) -> bool:
    """Asked in a process whose environment variable says this."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(invariance.VARIABLE, said)
        patch.setattr(invariance, "asked", invariance.from_environment())
        return ops.is_invariant()


QUANTISE = (
    wrong("no tensor", "x", x=[[1.0]]),
    wrong("integers", "x dtype", x=Placed(M, K, dtype="int8")),
    wrong("one dimension", "x shape", x=Placed(K)),
    *(wrong(f"dtype {x!r} of q", "dtype", dtype=x) for x in ("e5m2", None, ["e4m3"])),
    wrong("blocks of 64", "block", block=64),
    wrong("text for a block", "block", block="128"),
)
HOST = (
    Function(name="ops.as_tensor", call=ops.as_tensor, right=lambda: {"x": Exported(M, K)}, wrong=(
        *(wrong(f"{x!r}", "x", x=x) for x in ("x", 5, [1.0])),
        wrong("nothing", "x", x=None),
        *(wrong(f"dtype {x!r}", "dtype", dtype=x) for x in ("fp4", "float16", 5, ["e4m3"])),
        wrong("bytes taken for something wider", "x dtype", x=Exported(M, K, dtype="uint8"), dtype="bf16"))),
    Function(name="ops.compiled", call=ops.compiled, right=lambda: {"p": Problem(**_problem()), "c": Config()}, runs=False, wrong=(
        wrong("too many stages", "smem-capacity", IllegalConfig, c=Config(stages=16)),)),
    Function(name="ops.prepare", call=ops.prepare, right=_prepared, runs=False, wrong=(
        *(wrong(f"side {x!r}", "n", shapes=((M, x, K),)) for x in (0, -1, 1.5, "8", None, 2**31)),
        *(wrong(f"shape {x!r}", "shape", shapes=(x,)) for x in ((M, N), (M, N, K, 1), "MNK", 5, None)),
        *(wrong(f"{x!r} threads", "threads", threads=x) for x in (0, -2, 1.5, "2", True)),
        *(wrong(f"{x!r} groups", "groups", groups=x) for x in (0, "2", True)),
        wrong("true for a device", "device", device=True),
        *(wrong(f"layout {x!r}", "scale_a_layout", scale_a_layout=x) for x in ("col", "row", None)),  # of sums without scales
        wrong("a number for shapes", "shapes", shapes=5),
        wrong("text for a problem", "problems", problems=("dense",)),
        wrong("nothing for problems", "problems", problems=None),
        wrong("a fraction for a device", "device", device=0.5))),
    Function(name="ops.every_m", call=ops.every_m, right=lambda: {"most": 8}, wrong=tuple(
        wrong(f"{x!r}", "most", most=x) for x in (0, -1, 1.5, "8", None, 2**40, True))),
    Function(name="ops.limit_sms", call=ops.limit_sms, right=lambda: {"count": None}, wrong=tuple(
        wrong(f"{x!r}", "count", count=x) for x in (0, 7, -1, 8.5, "8", False))),
    Function(name="ops.set_invariant", call=ops.set_invariant, right=lambda: {"on": False}, wrong=tuple(
        wrong(f"{x!r}", "on", on=x) for x in (0, 1, None, "1", "", 2.0))),
    Function(name="ops.set_pdl", call=ops.set_pdl, right=lambda: {"on": False}, wrong=tuple(
        wrong(f"{x!r}", "on", on=x) for x in (0, 1, None, "1", "", 2.0))),
    Function(name="ops.is_invariant", call=_is_invariant, right=lambda: {"said": ""}, wrong=tuple(
        wrong(f"a variable that says {x!r}", invariance.VARIABLE, said=x) for x in ("2", "true", " 1", "-0"))),
    Function(name="ops.quantise_rows", call=ops.quantise_rows, right=_x, runs=False, wrong=(
        *QUANTISE, wrong("rows of nothing", "x shape", x=Placed(M, 0), block=None))),
    Function(name="ops.quantise_blocks", call=ops.quantise_blocks, right=_x, runs=False, wrong=(
        *QUANTISE, wrong("no block", "block", block=None))),
    Function(name="deep_gemm.set_num_sms", call=deep_gemm.set_num_sms, right=lambda: {"new_num_sms": 0}, wrong=tuple(
        wrong(f"{x!r}", "new_num_sms", new_num_sms=x) for x in (133, -2, 4, "8", None))),
)  # fmt: skip
FUNCTIONS = (*COMPILER, *BOUND, *HOST)
