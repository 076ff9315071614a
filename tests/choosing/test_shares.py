"""Tuning by several processes and machines, each a share: simulated by processes with fake GPUs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import fake_host
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kernels import DENSE

from gemmgen.bench.tuning import shares
from gemmgen.bench.tuning.compiling import cores
from gemmgen.bench.tuning.jobs import Job
from gemmgen.bench.tuning.worker import Worker
from gemmgen.cli import main
from gemmgen.cli.tune_share import Share
from gemmgen.heuristics.database import Conditions, load
from gemmgen.runtime import devices

ROOT = Path(__file__).parents[2]
LONG = 240.0  # seconds that no command here takes
SHAPES = ("256x512x512", "4096x4096x4096", "128x512x512", "8192x8192x8192", "64x512x512")
SMALL = ("dense", "--shapes", ",".join(SHAPES), "--limit", "3", "--repeats", "3")
ROWS = (128, 256, 4096, 64, 8192)
EFFORT = shares.Effort(limit=3, repeats=3)
RANKS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")


@pytest.fixture(autouse=True)
def clean(monkeypatch, tmp_path):
    for name in (*RANKS, "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    path = os.pathsep.join((str(ROOT), str(ROOT / "tests" / "support")))
    monkeypatch.setenv("PYTHONPATH", path)
    seen = tmp_path / "seen"
    seen.mkdir()
    monkeypatch.setenv("FAKE_SEEN", str(seen))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def host():
    with ExitStack() as stack:
        fake_host.alike(stack)
        yield
    devices.forget()


def started(*argv, **environment):
    """`gemmgen tune ARGV` on a machine of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "fake_host", "tune", *map(str, argv)],
        env={**os.environ, "FAKE_HANDLER": "Paced", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def done(process):
    out, err = process.communicate(timeout=LONG)
    return process.returncode, out, err


def rank(of, count, **more):
    told = zip(RANKS, (of, count, of, count), strict=True)
    return {**{name: str(x) for name, x in told}, "FAKE_GPUS": "4", **more}


def sides(path):
    return sorted(r.shape[0] for r in load(path))


# ---- who takes what ---------------------------------------------------------------------------


@given(st.lists(st.integers(0, 1000), max_size=40), st.integers(1, 50))
def test_every_place_is_in_one_share(prices, count):
    found = shares.shares(prices, count)
    assert sorted(i for x in found for i in x) == [*range(len(prices))] and len(found) <= count
    assert all(x == sorted(x) for x in found)
    loads = [sum(prices[i] for i in x) for x in found]
    # Of the greedy order: nobody has more than the least and one shape.
    assert not prices or max(loads) - min(loads) <= max(prices)


def test_shares_are_balanced_by_what_a_shape_costs():
    assert shares.shares([1, 9, 1, 1, 1, 5], 2) == [[1], [0, 2, 3, 4, 5]]
    sizes = (64, 64, 64, 16384)
    jobs = [Job(problem=DENSE, shape=(m, n, 16384)) for n in (1024, 2048) for m in sizes]
    costs = [shares.price(j, shares.Effort(limit=32, repeats=21)) for j in jobs]
    assert costs[7] == max(costs) > costs[3] > costs[0], "larger shapes cost more"
    few, many = (shares.price(jobs[7], shares.Effort(limit=x, repeats=21)) for x in (4, 32))
    assert many > 4 * few


def test_a_share_depends_on_no_gpu(host, monkeypatch):
    """Machines of unlike GPUs agree on who takes what."""
    jobs = [Job(problem=DENSE, shape=(m, 4096, 4096)) for m in (64, 128, 512, 4096)]
    here = [shares.share(jobs, i, 2, EFFORT) for i in (1, 2)]
    monkeypatch.setenv("FAKE_NAME", "NVIDIA H100 PCIe")
    devices.forget()
    assert [shares.share(jobs, i, 2, EFFORT) for i in (1, 2)] == here
    assert sorted(str(j) for x in here for j in x) == sorted(map(str, jobs))


def test_more_shares_than_shapes():
    (j,) = jobs = [Job(problem=DENSE, shape=(64, 512, 512))]
    assert [shares.share(jobs, i, 3, EFFORT) for i in (1, 2, 3)] == [[j], [], []]


def test_names_of_files():
    path = Path("a/tuned.jsonl")
    assert Share().file(path) == path and Share(number=2, count=8).file(None) is None
    names = {Share(number=i, count=n).file(path) for n in (2, 3, 12) for i in range(1, n + 1)}
    assert len(names) == 17 and Path("a/tuned.11-of-12.jsonl") in names


def test_processes_share_the_cores():
    assert Share(beside=2).processes() == max(1, cores() // 2)
    assert Share(beside=1000).processes() == 1


@pytest.mark.parametrize(
    ("share", "listed", "sees"),
    [
        (Share(number=3, count=8), "4,5", None),
        (Share(number=3, count=8, rank=2), None, "2"),
        (Share(number=3, count=8, rank=1), "4, 5", "5"),
        (Share(number=1, count=8, rank=0), "GPU-8f1c", "GPU-8f1c"),
    ],
)
def test_what_a_rank_sees(share, listed, sees):
    there = {} if listed is None else {"CUDA_VISIBLE_DEVICES": listed}
    assert share.environment(there) == ({} if sees is None else {"CUDA_VISIBLE_DEVICES": sees})


# ---- machines and GPUs ------------------------------------------------------------------------


def test_machines_that_take_a_share_each(tmp_path):
    out = tmp_path / "new" / "tuned.jsonl"
    log = tmp_path / "log.jsonl"
    hosts = [started(*SMALL, "-o", out, "--log", log, "--shard", f"{i}/3") for i in (1, 2, 3)]
    for code, _, err in map(done, hosts):
        assert code == 0, err
        assert "of 5 shapes: " in err
    files = sorted(out.parent.iterdir())
    assert [x.name for x in files] == [f"tuned.{i}-of-3.jsonl" for i in (1, 2, 3)]
    found = [sides(x) for x in files]
    assert sorted(m for x in found for m in x) == sorted(ROWS)
    assert [8192] in found, "what costs most is alone"
    assert len([*tmp_path.glob("log.*-of-3.jsonl")]) == 3
    assert {x.read_text() for x in (tmp_path / "seen").iterdir()} == {"all"}

    code, _, err = done(started("--merge", *files, "-o", out))
    assert code == 0 and "5 rows of 5" in err and sides(out) == sorted(ROWS)
    assert sorted(out.read_text().splitlines()) == sorted(
        line for x in files for line in x.read_text().splitlines()
    )
    # What all have together, nobody tunes again.
    for code, _, err in map(
        done, [started(*SMALL, "-o", out, "--shard", f"{i}/2") for i in (1, 2)]
    ):
        assert code == 0 and ": 0 of " in err


def test_ranks_of_torchrun_take_a_share_and_a_gpu_each(tmp_path):
    """Of two hosts: two ranks on the first, one on the second, whose GPUs begin at 0 again."""
    out, local = tmp_path / "tuned.jsonl", (0, 1, 0)
    hosts = [
        {"LOCAL_RANK": str(of), "LOCAL_WORLD_SIZE": str(n)}
        for of, n in zip(local, (2, 2, 1), strict=True)
    ]
    ranks = [started(*SMALL, "-o", out, **{**rank(i, 3), **on}) for i, on in enumerate(hosts)]
    for code, _, err in map(done, ranks):
        assert code == 0, err
    seen = [x.read_text() for x in (tmp_path / "seen").iterdir()]
    assert sorted(seen) == ["0", "0", "1"] and not out.exists()
    for i, gpu in enumerate(local):
        for row in load(tmp_path / f"tuned.{i + 1}-of-3.jsonl"):
            c = row.conditions
            assert (c.power_limit, c.sm_mhz, c.driver) == (700, 1700 + gpu, "13.0") and c.gemmgen
            assert row.device == "NVIDIA H200" and row.spread > 0


def test_torchrun_itself(tmp_path):
    pytest.importorskip("torch", exc_type=ImportError)
    out = tmp_path / "tuned.jsonl"
    argv = ["--nproc-per-node=2", "-m", "fake_host", "tune", *SMALL, "-o", str(out)]
    run = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", *argv],
        env={**os.environ, "FAKE_HANDLER": "Paced", "FAKE_GPUS": "2"},
        capture_output=True,
        text=True,
        timeout=LONG,
    )
    assert run.returncode == 0, run.stderr
    assert {x.read_text() for x in (tmp_path / "seen").iterdir()} == {"0", "1"}
    halves = [sides(tmp_path / f"tuned.{i}-of-2.jsonl") for i in (1, 2)]
    assert sorted(halves[0] + halves[1]) == sorted(ROWS) and all(halves)


def test_a_share_that_is_killed_goes_on(tmp_path):
    out, mine = tmp_path / "tuned.jsonl", tmp_path / "tuned.2-of-2.jsonl"
    whole = shares.share(
        [Job(problem=DENSE, shape=tuple(map(int, x.split("x")))) for x in SHAPES], 2, 2, EFFORT
    )
    assert len(whole) > 2
    process = started(*SMALL, "-o", out, "--shard", "2/2")
    deadline = time.monotonic() + LONG
    while not mine.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    done(process)
    before = load(mine)  # raises for half a line
    assert 0 < len(before) < len(whole)
    code, _, err = done(started(*SMALL, "-o", out, "--shard", "2/2"))
    assert code == 0 and f": {len(whole) - len(before)} of {len(whole)} shapes to tune" in err
    assert sides(mine) == sorted(j.shape[0] for j in whole)
    kept = {r.key: r for r in load(mine)}
    assert all(kept[r.key] == r for r in before)


def test_a_rank_without_a_gpu_says_which(tmp_path):
    code, _, err = done(started(*SMALL, "-o", "x.jsonl", **rank(4, 5)))
    assert code == 3 and "device=4: this machine has 4" in err
    assert [x.name for x in tmp_path.iterdir()] == ["seen"]


# ---- the command ------------------------------------------------------------------------------


def command(capsys, *argv):
    code = main(["tune", *map(str, argv)])
    return code, *capsys.readouterr()


def test_cubins_of_a_share(host, capsys, tmp_path):
    few = ("dense", "--shapes", ",".join(SHAPES[:3]), "--limit", "1", "--processes", "1")
    argv = (*few, "--cubins", "cubins", "--compile-only")
    code, out, _ = command(capsys, *argv, "--json", "--shard", "1/2")
    first = json.loads(out)
    assert code == 0 and first["shard"] == "1/2"
    code, out, _ = command(capsys, *argv, "--shard", "2/2")
    assert code == 0 and out.endswith("kernels of shard 2/2\n")
    second = json.loads(command(capsys, *argv, "--json", "--shard", "2/2")[1])
    assert sorted([*first["shapes"], *second["shapes"]]) == sorted(SHAPES[:3])


def test_a_rows_conditions(host, capsys):
    assert command(capsys, *SMALL[:2], SHAPES[0], *SMALL[3:], "-o", "x.jsonl")[0] == 0
    (row,) = load(Path("x.jsonl"))
    assert row.conditions.sm_mhz == 1700 and row.conditions.driver == "13.0"
    assert '"conditions": {"gemmgen": "' in Path("x.jsonl").read_text()
    assert Conditions() != row.conditions


@pytest.mark.parametrize(
    "text", ["", "1", "0/2", "3/2", "1/0", "-1/2", "1/2/3", "²/2", "a/b", "1 /2"]
)
def test_no_share(host, capsys, tmp_path, text):
    code, _, err = command(capsys, *SMALL, "-o", "x.jsonl", f"--shard={text}")
    assert code == 2 and f"--shard='{text}'" in err and "share I from 1 to N" in err


WRONG = {
    "RANK": ("-1", "2", "x", ""),
    "WORLD_SIZE": ("0", "two", ""),
    "LOCAL_RANK": ("-1", "1.5", ""),
    "LOCAL_WORLD_SIZE": ("0", "zz"),
}


@pytest.mark.parametrize(("name", "value"), [(n, v) for n, vs in WRONG.items() for v in vs])
def test_no_rank(host, capsys, monkeypatch, name, value):
    for x, right in {**rank(1, 2), name: value}.items():
        monkeypatch.setenv(x, right)
    code, _, err = command(capsys, *SMALL, "-o", "x.jsonl")
    assert code == 2 and f"{name}='{value}'" in err


@pytest.mark.parametrize("name", RANKS[:3])
def test_a_rank_that_is_half_told(host, capsys, monkeypatch, tmp_path, name):
    """As where another launcher sets some of them. --shard, which says all, is used there."""
    for x, right in rank(0, 2).items():
        monkeypatch.setenv(x, right)
    monkeypatch.delenv(name)
    code, _, err = command(capsys, *SMALL, "-o", "x.jsonl")
    assert code == 2 and f"{name}=None" in err and [x.name for x in tmp_path.iterdir()] == ["seen"]
    argv = (*SMALL[:-2], "--cubins", "c", "--compile-only", "--shard", "2/2")
    assert command(capsys, *argv)[0] == 0


def test_a_share_is_asked_for_once(host, capsys, monkeypatch):
    for x, right in rank(0, 2).items():
        monkeypatch.setenv(x, right)
    code, _, err = command(capsys, *SMALL, "-o", "x.jsonl", "--shard", "1/2")
    assert code == 2 and "--shard='1/2'" in err and "RANK, WORLD_SIZE, LOCAL_RANK" in err


@pytest.mark.parametrize(
    "mode", ["--regret", "--calibrate", "--sweep=m", "--report=x", "--merge=x"]
)
def test_what_has_no_shares(host, capsys, monkeypatch, mode):
    code, _, err = command(capsys, mode, "--shard", "1/2")
    assert code == 2 and "--shard" in err
    for x, right in rank(1, 2).items():
        monkeypatch.setenv(x, right)
    code, _, err = command(capsys, mode)
    assert code == 2 and "WORLD_SIZE='2'" in err and mode.partition("=")[0] in err


def test_a_child_gets_variables():
    with Worker("fake_handlers:Told", environment={"TOLD": "so"}) as worker:
        assert worker.ask("TOLD", LONG).value == "so" and "TOLD" not in os.environ
