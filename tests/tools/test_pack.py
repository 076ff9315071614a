"""Packs: the C code does what the Python runtime does, against a driver that writes down what it is asked."""

from __future__ import annotations

import ctypes
import hashlib
import json
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from packs import (  # noqa: F401
    ARGUMENT,
    CC,
    CHECKSUM,
    DENSE,
    DRIVER,
    FILE,
    FORMAT,
    NO_DRIVER,
    NO_KERNEL,
    OK,
    SHAPES,
    SMS,
    STREAM,
    STRICT,
    WRONG_GPU,
    arguments,
    build_fixture,
    compiles_nothing_fixture,
    driver_fixture,
    elf,
    encoded_as,
    hexed,
    logged,
    made,
    needs_cc,
)

import gemmgen.pack
from gemmgen.cli import main
from gemmgen.config import Config
from gemmgen.epilogues import EPILOGUES, mqa_logits
from gemmgen.errors import ArgumentError, UnsupportedProblem
from gemmgen.ir.counts import MOST_SIDE
from gemmgen.ir.dtypes import BF16, E4M3, F32, S8, S32
from gemmgen.ir.expr import ACC, DeviceScalar
from gemmgen.ops.building import config_for
from gemmgen.pack import files, pack
from gemmgen.pack.fields import C_TYPES
from gemmgen.pack.model import Range, ranges, switched
from gemmgen.pack.render import DATA_TYPES, SWIZZLES
from gemmgen.problem import Problem
from gemmgen.runtime import launch
from gemmgen.runtime.tensor_map import Matrix, describe

SCALED = ACC * DeviceScalar("scale_a") * DeviceScalar("scale_b")
FP8 = {"a": E4M3, "b": E4M3}
CASES = {
    "dense": (DENSE, Config()),
    "nn residual": (replace(DENSE, layout="nn", epilogue=EPILOGUES["residual"]), Config()),
    "tn accumulate": (replace(DENSE, layout="tn", d=F32, accumulate=True), Config()),
    "multicast": (DENSE, Config(multicast="a", block_m=64, consumers=1)),
    "split": (DENSE, Config(split_k=4, block_m=64, block_n=64, consumers=1)),
    "overlaps": (DENSE, Config(pdl=True)),
    "swapped": (DENSE, Config(block_m=16, block_n=128, swap_ab=True)),
    "alpha_beta": (replace(DENSE, epilogue=EPILOGUES["alpha_beta"]), Config()),
    "swiglu": (replace(DENSE, epilogue=EPILOGUES["bias_swiglu"]), Config()),
    "int8": (Problem(family="dense", a=S8, b=S8, d=S32), Config()),
    "fp8": (Problem(family="fp8", **FP8, epilogue=SCALED), Config(block_n=64)),
    "fp8_block": (Problem(family="fp8_block", **FP8), Config()),
    "fp8_block by lane": (Problem(family="fp8_block", **FP8), Config(lane_scales=True)),
    "fp8_block e4m3": (Problem(family="fp8_block", **FP8, d=E4M3), Config()),
    "fp8_1d1d": (Problem(family="fp8_1d1d", **FP8, d=F32), Config(block_n=64)),
}


