"""Tuning on a Hopper GPU: every kind of problem is verified and timed, and what fails is survived."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from kernels import DENSE, DENSE_TN, FP8, INT8_BLOCK, PAIRED, QUANTISED, VECTOR

from gemmgen.bench.tuning.candidates import candidates
from gemmgen.bench.tuning.compiling import compile_all, cores
from gemmgen.bench.tuning.jobs import job
from gemmgen.bench.tuning.session import Settings, tune
from gemmgen.bench.tuning.trial import HANDLER, Verify
from gemmgen.bench.tuning.worker import Worker
from gemmgen.config import Config
from gemmgen.epilogues import EPILOGUES
from gemmgen.heuristics import tuned
from gemmgen.heuristics.database import load
from gemmgen.ir.dtypes import E4M3, F32
from gemmgen.problem import Problem

pytestmark = pytest.mark.gpu

FAST = Problem(family="dense", a=E4M3, b=E4M3, epilogue=EPILOGUES["tensor_scaled"])
CASES = {
    "fp8-block": (FP8, (300, 520, 1100)),
    "fp8-block-few": (FP8, (16, 512, 1024)),
    "dense": (DENSE, (300, 520, 1096)),
    "dense-tn": (DENSE_TN, (304, 520, 1096)),
    "dense-approximate": (replace(DENSE, epilogue=EPILOGUES["bias_gelu"]), (300, 520, 1096)),
    "dense-paired": (PAIRED, (300, 520, 1096)),
    "dense-quantised": (QUANTISED, (300, 512, 1096)),
    "fp8": (Problem(family="fp8", a=E4M3, b=E4M3), (300, 528, 1104)),
    "fp8-fast": (FAST, (304, 528, 1104)),
    "s8-block": (INT8_BLOCK, (300, 520, 1104)),
    "wgrad": (replace(VECTOR, accumulate=True), (304, 520, 1104)),
    "batched": (replace(DENSE, grouping="batched"), (3, 200, 512, 1024)),
    "masked": (replace(FP8, grouping="masked"), (6, 200, 512, 1024)),
    "ends": (replace(FP8, grouping="ends"), (3, 200, 512, 1024)),
    "rows": (replace(DENSE, grouping="rows"), (3, 200, 512, 1024)),
    "k-columns": (replace(DENSE_TN, grouping="k_columns", d=F32), (3, 200, 512, 1000)),
    "k-flat": (replace(VECTOR, grouping="k_flat", accumulate=True), (3, 256, 512, 1024)),
}


@pytest.fixture(scope="module")
def worker():
    with Worker(HANDLER) as one:
        yield one


def settings():
    from gemmgen.runtime import driver, nvrtc

    return Settings(device=driver.require_hopper(0), nvrtc=nvrtc.version(), repeats=5)


@pytest.mark.parametrize("name", CASES)
def test_every_kind_of_problem(name, worker, tmp_path):
    p, shape = CASES[name]
    j = job(p, shape)
    found = candidates(j, limit=6, factor=2.0)
    built = compile_all([(p, c.config) for c in found], tmp_path, cores())
    mine = {c.config: built[p, c.config] for c in found}
    result = tune(j, found, mine, worker, settings())
    assert result.row and result.row.best.seconds > 0, [o.failed for o in result.outcomes]
    compiled = [o for o in result.outcomes if mine[o.candidate.config].cubin]
    assert all(o.seconds for o in compiled), [o.failed for o in compiled]


def test_a_kernel_that_does_not_load_is_survived(worker, tmp_path):
    j = job(DENSE, (300, 520, 1096))
    configs = [Config(panel=8), Config(panel=4)]
    built = compile_all([(DENSE, c) for c in configs], tmp_path, cores())
    right = Verify(job=j, config=configs[0], cubin=built[DENSE, configs[0]].cubin)
    assert worker.ask(right, 120).failed == ""
    starts = worker.starts
    garbage = tmp_path / "garbage.cubin"
    garbage.write_bytes(b"no cubin")
    assert (
        "cuModuleLoadData"
        in worker.ask(replace(right, cubin=garbage, config=configs[1]), 120).failed
    )
    assert worker.ask(right, 120).failed == "" and worker.starts == starts + 1


def test_the_command(tmp_path, capsys, monkeypatch):
    from gemmgen.cli import main

    database, log = tmp_path / "tuned.jsonl", tmp_path / "log.jsonl"
    argv = ["tune", "dense", "--shapes", "512x1024x1024", "--limit", "6", "--repeats", "5"]
    assert main([*argv, "-o", str(database), "--log", str(log)]) == 0
    (row,) = load(database)
    assert row.reference and row.reference[0] == "torch.mm" and len(row.tried) > 1
    assert len(log.read_text().splitlines()) >= len(row.tried)
    of = row.conditions
    assert of.gemmgen and of.driver and of.torch
    assert (
        of.sm_mhz is None or 200 < of.sm_mhz < 3000
    )  # where nobody tells the clock, it is left out
    assert of.power_limit is None or 100 < of.power_limit < 1500
    monkeypatch.setenv(tuned.VARIABLE, str(database))
    tuned.forget()
    capsys.readouterr()
    assert main(["run", "dense", "-m", "512", "-n", "1024", "-k", "1024", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["config_from"] == "tuned"
    assert Config.from_json(report["config"]) == row.best.config


def test_regret(tmp_path, capsys):
    """Of a plain problem and one with groups, on part of the SMs; a second run measures nothing."""
    from gemmgen.cli import main

    file = tmp_path / "regret.jsonl"
    which = ["--families", "dense", "--groupings", "none,rows", "--count", "2", "--sms", "78"]
    argv = ["tune", "--regret", *which, "--limit", "4", "--repeats", "5", "-o", str(file), "--json"]
    assert main(argv) == 0
    first = capsys.readouterr()
    data = json.loads(first.out)
    assert data["all"]["shapes"] == 2 and data["all"]["failed"] == 0
    assert 1 <= data["all"]["mean"] <= data["all"]["worst"] and "2 of 2 shapes" in first.err
    assert main(argv) == 0
    again = capsys.readouterr()
    assert json.loads(again.out) == data and "0 of 2 shapes" in again.err


def test_a_rank_uses_its_own_gpu(tmp_path, monkeypatch):
    """The last one that is here, whatever this process has used so far."""
    import torch

    from gemmgen.cli import main

    last = torch.cuda.device_count() - 1
    ranks = {"RANK": 1, "WORLD_SIZE": 2, "LOCAL_RANK": last, "LOCAL_WORLD_SIZE": last + 1}
    for name, value in ranks.items():
        monkeypatch.setenv(name, str(value))
    argv = ["tune", "dense", "--shapes", "512x1024x1024,256x1024x1024", "--limit", "2"]
    assert main([*argv, "--repeats", "5", "-o", str(tmp_path / "x.jsonl")]) == 0
    (row,) = load(tmp_path / "x.2-of-2.jsonl")
    assert row.best.seconds and [x.name for x in tmp_path.iterdir()] == ["x.2-of-2.jsonl"]


@pytest.mark.parametrize("name", ["dense", "fp8_block"])
def test_sweep(name, tmp_path, capsys, monkeypatch):
    """The times of few rows are those that the same launches have alone."""
    from gemmgen.bench.tuning import sweep
    from gemmgen.cli import main, tune_sweep

    monkeypatch.setattr(tune_sweep, "ROWS", range(1, 130, 16))
    file = tmp_path / "sweep.jsonl"
    argv = ["tune", name, "--sweep", "m", "--shapes", "1x7168x2048", "--repeats", "9"]
    assert main([*argv, "-o", str(file)]) in (0, 1)
    (found,) = sweep.load(file)
    assert [p.m for p in found.points] == [*range(1, 130, 16)] and not found.failed
    capsys.readouterr()
    for point in found.points[:: len(found.points) - 1]:
        shape = f"{point.m}x7168x2048"
        assert main(["bench", name, "--shapes", shape, "--providers", "gemmgen", "--json"]) == 0
        (row,) = json.loads(capsys.readouterr().out)["rows"]
        assert point.median * 1e6 == pytest.approx(row["microseconds"], rel=0.2)


def test_calibration(tmp_path, capsys, monkeypatch):
    """Twice alike, within what such a GPU can do, and used."""
    from gemmgen.cli import main
    from gemmgen.runtime import devices, driver

    monkeypatch.setenv("GEMMGEN_CACHE", str(tmp_path))
    devices.forget()
    name = driver.require_hopper(0)
    assumed = devices.target_of(0, name)
    found = []
    try:
        for _ in range(2):
            assert main(["tune", "--calibrate", "--json"]) == 0
            found.append(json.loads(capsys.readouterr().out))
        one, other = found
        for figure in ("read", "launch"):
            assert one[figure] == pytest.approx(other[figure], rel=0.1 if figure == "read" else 0.5)
        for size in ("1", "2"):
            assert one["flops"][size] == pytest.approx(other["flops"][size], rel=0.1)
        target = devices.target_of(0, name)
        assert target.figures == "calibrated" and target.sms == assumed.sms
        assert target.hbm_bytes_per_second == pytest.approx(assumed.hbm_bytes_per_second, rel=0.25)
        assert [x.suffix for x in tmp_path.iterdir()].count(".target") == 1
    finally:
        devices.forget()
