"""On a Hopper GPU: every mode, pace and provider of `gemmgen bench`, at small shapes."""

from __future__ import annotations

import json
from importlib.util import find_spec

import pytest

from gemmgen.cli import main

pytestmark = pytest.mark.gpu

QUICK = ["--repeats", "3"]  # of bursts
SUSTAINED = ["--pace", "sustained", "--seconds"]
SHAPE = ["--shapes", "512x384x1024"]


def bench(capsys, *arguments):
    quick = QUICK * (SUSTAINED[1] not in arguments)
    assert main(["bench", *arguments, *quick, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def rows(report):
    found = {r["provider"]: r for r in report["rows"]}
    assert all(r["microseconds"] > 0 and r["tflops"] > 0 for r in found.values())
    assert len({r["kernels"] for r in found.values()}) == len(found)
    return found


FAMILIES = [
    ("fp8_block",),
    ("fp8_block", "--d", "f32"),
    ("fp8_block", "--ab", "s8"),
    ("fp8_1d1d", "--d", "f32"),
    ("fp8_1d1d", "--d", "f32", "--accumulate"),
    ("fp8",),
    ("dense",),
    ("dense", "--layout", "tn"),
    ("dense", "--d", "f32", "--accumulate"),
    ("dense", "--ab", "e4m3"),
    ("dense", "--ab", "s8"),
    ("dense", "--ab", "s8", "--d", "s32"),
    ("dense", "--epilogue", "swiglu"),
    ("fp8", "--epilogue", "bias_silu"),
    ("fp8_block", "--epilogue", "residual"),
]


@pytest.mark.parametrize("family", FAMILIES, ids=" ".join)
def test_the_default_providers(capsys, family):
    report = bench(capsys, *family, *SHAPE)
    assert len(rows(report)) == 2 and not report["left_out"]
    assert report["geomean_ratio"] > 0
    assert any(r["standing"] for r in report["rows"])


@pytest.mark.parametrize("family", FAMILIES, ids=" ".join)
def test_all_providers(capsys, family):
    """None may be wrong; one may fail at what its library does not do."""
    report = bench(capsys, *family, *SHAPE, "--providers", "all")
    assert "gemmgen" in rows(report)
    assert not [x for x in report["left_out"] if x["reason"].startswith("wrong")]


@pytest.mark.parametrize("pace", [[*SUSTAINED, "0.2"], []], ids=["sustained", "burst"])
@pytest.mark.parametrize("mode", ["kernel", "operator", "cudagraph"])
@pytest.mark.parametrize("family", ["fp8_block", "dense"])
def test_modes(capsys, family, mode, pace):
    report = bench(capsys, family, *SHAPE, "--mode", mode, *pace)
    assert len(rows(report)) == 2 and report["method"]["mode"] == mode


@pytest.mark.parametrize("l2", ["flush", "rotate", "warm"])
@pytest.mark.parametrize("data", ["normal", "uniform"])
def test_l2_and_data(capsys, l2, data):
    report = bench(capsys, "fp8_block", *SHAPE, "--l2", l2, "--data", data)
    assert len(rows(report)) == 2 and report["method"]["l2"] == l2


def test_too_small_to_rotate(capsys):
    assert main(["bench", "dense", "--shapes", "16x16x16", "--l2", "rotate", *QUICK, "--json"]) == 2
    assert "copies" in capsys.readouterr().out


def test_blocks_of_torch(capsys):
    report = bench(capsys, "fp8_block", *SHAPE, "--providers", "gemmgen,torch")
    names = {"gemmgen", "torch._scaled_mm", "torch._scaled_mm rows", "torch._scaled_mm blocks"}
    assert {*rows(report)} | {x["provider"] for x in report["left_out"]} == names


@pytest.mark.skipif(find_spec("triton") is None, reason="not installed: triton")
@pytest.mark.parametrize("shape", ["512x384x1024", "100x200x400", "7x129x128"])
@pytest.mark.parametrize("family", [("fp8_block",), ("fp8_1d1d", "--d", "f32")], ids=" ".join)
def test_triton(capsys, family, shape):
    for mode in ("kernel", "operator", "cudagraph"):
        arguments = ["--providers", "gemmgen,triton", "--mode", mode, "--l2", "warm"]
        report = bench(capsys, *family, "--shapes", shape, *arguments)
        assert {*rows(report)} == {"gemmgen", "triton blocks"}


@pytest.mark.parametrize("grouping", ["batched", "masked", "ends", "rows"])
@pytest.mark.parametrize(
    "family", [("dense",), ("fp8_block",), ("fp8",), ("dense", "--ab", "s8")], ids=" ".join
)
def test_groups(capsys, family, grouping):
    every_mode(capsys, *family, "--grouping", grouping, "--shapes", "3x200x256x256")


@pytest.mark.parametrize(
    "kernel",
    [
        ("dense", "--grouping", "batched", "--layout", "nn"),
        ("dense", "--grouping", "ends", "--epilogue", "bias_silu"),
        ("fp8_block", "--grouping", "masked", "--epilogue", "swiglu"),
        ("fp8", "--grouping", "k_columns", "--d", "f32"),
    ],
    ids=" ".join,
)
def test_groups_of_other_kernels(capsys, kernel):
    every_mode(capsys, *kernel, "--shapes", "3x256x256x256")


@pytest.mark.parametrize(
    "kernel",
    [
        ("fp8_1d1d", "--grouping", "k_flat", "--d", "f32", "--accumulate"),
        ("fp8_1d1d", "--grouping", "k_columns", "--d", "bf16"),
        ("dense", "--grouping", "k_columns", "--layout", "tn", "--d", "f32", "--accumulate"),
        ("dense", "--grouping", "k_columns", "--d", "bf16"),
    ],
    ids=" ".join,
)
def test_groups_of_k(capsys, kernel):
    every_mode(capsys, *kernel, "--shapes", "3x256x512x1000")


def every_mode(capsys, *kernel):
    for mode in ("kernel", "operator", "cudagraph"):
        arguments = ["--providers", "all", "--mode", mode, "--l2", "warm"]
        report = bench(capsys, *kernel, *arguments)
        assert {"gemmgen"} < {*rows(report)}
        assert not [x for x in report["left_out"] if x["reason"].startswith("wrong")]


@pytest.mark.parametrize(
    "kernel",
    [
        ("fp8_block",),
        ("dense", "--layout", "tn"),
        ("dense", "--ab", "s8"),
        ("dense", "--grouping", "batched"),
        ("fp8_block", "--grouping", "masked"),
        ("dense", "--grouping", "k_columns", "--d", "f32"),
    ],
    ids=" ".join,
)
def test_the_floor(capsys, kernel):
    """Its sum was compared with torch's; it takes less time than what also multiplies, once there is much to read."""
    shape = "3x256x2048x4096" if "--grouping" in kernel else "64x8192x8192"
    arguments = ["--shapes", shape, "--providers", "gemmgen,read"]
    found = rows(bench(capsys, *kernel, *arguments))
    assert {*found} == {"gemmgen", "read"}
    assert found["read"]["over_read"] == 1 and found["gemmgen"]["over_read"] > 1
    assert 5e2 < found["read"]["gigabytes_per_second"] < 6e3


@pytest.mark.parametrize("kernel", [("fp8_block",), ("dense",)], ids=" ".join)
@pytest.mark.parametrize(
    "pdl", [[], ["--set", "pdl=true"], ["--weights-ready"]], ids=["", "pdl", "ready"]
)
def test_chains(capsys, kernel, pdl):
    """Each GEMM of BF16 but the first reads what the one before wrote."""
    arguments = ["--shapes", "16x1024x2048,16x4096x1024,16x2048x4096", "--mode", "chain", *pdl]
    report = bench(capsys, *kernel, *arguments, "--providers", "gemmgen,reference,read")
    found = {r["provider"]: r for r in report["rows"]}
    assert not report["left_out"] and len(found) == 3
    assert found["gemmgen"]["linked"] == (2 if kernel == ("dense",) else 0)
    assert found["gemmgen"]["over_read"] > 1 and found["gemmgen"]["ratio"] > 0


def test_clocks(capsys):
    report = bench(capsys, "dense", "--shapes", "4096x4096x4096", *SUSTAINED, "1")
    if report["clocks"].startswith("not available"):
        pytest.skip(report["clocks"])
    assert all(200 < r["sm_mhz_least"] <= r["sm_mhz"] < 3000 for r in report["rows"])


@pytest.mark.parametrize("family", ["fp8_block", "dense"])
def test_plots(capsys, tmp_path, family):
    report = bench(capsys, family, *SHAPE, "-o", str(tmp_path), "--plot")
    assert {p.name for p in tmp_path.iterdir()} == {
        *["bench.csv", "bench.json", "tflops.svg", "roofline.svg"]
    }
    assert report["ceilings"]["flops"] > 1e14 and report["ceilings"]["bytes"] > 1e12


def test_the_profiler_tells_one_kernel_twice():
    import torch

    from gemmgen.bench.identity import check_distinct
    from gemmgen.bench.modes import identify
    from gemmgen.errors import GemmgenError

    a, b = (torch.randn(512, 512, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    found = identify({"mm": [lambda: torch.mm(a, b)], "matmul": [lambda: a @ b]})
    with pytest.raises(GemmgenError, match="mm and matmul ran the same kernel"):
        check_distinct({name: s.main for name, s in found.items()})


def test_do_bench_times_what_runs():
    """Twice the work takes longer, and what is in the L2 is read faster than what is not."""
    import torch

    import gemmgen

    small, large = (
        [torch.randn(n, 4096, device="cuda").bfloat16() for n in sides]
        for sides in ((64, 4096), (4096, 4096))
    )
    found = gemmgen.do_bench(lambda: gemmgen.ops.gemm(*large), repeats=9)
    assert len(found.seconds) == 9 and found.main.startswith("gemmgen_dense")
    assert 1e-5 < found.median < 1e-2 and found.spread < 0.5
    cold, warm = (
        gemmgen.do_bench(lambda: gemmgen.ops.gemm(*small), l2=x) for x in ("flush", "warm")
    )
    assert warm.median < cold.median < found.median
    torch_s = gemmgen.do_bench(lambda: torch.mm(large[0], large[1].T))
    assert found.main not in torch_s.kernels
