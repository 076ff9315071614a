"""Packs of packed weights, of sums of groups, and of kernels whose CTAs hand sums over: C launches what `gemmgen run` does."""

from __future__ import annotations

import itertools
import json
import subprocess
from dataclasses import replace

import pytest
from packs import (  # noqa: F401
    ARGUMENT,
    CC,
    OK,
    SMS,
    STREAM,
    STRICT,
    arguments,
    build_fixture,
    compiles_nothing_fixture,
    driver_fixture,
    elf,
    encoded_as,
    hexed,
    launched_as,
    logged,
    made,
    needs_cc,
)

import gemmgen.pack
from gemmgen.cli import main
from gemmgen.config import Config
from gemmgen.errors import ArgumentError, UnsupportedProblem
from gemmgen.ir.dtypes import BF16, E4M3, F16, F32, S8, S32
from gemmgen.ir.expr import ACC, PerColumn
from gemmgen.ir.groupings import GROUPINGS
from gemmgen.ir.packed import COLUMNS, ROWS
from gemmgen.pack import files
from gemmgen.pack import groups as pack_groups
from gemmgen.pipeline import lower
from gemmgen.problem import INT8_K, Problem
from gemmgen.runtime import launch
from gemmgen.runtime.bind import bind
from gemmgen.verification.inputs import random_normal
from gemmgen.verification.trial import pitches

PARTIALS, LARGE = 1 << 51, 1 << 40
G, M, N, K = 3, 130, 200, 448
W4A16 = Problem(family="w4a16", a=BF16, b=BF16, weights="int4_64_bf16_zeros")
NVFP4 = Problem(family="w4a16", a=BF16, b=BF16, weights="e2m1_16_e4m3", epilogue=ACC * PerColumn("scale_b"))  # fmt: skip
MXFP4 = Problem(family="w4a16", a=F16, b=F16, d=F32, weights="e2m1_32_e8m0_f16")
W8A16 = Problem(family="w8a16", a=F16, b=F16, d=F32, weights="e4m3_column_f32_f16", epilogue=ACC * PerColumn("scale_b"))  # fmt: skip
W4A8 = Problem(family="w4a8", a=E4M3, b=E4M3, weights="e2m1_32_e8m0", d=BF16)
W4A8_BLOCK = replace(W4A8, family="w4a8_block", epilogue=ACC * PerColumn("scale_b"))
DENSE = Problem(family="dense", a=BF16, b=BF16)
SWAPPED = Config(swap_ab=True, block_m=16, block_n=64, block_k_bytes=256, consumers=1, stages=4, in_flight=1)  # fmt: skip
BY_FP8 = replace(SWAPPED, block_k_bytes=128)
BY_BLOCKS = replace(BY_FP8, in_flight=0)
STREAMED = {"stream": True, "split_k": 1, "multicast": "none"}
# By name: a problem, two configs that serve it, and groupings. Where the second is streamed the host counts tiles.
HOSTS, DEVICES = ("none", "batched"), ("masked", "rows", "ends")
CASES = {
    **{f"w4a16 {g}": (replace(W4A16, grouping=g), SWAPPED, replace(SWAPPED, block_m=32)) for g in (*HOSTS, *DEVICES)},
    **{f"w8a16 {g}": (replace(W8A16, grouping=g), replace(SWAPPED, stages=3), replace(SWAPPED, block_m=32, stages=3)) for g in (*HOSTS, *DEVICES)},
    **{f"w4a8 {g}": (replace(W4A8, grouping=g), BY_FP8, replace(BY_FP8, block_n=128, shares=1)) for g in (*HOSTS, *DEVICES)},
    **{f"w4a8_block {g}": (replace(W4A8_BLOCK, grouping=g), BY_BLOCKS, replace(BY_BLOCKS, block_n=128)) for g in (*HOSTS, *DEVICES)},
    "w4a8_block none stream": (W4A8_BLOCK, BY_BLOCKS, replace(BY_BLOCKS, **STREAMED)),
    "nvfp4": (NVFP4, SWAPPED, replace(SWAPPED, block_m=64)),
    "mxfp4 of fp16": (MXFP4, SWAPPED, replace(SWAPPED, stages=3)),
    **{f"w4a16 {g} stream": (replace(W4A16, grouping=g), SWAPPED, replace(SWAPPED, **STREAMED)) for g in HOSTS},
    **{f"dense {g} stream": (replace(DENSE, grouping=g), Config(block_n=64), Config(block_n=64, **STREAMED)) for g in (*HOSTS, "summed")},
    "two streams": (replace(DENSE, d=F32), Config(block_n=64, **STREAMED), Config(block_n=128, stages=3, **STREAMED)),
}  # fmt: skip
CHANGES_AT = 60  # rows (of a group), up to which the first serves


