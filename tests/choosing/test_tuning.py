"""The tuner without a GPU: its processes, candidates, session and report."""

from __future__ import annotations

import json
import os
import re
import weakref
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from fake_tuner import InProcess, built_here
from kernels import DENSE, DENSE_TN, FP8, VECTOR

from gemmgen.bench.shapes import K_GROUPED, mean_depth
from gemmgen.bench.tuning import operands, trial, worker
from gemmgen.bench.tuning.candidates import candidates, neighbours
from gemmgen.bench.tuning.compiling import Built, compile_all
from gemmgen.bench.tuning.jobs import VERIFIED, Candidate, Job, job, launch, verified
from gemmgen.bench.tuning.report import correlation, ranks, ratio, report
from gemmgen.bench.tuning.session import Settings, tune
from gemmgen.bench.tuning.worker import Worker
from gemmgen.cli import main, tune_command, tune_steps
from gemmgen.config import Config
from gemmgen.errors import GemmgenError, IllegalConfig, RuntimeUnavailable
from gemmgen.heuristics import choose, rank
from gemmgen.heuristics.database import Row, Timed, load, to_text
from gemmgen.ir.groupings import GROUPINGS, depths, segments
from gemmgen.pipeline import lower
from gemmgen.runtime import driver, nvrtc
from gemmgen.target import H200
from gemmgen.verification.inputs import exact_integers
from gemmgen.verification.trial import output, pitches

LONG = 120.0  # seconds that no request here takes


