"""Held-out regret and sweeps of M without a GPU: what is drawn, what is said, and the commands over a fake GPU."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from functools import partial

import pytest
from fake_tuner import InProcess, built_here
from kernels import DENSE, DENSE_TN, FP8, VECTOR

from gemmgen.bench.shapes import SETS
from gemmgen.bench.tuning import held_out, regret, sweep, trial, worker
from gemmgen.bench.tuning.compiling import Built
from gemmgen.bench.tuning.jobs import Candidate, Job, job
from gemmgen.bench.tuning.regret import Clocked, Regret, summary, worst_first
from gemmgen.bench.tuning.session import NOISY, Settings, tune
from gemmgen.bench.tuning.sweep import Point, cliffs
from gemmgen.cli import main, progress, screens, tune_regret, tune_steps, tune_sweep
from gemmgen.cli.ours import is_ours
from gemmgen.cli.tune_report import described
from gemmgen.config import Config
from gemmgen.environment import PROGRESS
from gemmgen.errors import ArgumentError
from gemmgen.heuristics import choose, tuned
from gemmgen.heuristics.database import Row, Timed, to_text
from gemmgen.ir.groupings import GROUPINGS
from gemmgen.ops import limits
from gemmgen.recipes import RECIPES, recipe
from gemmgen.runtime import driver, nvrtc
from gemmgen.target import H200
from gemmgen.verification.inputs import exact_integers

NOTHING = partial(held_out.in_database, device="NVIDIA H200")


@pytest.fixture(autouse=True)
def model_only(monkeypatch):
    monkeypatch.setenv(tuned.VARIABLE, tuned.NONE)
    tuned.forget()
    yield
    tuned.forget()


# ---- what is drawn --------------------------------------------------------------------------


def test_all_groupings_and_families_without_packed_weights_are_drawn():
    found = held_out.problems()
    assert {p.family for p in found} == {x for x, r in RECIPES.items() if not r.coded} and {
        p.grouping for p in found
    } == {*GROUPINGS}
    assert len(set(found)) == len(found)
    gradients = [p for p in found if recipe(p.family).scales_columns]
    assert all(p.accumulate and p.d.name == "f32" for p in gradients)
    only = held_out.problems(["dense"], ["masked", "rows"])
    assert [(p.family, p.grouping) for p in only] == [("dense", "masked"), ("dense", "rows")]


def test_what_cannot_be_drawn_is_refused_by_name():
    for families, groupings, argument in (
        (["fp4"], None, "--families"),
        (None, ["heaps"], "--groupings"),
        (["fp8_block"], ["k_flat"], "--groupings"),
    ):
        with pytest.raises(ArgumentError) as e:
            held_out.problems(families, groupings)
        assert e.value.argument == argument


def test_draws_are_seeded_distinct_and_of_each_problem_alone():
    of = held_out.problems()
    found = held_out.jobs(of, 60, 7, NOTHING)
    assert found == held_out.jobs(of, 60, 7, NOTHING) and len({*found}) == 60
    assert found != held_out.jobs(of, 60, 8, NOTHING)
    alone = held_out.jobs(of[3:4], 3, 7, NOTHING)
    assert alone == tuple(j for j in found if j.problem == of[3])[:3]
    few = [j for j in found if j.problem.grouping == "none" and j.shape[0] <= 128]
    assert few, "few rows are as likely as many"


@pytest.mark.parametrize("p", [*held_out.problems(), DENSE_TN, VECTOR], ids=described)
def test_what_is_drawn_can_be_launched(p):
    for j in held_out.jobs([p], 4, 3, NOTHING):
        m, n, k = j.shape
        assert n % 64 == 0 and m * n * k * j.groups <= held_out.MOST_PRODUCTS * 1.01
        assert m % (held_out.ROWS_STEP if p.mn_major[0] else 1) == 0
        assert choose(p, j.shape, H200, j.groups)
    small = trial.verified(j)
    (m, n, k), layout = trial.launch(small)
    exact_integers(p, m, min(n, 8), k, 0, layout)


def test_a_shape_of_a_database_is_drawn_no_more(tmp_path, monkeypatch):
    first = held_out.jobs([DENSE], 2, 5, NOTHING)
    row = Row(
        problem=DENSE,
        groups=1,
        shape=first[0].shape,
        device="NVIDIA H200",
        nvrtc=(13, 0),
        best=Timed(config=choose(DENSE, first[0].shape, H200), seconds=1e-5, predicted=1e-5),
        spread=0.0,
        default=Timed(config=Config(), seconds=1e-5, predicted=1e-5),
    )
    (tmp_path / "x.jsonl").write_text(to_text([row]))
    monkeypatch.setenv(tuned.VARIABLE, str(tmp_path / "x.jsonl"))
    tuned.forget()
    assert held_out.in_database(first[0], "NVIDIA H200")
    assert held_out.in_database(first[0], "NVIDIA H20"), "an H200's row serves there too"
    assert not held_out.in_database(first[1], "NVIDIA H200")
    assert held_out.jobs([DENSE], 1, 5, NOTHING) == first[1:]


def test_the_shipped_shapes_are_not_held_out(monkeypatch):
    monkeypatch.delenv(tuned.VARIABLE)
    tuned.forget()
    assert all(held_out.in_database(job(FP8, s), "NVIDIA H200") for s in SETS["large"])
    with pytest.raises(ArgumentError, match="--count"):
        held_out.jobs([FP8], 1, 0, lambda j: True)


# ---- what it comes to -----------------------------------------------------------------------


def clocked(us, iqr=0.1, config=None):
    return Clocked(config=config or Config(), predicted=1e-5, median=us * 1e-6, iqr=iqr * 1e-6)


def measured(default, best, m=64, p=DENSE):
    return Regret(
        job=Job(problem=p, shape=(m, 512, 512)),
        device="NVIDIA H200",
        sms=None,
        nvrtc=(13, 0),
        source="cost model",
        asked=Config(),
        choice=Config(),
        default=default,
        best=best,
        tried=4,
        failed=1,
    )


def test_summary():
    best = Config(panel=4)
    rows = [
        measured(clocked(10), clocked(10)),
        measured(clocked(11), clocked(10, config=best)),
        measured(clocked(15, iqr=1), clocked(10, config=best)),
        measured(None, clocked(10, config=best)),
    ]
    s = summary(rows)
    assert s.mean == pytest.approx((1 + 1.1 + 1.5) / 3) and s.median == pytest.approx(1.1)
    assert s.worst == pytest.approx(1.5) and (s.shapes, s.failed, s.told, s.noisy) == (4, 1, 2, 1)
    assert [r.ratio for r in worst_first(rows)] == [None, 1.5, pytest.approx(1.1), 1.0]
    assert summary([]).mean is None and summary([]).worst is None
    near = measured(clocked(10.4, iqr=0.5), clocked(10, config=best))
    assert not near.told and near.ratio == pytest.approx(1.04)


def test_a_file_of_regrets_is_read_as_it_was_written(tmp_path):
    rows = [
        measured(clocked(11), clocked(10, config=Config(panel=4))),
        replace(measured(None, None, m=65), sms=78),
        measured(clocked(10), clocked(10), p=replace(FP8, grouping="masked")),
    ]
    path = tmp_path / "x.jsonl"
    path.write_text(regret.to_text(rows))
    assert regret.load(path) == rows and is_ours(path)
    for torn in (
        path.read_text()[:-40],
        '{"gemmgen": "tune"}',
        "[]",
        '{"gemmgen": "regret"}',
        "\n",
    ):
        path.write_text(torn)
        with pytest.raises(ArgumentError, match=r"x.jsonl.*line"):
            regret.load(path)


# ---- the session ----------------------------------------------------------------------------


def test_what_is_noisy_is_timed_again(tmp_path):
    path = tmp_path / "kernel.cubin"
    path.write_bytes(b"cubin")
    configs = [Config(block_n=n) for n in (128, 64)]
    found = [Candidate(config=c, predicted=1e-5) for c in configs]
    built = {c: Built(cubin=path) for c in configs}
    j = Job(problem=DENSE, shape=(64, 64, 64))
    spreads = []
    for again in (0, 2):
        s = Settings(device="x", nvrtc=(13, 0), repeats=10, reference=False, again=again)
        gpu = InProcess("Restless")
        pick = tuned.Pick(config=configs[0])
        r = regret.of_found(j, configs[0], pick, tune(j, found, built, gpu, s), s)
        assert r.ratio == pytest.approx(2.0, rel=0.05) and r.best.config == configs[1]
        spreads.append(max(r.default.spread, r.best.spread))
        assert r.noisy == (again == 0)
    assert spreads[0] > NOISY > spreads[1]


# ---- cliffs ---------------------------------------------------------------------------------


def points(*us, iqr=0.01):
    return [
        Point(m=i + 1, config=Config(), source="cost model", median=x * 1e-6, iqr=iqr * 1e-6)
        for i, x in enumerate(us)
    ]


def test_cliffs():
    assert cliffs(points(1, 2, 3, 9, 9)) == []  # a step up is none
    assert cliffs(points(10, 9.6, 9.6)) == [] and cliffs([]) == []
    (one,) = cliffs(points(5, 11, 12, 10, 13))
    assert (one.first, one.last, one.slow.m, one.fast.m) == (2, 3, 3, 4)
    assert one.ratio == pytest.approx(1.2)
    (one,) = cliffs(points(20, 21, 10, 11))
    assert (one.first, one.last, one.slow.m, one.fast.m) == (1, 2, 2, 3)
    two = cliffs(points(20, 10, 20, 10.2))
    assert [(c.first, c.last) for c in two] == [(1, 1), (3, 3)]
    assert cliffs(points(20, 10, iqr=11)) == []  # within noise


# ---- the commands ---------------------------------------------------------------------------


@pytest.fixture
def machine(monkeypatch):
    """A machine with a fake GPU and compiler."""
    monkeypatch.setattr(driver, "require_hopper", lambda device: "NVIDIA H200")
    monkeypatch.setattr(nvrtc, "version", lambda: (13, 0))
    monkeypatch.setattr(trial, "HANDLER", "FakeGpu")
    monkeypatch.setattr(worker, "Worker", InProcess)
    monkeypatch.setattr(tune_steps, "compile_all", built_here)
    yield
    assert limits.sm_limit() is None


def command(capsys, *argv):
    code = main(["tune", *map(str, argv)])
    return code, *capsys.readouterr()


QUICK = ("--repeats", 3, "--processes", 1)
REGRET = ("--regret", "--count", 3, "--limit", 3, *QUICK)


def test_regret(machine, capsys, tmp_path):
    file = tmp_path / "new" / "regret.jsonl"
    which = ("--families", "dense,fp8_block", "--groupings", "none,masked")
    code, out, err = command(capsys, *REGRET, *which, "-o", file, "--json")
    data = json.loads(out)
    assert code == 0 and "3 of 3 shapes" in err
    assert data["all"]["shapes"] == 3 and data["all"]["mean"] >= 1 and data["all"]["failed"] == 0
    assert {(x["problem"]["family"], x["problem"].get("grouping", "none")) for x in data["problems"]} == {
        ("dense", "none"), ("dense", "masked"), ("fp8_block", "none")}  # fmt: skip
    kept = regret.load(file)
    assert [r.job.shape[0] for r in kept] == [x["m"] for x in data["shapes"]]
    for r in kept:
        assert (
            r.choice == choose(r.job.problem, r.job.shape, H200, r.job.groups) == r.default.config
        )
        assert r.best.median <= r.default.median and r.source == "cost model" and r.tried == 3
    again = command(capsys, *REGRET, *which, "-o", file)
    assert again[0] == 0 and "0 of 3 shapes" in again[2] and "NVIDIA H200, seed 0" in again[1]
    assert regret.load(file) == kept
    more = command(capsys, *REGRET, *which, "-o", file, "--again")
    assert "3 of 3 shapes" in more[2] and len(regret.load(file)) == 3


def test_regret_is_of_what_the_device_would_be_given(machine, capsys, tmp_path, monkeypatch):
    """By the model for so many SMs, launched on no more."""
    monkeypatch.setattr(trial, "HANDLER", "Limited")
    file = tmp_path / "x.jsonl"
    argv = ("dense", "--shapes", "512x4096x4096", "--regret", "--limit", 3, *QUICK, "-o", file)
    code, out, _ = command(capsys, *argv, "--sms", 78)
    (r,) = regret.load(file)
    assert code == 0 and r.sms == 78 and ", 78 SMs" in out
    assert r.choice == choose(DENSE, (512, 4096, 4096), replace(H200, sms=78))
    assert r.choice != choose(DENSE, (512, 4096, 4096), H200)
    monkeypatch.setattr(trial, "HANDLER", "FakeGpu")
    assert "1 of 1 shapes" in command(capsys, *argv)[2], "all SMs are another measurement"
    assert {r.sms for r in regret.load(file)} == {None, 78}


def test_another_choice_is_measured_again(machine, capsys, tmp_path):
    file = tmp_path / "x.jsonl"
    argv = ("dense", "--shapes", "512x512x512", "--regret", "--limit", 2, *QUICK, "-o", file)
    assert command(capsys, *argv)[0] == 0
    (r,) = regret.load(file)
    old = replace(r, asked=Config(panel=3), choice=Config(panel=3))
    file.write_text(regret.to_text([old]))
    _, out, err = command(capsys, *argv, "--json")
    assert "1 of 1 shapes" in err and len(regret.load(file)) == 2
    file.write_text(regret.to_text([r, old]))
    _, out, err = command(capsys, *argv, "--json")
    assert "0 of 1 shapes" in err and json.loads(out)["shapes"] == [regret.to_json(r)]


def test_an_interrupted_regret_goes_on(machine, capsys, tmp_path, monkeypatch):
    file = tmp_path / "x.jsonl"
    one, seen = tune_regret._one, []

    def second(*args):
        if seen:
            raise KeyboardInterrupt
        seen.append(args)
        return one(*args)

    monkeypatch.setattr(tune_regret, "_one", second)
    argv = (*REGRET, "--families", "dense", "--groupings", "none", "-o", file)
    code, out, err = command(capsys, *argv)
    assert code == 1 and "stopped; 1 shapes" in err and "1 shapes on" in out
    assert len(regret.load(file)) == 1
    monkeypatch.setattr(tune_regret, "_one", one)
    assert "2 of 3 shapes" in command(capsys, *argv)[2] and len(regret.load(file)) == 3


def test_a_default_that_does_not_run_is_told(machine, capsys, tmp_path, monkeypatch):
    choice = tune_steps.picked_for

    def crashing(*args):
        found = choice(*args)
        return replace(found, config=replace(found.config, panel=63))

    monkeypatch.setattr(tune_steps, "picked_for", crashing)
    argv = ("dense", "--shapes", "512x512x512", "--regret", "--limit", 3, *QUICK, "--json")
    code, out, _ = command(capsys, *argv)
    data = json.loads(out)
    assert code == 1 and data["all"]["failed"] == 1 and data["all"]["mean"] is None
    assert data["shapes"][0]["default"] is None and data["shapes"][0]["best"]


def test_a_default_that_the_build_refuses_is_the_next(machine, capsys, tmp_path, monkeypatch):
    """As gemmgen's functions do; and another process does not measure it again."""
    said, file = [], tmp_path / "x.jsonl"

    def refusing(kernels, *args):
        built = built_here(kernels, *args)
        first = next(iter(built))
        if not said:
            said.append(first[1])
            built[first] = Built(failed="12 bytes of spills")
        return built

    monkeypatch.setattr(tune_steps, "compile_all", refusing)
    from gemmgen.ops import refused

    try:
        argv = ("dense", "--shapes", "384x512x512", "--regret", "--limit", 2, *QUICK, "--json")
        argv += ("-o", file)
        code, out, _ = command(capsys, *argv)
        (shape,) = json.loads(out)["shapes"]
        assert code == 0 and said
        want = choose(DENSE, (384, 512, 512), H200, unbuilt={said[0]: "12 bytes of spills"})
        assert Config.from_json(shape["choice"]) == want != said[0]
        assert Config.from_json(shape["asked"]) == said[0]
        code, again, err = command(capsys, *argv)
        assert (code, again) == (0, out) and "0 of 1 shapes" in err
        refused.forget()
        assert "0 of 1 shapes" in command(capsys, *argv)[2]
    finally:
        refused.forget()