def grouped(p):
    return p.grouping != "none"


def packed(build, p, *configs):
    """A pack of both: by M, in the mean."""
    sizes = zip((CHANGES_AT, 4096), configs, strict=True)
    return build(p, {((G, m, N, K) if grouped(p) else (m, N, K)): c for m, c in sizes})


def on_trial(p, config, m):
    """The kernel, what it is launched over, its values, and how many groups."""
    kernel, operands = lower(p, config), random_normal(p, m, N, K, 0)
    places = itertools.count(1)
    shape = (m, N, K)
    bound = bind(operands, pitches(kernel, shape, 1), 1 << 50, lambda data: next(places) << 32)
    values = {**bound.values, "partials": PARTIALS, "partials_bytes": LARGE}
    return kernel, bound.matrices, values, int(values.get("groups", 1))


def in_c(face, matrices, values, m):
    """What a C caller passes for them."""
    call = {**values, "m": m, "n": N, "k": K, "expected_rows": 0}
    for x, matrix in matrices.items():
        call |= {x: matrix.pointer, f"{x}_stride": matrix.stride}
        call[f"{x}_stride_g"] = matrix.group_stride
    members = ("m", "n", "k", *(x.name for x in face.members))
    return {x: call[x] for x in members} | {"stream": STREAM}


@needs_cc
@pytest.mark.parametrize("name", CASES)
def test_a_launch_is_the_one_that_is_verified(build, name):
    p, *configs = CASES[name]
    built, cases = packed(build, p, *configs), []
    for m in (1, 40, 130, 1000):
        rows = m if not grouped(p) or GROUPINGS[p.grouping].rows else m * G
        kernel, matrices, values, groups = on_trial(p, configs[m > CHANGES_AT], rows)
        cases.append((kernel, rows, matrices, values, groups))
    if any(x[-1] != G for x in cases) and grouped(p):
        pytest.fail("groups are not as many as the pack's")
    given = [in_c(built.pack.interface, x[2], x[3], x[1]) for x in cases]
    results, log = built.call(*given, sized=given if built.pack.interface.workspaces else ())
    assert results[: 1 + len(cases)] == [[OK, ""]] * (1 + len(cases))
    encoded = iter([list(map(int, line)) for line in logged(log, "cuTensorMapEncodeTiled")])
    lines = logged(log, "cuLaunchKernelEx")
    sizes = iter(results[1 + len(cases) :])
    words = {lower(p, c).workspace.words for c in configs}
    for line, (kernel, rows, matrices, values, _) in zip(lines, cases, strict=True):
        # Each way to lay sums out has its own part, for as many CTAs as there may be.
        before = {x for x in words if x < kernel.workspace.words}
        values = values | {"partials": PARTIALS + 4 * SMS * sum(before)}
        maps, wanted = launched_as(kernel, (rows, N, K), matrices, values)
        assert [next(encoded) for _ in maps] == maps
        assert (
            line[: len(wanted)] == wanted
        )  # behind it only a workspace that the kernel does not take
        assert len(line) - len(wanted) == bool(built.pack.interface.sums) - bool(
            kernel.workspace.words
        )
        if built.pack.interface.workspaces:
            assert next(sizes) == [OK, "", 4 * SMS * sum(words)]
    assert len({line[0] for line in lines}) == 2, "both configs are to be chosen"


@needs_cc
def test_a_workspace_that_is_wrong(build):
    """Only of a kernel that uses it."""
    p, *configs = CASES["w4a16 none stream"]
    built = packed(build, p, *configs)
    few, many = (
        in_c(built.pack.interface, *on_trial(p, c, m)[1:3], m)
        for m, c in zip((1, 130), configs, strict=True)
    )
    least = launch.partials_bytes(lower(p, configs[1]), SMS)
    calls = [
        few | {"partials": 0, "partials_bytes": 0},
        many | {"partials": 0},
        many | {"partials": PARTIALS + 8},
        many | {"partials_bytes": least - 1},
        many | {"partials_bytes": least},
    ]
    results, log = built.call(*calls)
    codes = [OK, OK, ARGUMENT, ARGUMENT, ARGUMENT, OK]
    assert [code for code, _ in results] == codes
    assert "partials=0x0" in results[2][1] and "16 bytes" in results[3][1]
    assert f"partials_bytes={least - 1}: must be from {least}" in results[4][1]
    assert len(logged(log, "cuLaunchKernelEx")) == 2


