"""`gemmgen tune --calibrate` over a fake GPU: what is measured, what is refused, what is kept, and that choices use it."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest
from fake_tuner import InProcess, Rated, built_here
from kernels import DENSE, FP8

from gemmgen.bench.tuning import calibrate, trial, worker
from gemmgen.bench.tuning.compiling import Built
from gemmgen.bench.tuning.jobs import job
from gemmgen.cli import doctor_command, main, tune_steps
from gemmgen.config import Config
from gemmgen.cost import cost
from gemmgen.errors import ArgumentError
from gemmgen.heuristics import choose, tuned
from gemmgen.ops import building, limits
from gemmgen.runtime import calibrated, devices, driver, nvrtc
from gemmgen.runtime.calibrated import Calibration
from gemmgen.target import H200, TARGETS, named

H200_ATTRIBUTES = {
    "MULTIPROCESSOR_COUNT": 132,
    "CLOCK_RATE": 1980000,
    "MEMORY_CLOCK_RATE": 3201000,
    "GLOBAL_MEMORY_BUS_WIDTH": 6144,
    "L2_CACHE_SIZE": 50 << 20,
}


@pytest.fixture
def gpu(monkeypatch, tmp_path):
    """A machine with one fake GPU, a fake compiler and a cache of its own."""
    told = SimpleNamespace(
        name="NVIDIA H200", attributes=dict(H200_ATTRIBUTES), cache=tmp_path / "kept"
    )

    def forget():
        driver.sm_count.cache_clear()
        building.forget_figures()

    monkeypatch.setattr(driver, "attribute", lambda device, name: told.attributes[name])
    monkeypatch.setattr(driver, "require_hopper", lambda device: told.name)
    monkeypatch.setattr(nvrtc, "version", lambda: (13, 0))
    monkeypatch.setattr(trial, "HANDLER", "Rated")
    monkeypatch.setattr(worker, "Worker", InProcess)
    monkeypatch.setattr(tune_steps, "compile_all", built_here)
    monkeypatch.setenv("GEMMGEN_CACHE", str(told.cache))
    monkeypatch.setenv(tuned.VARIABLE, tuned.NONE)
    for name in ("read", "launch", "spread", "flops"):
        monkeypatch.setattr(Rated, name, getattr(Rated, name))
    told.forget = forget
    forget()
    yield told
    forget()


def command(capsys, *argv):
    code = main(["tune", "--calibrate", *map(str, argv)])
    return code, *capsys.readouterr()


def kept(gpu):
    return sorted(gpu.cache.rglob("*")) if gpu.cache.exists() else []


# ---- what is measured -----------------------------------------------------------------------


def test_a_calibration_is_measured_kept_and_used(gpu, capsys):
    assert devices.target_of(0, gpu.name) is H200
    code, out, err = command(capsys, "--json")
    data = json.loads(out)
    assert code == 0 and "half a minute" in err
    assert data["read"] == pytest.approx(4.4e12) and data["launch"] == pytest.approx(4e-6)
    assert data["flops"] == {"1": pytest.approx(1.3e15), "2": pytest.approx(0.7e15)}
    (file,) = kept(gpu)
    assert data["file"] == str(file) and file.stat().st_mode & 0o777 == 0o600
    found = devices.target_of(0, gpu.name)
    assert vars(found) == data["target"] and found.figures == "calibrated" and found.sms == 132
    assert found.hbm_bytes_per_second == pytest.approx(4.8e12 * 4.4 / 4.56)
    assert found.flops_per_clock(1) == pytest.approx(8192 * 1.3e15 / calibrated.H200_FLOPS[1])
    assert found.flops_per_clock(2) == pytest.approx(4096 * 0.7e15 / calibrated.H200_FLOPS[2])
    assert found.launch_seconds == pytest.approx(4e-6)
    assert devices.by_name(gpu.name) == found


def test_what_an_h200_reaches_is_its_data_sheet():
    """The figures that others are held against are those of the rows that were shipped."""
    c = Calibration(
        device="x",
        attributes=tuple(H200_ATTRIBUTES.items()),
        read=calibrated.H200_READ,
        launch=H200.launch_seconds,
        flops=tuple(calibrated.H200_FLOPS.items()),
    )
    found = c.target(H200)
    assert found.hbm_bytes_per_second == pytest.approx(H200.hbm_bytes_per_second)
    for size in (1, 2):
        assert found.flops_per_clock(size) == pytest.approx(H200.flops_per_clock(size))
    for size, p in calibrate.PROBLEMS.items():
        row = tuned.find(p, calibrate.SHAPE, H200.device_name)
        assert row and row.shape == calibrate.SHAPE and row.best.config == calibrate.CONFIG
        flops = 2 * calibrated.SIDE**3 / row.best.seconds
        assert flops == pytest.approx(calibrated.H200_FLOPS[size])


def test_a_line_is_as_near_to_small_reads_as_to_large():
    times = {size: (3e-6 + size / 4e12,) * 3 for size in calibrate.SIZES}
    slope, rest = calibrate.line(times)
    assert (1 / slope, rest) == (pytest.approx(4e12), pytest.approx(3e-6))
    times[calibrate.SIZES[-1]] = (1.01 * times[calibrate.SIZES[-1]][0],) * 3
    assert calibrate.line(times)[1] == pytest.approx(3e-6, rel=0.2), "a percent of a millisecond"


def test_the_kernel_that_is_timed_is_legal():
    for p, config in calibrate.KERNELS:
        assert config == calibrate.CONFIG
        assert cost(p, config, calibrate.SHAPE, H200).seconds > 0
        assert job(p, calibrate.SHAPE).shape == calibrate.SHAPE


# ---- what is refused ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rates", "named_"),
    [
        ({"read": 5.2e12}, "read=5"),
        ({"read": 1e12}, "read=1"),
        ({"flops": {1: 2.4e15, 2: 0.7e15}}, "flops of 8 bits="),
        ({"flops": {1: 1.3e15, 2: 1e13}}, "flops of 16 bits="),
        ({"launch": -2e-6}, "launch=-"),
        ({"launch": 1e-3}, "launch="),
        ({"spread": 0.2}, "reading memory varied by 20%"),
    ],
)
def test_nonsense_is_refused_by_name(gpu, capsys, monkeypatch, rates, named_):
    for name, value in rates.items():
        monkeypatch.setattr(Rated, name, value)
    code, _, err = command(capsys)
    assert code == 1 and named_ in err and "running on this GPU" in err
    assert kept(gpu) == [] and devices.target_of(0, gpu.name) is H200


def test_part_of_a_gpu_is_not_calibrated(gpu, capsys):
    limits.limit_sms(78)
    try:
        code, _, err = command(capsys)
        assert code == 2 and "sms=78: must be all 132" in err and kept(gpu) == []
    finally:
        limits.limit_sms(None)


def test_it_needs_a_place_to_be_kept(gpu, capsys, monkeypatch):
    monkeypatch.setenv("GEMMGEN_CACHE", "none")
    code, _, err = command(capsys)
    assert code == 2 and "GEMMGEN_CACHE" in err


@pytest.mark.parametrize(
    "argv",
    [
        ("--limit", 3),
        ("-o", "x"),
        ("--regret",),
        ("--sms", 78),
        ("--processes", 0),
        ("--timeout", 0),
    ],
)
def test_other_options_are_refused(gpu, capsys, argv):
    code, _, err = command(capsys, *argv)
    assert code == 2 and argv[0] in err and kept(gpu) == []


def test_a_kernel_that_fails_is_told(gpu, capsys, monkeypatch):
    monkeypatch.setattr(
        tune_steps, "compile_all", lambda kernels, *_: {k: Built(failed="spills") for k in kernels}
    )
    code, _, err = command(capsys)
    assert code == 1 and "e4m3 could not be compiled: spills" in err and kept(gpu) == []


# ---- what is kept ---------------------------------------------------------------------------


def calibration(**other):
    given = {"read": 4.4e12, "launch": 4e-6, "flops": ((1, 1.3e15), (2, 0.7e15))}
    attributes = tuple((x, H200_ATTRIBUTES[x]) for x in calibrated.ATTRIBUTES)
    return Calibration(**{"device": "NVIDIA H200", "attributes": attributes, **given, **other})


def test_two_gpus_of_one_name_have_their_own(gpu):
    first = calibration()
    slower = tuple((x, 1755000 if x == "CLOCK_RATE" else v) for x, v in first.attributes)
    second = calibration(attributes=slower, read=4.0e12, flops=((1, 1.2e15), (2, 0.6e15)))
    for c in (first, second, replace(first, launch=5e-6)):
        calibrated.keep(c, H200)
    assert calibrated.kept("NVIDIA H200") == [replace(first, launch=5e-6), second]
    assert devices.target_of(0, gpu.name).launch_seconds == 5e-6
    gpu.attributes |= dict(slower)
    gpu.forget()
    assert devices.target_of(0, gpu.name) == second.target(H200)
    gpu.attributes["CLOCK_RATE"] = 1500000
    gpu.forget()
    assert devices.target_of(0, gpu.name) is H200, "neither"
    assert len(kept(gpu)) == 1


@pytest.mark.parametrize("name", ["NVIDIA H20", "NVIDIA H100 80GB HBM3 MIG 3g.40gb"])
def test_any_gpu_is_calibrated_by_its_name(gpu, capsys, monkeypatch, name):
    """Also one that the table does not know; and one whose SMs the table has wrong."""
    gpu.name, gpu.attributes["MULTIPROCESSOR_COUNT"] = name, 60
    gpu.forget()
    monkeypatch.setattr(Rated, "flops", {1: 0.2e15, 2: 0.1e15})
    assert command(capsys)[0] == 0
    found = devices.target_of(0, name)
    assert (found.sms, found.device_name, found.figures) == (60, name, "calibrated")
    assert devices.by_name(name) == found
    shape = (4096, 4096, 4096)
    assert building.chosen(FP8, shape) == choose(FP8, shape, found) != choose(FP8, shape, H200)


def test_what_is_kept_is_kept_once_and_stays(gpu, monkeypatch, tmp_path):
    """Though nothing of it is asked for, and though another folder has it too."""
    first = calibration()
    slower = tuple((x, 1755000 if x == "CLOCK_RATE" else v) for x, v in first.attributes)
    calibrated.keep(first, H200)
    monkeypatch.setenv("GEMMGEN_CALIBRATED", "none")
    calibrated.keep(calibration(attributes=slower), H200)
    monkeypatch.delenv("GEMMGEN_CALIBRATED")
    found = calibrated.kept(gpu.name)
    assert found == [calibration(attributes=slower), first]
    monkeypatch.setenv("GEMMGEN_CACHE_PATH", str(gpu.cache))
    monkeypatch.setenv("GEMMGEN_CACHE", str(tmp_path / "own"))
    calibrated.keep(first, H200)
    monkeypatch.delenv("GEMMGEN_CACHE_PATH")
    assert calibrated.kept(gpu.name) == [first]


def test_none_is_asked_for(gpu, monkeypatch):
    calibrated.keep(calibration(), H200)
    assert devices.target_of(0, gpu.name).figures == "calibrated"
    monkeypatch.setenv("GEMMGEN_CALIBRATED", "none")
    gpu.forget()
    assert devices.target_of(0, gpu.name) is H200 is devices.by_name(gpu.name)


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[: len(text) // 2],
        lambda text: text.replace("4400000000000.0", "NaN"),
        lambda text: text.replace("4400000000000.0", "9e12"),
        lambda text: text.replace('"NVIDIA H200"', '"NVIDIA H20"'),
        lambda text: text.replace('"gemmgen": 1', '"gemmgen": 2'),
        lambda text: text.replace('"launch"', '"lunch"'),
        lambda text: "[" * 100_000,
    ],
    ids=["torn", "nan", "bounds", "name", "format", "field", "deep"],
)
def test_what_is_damaged_is_passed_over(gpu, caplog, damage):
    path = calibrated.keep(calibration(), H200)
    path.write_text(damage(path.read_text()))
    gpu.forget()
    assert devices.target_of(0, gpu.name) is H200
    assert "the calibration of NVIDIA H200 there is passed over" in caplog.text
    calibrated.keep(calibration(), H200)
    gpu.forget()
    assert devices.target_of(0, gpu.name).figures == "calibrated"


def test_a_file_that_others_may_write_is_passed_over(gpu, caplog):
    calibrated.keep(calibration(), H200).chmod(0o666)
    gpu.forget()
    assert devices.target_of(0, gpu.name) is H200 and "may be written by others" in caplog.text


def test_nothing_evicts_it(gpu, capsys):
    path = calibrated.keep(calibration(), H200)
    assert main(["cache", "gc", "--all"]) == 0 and path.exists()
    with pytest.raises(ArgumentError, match="read="):
        calibrated.keep(calibration(read=1e13), H200)
    assert calibrated.kept("NVIDIA H200") == [calibration()]


# ---- choices, and what is said of them ------------------------------------------------------


def test_choices_follow_the_figures(gpu, capsys, monkeypatch):
    """An H200 whose tensor cores are a quarter as fast is given what an H20 is for."""
    shapes = [(m, n, k) for m in (128, 1024, 4096) for n, k in ((2112, 7168), (7168, 2048))]
    before = [building.chosen(p, s) for p in (FP8, DENSE) for s in shapes]
    slow = {size: flops / 4 for size, flops in calibrated.H200_FLOPS.items()}
    monkeypatch.setattr(Rated, "flops", slow)
    assert command(capsys)[0] == 0
    target = devices.target_of(0, gpu.name)
    after = [building.chosen(p, s) for p in (FP8, DENSE) for s in shapes]
    assert after == [choose(p, s, target) for p in (FP8, DENSE) for s in shapes] != before
    assert all(isinstance(c, Config) for c in after)


def test_doctor_and_explain_say_what_figures_are(gpu, capsys, monkeypatch):
    sides = ("dense", "-m", "64", "-n", "512", "-k", "512")

    def said(device):
        assert main(["explain", *sides, "--device", device, "--json"]) == 0
        told = json.loads(capsys.readouterr().out)["figures"]
        assert main(["explain", *sides, "--device", device]) == 0
        assert f"figures {told}" in " ".join(capsys.readouterr().out.split())  # it may wrap
        return told

    assert (said("NVIDIA H200"), said("NVIDIA H20")) == ("measured", "assumed")
    assert "4.80 TB/s, 1898 TFLOP/s of 8 bits, 949 of 16; figures measured" in doctor_command._gpu()
    assert command(capsys)[0] == 0
    assert (said("NVIDIA H200"), said("NVIDIA H20")) == ("calibrated", "assumed")
    assert "4.63 TB/s" in doctor_command._gpu() and "figures calibrated" in doctor_command._gpu()


def test_only_an_h200_was_measured():
    assert [t.name for t in TARGETS if t.figures == "measured"] == ["H200"]
    assert {t.figures for t in TARGETS} == {"measured", "assumed"}
    assert named("NVIDIA H20").flops_per_clock(2) == named("NVIDIA H20").flops_per_clock(1) / 2
