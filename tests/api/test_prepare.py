"""Kernels compiled beforehand: those that the functions on tensors then ask for, and no more than needed."""

from __future__ import annotations

import json
import random
import threading
from types import SimpleNamespace

import pytest
from cache_faults.fakes import compiled, recipe
from fake_torch import Placed, fake_torch_fixture, launches_fixture  # noqa: F401

import gemmgen
from gemmgen import ops
from gemmgen.bench.work import launched
from gemmgen.cli import main
from gemmgen.errors import ArgumentError, CacheError, CompileError, RuntimeUnavailable
from gemmgen.heuristics.tuned import pick
from gemmgen.ir.dtypes import BF16, E4M3
from gemmgen.ops import building, every_m, preparing
from gemmgen.problem import Problem
from gemmgen.runtime import nvrtc

DENSE = Problem(family="dense", a=BF16, b=BF16)
BLOCK = Problem(family="fp8_block", a=E4M3, b=E4M3)
SHAPES = ((16, 512, 1024), (128, 512, 1024), (4096, 512, 1024))


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("GEMMGEN_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def fake(monkeypatch):
    """A compiler of sources that are names; the names it compiled, and in which threads."""
    made: list[tuple[str, int]] = []

    def source(p, c):
        name = f"k{abs(hash((p, c)))}"
        watched = SimpleNamespace(watchdog=True)  # its launch is not kept
        return SimpleNamespace(source=name, name=name, kernel=watched)

    def compile_cubin(source, name):
        made.append((name, threading.get_ident()))
        return compiled(recipe(name=name))

    monkeypatch.setattr(building, "compile_to_source", source)
    monkeypatch.setattr(preparing, "compile_cubin", compile_cubin)
    monkeypatch.setattr(nvrtc, "build", lambda: "13.0 a")
    return made


def test_each_kernel_is_compiled_once_and_found_again(fake, folder):
    again = [*SHAPES, *SHAPES, (4095, 512, 1024)]
    first = gemmgen.prepare(DENSE, again)
    configs = {pick(DENSE, s).config for s in again}
    assert {c for _, c in first.kernels} == configs and len(fake) == len(configs) < len({*again})
    assert (first.compiled, first.kept, first.shapes) == (len(configs), len(configs), 4)
    assert len([*folder.iterdir()]) == len(configs) and first.device == "NVIDIA H200"
    second = gemmgen.prepare(DENSE, again)
    assert (second.compiled, second.kept) == (0, len(configs)) and len(fake) == len(configs)
    assert (second.kernels, second.bytes) == (first.kernels, first.bytes)


def test_several_problems(fake):
    found = gemmgen.prepare(iter((DENSE, BLOCK)), iter(SHAPES[:1]), threads=1)
    assert [p for p, _ in found.kernels] == [DENSE, BLOCK] and found.shapes == 2
    assert len(str(found.bytes)) and str(found.bytes) in str(found)


def test_groups_and_the_device_are_asked_for(fake, monkeypatch):
    asked = []

    def spy(p, shape, groups, device):
        asked.append((groups, device))
        return ops.building.config_for(p, shape, groups, device)

    monkeypatch.setattr(preparing, "config_for", spy)
    batched = Problem(family="dense", a=BF16, b=BF16, grouping="batched")
    gemmgen.prepare(batched, SHAPES[:1], groups=6, device="Some GPU")
    monkeypatch.setattr(preparing, "require_hopper", lambda device: f"GPU {device}")
    gemmgen.prepare(DENSE, SHAPES[:1], device=3)
    gemmgen.prepare(DENSE, SHAPES[:1])
    assert asked == [(6, "Some GPU"), (1, "GPU 3"), (1, "GPU 0")]


def test_a_device_that_is_missing(fake, monkeypatch):
    def missing(device):
        raise RuntimeUnavailable("none")

    monkeypatch.setattr(preparing, "require_hopper", missing)
    assert gemmgen.prepare(DENSE, SHAPES[:1]).device == "NVIDIA H200"
    with pytest.raises(RuntimeUnavailable):
        gemmgen.prepare(DENSE, SHAPES[:1], device=0)


def test_progress_is_told(fake):
    told = []
    gemmgen.prepare(DENSE, SHAPES, progress=lambda *step: told.append(step))
    kernels = len(fake)
    assert told[:3] == [("choosing", n, 3) for n in (1, 2, 3)]
    assert told[3:] == [("compiling", n, kernels) for n in range(1, kernels + 1)]


def test_a_kernel_that_fails_loses_no_other(fake, folder, monkeypatch):
    good = preparing.compile_cubin
    calls = []

    def compile_cubin(source, name):
        calls.append(name)
        if len(calls) == 1:
            raise CompileError("no memory", lasting=False)
        return good(source, name)

    monkeypatch.setattr(preparing, "compile_cubin", compile_cubin)
    with pytest.raises(CompileError):
        gemmgen.prepare(DENSE, SHAPES, threads=1)
    assert len(calls) > 1 and len([*folder.iterdir()]) == len(calls) - 1


def test_it_does_not_compile_for_nothing(fake, folder, monkeypatch):
    folder.mkdir()
    folder.chmod(0o777)
    with pytest.raises(CacheError):
        gemmgen.prepare(DENSE, SHAPES)
    monkeypatch.setenv("GEMMGEN_CACHE", "/proc/gemmgen")
    with pytest.raises(CacheError):
        gemmgen.prepare(DENSE, SHAPES)
    monkeypatch.setenv("GEMMGEN_CACHE", "none")
    with pytest.raises(ArgumentError) as e:
        gemmgen.prepare(DENSE, SHAPES)
    assert e.value.argument == "GEMMGEN_CACHE" and not fake


@pytest.mark.parametrize("shape", ((1, 2), (8, 1, 2, 3), (0, 512, 512)))
def test_a_shape_that_is_none(fake, shape):
    with pytest.raises(ArgumentError):
        gemmgen.prepare(DENSE, [shape])


@pytest.mark.parametrize("threads", (0, -1))
def test_threads_that_are_none(fake, threads):
    with pytest.raises(ArgumentError):
        gemmgen.prepare(DENSE, SHAPES, threads=threads)
    with pytest.raises(ArgumentError):
        every_m(threads)


def test_a_shared_directory_counts_and_one_that_is_refused_does_not(fake, tmp_path, monkeypatch):
    gemmgen.prepare(DENSE, SHAPES)
    paths = [tmp_path / "cache", tmp_path / "refused"]
    paths[1].mkdir()
    paths[1].chmod(0o777)
    monkeypatch.setenv("GEMMGEN_CACHE_PATH", ":".join(map(str, paths)))
    monkeypatch.setenv("GEMMGEN_CACHE", str(tmp_path / "other"))
    found = gemmgen.prepare(DENSE, SHAPES)
    assert found.compiled == 0 and found.kept == len(found.kernels)


def test_importing_gemmgen_does_not_import_the_runtime():
    import subprocess
    import sys

    code = "import sys, gemmgen; print('gemmgen.ops' in sys.modules); gemmgen.prepare; print('gemmgen.ops' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["False", "True"]
    with pytest.raises(AttributeError):
        gemmgen.nothing  # noqa: B018


# ---- what the functions on tensors ask for --------------------------------------------------


@pytest.fixture
def on_an_h200(monkeypatch):
    ops.building.kept_choice.cache_clear()
    monkeypatch.setattr(ops.building.driver, "require_hopper", lambda device: "NVIDIA H200")
    yield
    ops.building.kept_choice.cache_clear()


def dense(m, n, k):
    ops.gemm(Placed(m, k, dtype="bfloat16"), Placed(n, k, dtype="bfloat16"))


def block(m, n, k):
    a, b = Placed(m, k, dtype="float8_e4m3fn"), Placed(n, k, dtype="float8_e4m3fn")
    scale = Placed(m, k // 128, stride=(1, m))
    ops.fp8_block_gemm(a, scale, b, Placed(-(-n // 128), k // 128), scale_a_layout="mn")


def per_tensor(m, n, k):
    a, b = Placed(m, k, dtype="float8_e4m3fn"), Placed(n, k, dtype="float8_e4m3fn")
    ops.fp8_gemm(a, b, scale_a=Placed(1), scale_b=Placed(1))


FP8 = launched(Problem(family="fp8", a=E4M3, b=E4M3))


@pytest.mark.parametrize(
    ("problem", "call"),
    ((DENSE, dense), (BLOCK, block), (FP8, per_tensor)),
    ids=("dense", "block", "per tensor"),
)
def test_it_prepares_what_the_functions_launch(problem, call, launches, on_an_h200, fake):
    prepared = {*gemmgen.prepare(problem, SHAPES).kernels}
    for shape in SHAPES:
        call(*shape)
    assert {(x.problem, x.config) for x in launches} == prepared


def test_it_prepares_what_reads_scales_row_by_row(launches, on_an_h200, fake):
    """Also where they are copied after all."""
    shapes = (*SHAPES, (4096, 24576, 1536))
    prepared = {*gemmgen.prepare((BLOCK, DENSE), shapes, scale_a_layout="row").kernels}
    for m, n, k in shapes:
        a, b = Placed(m, k, dtype="float8_e4m3fn"), Placed(n, k, dtype="float8_e4m3fn")
        scale_b = Placed(-(-n // 128), k // 128)
        ops.fp8_block_gemm(a, Placed(m, k // 128), b, scale_b, scale_a_layout="row")
        dense(m, n, k)
    assert {(x.problem, x.config) for x in launches} == prepared
    assert {c.lane_scales for p, c in prepared if p == BLOCK} == {False, True}
    assert {c.lane_scales for p, c in prepared if p == DENSE} == {False}


def test_a_kernel_that_the_build_refuses_is_prepared_for_copies(fake, monkeypatch, on_an_h200):
    shape = SHAPES[0]
    ((_, reading),) = gemmgen.prepare(BLOCK, [shape], scale_a_layout="row").kernels
    monkeypatch.setattr(preparing.by_row.refused, "known", lambda p: {reading: "it"})
    ((_, plain),) = gemmgen.prepare(BLOCK, [shape], scale_a_layout="row").kernels
    assert plain == reading.having(lane_scales=False)


@pytest.mark.parametrize(("layout", "problem"), (("col", BLOCK), ("row", DENSE)))
def test_layouts_that_no_call_has(layout, problem):
    with pytest.raises(ArgumentError, match="scale_a_layout"):
        gemmgen.prepare(problem, SHAPES, scale_a_layout=layout)


@pytest.mark.nvrtc
def test_what_is_prepared_is_not_compiled_again(monkeypatch):
    pytest.importorskip("cuda.bindings.nvrtc", exc_type=ImportError)
    found = gemmgen.prepare(BLOCK, SHAPES[:1])
    assert (found.compiled, found.kept, len(found.kernels)) == (1, 1, 1)
    for module, name in ((nvrtc, "compile_cubin"), (building, "compile_cubin")):
        monkeypatch.setattr(module, name, None)
    ops.loaded.cache_clear()
    monkeypatch.setattr(ops.building, "LoadedKernel", lambda kernel, cubin, device: cubin)
    assert len(ops.loaded(*found.kernels[0], 0).image) == found.bytes
    ops.loaded.cache_clear()


# ---- every M --------------------------------------------------------------------------------


@pytest.mark.parametrize("most", (1, 7, 64, 511, 512, 513, 576, 577, 4096, 16384))
def test_every_m_is_each_of_few_and_the_ends_of_each_number_of_tiles(most):
    found = every_m(most)
    few = min(most, 512)
    assert [*found[:few]] == [*range(1, few + 1)] and found[-1] == most
    ends = found[few:]
    assert list(ends) == sorted({*ends})
    for first, last in zip(ends[::2], ends[1::2], strict=False):
        assert -(-first // 64) == -(-last // 64)
    assert len(ends) <= 2 * (max(0, most - 512) // 64 + 1)


CASES = ((BLOCK, 7168, 2048), (DENSE, 4096, 7168), (BLOCK, 576, 7168))


@pytest.mark.parametrize(("problem", "n", "k"), CASES, ids=str)
def test_few_kernels_cover_every_m(problem, n, k):
    """At M about 1.4 apart, up to 16384: at most 48 kernels; and M between take those of their neighbours."""
    rng = random.Random(n)
    chosen = lambda m: pick(problem, (m, n, k)).config  # noqa: E731
    ms = every_m(16384)
    some = [m for m in ms if m <= 17 or m in ms[18::48]]
    assert len({chosen(m) for m in some}) <= 48
    for _ in range(6):
        place = rng.randrange(256, len(ms) // 2) * 2
        first, last = ms[place], ms[place + 1]
        assert chosen(rng.randint(first, last)) in (chosen(first), chosen(last))


# ---- the command ----------------------------------------------------------------------------


def run(capsys, *argv):
    code = main(["prepare", *argv])
    return code, *capsys.readouterr()


def test_the_command(fake, capsys, folder):
    code, out, _ = run(capsys, "dense", "--shapes", "128x512x1024,4096x512x1024")
    assert code == 0 and "2 cubins" in out and "2 shapes" in out and "NVIDIA H200" in out
    code, out, _ = run(capsys, "dense", "--shapes", "128x512x1024,4096x512x1024", "--json")
    (found,) = json.loads(out)
    assert (found["compiled"], found["kept"], len(found["kernels"])) == (0, 2, 2)
    assert found["kernels"][0]["problem"]["family"] == "dense"


def test_the_command_takes_scales_and_groups_as_bench_does(fake, capsys):
    _, out, _ = run(capsys, "fp8", "--shapes", "128x512x1024", "--json")
    assert json.loads(out)[0]["kernels"][0]["problem"] == FP8.to_json()
    argv = (
        "fp8_block",
        "--grouping",
        "masked",
        "--shapes",
        "4x64x512x512,4x128x512x512,8x64x512x512",
    )
    _, out, _ = run(capsys, *argv, "--json")
    assert [x["shapes"] for x in json.loads(out)] == [2, 1]


def test_the_command_covers_every_m(fake, capsys):
    _, out, _ = run(capsys, "dense", "--shapes", "1x512x1024", "--up-to", "128", "--json")
    assert json.loads(out)[0]["shapes"] == len(every_m(128))


def test_the_command_fails_if_the_cache_is_too_small(fake, capsys, monkeypatch):
    monkeypatch.setenv("GEMMGEN_CACHE_BYTES", "1")
    two = ("--shapes", "128x512x1024,4096x512x1024", "--threads", "1")
    code, out, _ = run(capsys, "dense", *two)
    assert code == 1 and "1 are on disk" in out


@pytest.mark.parametrize(
    ("argv", "argument"),
    (
        (["dense/tn"], "KERNEL"),
        (["dense", "--set", "block_n=64"], "--set"),
        (["dense", "--device", "H200"], "--device"),
        (["dense", "--shapes", "many"], "--shapes"),
        (["dense", "--threads", "0"], "--threads"),
        (["dense", "--up-to", "0"], "--up-to"),
        (["dense", "--grouping", "masked", "--shapes", "4x64x512x512", "--up-to", "9"], "--up-to"),
    ),
    ids=str,
)
def test_bad_arguments(fake, capsys, argv, argument):
    code, _, err = run(capsys, *argv)
    assert code == 2 and argument in err and not fake
