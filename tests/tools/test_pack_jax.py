"""Packs as targets of XLA's FFI: what they are of, and what a call from JAX asks of the driver."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace

import pytest
from packs import (  # noqa: F401
    DENSE,
    HERE,
    SHAPES,
    SMS,
    STREAM,
    Built,
    compiles_nothing_fixture,
    driver_fixture,
    encoded_as,
    hexed,
    logged,
    made,
    needs_cc,
    sizes,
)

from gemmgen.config import Config
from gemmgen.epilogues import EPILOGUES
from gemmgen.errors import UnsupportedProblem
from gemmgen.ir.dtypes import BF16, E4M3, F16, F32, S8, S32
from gemmgen.ir.expr import ACC, DeviceScalar, PerColumn, PerRow
from gemmgen.pack import files
from gemmgen.pack.jax import XLA, target
from gemmgen.problem import OUTPUTS, Problem
from gemmgen.recipes import RECIPES
from gemmgen.runtime import launch
from gemmgen.runtime.tensor_map import Matrix, describe

FP8 = {"a": E4M3, "b": E4M3}
SCALED = ACC * PerRow("row_scale") * PerColumn("column_scale") * DeviceScalar("scale")
PACKED = Config(swap_ab=True, block_m=16, block_n=64, block_k_bytes=256, consumers=1, stages=4, in_flight=1)  # fmt: skip
CASES = {
    "dense": (DENSE, Config()),
    "nn residual": (replace(DENSE, layout="nn", epilogue=EPILOGUES["residual"]), Config()),
    "tn": (replace(DENSE, layout="tn", d=F32), Config()),
    "alpha_beta": (replace(DENSE, epilogue=EPILOGUES["alpha_beta"]), Config()),
    "swiglu": (replace(DENSE, epilogue=EPILOGUES["bias_swiglu"]), Config()),
    "int8": (Problem(family="dense", a=S8, b=S8, d=S32), Config()),
    "fp8": (Problem(family="fp8", **FP8, epilogue=SCALED), Config(block_n=64)),
    "fp8_block": (Problem(family="fp8_block", **FP8), Config()),
    "fp8_block by lane": (Problem(family="fp8_block", **FP8), Config(lane_scales=True)),
    "fp8_block e4m3": (Problem(family="fp8_block", **FP8, d=E4M3), Config()),
    "fp8_1d1d": (Problem(family="fp8_1d1d", **FP8, d=F32), Config(block_n=64)),
    "w4a16": (Problem(family="w4a16", a=F16, b=F16, weights="int4_64_f16_zeros"), PACKED),
    "w4a16 swiglu": (Problem(family="w4a16", a=BF16, b=BF16, weights="e2m1_32_e8m0", epilogue=EPILOGUES["bias_swiglu"]), PACKED),
    "w8a16": (Problem(family="w8a16", a=BF16, b=BF16, weights="int8_column_f32", epilogue=ACC * PerColumn("scale_b")), PACKED),
    "w4a8": (Problem(family="w4a8", **FP8, weights="e2m1_32_e8m0", epilogue=SCALED), replace(PACKED, block_k_bytes=128)),
    "w4a8_block": (Problem(family="w4a8_block", **FP8, weights="e2m1_32_e8m0"), replace(PACKED, block_k_bytes=128, in_flight=0)),
}  # fmt: skip
SIDES = {"m": 80, "n": 256, "k": 384}
PREFIX = "device"  # as an argument of the target, too


def found_in(name):
    p, config = CASES[name]
    found = made(p, {(128, SIDES["n"], SIDES["k"]): config}, PREFIX)
    return found, target(p, found.interface)


def test_every_dtype_has_a_name_there():
    operands = {t for r in RECIPES.values() for pair in r.operands for t in pair}
    assert {*XLA} == operands | {*OUTPUTS}


@pytest.mark.parametrize("name", CASES)
def test_arrays_are_the_arguments(name, compiles_nothing):
    """All members of the C arguments are given: addresses by arrays, strides of dense ones, and numbers."""
    found, of = found_in(name)
    strides = [name for x in (*of.inputs, *of.outputs) for name, _ in x.strides]
    given = [*(x.name for x in (*of.inputs, *of.outputs)), *strides, *of.numbers]
    assert sorted(given) == sorted(x.name for x in found.interface.members)
    assert [x.name for x in of.inputs[:2]] == ["a", "b"] and of.outputs[0].name == "d"
    assert (of.inputs[1].jax == "uint8") == of.packed == (name[:2] in ("w4", "w8"))


@pytest.mark.parametrize("name", CASES)
def test_what_is_written(name, compiles_nothing):
    found, _ = found_in(name)
    plain, more = files(found), files(found, jax=True)
    own = {f"{PREFIX}_jax.cc", f"{PREFIX}_jax.py"}
    assert {*more} - {*plain} == own and more == files(found, jax=True)
    assert more["CMakeLists.txt"].startswith(plain["CMakeLists.txt"])
    assert all(plain[x] == more[x] for x in plain if x != "CMakeLists.txt")
    text = more[f"{PREFIX}_jax.py"].decode()
    compile(text, "made", "exec")
    assert not [x for x in (text, more[f"{PREFIX}_jax.cc"].decode()) if "\n\n\n\n" in x]


@pytest.mark.parametrize(
    "p",
    [
        replace(DENSE, grouping="batched"),
        replace(DENSE, grouping="masked"),
        replace(DENSE, d=F32, accumulate=True),
    ],
)
def test_what_is_no_target_is_refused_by_name(p, compiles_nothing):
    shape = (64, 264, 200) if p.grouping == "none" else (4, 64, 264, 200)
    found = made(p, {shape: Config()})
    name = "accumulate=True" if p.accumulate else f"grouping={p.grouping}"
    with pytest.raises(UnsupportedProblem, match=f"a target for JAX cannot be of {name}"):
        files(found, jax=True)


# ---- called ---------------------------------------------------------------------------------

HOST = """
#include "{prefix}_jax.cc"