@pytest.fixture(autouse=True)
def children_find_the_handlers(monkeypatch):
    """The handlers are modules that pytest puts on the path of its own process only."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1] / "support"))


# ---- processes --------------------------------------------------------------------------------------


def test_one_process_serves_request_after_request():
    with Worker("fake_handlers:Fake") as worker:
        first, second = (worker.ask("normal", LONG) for _ in range(2))
        assert first.value == second.value != os.getpid() and not first.failed
        assert worker.starts == 1


@pytest.mark.parametrize(
    ("request_", "seconds", "reason"),
    [
        ("crash", LONG, r"SIGABRT.*illegal instruction"),
        ("exit", LONG, "exit code 3"),
        ("hang", 0.3, "no answer within 0 s"),
        ("wrong", LONG, "^3 of 4 elements differ$"),
        ("bug", LONG, "KeyError"),
    ],
)
def test_a_failure_costs_its_process_and_no_more(request_, seconds, reason):
    with Worker("fake_handlers:Fake") as worker:
        before = worker.ask("normal", LONG).value
        failed = worker.ask(request_, seconds)
        assert failed.value is None
        assert re.search(reason, failed.failed, re.S)
        after = worker.ask("normal", LONG).value
        assert after not in (None, before) and worker.starts == 2
        with pytest.raises(ProcessLookupError):
            os.kill(before, 0)


def test_a_sturdy_process_survives_an_error():
    with Worker("fake_handlers:Sturdy") as worker:
        before = worker.ask("normal", LONG).value
        assert "3 of 4" in worker.ask("wrong", LONG).failed
        assert worker.ask("normal", LONG).value == before


def test_a_process_that_does_not_get_ready():
    with pytest.raises(RuntimeUnavailable, match="no GPU here"):
        Worker("fake_handlers:Absent").ask("normal", LONG)
    with pytest.raises(GemmgenError, match="exit code 7"):
        Worker("fake_handlers:Broken").ask("normal", LONG)
    with pytest.raises(GemmgenError, match="AttributeError"):
        Worker("fake_handlers:Missing").ask("normal", LONG)
    with pytest.raises(GemmgenError, match="not ready in time"):
        Worker("fake_handlers:Slow", start_seconds=0.3).ask("normal", LONG)


def test_a_closed_worker_leaves_no_process():
    worker = Worker("fake_handlers:Fake")
    child = worker.ask("normal", LONG).value
    worker.close()
    worker.close()
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)


# ---- jobs -------------------------------------------------------------------------------------------

GROUPED = [
    (replace(DENSE, grouping=name), (5, 200, 512, 1000))
    for name, g in GROUPINGS.items()
    if g.columns and not g.summed
]
SPLIT = [
    (replace(DENSE, grouping="k_columns"), (5, 200, 512, 1000)),
    (replace(DENSE_TN, grouping="k_columns"), (7, 200, 512, 999)),
    (replace(VECTOR, grouping="k_flat"), (5, 200, 512, 1000)),
    (replace(VECTOR, grouping="k_columns"), (3, 200, 512, 100)),
]


@pytest.mark.parametrize(("p", "shape"), GROUPED, ids=lambda x: getattr(x, "grouping", ""))
def test_groups_of_rows(p, shape):
    j = job(p, shape)
    assert (j.groups, j.shape) == (5, (200, 512, 1000)) and str(j) == "5x200x512x1000"
    (m, _, _), layout = launch(j)
    found = [*segments(p.grouping, m, layout, p.alignment)]
    rows = [s.end - s.first for s in found]
    assert sum(rows) == 1000 and len({s.group for s in found}) == 5
    assert len(set(rows)) == (1 if p.grouping == "batched" else 5)


@pytest.mark.parametrize(("p", "shape"), SPLIT, ids=range(4))
def test_groups_of_k(p, shape):
    """The mean that a job says is the mean that ops derive from the tensors."""
    j = job(p, shape)
    (_, _, k), layout = launch(j)
    counts = [d.end - d.first for d in depths(p.grouping, k, layout)]
    assert sum(counts) == k and j.shape[2] == -(-k // j.groups) and min(counts) > 0
    exact_integers(p, 8, 8, k, 0, layout)  # raises for depths that the problem does not allow


@pytest.mark.parametrize("p", [p for p, _ in SPLIT], ids=range(4))
def test_a_row_is_where_a_benchmark_looks(p):
    for shape in K_GROUPED["k-grouped"]:
        assert job(p, shape).shape == shape[1:]
    for groups in range(1, 40):
        for mean in (128, 300, 1000, 2144, 8385):
            j = job(p, (groups, 200, 512, mean))
            assert j.shape[2] == mean_depth(groups, mean) and job(p, (groups, *j.shape)) == j


@pytest.mark.parametrize(
    ("p", "shape"),
    [
        (DENSE, (8192, 9000, 16384)),
        (DENSE, (64, 128, 256)),
        (replace(FP8, grouping="ends"), (32, 8192, 7168, 4096)),
        (replace(VECTOR, grouping="k_flat"), (32, 8192, 7168, 4096)),
    ],
    ids=range(4),
)
def test_what_is_verified_is_no_larger(p, shape):
    j = job(p, shape)
    small = verified(j)
    assert all(x <= most for x, most in zip(small.shape, VERIFIED, strict=True))
    assert small.groups <= j.groups and small.problem == p
    if shape == (64, 128, 256):
        assert small == j
    (m, n, k), layout = launch(small)
    exact_integers(p, m, min(n, 8), k, 0, layout)


@pytest.mark.parametrize(
    "p", [DENSE, replace(FP8, grouping="masked"), VECTOR, *(s[0] for s in SPLIT)]
)
def test_operands_to_time_have_every_shape(p):
    """Those drawn on the GPU begin as one column over and over."""
    j = job(p, (3, 40, 48, 256)[-3 - (p.grouping != "none") :])
    shape, layout = launch(j)
    drawn, whole = operands.one_column(j), exact_integers(p, *shape, 0, layout)
    assert drawn.shape == whole.shape == shape and drawn.layout == whole.layout
    for name in ("a", "b", "scale_a", "scale_b"):
        one, other = getattr(drawn, name), getattr(whole, name)
        assert (one is None) == (other is None)
        assert one is None or (one.shape, one.dtype) == (other.shape, other.dtype)
    kernel = lower(p, choose(p, j.shape, H200, j.groups))
    assert output(p, drawn, pitches(kernel, shape)).size > 0


@pytest.mark.parametrize("p", [DENSE, DENSE_TN, FP8, replace(FP8, grouping="masked"), VECTOR])
def test_every_candidate_has_the_same_strides(p):
    """One set of tensors serves them all, exchanged or not."""
    j = Job(problem=p, shape=(24, 4096, 2048), groups=1 if p.grouping == "none" else 4)
    configs = [c.config for c in candidates(j, limit=40, factor=3.0)]
    assert len({c.swap_ab for c in configs}) == 2
    kernels = [lower(p, c) for c in configs]
    assert len({pitches(k, (30, 520, 1000)) for k in kernels}) == 1
    assert len({k.block.fold for k in kernels}) == 1


# ---- candidates ---------------------------------------------------------------------------------------

JOBS = [
    Job(problem=FP8, shape=(4096, 7168, 2048)),
    Job(problem=FP8, shape=(16, 7168, 2048)),
    Job(problem=DENSE, shape=(4096, 4096, 4096)),
    Job(problem=replace(FP8, grouping="masked"), shape=(192, 4096, 2048), groups=8),
]
DEEPER = JOBS[:1] + JOBS[2:]  # whose best tile has room for a stage more beside pieces of D


@pytest.mark.parametrize("j", JOBS, ids=str)
def test_candidates(j):
    found = candidates(j, limit=24)
    configs = [c.config for c in found]
    assert configs[0] == choose(j.problem, j.shape, H200, j.groups)
    assert 8 < len(found) <= 24 and len(set(configs)) == len(configs)
    assert all(c.predicted <= 1.3 * found[0].predicted for c in found)
    for c in configs:
        lower(j.problem, c)
    ranked = {c.config for c in rank(j.problem, j.shape, H200, groups=j.groups)}
    assert 3 < sum(c not in ranked for c in configs) < len(configs), "both kinds"


def test_a_limit_of_one_is_the_default():
    (only,) = candidates(JOBS[0], limit=1)
    assert only.config == choose(FP8, JOBS[0].shape, H200)


@pytest.mark.parametrize("j", JOBS, ids=str)
def test_neighbours_differ_in_one_field(j):
    choice = rank(j.problem, j.shape, H200, limit=1, groups=j.groups)[0]
    base, changed = choice.config.to_json(), set()
    for c in neighbours(j, choice):
        full = c.config.to_json()
        differ = {k for k in {*base, *full} if base.get(k) != full.get(k)}
        deeper = "d_columns" in differ
        assert (
            len(differ) == 1
            or (deeper and differ <= {"d_columns", "stages", "swizzle_d"})
            or differ == {"peek", "unroll"}
        )
        if deeper:
            assert c.config.stages == choice.config.stages + 1
            with pytest.raises(IllegalConfig, match="smem-capacity"):
                lower(j.problem, replace(c.config, d_columns=None))
        changed |= {"d_columns"} if deeper else differ
    ordered = choice.cost.tiles > H200.sms
    assert {"unroll", "multicast", "peek"} <= changed
    assert ("stages" in changed) == (choice.config.stages > 3)
    assert ({"raster", "panel"} <= changed) == ordered
    assert ("in_flight" in changed) == (j.problem.family == "dense")
    assert ("d_columns" in changed) == (j in DEEPER)


# ---- compiling ----------------------------------------------------------------------------------------


def panels(*values):
    return [(DENSE, Config(panel=v)) for v in values]


def test_kernels_compile_in_processes_that_may_die(tmp_path):
    seen = []
    built = compile_all(
        panels(1, 50, 51, 2, 52, 3, 1),
        tmp_path,
        2,
        lambda done, total: seen.append((done, total)),
        handler="fake_tuner:FakeCompiler",
        seconds=2.0,
    )
    results = {c.panel: b for (_, c), b in built.items()}
    assert {p for p, b in results.items() if b.cubin} == {1, 2, 3}
    assert results[50].failed == "12 bytes of spills"
    assert "exit code 11" in results[51].failed and "killed" in results[52].failed
    assert sorted(seen) == [(i, 6) for i in range(1, 7)]
    assert compile_all([], tmp_path, 2) == {}


@pytest.mark.nvrtc
def test_a_cubin_is_compiled_once(tmp_path):
    pytest.importorskip("cuda.bindings.nvrtc", exc_type=ImportError)
    kernels = [(DENSE, Config(block_m=64, block_n=64, consumers=1, panel=p)) for p in (4, 8)]
    first = compile_all(kernels, tmp_path, 1)
    paths = [b.cubin for b in first.values()]
    assert len({*paths}) == 2 and all(p.read_bytes().startswith(b"\x7fELF") for p in paths)
    paths[0].write_bytes(b"kept")
    again = compile_all(kernels, tmp_path, 1)
    assert again == first and paths[0].read_bytes() == b"kept"
    assert len([*tmp_path.iterdir()]) == 2


# ---- a session ------------------------------------------------------------------------------------------

SETTINGS = Settings(device="NVIDIA H200", nvrtc=(13, 0), timeout=3.0, repeats=7)


def session(tmp_path, configs, handler="fake_tuner:FakeGpu", built=None, settings=SETTINGS):
    """`tune` over `configs`, the first the default, with predictions in their order; and how many processes began."""
    with Worker(handler) as worker:
        return in_session(tmp_path, configs, worker, built, settings), worker.starts


def in_session(tmp_path, configs, worker, built=None, settings=SETTINGS):
    found = [Candidate(config=c, predicted=(1 + i) * 1e-5) for i, c in enumerate(configs)]
    path = tmp_path / "kernel.cubin"
    path.write_bytes(b"cubin")
    cubins = {c: Built(cubin=path) for c in configs} | (built or {})
    return tune(Job(problem=DENSE, shape=(64, 64, 64)), found, cubins, worker, settings)


def test_the_fastest_wins(tmp_path):
    configs = [Config(block_n=n) for n in (128, 64, 96)]
    found, starts = session(tmp_path, configs)
    row = found.row
    assert starts == 1 and not found.notes
    assert row.best.config == Config(block_n=64) and row.best.predicted == 2e-5
    assert row.best.seconds == pytest.approx(64e-6, rel=1e-3) and 0 < row.spread < 0.01
    assert row.default.config == Config(block_n=128)
    assert row.default.seconds == pytest.approx(128e-6, rel=1e-3)
    assert row.reference == ("torch.fake", 2e-4)
    assert [round(s * 1e6) for _, s in row.tried] == [128, 64, 96]
    assert [p for p, _ in row.tried] == pytest.approx([1e-5, 2e-5, 3e-5])
    assert (row.device, row.nvrtc, row.failed) == ("NVIDIA H200", (13, 0), 0)


def test_a_tie_keeps_the_default(tmp_path):
    found = in_session(tmp_path, [Config(panel=9), Config(panel=8)], InProcess("FakeGpu"))
    assert found.row.best.config == Config(panel=9)


def test_failures_are_recorded_and_cost_nobody_else(tmp_path):
    configs = [Config(panel=p) for p in (8, 61, 62, 63, 60, 50)] + [Config(block_n=64)]
    refused = {configs[5]: Built(failed="12 bytes of spills")}
    found, starts = session(tmp_path, configs, built=refused)
    assert found.row.best.config == Config(block_n=64) and found.row.failed == 5
    reasons = {o.candidate.config.panel: o.failed for o in found.outcomes if o.failed}
    assert {p: bool(re.search(text, reasons.pop(p), re.S)) for p, text in {
        61: "SIGABRT", 62: "killed", 63: "3 of 4 elements", 60: "SIGSEGV", 50: "spills"}.items()
    } == dict.fromkeys((61, 62, 63, 60, 50), True)  # fmt: skip
    assert reasons == {}
    # One for each of crash, hang and wrong result, one for the turns that 60 ends, one after it alone.
    assert starts == 6


def test_a_default_that_fails(tmp_path):
    found = in_session(tmp_path, [Config(panel=63), Config()], InProcess("FakeGpu"))
    assert found.row.best.config == Config() and found.row.default.seconds is None
    assert ratio(found.row) is None
    nobody = in_session(tmp_path, [Config(panel=63)], InProcess("FakeGpu"))
    assert nobody.row is None and nobody.outcomes[0].failed


def test_a_reference_that_fails_is_left_out(tmp_path):
    found, _ = session(tmp_path, [Config(), Config(block_n=64)], "fake_tuner:NoReference")
    assert found.row.best.config == Config(block_n=64) and found.row.reference is None
    assert "exit code 9" in found.notes[0]


def test_a_budget_leaves_the_default(tmp_path):
    short = replace(SETTINGS, budget=1e-9)
    configs = [Config(), Config(block_n=64)]
    found = in_session(tmp_path, configs, InProcess("FakeGpu"), settings=short)
    assert found.row.best.config == Config() and len(found.row.tried) == 1
    assert [o.failed for o in found.outcomes] == ["", "no time left"]


class Workspace:
    """That somebody must hold."""


def test_launches_by_turns_keep_their_workspaces(monkeypatch):
    """Each kernel over its own operands; the other calls come last."""
    held, launched = [], []

    class Program:
        def __init__(self, name):
            self.name = name

        def launch(self, plan):
            launched.append((self.name, plan))

    def plan_over(program, on):
        workspace = Workspace()
        held.append(weakref.ref(workspace))
        return workspace, f"plan over {on}"

    def interleave(calls, repeats):
        assert all(x() for x in held) and len(held) == 2
        for call in calls.values():
            call()
        return [*calls], repeats

    monkeypatch.setattr(trial, "plan_over", plan_over)
    monkeypatch.setattr(trial, "interleave", interleave)
    launches = {"1": (Program("a"), "x"), "2": (Program("b"), "y")}
    found = trial.by_turns(launches, 7, {"theirs": lambda: launched.append("theirs")})
    assert found == (["1", "2", "theirs"], 7)
    assert launched == [("a", "plan over x"), ("b", "plan over y"), "theirs"]
    held.clear()
    assert trial.by_turns(launches, 7) == (["1", "2"], 7)


# ---- the command ------------------------------------------------------------------------------------------


@pytest.fixture
def machine(monkeypatch):
    """A machine with a fake GPU and compiler, whose clocks nobody tells."""
    monkeypatch.setattr(driver, "pci_bus_id", lambda device: "0000:3b:00.0")
    monkeypatch.setattr(driver, "version", lambda: (13, 0))
    monkeypatch.setattr(driver, "require_hopper", lambda device: "NVIDIA H200")
    monkeypatch.setattr(nvrtc, "version", lambda: (13, 0))
    monkeypatch.setattr(trial, "HANDLER", "fake_tuner:FakeGpu")
    fake = partial(compile_all, handler="fake_tuner:FakeCompiler")
    monkeypatch.setattr(tune_steps, "compile_all", fake)


@pytest.fixture
def inside(machine, monkeypatch):
    """The same, without processes."""
    monkeypatch.setattr(trial, "HANDLER", "FakeGpu")
    monkeypatch.setattr(worker, "Worker", InProcess)
    monkeypatch.setattr(tune_steps, "compile_all", built_here)


def command(capsys, *argv):
    code = main(["tune", *map(str, argv)])
    return code, *capsys.readouterr()


SMALL = ("--shapes", "256x512x512,128x512x512", "--limit", 4, "--repeats", 3, "--processes", 1)


def test_tune_writes_a_row_per_shape(machine, capsys, tmp_path):
    database, log = tmp_path / "new" / "h200.jsonl", tmp_path / "log.jsonl"
    code, out, err = command(capsys, "dense", *SMALL, "-o", database, "--log", log, "--json")
    rows = load(database)
    assert code == 0 and [r.shape[0] for r in rows] == [128, 256]
    assert [r["m"] for r in json.loads(out)] == [256, 128] and "2 of 2 shapes" in err
    assert database.read_text() == to_text(rows)
    logged = [json.loads(line) for line in log.read_text().splitlines()]
    assert len(logged) == 8 and all(line["seconds"] > 0 for line in logged)
    assert [p.name for p in database.parent.iterdir()] == ["h200.jsonl"]

    before = database.read_text()
    code, out, err = command(capsys, "dense", *SMALL, "-o", database, "--json")
    assert code == 0 and json.loads(out) == [] and "0 of 2 shapes" in err
    assert database.read_text() == before
    code, out, _ = command(capsys, "dense", *SMALL, "-o", database, "--json", "--again")
    assert code == 0 and len(json.loads(out)) == 2 and database.read_text() == before


def test_an_older_compilers_row_is_tuned_again(inside, capsys, tmp_path, monkeypatch):
    database = tmp_path / "h200.jsonl"
    assert command(capsys, "dense", *SMALL, "-o", database)[0] == 0
    monkeypatch.setattr(nvrtc, "version", lambda: (13, 1))
    _, _, err = command(capsys, "dense", *SMALL, "-o", database)
    assert "2 of 2 shapes" in err and {r.nvrtc for r in load(database)} == {(13, 1)}
    monkeypatch.setattr(nvrtc, "version", lambda: (12, 9))
    assert "0 of 2 shapes" in command(capsys, "dense", *SMALL, "-o", database)[2]


def test_ctrl_c_keeps_what_is_done(inside, capsys, tmp_path, monkeypatch):
    database = tmp_path / "h200.jsonl"
    described = tune_command._describe

    def second(j, found, built):
        described(j, found, built)
        if j.shape[0] == 128:
            raise KeyboardInterrupt

    monkeypatch.setattr(tune_command, "_describe", second)
    code, _, err = command(capsys, "dense", *SMALL, "-o", database)
    assert code == 1 and "stopped; 1 shapes" in err
    assert [r.shape[0] for r in load(database)] == [256]
    assert [p.name for p in tmp_path.iterdir()] == ["h200.jsonl"]
    monkeypatch.setattr(tune_command, "_describe", described)
    assert "1 of 2 shapes" in command(capsys, "dense", *SMALL, "-o", database)[2]
    assert len(load(database)) == 2


def test_a_total_begins_no_more(inside, capsys, tmp_path):
    argv = ("dense", *SMALL, "-o", tmp_path / "x.jsonl", "--total", "1e-9")
    code, _, err = command(capsys, *argv)
    assert code == 0 and "2 shapes left" in err


def test_compile_only_needs_no_gpu(inside, capsys, tmp_path, monkeypatch):
    def absent(device):
        raise RuntimeUnavailable("no driver")

    monkeypatch.setattr(driver, "require_hopper", absent)
    argv = ("dense", *SMALL, "--cubins", tmp_path / "cubins", "--json")
    assert "--repeats" in command(capsys, *argv, "--compile-only")[1]  # which is for measuring
    fewer = (x for i, x in enumerate(argv) if "--repeats" not in (x, argv[i - 1]))
    code, out, _ = command(capsys, *fewer, "--compile-only")
    assert code == 0 and json.loads(out)["kernels"] == len([*(tmp_path / "cubins").iterdir()])
    assert command(capsys, *argv, "-o", tmp_path / "x.jsonl")[0] == 3


@pytest.mark.parametrize(
    ("argv", "argument"),
    [
        ((), "KERNEL"),
        (("fp4", "-o", "x"), "KERNEL"),
        (("dense",), "--database"),
        (("dense", "--compile-only"), "--cubins"),
        (("dense", "-o", "x", "--limit", 0), "--limit"),
        (("dense", "-o", "x", "--budget", "nan"), "--budget"),
        (("dense", "-o", "x", "--factor", 0.5), "--factor"),
        (("dense", "-o", "x", "--total", -1), "--total"),
        (("dense", "-o", "x", "--set", "stages=3"), "--set"),
        (("dense", "-o", "x", "--shapes", "1x2"), "--shapes"),
        (("--report", "absent.jsonl"), "database"),
        (("--merge", "absent.jsonl"), "database"),
    ],
)
def test_bad_arguments(machine, capsys, tmp_path, monkeypatch, argv, argument):
    monkeypatch.chdir(tmp_path)
    code, _, err = command(capsys, *argv)
    assert code == 2 and argument in err and not [*tmp_path.iterdir()]


def test_a_corrupt_database_stops_before_the_gpu(machine, capsys, tmp_path):
    database = tmp_path / "x.jsonl"
    database.write_text('{"gemmgen": 1}\n')
    code, _, err = command(capsys, "dense", *SMALL, "-o", database)
    assert code == 2 and "x.jsonl line 1: " in err and database.read_text() == '{"gemmgen": 1}\n'


def test_merge(capsys, tmp_path):
    one, other, out = (tmp_path / f"{n}.jsonl" for n in ("one", "other", "out"))
    one.write_text(to_text([measured(64, 2e-5), measured(128, 1e-5)]))
    other.write_text(to_text([measured(64, 1e-5), measured(32, 1e-5)]))
    code, text, _ = command(capsys, "--merge", one, other)
    assert code == 0 and len(text.splitlines()) == 3
    code, _, err = command(capsys, "--merge", other, one, "-o", out)
    assert code == 0 and out.read_text() == text and "3 rows of 4" in err
    assert {r.shape[0]: r.best.seconds for r in load(out)} == {32: 1e-5, 64: 1.5e-5, 128: 1e-5}


# ---- the report -------------------------------------------------------------------------------------------


def measured(m, tuned, default=2e-5, tried=(), reference=None):
    return Row(
        problem=DENSE,
        groups=1,
        shape=(m, 512, 512),
        device="NVIDIA H200",
        nvrtc=(13, 0),
        best=Timed(config=Config(), seconds=tuned, predicted=1e-5),
        spread=0.0,
        default=Timed(config=Config(panel=4), seconds=default, predicted=1e-5),
        reference=reference,
        tried=tried,
    )


def test_ranks_share_places():
    assert ranks([3.0, 1.0, 3.0, 2.0]) == [3.5, 1.0, 3.5, 2.0]


def test_rank_correlation():
    same = tuple((float(i), float(i * i)) for i in range(1, 6))
    assert correlation(measured(1, 1e-5, tried=same)) == pytest.approx(1.0)
    turned = tuple((p, 30.0 - s) for p, s in same)
    assert correlation(measured(1, 1e-5, tried=turned)) == pytest.approx(-1.0)
    swapped = ((1.0, 1.0), (2.0, 3.0), (3.0, 2.0))
    assert correlation(measured(1, 1e-5, tried=swapped)) == pytest.approx(0.5)
    # What the model does not tell apart counts once, as the fastest.
    assert correlation(measured(1, 1e-5, tried=(*same, (1.0, 99.0)))) == pytest.approx(1.0)
    assert correlation(measured(1, 1e-5, tried=same[:2])) is None
    assert correlation(measured(1, 1e-5, tried=((1.0, 1.0), (2.0, 1.0), (3.0, 1.0)))) is None


def test_report(capsys, tmp_path):
    rows = [
        measured(1, 1e-5, reference=("torch.mm", 2e-5)),
        measured(2, 2e-5, default=2e-5),
        measured(3, 1e-5, default=None),
        measured(4, 5e-6, reference=("torch.mm", 5e-6)),
    ]
    r = report(rows)
    assert [x.shape[0] for x in r.rows] == [4, 1, 2]
    assert r.default_over_tuned == pytest.approx(2.0)  # of 4, 2 and 1
    assert r.tuned_over_reference == pytest.approx(0.5**0.5)
    assert r.predicted_over_measured == pytest.approx(0.5) and r.correlation is None
    path = tmp_path / "x.jsonl"
    path.write_text(to_text(rows))
    code, out, _ = command(capsys, "--report", path)
    assert code == 0 and "default over tuned, geometric mean:                2.000" in out
    assert out.index("4x512x512") < out.index("1x512x512")
    code, out, _ = command(capsys, "--report", path, "--json")
    assert code == 0 and json.loads(out)["default_over_tuned"] == pytest.approx(2.0)
    assert report([]).default_over_tuned is None
