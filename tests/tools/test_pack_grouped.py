"""Packs of grouped problems: what C checks, how large launches are, and what is written."""

from __future__ import annotations

import json
import shutil
import subprocess
from dataclasses import replace

import pytest
from packs import (  # noqa: F401
    ARGUMENT,
    CC,
    DENSE,
    NO_KERNEL,
    OK,
    STRICT,
    arguments,
    build_fixture,
    compiles_nothing_fixture,
    driver_fixture,
    logged,
    made,
    needs_cc,
)

from gemmgen.cli import main
from gemmgen.config import Config
from gemmgen.epilogues import EPILOGUES
from gemmgen.errors import ArgumentError, UnsupportedProblem
from gemmgen.ir.counts import INT_LIMIT, MOST_TILES
from gemmgen.ir.dtypes import E4M3, F32
from gemmgen.ir.groupings import GROUPINGS, Layout, check_layout
from gemmgen.ops import building
from gemmgen.pack import files
from gemmgen.pack.groups import tables
from gemmgen.problem import Problem
from gemmgen.runtime import launch

G, N = 3, 264


def grouped(grouping, **changes):
    return replace(DENSE, grouping=grouping, **changes)


FP8_BLOCK = Problem(family="fp8_block", a=E4M3, b=E4M3)
DEEP_FP8 = Problem(family="fp8_1d1d", a=E4M3, b=E4M3, d=F32, grouping="k_flat")
PROBLEMS = {
    "batched": grouped("batched"),
    "masked": grouped("masked", epilogue=EPILOGUES["residual"]),
    "rows": grouped("rows"),
    "ends": grouped("ends", alignment=64),
    "block": replace(FP8_BLOCK, grouping="masked"),
    "quantised": replace(FP8_BLOCK, grouping="batched", d=E4M3),
    "k_columns": grouped("k_columns", layout="tn", d=F32),
    "k_flat": DEEP_FP8,
}
SIDES = (G, 77, N, 256)  # of one group in the mean


def simple(build, name):
    """A pack of one kernel, and arguments that it takes."""
    built = build(PROBLEMS[name], {SIDES: Config(block_n=128, stages=2)})
    call = arguments(built.pack, SIDES[1:])
    call["groups"] = G
    if name in ("rows", "ends"):
        call["m"] *= G
    if GROUPINGS[PROBLEMS[name].grouping].depths:
        call |= {"k": G * call["k"], "group_maps_bytes": 1 << 40}
    return built, call


WRONG = (
    ("batched", {"groups": -1}, "groups=-1: must be from 0 to 2147483647"),
    ("rows", {"groups": 0}, "groups=0: must be from 1"),
    ("batched", {"a_stride_g": 4420}, "a_stride_g=4420: must be a multiple of 8"),
    ("batched", {"a_stride_g": -8}, "a_stride_g=-8: must be from 0"),
    ("batched", {"b_stride_g": 1 << 39}, "b_stride_g=549755813888: must be from 0 to 549755813887"),
    ("batched", {"d_stride_g": 4}, "d_stride_g=4: must be a multiple of 8"),
    ("masked", {"group_rows": 0}, "group_rows=0x0: must be an address"),
    ("masked", {"group_rows": 6}, "group_rows=0x6: must be an address that is a multiple of 4"),
    ("masked", {"expected_rows": -1}, "expected_rows=-1: must be from 0"),
    ("masked", {"group_stride_c": 3}, "group_stride_c=3: must be a multiple of 2"),
    ("masked", {"group_stride_c": -2}, "group_stride_c=-2: must be from 0"),
    ("rows", {"row_groups": 1}, "row_groups=0x1:"),
    ("ends", {"group_ends": 2}, "group_ends=0x2:"),
    ("block", {"scale_a_stride_g": 2}, "scale_a_stride_g=2: must be a multiple of 4"),
    ("block", {"scale_b_stride_g": -1}, "scale_b_stride_g=-1: must be from 0"),
    ("quantised", {"scale_d_stride_g": -1}, "scale_d_stride_g=-1: must be from 0"),
    ("k_columns", {"group_depths": 0}, "group_depths=0x0:"),
    (
        "k_columns",
        {"group_maps": 64},
        "group_maps=0x40: must be an address that is a multiple of 128",
    ),
    ("k_columns", {"group_maps_bytes": 0}, "group_maps_bytes=0: must be from"),
    ("k_columns", {"k": 0}, "k=0: must be from 1"),
    ("k_flat", {"k": 250}, "k=250: must be a multiple of 128"),
    ("k_flat", {"a": (1 << 32) + 8}, "a=0x100000008: must be an address that is a multiple of 16"),
)


