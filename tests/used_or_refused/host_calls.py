"""Calls of what is around GEMMs, drawn: timing, preparing, quantising, settings, other libraries' arrays."""

from __future__ import annotations

import sys
from typing import Any

import fake_arrays
import pytest
from fake_torch import Placed
from hypothesis import strategies as st

import gemmgen
from gemmgen import ops
from gemmgen.bench import timing
from gemmgen.errors import RuntimeUnavailable
from gemmgen.ir.dtypes import BF16, E4M3
from gemmgen.ops import preparing, quantise
from gemmgen.problem import Problem
from gemmgen.runtime import driver

from . import expert_calls, logits_calls, prenorm_calls
from .values import Function, function, mostly

# What a function handed on to what this campaign has not.
PASSED: list[tuple[Any, ...]] = []
DENSE, FP8 = Problem(family="dense", a=BF16, b=BF16), Problem(family="fp8_block", a=E4M3, b=E4M3)
ROWS = Problem(family="dense", a=BF16, b=BF16, grouping="rows")
OF_BYTES = {"uint8": ("e4m3", "e5m2"), "uint16": ("bf16",), "float16": ("f16",)}  # what they may be


def without_gpu(patch: pytest.MonkeyPatch) -> None:
    """After a torch of nothing but shapes is there."""

    def timed(calls: Any, repeats: int, flush_bytes: int) -> dict[str, Any]:
        PASSED.append((calls["fn"], repeats, flush_bytes))
        return {"fn": timing.Samples(seconds=(1.0,), kernels=("k",))}

    def compiled(kernels: Any, threads: int, progress: Any) -> dict[Any, Any]:
        PASSED.append((threads,))
        progress("compiling", len(kernels), len(kernels))
        return {k: preparing._Built(key="", size=0, new=True) for k in kernels}

    def missing(device: int) -> Any:
        raise RuntimeUnavailable(f"no device {device}")

    chosen = preparing.config_for

    def choosing(p: Any, shape: Any, groups: int, device: str) -> Any:
        PASSED.append((p, tuple(shape), groups, device))
        return chosen(p, shape, groups, device)

    for name, says in (("current_device", int), ("is_available", lambda: True)):
        patch.setattr(sys.modules["torch"].cuda, name, says, False)
    patch.setattr(timing, "interleave", timed)
    patch.setattr(preparing, "require_hopper", missing)
    patch.setattr(preparing, "_compiled", compiled)
    patch.setattr(preparing, "config_for", choosing)
    patch.setattr(quantise, "_quantised", lambda *of: PASSED.append(of) or of)
    expert_calls.without_gpu(patch)
    logits_calls.without_gpu(patch)
    prenorm_calls.without_gpu(patch)
    patch.setattr(driver, "wait_for", lambda *of: None)


def _do_bench(given: dict[str, Any]) -> list[str]:
    PASSED.clear()
    gemmgen.do_bench(**given)
    fn, repeats, flush = PASSED[-1]
    told = {
        "fn": fn is given["fn"],
        "repeats": repeats == given.get("repeats"),
        "l2": flush == timing.FLUSHED[given.get("l2", "flush")],
    }
    return [k for k in given if not told[k]]


def _prepare(given: dict[str, Any]) -> list[str]:
    """progress: True stands for a function that notes what it is called with."""
    PASSED.clear()
    told_of: list[str] = []
    if given.get("progress") is True:
        given = given | {"progress": lambda what, done, total: told_of.append(what)}
    found = ops.prepare(**given)
    *asked, (threads,) = PASSED
    if not asked:
        return []  # of no problem or no shape there is nothing to do
    wanted = given["problems"]
    problems = [wanted] if isinstance(wanted, Problem) else [*wanted]
    told = {
        "problems": {x[0] for x in asked} == {*problems},
        "shapes": {x[1] for x in asked} == {*map(tuple, given["shapes"])},
        "groups": all(x[2] == given.get("groups") for x in asked),
        "device": given.get("device") in (None, found.device),
        "threads": given.get("threads") in (None, threads),
        "scale_a_layout": any(c.lane_scales for _, c in found.kernels)
        == (given.get("scale_a_layout") == "row"),
        "progress": {*told_of} == {"choosing", "compiling"},
    }
    return [k for k in given if not told[k]]


def _every_m(given: dict[str, Any]) -> list[str]:
    found = ops.every_m(**given)
    return ["most"] * (found[-1] != given["most"] or found[0] != 1)


def _limit_sms(given: dict[str, Any]) -> list[str]:
    ops.limit_sms(**given)
    found = ops.sm_limit()
    ops.limit_sms(None)
    return ["count"] * (found != given["count"])