def matrices(found, call):
    p = found.problem
    k_blocks, fold = -(-call["k"] // 128), 2 if "swiglu" in str(p.to_json()["epilogue"]) else 1
    a, b = (
        ("k", "m") if p.layout[0] == "t" else ("m", "k"),
        ("k", "n") if p.layout[1] == "n" else ("n", "k"),
    )
    sides = {
        "a": [call[x] for x in a],
        "b": [call[x] for x in b],
        "scale_a": (k_blocks, call["m"]),
        "scale_b": (k_blocks, call["n"]),
        "d": (call["m"], call["n"] // fold),
    }
    return {
        t.name: Matrix(
            pointer=call[t.name],
            outer=sides[t.name][0],
            inner=sides[t.name][1],
            stride=call[f"{t.name}_stride"],
        )
        for t in found.interface.tensors
    }


@needs_cc
@pytest.mark.parametrize("name", CASES)
def test_a_launch_is_the_one_that_python_makes(build, name):
    p, config = CASES[name]
    built = build(p, dict.fromkeys(SHAPES, config))
    (x,) = built.pack.kernels
    calls = [arguments(built.pack, shape) for shape in SHAPES]
    results, log = built.call(*calls)
    assert results == [[OK, ""]] * 4
    encoded = [list(map(int, line)) for line in logged(log, "cuTensorMapEncodeTiled")]
    launched = logged(log, "cuLaunchKernelEx")
    each = len(x.kernel.maps)
    for i, (shape, call) in enumerate(zip(SHAPES, calls, strict=True)):
        given = matrices(built.pack, call)
        wanted = [describe(x.kernel, m, given[m.tensor]) for m in x.kernel.maps]
        assert encoded[i * each : (i + 1) * each] == [encoded_as(d) for d in wanted]
        values = {**call, **{f"shape_{s}": call[s] for s in "mnk"}}
        packed = [launch.packed(q.ctype, q.name, values) for q in x.kernel.params]
        pdl = x.kernel.pdl
        head = [launch.grid(x.kernel, shape, SMS), 1, 1, x.kernel.threads, 1, 1]
        head += [x.kernel.smem_bytes, STREAM, int(pdl), 6, 1, 0]
        maps = [hexed(ctypes.c_uint64(d.address)) for d in wanted]
        assert launched[i] == [x.kernel.name, *map(str, head), *maps, *map(hexed, packed)]


@needs_cc
def test_every_shape_finds_its_kernel(build):
    small, large = Config(block_n=64), Config(block_n=128)
    chosen = {(16, 256, 512): small, (64, 256, 512): small, (300, 256, 512): large}
    built = build(DENSE, chosen | {(16, 512, 512): large})
    names = {x.config: x.kernel.name for x in built.pack.kernels}
    wanted = {
        (1, 256, 512): small,
        (64, 256, 512): small,
        (65, 256, 512): large,
        (300, 256, 512): large,
        (16, 512, 512): large,
    }
    missing = [(301, 256, 512), (17, 512, 512), (1, 256, 513), (1, 264, 512)]
    calls = [arguments(built.pack, shape) for shape in (*wanted, *missing)]
    results, log = built.call(*calls)
    launched = [line[1] for line in log if line[0] == "cuLaunchKernelEx"]
    assert launched == [names[c] for c in wanted.values()]
    assert [status for status, _ in results] == [OK] * 6 + [NO_KERNEL] * 4
    assert results[6][1] == "m=301: must be at most 300 for n=256, k=512"
    assert results[8][1] == "n=256, k=513: the pack has no kernel for them"


def test_ranges_join_where_the_kernel_is_the_same():
    chosen = {((2, 3), 8): 1, ((2, 3), 1): 0, ((2, 3), 2): 0, ((9, 3), 5): 0}
    assert ranges(chosen) == (
        Range(at=(2, 3), first=1, last=2, kernel=0),
        Range(at=(2, 3), first=3, last=8, kernel=1),
        Range(at=(9, 3), first=1, last=5, kernel=0),
    )


def test_where_configs_change_is_found_between_the_ends():
    few, some, many = (Config(block_n=n) for n in (32, 64, 128))

    def choose(m):
        return few if m <= 3 else some if m <= 70 else many

    found = switched((1, 8, 9, 64, 65, 128), choose)
    assert all(found[m] == choose(m) for m in found)
    assert {3, 4, 70, 71} <= found.keys()
    of = ranges({((1, 1), m): c.block_n for m, c in found.items()})
    assert [(r.first, r.last, r.kernel) for r in of] == [(1, 3, 32), (4, 70, 64), (71, 128, 128)]


def test_up_to_gives_every_m_the_kernel_of_ops(compiles_nothing, tmp_path):
    argv = [
        "pack",
        "fp8_block",
        "--shapes",
        "1x4096x7168",
        "--up-to",
        "128",
        "--device",
        "NVIDIA H200",
    ]
    assert main([*argv, "-o", str(tmp_path)]) == 0
    said = json.loads((tmp_path / "pack.json").read_text())
    configs = {x["name"]: Config.from_json(x["config"]) for x in said["kernels"]}
    for m in (1, 8, 9, 40, 64, 65, 90, 110, 124, 125, 127, 128):
        (name,) = (r["kernel"] for r in said["shapes"] if r["first"] <= m <= r["last"])
        p = Problem.from_json(said["problem"])
        assert configs[name] == config_for(p, (m, 4096, 7168), 1, "NVIDIA H200"), m


WRONG = (
    ("dense", {"m": -1}, "m=-1:"),
    ("dense", {"n": 0}, "n=0:"),
    ("dense", {"k": 1 << 31}, "k=2147483648:"),
    *(("dense", {x: MOST_SIDE + 1}, f"{x}={MOST_SIDE + 1}: must be from") for x in "mnk"),
    ("dense", {"a": 0}, "a=0x0:"),
    ("dense", {"b": (1 << 32) + 8}, "b=0x100000008:"),
    ("dense", {"a_stride": 201}, "a_stride=201: must be a multiple of 8"),
    ("dense", {"a_stride": 192}, "a_stride=192: must be from 200"),
    ("dense", {"b_stride": -8}, "b_stride=-8:"),
    ("dense", {"b_stride": 1 << 39}, "b_stride=549755813888:"),
    ("dense", {"d_stride": 1 << 31}, "d_stride=2147483648:"),
    ("nn residual", {"arg_c": 2}, "arg_c=0x2: must be an address that is a multiple of 4 bytes"),
    ("nn residual", {"row_stride_c": 265}, "row_stride_c=265: must be a multiple of 2"),
    ("alpha_beta", {"arg_c": 0}, "arg_c=0x0:"),
    ("swiglu", {"n": 263}, "n=263: must be a multiple of 2"),
    ("int8", {"k": 131072}, "k=131072: must be from 1 to 131071"),
    ("fp8", {"arg_scale_a": 2}, "arg_scale_a=0x2:"),
    ("fp8_block", {"scale_a_stride": 78}, "scale_a_stride=78: must be a multiple of 4"),
    ("fp8_block", {"scale_b": 1}, "scale_b=0x1:"),
    ("fp8_block", {"scale_b_stride_k": -1}, "scale_b_stride_k=-1:"),
    ("fp8_block e4m3", {"scale_d_stride": 76}, "scale_d_stride=76: must be from 77"),
    ("dense", {"d": 1 << 32}, "d=0x100000000: must not overlap a"),
    ("dense", {"d": (3 << 32) + 64}, "d=0x300000040: must not overlap b"),
    ("fp8_block e4m3", {"scale_d": 7 << 32}, "scale_d=0x700000000: must not overlap d"),
)


@needs_cc
@pytest.mark.parametrize(("name", "change", "text"), WRONG, ids=str)
def test_wrong_arguments_are_named_and_nothing_is_launched(build, name, change, text):
    p, config = CASES[name]
    built = build(p, {SHAPES[1]: config})
    results, log = built.call({**arguments(built.pack, SHAPES[1]), **change})
    (loaded, (status, said)) = results
    assert loaded == [OK, ""] and status == ARGUMENT and said.startswith(text)
    assert not {line[0] for line in log} & {"cuTensorMapEncodeTiled", "cuLaunchKernelEx"}


@needs_cc
def test_d_may_be_other_columns_of_a(build):
    built, shape = build(), SHAPES[1]
    call = arguments(built.pack, shape)
    a, row = call["a"], 2 * shape[2]
    beside = {**call, "d": a + row, "d_stride": call["a_stride"]}
    before = {**beside, "d": a - 2 * shape[1]}
    results, _ = built.call(beside, before, {**beside, "d": a + row - 16})
    assert [status for status, _ in results] == [OK, OK, OK, ARGUMENT]


@needs_cc
def test_no_rows_launch_nothing(build):
    built = build()
    results, log = built.call({**arguments(built.pack, SHAPES[0]), "m": 0})
    assert results == [[OK, ""]] * 2 and "cuLaunchKernelEx" not in {line[0] for line in log}


@needs_cc
def test_one_row_has_no_stride_of_its_own(build):
    shape = (1, 262, 201)  # rows of A and D that are no whole pieces of 16 bytes
    built = build(DENSE, {shape: Config()})
    call = {**arguments(built.pack, shape), "a_stride": 3, "d_stride": 0}
    results, log = built.call(call)
    (x,) = built.pack.kernels
    given = matrices(built.pack, call)
    strides = [describe(x.kernel, m, given[m.tensor]).strides[0] for m in x.kernel.maps]
    assert results[1] == [OK, ""]
    assert [int(line[6]) for line in log if line[0] == "cuTensorMapEncodeTiled"] == strides


@needs_cc
@pytest.mark.parametrize("sms", (8, 15, 16, 78, 132))
@pytest.mark.parametrize("name", ("multicast", "split"))
def test_the_grid_on_other_gpus(build, name, sms):
    p, config = CASES[name]
    built = build(p, dict.fromkeys(SHAPES, config))
    _, log = built.call(arguments(built.pack, SHAPES[2]), sms=sms)
    (line,) = (line for line in log if line[0] == "cuLaunchKernelEx")
    assert int(line[2]) == launch.grid(built.pack.kernels[0].kernel, SHAPES[2], sms)


@needs_cc
def test_what_is_loaded_is_unloaded(build):
    built = build(DENSE, {SHAPES[0]: Config(block_n=64), SHAPES[1]: Config()})
    _, log = built.call()
    names = [x.kernel.name for x in built.pack.kernels]
    said = [line[1:] for line in log if line[0] == "cuModuleLoadData"]
    assert said == [["cubin", "of", name] for name in names]
    assert [line[1:] for line in log if line[0] == "attribute"] == [
        [x.kernel.name, "8", str(x.kernel.smem_bytes)] for x in built.pack.kernels
    ]
    assert sum(line[0] == "unload" for line in log) == 2 and log[-1] == ["release", "40"]
    assert sum(line[0] == "push" for line in log) == sum(line[0] == "pop" for line in log)


def damaged(data):
    return data[:-1] + bytes([data[-1] ^ 1])


@needs_cc
def test_files_that_are_not_the_packs(build):
    built = build()
    manifest = built.folder / "pack.json"
    (cubin,) = built.folder.glob("*.cubin")
    whole = {path: path.read_bytes() for path in (manifest, cubin)}
    newer = whole[manifest].replace(b'"format": 1,', b'"format": 2,')
    tries = (
        (cubin, damaged(whole[cubin]), CHECKSUM),
        (cubin, b"", CHECKSUM),
        (cubin, None, FILE),
        (manifest, whole[manifest] + b" ", CHECKSUM),
        (manifest, newer, FORMAT),
        (manifest, b"", FORMAT),
        (manifest, None, FILE),
    )
    for path, data, wanted in tries:
        path.unlink() if data is None else path.write_bytes(data)
        ((status, text),), log = built.call()
        assert status == wanted and path.name in text, text
        assert "cuModuleLoadData" not in {line[0] for line in log}
        path.write_bytes(whole[path])
    assert built.call()[0] == [[OK, ""]]


@needs_cc
def test_machines_that_cannot_run_it(build, tmp_path_factory):
    built = build()
    assert built.call(major=8)[0] == [
        [WRONG_GPU, "device=0: compute capability is 8.0: must be 9.0 (H100, H200)"]
    ]
    assert built.call(device=1)[0] == [[WRONG_GPU, "device=1: there is no such CUDA device"]]
    assert built.call(fails="cuInit")[0][0][0] == NO_DRIVER
    empty = replace(built, driver=tmp_path_factory.mktemp("nothing"))
    old = tmp_path_factory.mktemp("old")
    (old / "old.c").write_text("int cuInit(unsigned x) { return (int)x; }")
    command = [CC, "-shared", "-fPIC", str(old / "old.c"), "-o", str(old / "libcuda.so.1")]
    subprocess.run(command, check=True)
    ((status, text),), _ = replace(built, driver=old).call()
    assert status == NO_DRIVER and "has no cuGetErrorName" in text
    if not shutil.which("nvidia-smi"):
        ((status, text),), _ = empty.call()
        assert status == NO_DRIVER and "libcuda.so.1" in text


@needs_cc
@pytest.mark.parametrize(
    "function", ("cuModuleLoadData", "cuTensorMapEncodeTiled", "cuLaunchKernelEx")
)
def test_what_the_driver_refuses(build, function):
    built = build()
    results, log = built.call(arguments(built.pack, SHAPES[0]), fails=function)
    assert results[-1] == [DRIVER, f"{function}: FAKE_ERROR"]
    assert sum(line[0] == "push" for line in log) == sum(line[0] == "pop" for line in log)


@needs_cc
def test_many_threads_share_a_pack(build):
    built = build()
    calls = [arguments(built.pack, shape) for shape in SHAPES * 20]
    for i, call in enumerate(calls):
        call["a"] = (i + 1) << 20
        call["b_stride"] += i % 2  # odd ones are refused
    results, log = built.call(*calls, threads=8)
    for i, (status, text) in enumerate(results[1:]):
        expected = f"b_stride={calls[i]['b_stride']}:"
        assert (status, text.startswith(expected)) == ((ARGUMENT, True) if i % 2 else (OK, False))
    launched = [line for line in log if line[0] == "cuLaunchKernelEx"]
    addresses = {hexed(ctypes.c_uint64(c["a"])) for c in calls[::2]}
    assert {line[14] for line in launched} == addresses and len(launched) == 30


@needs_cc
@pytest.mark.parametrize(
    "name", ("dense", "alpha_beta", "swiglu", "fp8", "fp8_block e4m3", "fp8_1d1d")
)
def test_the_example_builds_and_runs(build, tmp_path, driver, name):
    p, config = CASES[name]
    built = build(p, {SHAPES[1]: config})
    sources = [str(tmp_path / f) for f in ("example.c", "gemmgen_x.c")]
    example, out, log = tmp_path / "example", tmp_path / "d.bin", tmp_path / "log"
    subprocess.run([CC, *STRICT, *sources, "-o", str(example), "-ldl"], check=True)
    env = {"LD_LIBRARY_PATH": str(driver), "FAKE_LOG": str(log)}
    command = [str(example), str(built.folder), *map(str, SHAPES[1]), str(out)]
    subprocess.run(command, env=env, check=True)
    lines = [line.split() for line in log.read_text().splitlines()]
    sizes = [int(line[1]) for line in lines if line[0] == "alloc"]
    pointers = [x.name for x in built.pack.interface.members if x.ctype == "CUdeviceptr"]
    assert len(sizes) == len(pointers) and out.stat().st_size == sizes[pointers.index("d")]
    assert out.read_bytes() == pattern(len(out.read_bytes()), pointers.index("d"))
    assert sum(line[0] == "cuLaunchKernelEx" for line in lines) == 1


def pattern(size, seed):
    return bytes(0x38 + (i * 5 + i // 64 + seed) % 7 for i in range(size))


@needs_cc
@pytest.mark.skipif(not shutil.which("cmake"), reason="no cmake")
def test_cmake_builds_it(build, tmp_path):
    built = build()
    out = tmp_path / "build"
    run = {"check": True, "capture_output": True}
    subprocess.run(["cmake", "-S", str(built.folder), "-B", str(out)], **run)
    subprocess.run(["cmake", "--build", str(out)], **run)
    assert (out / "example").exists()


CUDA_H = sorted(Path("/usr/local").glob("cuda*/include/cuda.h"))
AS_DECLARED = """
#include <cuda.h>
#include "gemmgen_x.c"
#define SAME(a, b) _Static_assert((int)(a) == (int)(b), #a)
SAME(sizeof(tensor_map), sizeof(CUtensorMap));
SAME(_Alignof(tensor_map) % _Alignof(CUtensorMap), 0);
SAME(sizeof(launch_attribute), sizeof(CUlaunchAttribute));
SAME(offsetof(launch_attribute, value), offsetof(CUlaunchAttribute, value));
SAME(sizeof(launch_config), sizeof(CUlaunchConfig));
SAME(offsetof(launch_config, block), offsetof(CUlaunchConfig, blockDimX));
SAME(offsetof(launch_config, shared_memory), offsetof(CUlaunchConfig, sharedMemBytes));
SAME(offsetof(launch_config, stream), offsetof(CUlaunchConfig, hStream));
SAME(offsetof(launch_config, attributes), offsetof(CUlaunchConfig, attrs));
SAME(offsetof(launch_config, count), offsetof(CUlaunchConfig, numAttrs));
SAME(DEVICE_SMS, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
SAME(DEVICE_MAJOR, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
SAME(DEVICE_MINOR, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
SAME(FUNCTION_SHARED_MEMORY, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES);
SAME(STREAM_SERIALIZATION, CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION);
SAME(PROMOTION_256B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B);
"""


@needs_cc
@pytest.mark.skipif(not CUDA_H, reason="no CUDA toolkit in /usr/local")
def test_declarations_are_those_of_cuda_h(build):
    built = build()
    names = [(f"CU_TENSOR_MAP_DATA_TYPE_{t}", x) for t, x in DATA_TYPES.items()]
    names += [(f"CU_TENSOR_MAP_SWIZZLE_{f'{s}B' if s else 'NONE'}", x) for s, x in SWIZZLES.items()]
    text = AS_DECLARED + "".join(f"SAME({x}, {name});\n" for name, x in names)
    (built.folder / "same.c").write_text(text)
    command = [CC, "-std=c11", "-Werror", f"-I{CUDA_H[-1].parent}", "-c", "same.c", "-o", "same.o"]
    subprocess.run(command, cwd=built.folder, check=True)


def test_the_manifest(compiles_nothing):
    written = files(made(*(CASES["fp8_block"][0], {SHAPES[1]: Config()})))
    said = json.loads(written["pack.json"])
    (x,) = said["kernels"]
    assert hashlib.sha256(written[x["file"]]).hexdigest() == x["sha256"]
    assert said["format"] == 1 and Problem.from_json(said["problem"]) == CASES["fp8_block"][0]
    assert Config.from_json(x["config"]) == Config()
    assert [m["tensor"] for m in x["maps"]] == ["a", "b", "scale_a", "d"]
    assert x["maps"][3]["dims"] == ["max(8, n / 8 * 8)", "m"]
    assert said["shapes"] == [{"n": 264, "k": 200, "first": 1, "last": 77, "kernel": x["name"]}]


def test_the_same_pack_gives_the_same_bytes(compiles_nothing):
    assert files(made()) == files(made())


@pytest.mark.parametrize("prefix", ("", "1x", "Gemm", "a-b"))
def test_a_prefix_is_an_identifier(compiles_nothing, prefix):
    with pytest.raises(ArgumentError, match="prefix"):
        made(prefix=prefix)


def test_pages_are_refused_by_name():
    """Before anything is compiled."""
    p = Problem(family="dense", a=BF16, b=BF16, grouping="batched", paged=True)
    with pytest.raises(UnsupportedProblem, match="rows by page"):
        made(p, {(2, *SHAPES[0]): Config()})


def test_gaps_are_refused_by_name():
    """Before anything is compiled: C code passes D as [M, N]."""
    p = Problem(family="fp8_block", a=E4M3, b=E4M3, heads=(128, 64, 128))
    with pytest.raises(UnsupportedProblem, match=r"heads=\(128, 64, 128\): its D has no gaps"):
        made(p, {SHAPES[0]: Config()})


def test_windows_that_rows_begin_with_are_refused_by_name():
    p = Problem(family="dense", a=E4M3, b=E4M3, d=F32, epilogue=mqa_logits(32), compact=True)
    with pytest.raises(UnsupportedProblem, match="compact=true: a pack's C code passes a D of N"):
        made(p, {(64, 256, 128): Config(swap_ab=True, block_m=64, block_n=128, stages=2)})


def test_squares_are_refused_by_name():
    p = Problem(family="dense", a=BF16, b=BF16, d=F32, squares=True)
    with pytest.raises(UnsupportedProblem, match="squares=true: a pack's C code passes D alone"):
        made(p, {(64, 25, 128): Config()})


def test_watched_kernels_are_refused(compiles_nothing):
    with pytest.raises(UnsupportedProblem, match="its parameter watchdog"):
        made(chosen={SHAPES[0]: Config(watchdog=True)})


def test_an_empty_pack_is_refused(compiles_nothing):
    with pytest.raises(ArgumentError, match="chosen"):
        pack(DENSE, {}, prefix="x", device="")


def test_the_command(monkeypatch, tmp_path, capsys):
    def without_code(source, name):
        return type("Cubin", (), {"image": elf(f".text.{name}")})()

    monkeypatch.setattr(gemmgen.pack, "cached_cubin", without_code)
    out = tmp_path / "out"
    command = ["pack", "dense", "--shapes", "16x512x1024,256x512x1024", "-o", str(out)]
    assert main(command) == main([*command, "--prefix", "mine", "--json"]) == 0
    found = capsys.readouterr().out
    assert "include gemmgen_dense.h" in found and str(out / "mine.c") in found
    names = {path.name for path in out.iterdir()}
    assert {"pack.json", "mine.h", "mine.c", "example.c", "CMakeLists.txt"} <= names
    assert main([*command, "--prefix", "no good"]) == 2


def test_every_c_type_is_known():
    assert set(C_TYPES.values()) == {"int32_t", "int64_t", "float"}