@needs_cc
@pytest.mark.parametrize(("name", "change", "text"), WRONG, ids=str)
def test_wrong_arguments_are_named_and_nothing_is_launched(build, name, change, text):
    built, call = simple(build, name)
    results, log = built.call(call, {**call, **change})
    loaded, right, (status, said) = results
    assert loaded == right == [OK, ""], right
    assert status == ARGUMENT and said.startswith(text), said
    assert len(logged(log, "cuLaunchKernelEx")) == 1


COUNTED = {  # how many groups of so many tiles, or tensor maps, may be counted; what is said of one more
    "batched": (MOST_TILES // 3, f"must make at most {MOST_TILES} tiles of 128 x 128"),
    "ends": (MOST_TILES // 3 - 1, f"must make at most {MOST_TILES} tiles of 128 x 128"),
    "k_columns": (
        (INT_LIMIT - 1) // (2 * 132),
        f"must be from 0 to {(INT_LIMIT - 1) // (2 * 132)}",
    ),
}


@needs_cc
@pytest.mark.parametrize("name", COUNTED)
def test_more_groups_than_a_kernel_counts_are_refused(build, name):
    most, text = COUNTED[name]
    shapes = {(most + i, *SIDES[1:]): Config(block_n=128, stages=2) for i in range(2)}
    built = build(PROBLEMS[name], shapes)
    flat = dict.fromkeys(("a_stride_g", "b_stride_g", "d_stride_g"), 0)
    call = {**arguments(built.pack, SIDES[1:]), **flat, "group_maps_bytes": 1 << 60}
    results, log = built.call({**call, "groups": most}, {**call, "groups": most + 1}, sms=132)
    assert results[1] == [OK, ""]
    assert results[2][0] == ARGUMENT and text in results[2][1]
    assert f"groups={most + 1}" in results[2][1] and len(logged(log, "cuLaunchKernelEx")) == 1


@needs_cc
def test_an_output_reaches_as_far_as_its_last_group(build):
    built, call = simple(build, "batched")
    first = call["d"]
    beside = {**call, "d": 1 << 40, "d_stride_g": 1 << 30, "b": (1 << 40) + 5 * (1 << 30)}
    inside = {**beside, "b": (1 << 40) + 4 * (1 << 30)}
    far = {**beside, "d_stride_g": (1 << 39) - 8, "b": (1 << 40) + (1 << 41)}
    results, _ = built.call(call, beside, inside, far)
    assert [status for status, _ in results] == [OK, OK, OK, ARGUMENT, ARGUMENT] and first
    assert results[3][1] == "d=0x10000000000: must not overlap b"


@needs_cc
def test_other_columns_of_an_operand_are_no_output_where_there_are_groups(build):
    built, call = simple(build, "batched")
    wide = {"a_stride": 4096, "a_stride_g": 1 << 20, "d_stride": 4096, "d_stride_g": 1 << 20}
    results, _ = built.call({**call, **wide, "d": call["a"] + 2 * call["k"]})
    assert results[1][0] == ARGUMENT


@needs_cc
@pytest.mark.parametrize("name", PROBLEMS)
def test_no_rows_or_groups_launch_nothing(build, name):
    built, call = simple(build, name)
    empty = [{**call, "m": 0}, *[{**call, "groups": 0}] * (name != "rows")]
    results, log = built.call(*empty)
    assert results == [[OK, ""]] * (1 + len(empty)) and not logged(log, "cuLaunchKernelEx")


@needs_cc
@pytest.mark.parametrize("name", PROBLEMS)
def test_one_group_has_no_stride_of_its_own(build, name):
    one = (1, *SIDES[1:])
    built = build(PROBLEMS[name], {one: Config(block_n=128, stages=2)})
    call = {**arguments(built.pack, one[1:]), "groups": 1, "expected_rows": 0}
    call |= {x: 3 for x in call if x.endswith("_stride_g")}
    call = {
        x: call[x]
        for x in ("m", "n", "k", "stream", *(y.name for y in built.pack.interface.members))
    }
    results, log = built.call(call)
    assert results == [[OK, ""]] * 2
    for line in logged(log, "cuTensorMapEncodeTiled"):
        rank, _, *sides = map(int, line[1:])
        assert rank == 2 or sides[3] == sides[4], "a group's stride is a row's"


@needs_cc
@pytest.mark.parametrize(
    ("name", "wrong", "text"),
    (
        ("batched", {"groups": G + 1}, f"groups=4, n={N}, k=256: the pack has no kernel for them"),
        ("batched", {"m": 78}, f"m=78: must be at most 77 for groups=3, n={N}, k=256"),
        ("masked", {"m": 78}, f"rows per group=78: must be at most 77 for groups=3, n={N}, k=256"),
        ("ends", {"m": 232}, f"rows per group=78: must be at most 77 for groups=3, n={N}, k=256"),
        ("rows", {"m": 232}, f"rows per group=78: must be at most 77 for groups=3, n={N}, k=256"),
        ("k_flat", {"k": 896}, f"k per group=299: must be at most 256 for groups=3, m=77, n={N}"),
        ("k_columns", {"m": 78}, f"groups=3, m=78, n={N}: the pack has no kernel for them"),
    ),
)
def test_what_a_pack_was_not_made_for(build, name, wrong, text):
    built, call = simple(build, name)
    few = {"expected_rows": 1} if name == "masked" else {}
    results, _ = built.call(
        call, {**call, **wrong, "expected_rows": 0} if few else {**call, **wrong}
    )
    assert results[1:] == [[OK, ""], [NO_KERNEL, text]]


@needs_cc
@pytest.mark.parametrize("sms", (8, 15, 78, 132))
@pytest.mark.parametrize("name", ("batched", "masked", "rows", "k_flat"))
def test_grids_and_workspaces_on_other_gpus(build, name, sms):
    built, call = simple(build, name)
    (x,) = built.pack.kernels
    deep = GROUPINGS[built.pack.problem.grouping].depths
    sized = [{y: call[y] for y in ("groups", "m", "n", "k")}] * bool(deep)
    results, log = built.call(call, sized=sized, sms=sms)
    (line,) = logged(log, "cuLaunchKernelEx")
    shape = tuple(call[y] for y in "mnk")
    ctas = launch.grid(x.kernel, shape, sms, G)
    assert int(line[1]) == ctas
    assert results[2:] == [[OK, "", launch.workspace_bytes(x.kernel, ctas, G)]] * bool(deep)


@needs_cc
def test_a_workspace_that_is_too_small(build):
    built, call = simple(build, "k_flat")
    _, log = built.call(call)
    (line,) = logged(log, "cuLaunchKernelEx")
    least = launch.workspace_bytes(built.pack.kernels[0].kernel, int(line[1]), G)
    tries = [{**call, "group_maps_bytes": least - by} for by in (0, 1)]
    sides = {x: call[x] for x in ("groups", "m", "n", "k")}
    sized = [{**sides, "m": 0}, {**sides, "k": 1 << 20}, {**sides, "k": 1}]
    results, _ = built.call(*tries, sized=sized)
    assert results[1] == [OK, ""]
    assert results[2] == [
        ARGUMENT,
        f"group_maps_bytes={least - 1}: must be from {least} to {2**63 - 1}",
    ]
    assert [x[0] for x in results[3:]] == [OK, NO_KERNEL, ARGUMENT]
    assert [x[2] for x in results[3:]] == [0, 0, 0]


LANGUAGES = {
    "c99": (CC, "-std=c99"),
    "c11": (CC, "-std=c11", "-Wpedantic"),
    "c++20": (shutil.which("g++"), "-x", "c++", "-std=c++20"),
}


@needs_cc
@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("name", ("batched", "masked", "k_flat", "rows"))
def test_it_compiles_without_warnings(compiles_nothing, tmp_path, name, language):
    compiler, *options = LANGUAGES[language]
    if compiler is None:
        pytest.skip("no C++ compiler")
    for file, data in files(made(PROBLEMS[name], {SIDES: Config(block_n=128, stages=2)})).items():
        (tmp_path / file).write_bytes(data)
    for file in ("gemmgen_x.c", "example.c"):
        strict = ("-O2", "-Wall", "-Wextra", "-Werror", *options)
        command = [compiler, *strict, "-c", str(tmp_path / file), "-o", str(tmp_path / "x.o")]
        subprocess.run(command, check=True)


@needs_cc
@pytest.mark.parametrize("name", PROBLEMS)
def test_the_example_builds_and_runs(build, driver, tmp_path, name):
    built, _ = simple(build, name)
    sources = [str(tmp_path / f) for f in ("example.c", "gemmgen_x.c")]
    example, out, log = tmp_path / "example", tmp_path / "d.bin", tmp_path / "log"
    subprocess.run([CC, *STRICT, *sources, "-o", str(example), "-ldl"], check=True)
    g, m, n, k = SIDES
    total = {"rows": (g * m, n, k), "ends": (g * m, n, k)}.get(name, (m, n, k))
    total = (m, n, g * k) if GROUPINGS[PROBLEMS[name].grouping].depths else total
    command = [str(example), str(built.folder), *map(str, (g, *total)), str(out)]
    env = {
        "LD_LIBRARY_PATH": str(driver),
        "FAKE_LOG": str(log),
        "FAKE_TABLE": str(tmp_path / "table"),
    }
    subprocess.run(command, env=env, check=True)
    lines = [line.split() for line in log.read_text().splitlines()]
    addresses = [x for x in built.pack.interface.members if x.ctype == "CUdeviceptr"]
    assert len(logged(lines, "alloc")) == len(addresses)
    assert len(logged(lines, "cuLaunchKernelEx")) == 1 and out.stat().st_size


TABLES = {
    "masked": "group_rows",
    "rows": "row_groups",
    "ends": "group_ends",
    "k_flat": "group_depths",
}


@pytest.mark.parametrize("grouping", TABLES)
@pytest.mark.parametrize("m", (128, 1000))
def test_tables_of_the_example_are_right(grouping, m):
    """As the grouping wants them, with some rows in every group."""
    p, g, k = grouped(grouping), 3, 1024
    (x,) = (x for x in tables(p) if x.name == TABLES[grouping])
    sides = {"groups": g, "m": m, "k": k}
    count = eval(x.example.replace("/", "//"), {}, sides) // 4
    entries = tuple(eval(x.entry.replace("/", "//"), {}, {**sides, "i": i}) for i in range(count))
    check_layout(grouping, m, Layout(groups=g, table=entries), p.alignment)
    assert max(entries) <= max(m, k)
    assert len(set(entries)) > 1 or m == 128


def test_the_manifest_says_what_groups_are(compiles_nothing):
    said = json.loads(files(made(PROBLEMS["k_columns"], {SIDES: Config(block_n=128)}))["pack.json"])
    assert (
        said["shapes"][0].items() >= {"groups": G, "m": 77, "n": N, "first": 1, "last": 256}.items()
    )
    a, _, d = said["kernels"][0]["maps"]
    assert a["dims"] == ["m", "k"] and a["strides"] == ["a_stride * 2"]
    assert d["dims"] == ["max(4, n / 4 * 4)", "m", "groups"]
    assert d["strides"] == ["d_stride * 4", "d_stride_g * 4"] and d["box"][2] == 1


@pytest.mark.parametrize("shape", ((77, N, 256), (0, 77, N, 256), (3, 77, N, 0), ("x", 1, 2, 3)))
def test_wrong_shapes_are_named(compiles_nothing, shape):
    with pytest.raises(ArgumentError, match=r"shape|groups|k"):
        made(PROBLEMS["batched"], {shape: Config()})


def test_groups_in_a_shape_without_any_are_named(compiles_nothing):
    with pytest.raises(ArgumentError, match=r"must be \(m, n, k\)"):
        made(DENSE, {SIDES: Config()})


def test_watched_kernels_are_refused(compiles_nothing):
    with pytest.raises(UnsupportedProblem, match="its parameter watchdog"):
        made(PROBLEMS["masked"], {SIDES: Config(watchdog=True)})


def test_the_command(compiles_nothing, tmp_path, capsys):
    """Configs are those that gemmgen.ops chooses."""
    shapes = "4x16x512x1024,4x256x512x1024"
    command = ["pack", "fp8_block", "--grouping", "masked", "--shapes", shapes, "-o", str(tmp_path)]
    assert main(command) == 0
    said = json.loads((tmp_path / "pack.json").read_text())
    configs = {x["name"]: Config.from_json(x["config"]) for x in said["kernels"]}
    p = Problem.from_json(said["problem"])
    for m in (16, 256):
        (name,) = (r["kernel"] for r in said["shapes"] if r["first"] <= m <= r["last"])
        assert configs[name] == building.config_for(p, (m, 512, 1024), 4, "NVIDIA H200")
    assert main([*command, "--up-to", "64"]) == 2
    assert "--up-to" in capsys.readouterr().err