def _set_invariant(given: dict[str, Any]) -> list[str]:
    before = ops.is_invariant()
    ops.set_invariant(**given)
    found = ops.is_invariant()
    ops.set_invariant(before)
    return ["on"] * (found is not given["on"])


def _set_pdl(given: dict[str, Any]) -> list[str]:
    before = ops.is_pdl()
    ops.set_pdl(**given)
    found = ops.is_pdl()
    ops.set_pdl(before)
    return ["on"] * (found is not given["on"])


def _nothing(given: dict[str, Any]) -> list[str]:
    ops.is_invariant()
    ops.is_pdl()
    ops.sm_limit()
    return []


def _as_tensor(given: dict[str, Any]) -> list[str]:
    x = given["x"]
    if x in [*OF_BYTES]:
        x = fake_arrays.Exported(64, 64, dtype=x)
    found = ops.as_tensor(**(given | {"x": x}))
    told = {
        "x": found.address == x.address,
        "dtype": given.get("dtype") in (None, getattr(found.dtype, "name", None)),
        "stream": given.get("stream") in (None, found.device.stream)
        or (given["stream"] == 1 and found.device.stream == 0),  # both are the default stream
    }
    return [k for k in given if not told[k]]


def _rows(given: dict[str, Any]) -> list[str]:
    return _quantised(ops.quantise_rows, given, "columns" if given.get("block", 128) else "row")


def _blocks(given: dict[str, Any]) -> list[str]:
    return _quantised(ops.quantise_blocks, given, "block")


def _quantised(call: Any, given: dict[str, Any], per: str) -> list[str]:
    PASSED.clear()
    call(**given)
    x, how, dtype, power_of_two = PASSED[-1]
    told = {
        "x": x is given["x"],
        "block": how == per,
        "dtype": dtype == given.get("dtype"),
        "power_of_two": power_of_two is given.get("power_of_two"),
    }
    return [k for k in given if not told[k]]


X = mostly(st.builds(lambda: Placed(64, 256, dtype="bfloat16")))
KIND = {
    "dtype": mostly(st.sampled_from(["e4m3", "s8"])),
    "power_of_two": mostly(st.booleans()),
}
SIDES = st.lists(st.sampled_from([(64, 64, 128), (1, 512, 256)]), min_size=1, unique=True)
FUNCTIONS: dict[str, Function] = {
    "do_bench": function(
        gemmgen.do_bench,
        _do_bench,
        {"repeats": mostly(st.sampled_from([1, 15, 100])), "l2": mostly(st.sampled_from([*timing.FLUSHED]))},
        fn=mostly(st.sampled_from([int, print])),
    ),
    "prepare": function(
        ops.prepare,
        _prepare,
        {
            "groups": mostly(st.sampled_from([1, 2])),
            "device": mostly(st.sampled_from(["NVIDIA H200", "NVIDIA H100 80GB HBM3", 0])),
            "threads": mostly(st.sampled_from([1, 4])),
            "scale_a_layout": mostly(st.sampled_from(["row", "mn"])),
            "progress": st.just(True),
        },
        problems=mostly(st.sampled_from([DENSE, ROWS, (DENSE, FP8)]), 20),
        shapes=mostly(SIDES),
    ),
    "every_m": function(ops.every_m, _every_m, {}, most=mostly(st.sampled_from([1, 7, 64, 1000]))),
    "limit_sms": function(ops.limit_sms, _limit_sms, {}, count=mostly(st.sampled_from([8, 100]))),
    "set_invariant": function(ops.set_invariant, _set_invariant, {}, on=mostly(st.booleans())),
    "set_pdl": function(ops.set_pdl, _set_pdl, {}, on=mostly(st.booleans())),
    "is_invariant": function(ops.is_invariant, _nothing, {}),
    "is_pdl": function(ops.is_pdl, _nothing, {}),
    "sm_limit": function(ops.sm_limit, _nothing, {}),
    "as_tensor": function(
        ops.as_tensor,
        _as_tensor,
        {"dtype": mostly(st.sampled_from(["e4m3", "bf16", "f16"])), "stream": mostly(st.sampled_from([0, 1, 7]))},
        x=mostly(st.sampled_from([*OF_BYTES])),
    ),
    "quantise_rows": function(
        ops.quantise_rows, _rows, {"block": mostly(st.sampled_from([128, None])), **KIND}, x=X
    ),
    "quantise_blocks": function(
        ops.quantise_blocks, _blocks, {"block": mostly(st.just(128)), **KIND}, x=X
    ),
}  # fmt: skip