// As a client without streams calls it.
static ffi::Error host({params}) {{
    return launch(reinterpret_cast<CUstream>({stream}ull), 0, {names});
}}

XLA_FFI_DEFINE_HANDLER_SYMBOL(on_host, host, ffi::Ffi::Bind(){binds});
"""


def host_of(of):
    arrays = [(x.name, "Array", "Arg<Array>()") for x in of.inputs]
    arrays += [(x.name, "ffi::Result<Array>", "Ret<Array>()") for x in of.outputs]
    given = [*arrays, *((x, "float", f'Attr<float>("{x}")') for x in of.numbers)]
    return HOST.format(
        prefix=PREFIX,
        params=", ".join(f"{kind} {name}" for name, kind, _ in given),
        names=", ".join(name for name, _, _ in given),
        binds="".join(f".{bind}" for _, _, bind in given),
        stream=STREAM,
    )


@pytest.fixture(name="call")
def call_fixture(tmp_path, driver, compiles_nothing):
    jax = pytest.importorskip("jax")
    if not (compiler := shutil.which("g++")):
        pytest.skip("no g++")

    def called(name, *calls):
        """What comes of each of `calls`, (arrays' shapes and dtypes, numbers), and the driver's log."""
        found, of = found_in(name)
        for file, data in files(found, jax=True).items():
            (tmp_path / file).write_bytes(data)
        (tmp_path / "host.cc").write_text(host_of(of))
        strict = ["-Wall", "-Wextra", "-Werror", "-std=c++17", "-O0", "-fPIC"]
        headers = ["-isystem", jax.ffi.include_dir()]
        run, objects = subprocess.run, [tmp_path / "host.o", tmp_path / "pack.o"]
        run([compiler, *strict, *headers, "-c", tmp_path / "host.cc", "-o", objects[0]], check=True)
        source = tmp_path / f"{PREFIX}.c"
        run(["gcc", "-std=c11", "-fPIC", "-c", source, "-o", objects[1]], check=True)
        run([compiler, "-shared", *objects, "-ldl", "-o", tmp_path / "host.so"], check=True)
        built, log = Built(found, tmp_path, driver), tmp_path / "log"
        env = {**os.environ, "LD_LIBRARY_PATH": str(driver), "FAKE_LOG": str(log)}
        env |= {"FAKE_SIZES": ",".join(map(str, built.sizes)), "FAKE_SMS": str(SMS)}
        asked = {"folder": str(tmp_path), "prefix": PREFIX, "calls": calls}
        out = run(
            [sys.executable, str(HERE / "jax_caller.py")],
            input=json.dumps(asked), env=env | {"JAX_PLATFORMS": "cpu"}, capture_output=True, text=True,
        )  # fmt: skip
        assert out.returncode == 0, out.stderr
        return json.loads(out.stdout), [x.split() for x in log.read_text().splitlines()]

    return called


def asked_of(of, sides=SIDES, **told):
    arrays = [(sizes(x, sides), x.jax) for x in of.inputs]
    return {"arrays": arrays, "numbers": [0.5 + i for i in range(len(of.numbers))], **told}


@needs_cc
@pytest.mark.parametrize("name", CASES)
def test_a_call_is_the_launch_that_python_makes(name, call, compiles_nothing):
    """The maps and the parameters of dense arrays, at the addresses that XLA has them at."""
    found, of = found_in(name)
    asked = asked_of(of)
    (said,), log = call(name, asked)
    shapes, addresses, lowered = said
    assert shapes == [[[*sizes(x, SIDES)], x.jax] for x in of.outputs] and lowered
    (x,) = found.kernels
    at = dict(zip((y.name for y in of.inputs), addresses, strict=True))
    encoded = [list(map(int, line)) for line in logged(log, "cuTensorMapEncodeTiled")]
    names = [m.tensor for m in x.kernel.maps]
    # D's address is XLA's own.
    at |= {n: e[2] for n, e in zip(names, encoded, strict=True) if n == "d"}
    by_name = {y.name: y for y in (*of.inputs, *of.outputs)}
    for m, line in zip(x.kernel.maps, encoded, strict=True):
        outer, inner = sizes(by_name[m.tensor], SIDES)
        given = Matrix(pointer=at[m.tensor], outer=outer, inner=inner, stride=inner)
        assert line == encoded_as(describe(x.kernel, m, given))
    (launched,) = logged(log, "cuLaunchKernelEx")
    shape = tuple(SIDES.values())
    head = [launch.grid(x.kernel, shape, SMS), 1, 1, x.kernel.threads, 1, 1]
    assert launched[:9] == [x.kernel.name, *map(str, head), str(x.kernel.smem_bytes), str(STREAM)]
    values = {f"shape_{s}": v for s, v in SIDES.items()} | at
    values |= dict(zip(of.numbers, asked["numbers"], strict=True))
    dense = {n: eval(v.replace("/", "//"), dict(SIDES)) for y in by_name.values() for n, v in y.strides}  # fmt: skip
    params = launched[-len(x.kernel.params) :]
    for q, given in zip(x.kernel.params, params, strict=True):
        if q.name in values | dense:
            assert given == hexed(launch.packed(q.ctype, q.name, values | dense)), q.name
        else:
            assert q.name in by_name, q.name  # an output's address is XLA's own


@needs_cc
@pytest.mark.parametrize("m", [1, 77])
def test_scales_of_any_number_of_rows(m, call, compiles_nothing):
    """TMA's rows begin at multiples of 16 bytes: four scales in FP32."""
    found, of = found_in("fp8_block")
    ((shapes, _, _),), log = call("fp8_block", asked_of(of, SIDES | {"m": m}))
    assert shapes == [[[m, SIDES["n"]], "bfloat16"]] and len(logged(log, "cuLaunchKernelEx")) == 1
    names = [x.tensor for x in found.kernels[0].kernel.maps]
    (scales,) = (
        list(map(int, line))
        for name, line in zip(names, logged(log, "cuTensorMapEncodeTiled"), strict=True)
        if name == "scale_a"
    )
    padded = -(-m // 4) * 4
    given = Matrix(pointer=scales[2], outer=SIDES["k"] // 128, inner=m, stride=padded)
    kernel = found.kernels[0].kernel
    assert scales == encoded_as(
        describe(kernel, next(x for x in kernel.maps if x.tensor == "scale_a"), given)
    )


@needs_cc
def test_columns_of_packed_weights(call, compiles_nothing):
    """Of the last row of blocks as many as are said, for which D and the factors have room."""
    _, of = found_in("w8a16")
    few = SIDES | {"n": 200}
    a, (_, kind), (_, factors) = asked_of(of)["arrays"]
    flat = {"arrays": [a, ((4, 3 * 8192), kind), ((256,), factors)], "numbers": []}
    wide = {"arrays": [a, ((4, 2, 8192), kind), ((256,), factors)], "numbers": []}
    said, log = call(
        "w8a16",
        asked_of(of, few, columns=200),
        asked_of(of, few, columns=192),
        asked_of(of, few),
        flat,
        wide,
        asked_of(of, columns=256),
    )
    assert "n=200, k=384: the pack has no kernel for them" in said[0][1]
    assert said[1] == ["ValueError", "columns=192: must be 193 to 256, or None"]
    assert said[2] == ["ValueError", "arg_scale_b=float32[200]: must be float32[256]"]
    assert said[3][0] == "ValueError" and said[3][1].startswith("b shape=(4, 24576): must be [rows")
    assert said[4] == ["ValueError", "b=uint8[4, 2, 8192]: must be uint8[4, 3, 8192]"]
    assert said[5][0] == [[[80, 256], "bfloat16"]]
    assert len(logged(log, "cuLaunchKernelEx")) == 1, "the right one alone"


@needs_cc
def test_pairs_of_columns_of_packed_weights(call, compiles_nothing):
    _, of = found_in("w4a16 swiglu")
    n = SIDES["n"]
    said, _ = call("w4a16 swiglu", asked_of(of, columns=n - 1))
    says = f"columns={n - 1}: must be {n - 63} to {n}, a multiple of 2, or None"
    assert said == [["ValueError", says]]


@needs_cc
def test_wrong_calls_are_refused_with_a_text(call, compiles_nothing):
    _, of = found_in("alpha_beta")
    right = asked_of(of)
    wide = asked_of(of, SIDES | {"n": 264})
    many = asked_of(of, SIDES | {"m": 129})
    (a, b, c), numbers = right["arrays"], right["numbers"]
    short = {"arrays": [a, ((256, 392), b[1]), c], "numbers": numbers}
    typed = {"arrays": [(a[0], "float16"), b, c], "numbers": numbers}
    flat = {"arrays": [((80 * 384,), a[1]), b, c], "numbers": numbers}
    none = asked_of(of, SIDES | {"m": 0})
    said, log = call("alpha_beta", wide, many, short, typed, flat, none, right)
    assert "n=264, k=384: the pack has no kernel for them" in said[0][1]
    assert "m=129: must be at most 128 for n=256, k=384" in said[1][1]
    assert said[2] == ["ValueError", "b=bfloat16[256, 392]: must be bfloat16[256, 384]"]
    assert said[3] == ["ValueError", "a=float16[80, 384]: must be bfloat16[80, 384]"]
    assert said[4][0] == "ValueError" and said[4][1].startswith("a shape=(30720,): must be [m, k]")
    assert said[5][0] == [[[0, 256], "bfloat16"]]
    assert len(logged(log, "cuLaunchKernelEx")) == 1, "the right one alone"