def test_sweep(machine, capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(tune_sweep, "ROWS", range(95, 121))
    file = tmp_path / "sweep.jsonl"
    argv = ("dense", "--sweep", "m", "--shapes", "1x512x512,7x512x512", *QUICK, "-o", file)
    code, out, err = command(capsys, *argv)
    assert code == 1 and "1 of 1 N and K" in err
    assert "26 M" in out and "  1.199  M=100 to 103: M=103 " in out
    (x,) = sweep.load(file)
    assert is_ours(file) and [p.m for p in x.points] == [*range(95, 121)]
    assert all(p.config == choose(DENSE, (p.m, 512, 512), H200) for p in x.points)
    assert file.read_text() == sweep.to_text([x])
    code, out, err = command(capsys, *argv, "--json")
    assert "0 of 1 N and K" in err and json.loads(out)[0]["cliffs"][0]["first"] == 100
    stale = replace(x, asked="other choices", points=x.points[:1])
    file.write_text(sweep.to_text([x, stale]))
    assert json.loads(command(capsys, *argv, "--json")[1]) == [sweep.to_json(x)]
    file.write_text(sweep.to_text([stale]))
    assert "1 of 1 N and K" in command(capsys, *argv)[2] and sweep.load(file) == [stale, x]
    file.write_text(file.read_text()[:-9])
    assert command(capsys, *argv)[0] == 2


def test_a_sweep_tells_how_many_configs_are_verified(machine, capsys, monkeypatch):
    monkeypatch.setattr(tune_sweep, "ROWS", range(95, 121))
    monkeypatch.setattr(progress, "FIRST", 0.0)
    monkeypatch.setattr(screens.Lines, "every", 0.0)
    monkeypatch.setenv(PROGRESS, "always")
    _, _, err = command(capsys, "dense", "--sweep", "m", "--shapes", "1x512x512", *QUICK, "--json")
    told = re.findall(r"^Mx512x512: (\d+) of (\d+)", err, re.M)
    assert [int(done) for done, _ in told] == [*range(len(told))]
    assert {int(total) for _, total in told} == {len(told)}


def test_a_sweep_chooses_once_at_each_m(machine, capsys, monkeypatch):
    """Which takes most of its time on the host."""
    monkeypatch.setattr(tune_sweep, "ROWS", range(95, 121))
    asked, picked = [], tune_steps.picked

    def counting(j, *args):
        asked.append(j.shape[0])
        return picked(j, *args)

    monkeypatch.setattr(tune_steps, "picked", counting)
    command(capsys, "dense", "--sweep", "m", "--shapes", "1x512x512", *QUICK)
    assert asked == [*range(95, 121)]


def test_a_drawn_sweep_has_no_cliff_where_there_is_none(machine, capsys, monkeypatch):
    monkeypatch.setattr(tune_sweep, "ROWS", range(1, 12))
    argv = ("--sweep", "m", "--count", 2, "--families", "fp8_block,dense", *QUICK, "--json")
    code, out, err = command(capsys, *argv)
    assert code == 0 and "2 of 2 N and K" in err
    assert [x["problem"]["family"] for x in json.loads(out)] == ["fp8_block", "dense"]
    assert all(x["cliffs"] == [] and len(x["points"]) == 11 for x in json.loads(out))


def test_compile_only(machine, capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(tune_sweep, "ROWS", range(1, 9))
    shared = ("dense", "--shapes", "64x512x512", "--compile-only", "--cubins", tmp_path)
    for mode in (("--regret", "--limit", 2), ("--sweep", "m")):
        code, out, _ = command(capsys, *shared, *mode, "--json")
        assert code == 0 and json.loads(out)["kernels"] == len([*tmp_path.iterdir()]) > 0
        for file in tmp_path.iterdir():
            file.unlink()


@pytest.mark.parametrize(
    ("argv", "argument"),
    [
        (("--regret", "--sweep", "m"), "--sweep"),
        (("--sweep", "k"), "--sweep"),
        (("--regret", "--count", 0), "--count"),
        (("--regret", "--sms", 7), "--sms"),
        (("--regret", "--sms", 133), "--sms"),
        (("--regret", "--families", "fp4"), "--families"),
        (("--regret", "--shapes", "1x2x3"), "--shapes"),
        (("--regret", "--d", "f32"), "--d"),
        (("dense", "--regret", "--families", "dense"), "--families"),
        (("dense", "--regret", "--shapes", "8x64x64", "--seed", 2), "--seed"),
        (("dense", "--regret", "--set", "stages=3"), "--set"),
        (("dense", "--regret", "--no-reference"), "--no-reference"),
        (("dense", "--sweep", "m", "--grouping", "masked"), "--grouping"),
        (("dense", "--sweep", "m", "--limit", 3), "--limit"),
        (("--sweep", "m", "--groupings", "rows"), "--groupings"),
        (("dense", "-o", "x", "--sms", 78), "--sms"),
        (("dense", "-o", "x", "--seed", 1), "--seed"),
    ],
)
def test_bad_arguments(machine, capsys, tmp_path, monkeypatch, argv, argument):
    monkeypatch.chdir(tmp_path)
    code, _, err = command(capsys, *argv)
    assert code == 2 and argument in err and not [*tmp_path.iterdir()]


# ---- operands of a sweep ----------------------------------------------------------------------


@pytest.mark.parametrize("p", [DENSE, FP8, DENSE_TN, VECTOR], ids=described)
def test_the_first_rows_of_an_upload(p):
    """As if so many rows had been uploaded, but for the strides and addresses, which are the whole's."""
    from gemmgen.pipeline import lower
    from gemmgen.runtime.bind import bind
    from gemmgen.runtime.gpu import Uploaded
    from gemmgen.verification.trial import pitches

    kernel = lower(p, choose(p, (48, 64, 256), H200))

    def uploaded(m):
        drawn = exact_integers(p, m, 64, 256, 0)
        at = iter(range(1 << 20, 1 << 30, 1 << 20))
        strides = pitches(kernel, (48, 64, 256))
        bound = bind(drawn, strides, 64, lambda parent: next(at), 128)
        return Uploaded(bound=bound, shape=drawn.shape, groups=1, tensors={}, where=None)

    few, want = trial.first_rows(uploaded(48), 16, p), uploaded(16)
    assert few.shape == want.shape == (16, 64, 256)
    assert few.bound.matrices.keys() == want.bound.matrices.keys()
    for name, matrix in few.bound.matrices.items():
        other = want.bound.matrices[name]
        assert replace(matrix, group_stride=0) == replace(other, group_stride=0), name
    strides = {k for k in few.bound.values if "stride_g" in k}
    assert {k: v for k, v in few.bound.values.items() if k not in strides} == {
        k: v for k, v in want.bound.values.items() if k not in strides
    }