@needs_cc
def test_packed_weights_that_are_wrong(build):
    p, *configs = CASES["w4a16 batched"]
    built = packed(build, p, *configs)
    right = in_c(built.pack.interface, *on_trial(p, configs[0], 40)[1:3], 40)
    block = 4608
    wrong = {
        "b": right["b"] + 8,
        "k": 440,
        "b_stride_g": right["b_stride_g"] + 8,
        "d": right["b"] + 2 * block,
    }
    results, _ = built.call(right, *(right | {name: x} for name, x in wrong.items()))
    assert [code for code, _ in results] == [OK, OK, *[ARGUMENT] * len(wrong)]
    texts = [text for _, text in results[2:]]
    assert "b=0x" in texts[0] and "k=440: must be a multiple of 64" in texts[1]
    assert "b_stride_g" in texts[2] and "must not overlap b" in texts[3]


@needs_cc
@pytest.mark.parametrize("name", ("w4a16 none stream", "w4a8 masked", "dense summed stream"))
def test_the_example_builds_and_runs(build, driver, tmp_path, name):
    p, *configs = CASES[name]
    built, example = packed(build, p, *configs), tmp_path / "example"
    sources = [str(tmp_path / f) for f in ("example.c", "gemmgen_x.c")]
    subprocess.run([CC, *STRICT, *sources, "-o", str(example), "-ldl"], check=True)
    for m in (CHANGES_AT, 1000):
        log, out, sides = tmp_path / "log", tmp_path / "d.bin", (G, m, N, K)[not grouped(p) :]
        log.unlink(missing_ok=True)
        env = {"LD_LIBRARY_PATH": str(driver), "FAKE_LOG": str(log)}
        command = [str(example), str(built.folder), *map(str, sides), str(out)]
        subprocess.run(command, env=env | {"FAKE_TABLE": str(tmp_path / "table")}, check=True)
        lines = [line.split() for line in log.read_text().splitlines()]
        members = [x for x in built.pack.interface.members if x.ctype == "CUdeviceptr"]
        sizes = [int(a[0]) for a in logged(lines, "alloc")]
        assert len(sizes) == len(members)
        if p.form:
            blocks = (G if grouped(p) else 1) * -(-N // ROWS) * -(-K // COLUMNS)
            assert blocks * p.form.block_bytes in sizes
        assert len(logged(lines, "cuLaunchKernelEx")) == 1 and out.stat().st_size


@pytest.mark.parametrize(
    ("family", "more"),
    (("w4a16", ()), ("w4a8", ()), ("w4a8_block", ()), ("dense", ("--grouping", "summed"))),
)
def test_the_command(family, more, monkeypatch, tmp_path, capsys):
    """As `gemmgen.ops` chooses configs, some of which hand sums over."""

    def without_code(source, name):
        return type("Cubin", (), {"image": elf(f".text.{name}")})()

    monkeypatch.setattr(gemmgen.pack, "cached_cubin", without_code)
    g = "4x" * bool(more)
    shapes = ",".join(f"{g}{m}x4096x7168" for m in (1, 64, 512, 1024))
    command = ["pack", family, *more, "--shapes", shapes, "-o", str(tmp_path / "out")]
    assert main(command) == 0
    assert f"include gemmgen_{family}.h" in capsys.readouterr().out
    kernels = json.loads((tmp_path / "out" / "pack.json").read_text())["kernels"]
    # Warpgroups of one CTA divide its K, which takes none.
    assert any(x["workspace"] for x in kernels) == (family != "w4a8_block")
    header = (tmp_path / "out" / f"gemmgen_{family}.h").read_text()
    rows, columns = "arg_scale_a;  // f32 [m]", "arg_scale_b;  // f32 [n]"
    assert [x in header for x in (rows, columns)] == [family == "w4a8", family[:4] == "w4a8"]


@pytest.mark.parametrize(("weights", "scaled"), (("e2m1_16_e4m3", True), ("e2m1_32_e8m0", False)))
def test_factors_of_columns(weights, scaled, monkeypatch, tmp_path, capsys):
    """Of weights by BF16 that have some."""

    def without_code(source, name):
        return type("Cubin", (), {"image": elf(f".text.{name}")})()

    monkeypatch.setattr(gemmgen.pack, "cached_cubin", without_code)
    command = ["pack", "w4a16", "--weights", weights, "--shapes", "16x512x1024"]
    assert main([*command, "-o", str(tmp_path)]) == 0
    header = (tmp_path / "gemmgen_w4a16.h").read_text()
    assert ("arg_scale_b;  // f32 [n]" in header) == scaled and "arg_scale_a" not in header


def called(build, p, config, groups, m, n, k):
    """Of sides that no memory has: [status, text] of a launch and of asking for a workspace's size."""
    at = (groups, m, n, k)[not grouped(p) :]
    built = build(p, {at: config})
    call = arguments(built.pack, (m, n, k))
    call |= {x: (k + 31) // 16 * 16 for x in call if x.endswith("_stride")}
    call |= {x: 1 << 32 for x in call if x.endswith("_stride_g")} | {"partials_bytes": LARGE}
    call |= {"a": 1 << 50, "b": 1 << 54, "d": 1 << 58, "groups": groups}
    results, _ = built.call(call)
    return results[1]


@needs_cc
@pytest.mark.parametrize(
    ("p", "config", "sides", "says"),
    (
        (replace(DENSE, grouping="summed"), Config(), (1 << 20, 1, 8, 4096), "k=4096: must have at most 2147481600 of k in all groups"),
        (replace(DENSE, grouping="summed"), Config(), (1 << 18, 1, 8, 4096), ""),
        (replace(DENSE, grouping="summed"), Config(**STREAMED), (1024, 8192, 8192, 64), ""),
        (replace(DENSE, grouping="summed"), Config(), (8192, 65536, 65536, 8), ""),
        (DENSE, Config(**STREAMED), (1, 1 << 15, 1 << 15, 1 << 22), "k=4194304: must make at most 2147418112 K blocks"),
        (DENSE, Config(**STREAMED), (1, 1 << 15, 1 << 15, 1 << 20), ""),
        (replace(DENSE, a=S8, b=S8, d=S32, grouping="summed"), Config(), (2, 16, 128, 65536), "k=65536: must be from 1 to 65535"),
    ),
)  # fmt: skip
def test_what_a_kernel_cannot_count(build, monkeypatch, p, config, sides, says):
    """As Python refuses it."""
    if p.a == S8:
        with pytest.raises(ArgumentError, match="k=65536: must be at most 65535"):
            made(p, {sides: config})
        monkeypatch.setattr(pack_groups, "most_k", most_of_one)  # for the C code alone
    code, text = called(build, p, config, *sides)
    assert (code == OK and not says) or (code == ARGUMENT and says in text), text
    kernel = lower(p, config)
    if p.a == S8:
        return
    if says:
        with pytest.raises(ArgumentError):
            launch.check_launch(kernel, sides[1:], sides[0])
    else:
        launch.check_launch(kernel, sides[1:], sides[0])


def most_of_one(p, groups):
    return INT8_K


@needs_cc
def test_a_workspace_is_as_large_for_no_rows(build):
    p, *configs = CASES["w4a16 none stream"]
    built = packed(build, p, *configs)
    call = in_c(built.pack.interface, *on_trial(p, configs[0], 40)[1:3], 40)
    results, _ = built.call(sized=[call, call | {"m": 0}, call | {"m": -1}])
    sizes = [x[2] for x in results[1:]]
    assert [x[0] for x in results[1:]] == [OK, OK, ARGUMENT]
    assert sizes[0] == sizes[1] > 0 == sizes[2]


def test_what_the_header_says(compiles_nothing):
    p, *configs = CASES["w4a16 none stream"]
    found = files(made(p, {(m, N, K): c for m, c in zip((1, 99), configs, strict=True)}))
    header = found["gemmgen_x.h"].decode()
    assert (
        "uint8 [(n + 63) / 64, ((k + 127) / 128) * 4608], weights packed from int4_64_bf16_zeros for bf16"
        in header
    )
    assert "zero before its first launch" in header and "gemmgen_x_workspace" in header
    kernels = json.loads(found["pack.json"])["kernels"]
    assert [x["parameters"][-1]["name"] for x in kernels] == ["b", "partials"]
    assert kernels[0]["workspace"] == 0 < kernels[1]["workspace"]


def test_what_has_no_target_for_jax(compiles_nothing):
    streamed = made(DENSE, {(1, N, K): Config(block_n=64, **STREAMED)})
    with pytest.raises(UnsupportedProblem, match="kernels with stream"):
        files(streamed, jax=True)
