"""The harness of tests/gpu_fuzz, without a GPU: right launches pass every tier, each kind of fault is found."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from gpu_fuzz.tally import Chunk, State, Tally, table

from gemmgen.ir.dtypes import BF16, E4M3, F32
from gemmgen.problem import Problem

torch = pytest.importorskip("torch")

import fuzz_cpu  # noqa: E402
import fuzz_faults  # noqa: E402
from gpu_fuzz import tiers  # noqa: E402
from gpu_fuzz.__main__ import main  # noqa: E402
from gpu_fuzz.cases import Case, random_case, smaller  # noqa: E402
from gpu_fuzz.exact import Flags, exact, settled, shrunk  # noqa: E402
from gpu_fuzz.images import POISONS, layout  # noqa: E402
from gpu_fuzz.kinds import GAPS, KINDS, SAME_BITS  # noqa: E402
from gpu_fuzz.pool import Pool  # noqa: E402
from gpu_fuzz.tiers import TIERS  # noqa: E402
from gpu_fuzz.trial import build  # noqa: E402
from gpu_fuzz.worker import Worker, case_seed  # noqa: E402

TESTS = Path(__file__).parents[1]
PATHS = f"{TESTS / 'support'}:{TESTS}:{TESTS.parent}"  # of the processes that a run starts
FEW = {"F0": (3, 10), "F5": tuple(range(0, 157, 7)), "F3": (0, 10, 24, 30, 40, 45, 58, 107, 116, 119),
       "F6": (2, 45, 109, 117, 121), "F7": (0, 1, 2, 3, 4, 46, 56, 61, 82, 91, 92, 96), "F4": (3, 90, 143, 277, 401, 410),
       "F1": (0, 14, 33, 45, 61, 109, 118), "F12": (1,),
       "F12 steady": (7,)}  # fmt: skip


@pytest.fixture(name="machine")
def machine_fixture(request, monkeypatch):
    """A CPU, of the class that the test is parametrised with; few launches."""
    monkeypatch.setattr(tiers, "LAUNCHES", 20)
    made = getattr(fuzz_faults, getattr(request, "param", "Cpu"))()
    yield made
    made.close()


def wrong(machine, tier, indices, seed=1):
    flags = Flags()
    for i in indices:
        TIERS[tier].run(machine, i, case_seed(seed, tier, i), flags)
    return [name for name, *_ in flags.wrong()]


@pytest.mark.parametrize("tier", FEW)
def test_right_launches_pass(machine, tier):
    assert wrong(machine, tier, FEW[tier]) == []


@pytest.mark.parametrize("name", KINDS)
def test_every_kind_is_called_as_it_wants_to_be(machine, name):
    flags = Flags()
    launches = exact(machine, tiers.middle(name, 3), flags, 2)
    assert launches == 10 and not [*flags.wrong()]


@pytest.mark.parametrize("name", SAME_BITS)
def test_the_configs_that_agree_are_legal(name):
    kind, configs = SAME_BITS[name]
    family, dtype = {
        "bf16": ("dense", BF16),
        "block": ("fp8_block", E4M3),
        "int4": ("w4a16", BF16),
    }[name]
    p = Problem(family=family, a=dtype, b=dtype, d=F32, weights=kind.weights)
    assert len({*configs}) == len(configs) > 20 and kind.out == "float32"
    for config in configs:
        fuzz_cpu.lowered(p, config)


@pytest.mark.parametrize(
    ("machine", "tier", "indices"),
    [
        ("OneElement", "F1", (0, 14, 33)),
        ("PastTheEnd", "F1", (0, 14)),
        ("Scribbler", "F1", (0, 14)),
        ("OutOfBounds", "F12 steady", (6,)),
        ("Forgetful", "F12", (1,)),
        ("Forgetful", "F7", (0, 2, 3)),
        ("Forgetful", "F6", (2,)),
        ("Forgetful", "F4", (111,) * 3),
        ("Stale", "F7", (1,)),
        ("OneElement", "F7", (1,)),
        ("Unchecked", "F3", (0,)),
        ("NoNan", "F5", (0, 1, 2)),
    ],
    indirect=["machine"],
)
def test_a_fault_is_found(machine, tier, indices):
    assert wrong(machine, tier, indices)


@pytest.mark.parametrize("machine", ["OverGaps"], indirect=True)
@pytest.mark.parametrize("name", GAPS)
def test_a_gap_that_is_written_is_found(machine, name):
    flags = Flags()
    exact(machine, tiers.middle(name, 3), flags, 2)
    assert [*flags.wrong()]


@pytest.mark.parametrize("machine", ["OneElement"], indirect=True)
def test_what_is_wrong_is_made_small(machine):
    flags = Flags()
    exact(machine, Case(kind="bf16", m=255, n=321, k=200, seed=1), flags, 2)
    count, failures = settled(machine, flags)
    assert count == 10 and len(failures) == 1
    assert "least: bf16: 31x160x1 seed=1" in failures[0] and "1 bytes" in failures[0]


@pytest.mark.parametrize("machine", ["Negative"], indirect=True)
def test_zeros_of_another_sign_are_told_apart(machine):
    flags = Flags()
    exact(machine, Case(kind="bf16", m=100, n=64, k=9, seed=2), flags, 2)
    count, failures = settled(machine, flags)
    assert count == 0 and "another sign" in failures[0]


@pytest.mark.parametrize("machine", ["Leaky"], indirect=True)
@pytest.mark.parametrize("tier", ["F12"])
def test_memory_that_is_gone_is_counted(machine, tier, tmp_path):
    with (tmp_path / "out").open("w") as out:
        tally = Worker(machine, 1, out).measured(Chunk(tier=tier, first=0, end=3))
    launched = tally.launches
    assert tally.cases == 3 and 0 < tally.leaked <= 8 * launched and tally.bad


def pool(tmp_path, machine, patience=60.0, seconds=120.0):
    state = State(tmp_path / "state.jsonl", {"shapes": 1, "seed": 1})
    return Pool(
        state=state,
        machine=f"fuzz_faults:{machine}",
        seed=1,
        count=2,
        patience=patience,
        until=time.monotonic() + seconds,
        log=tmp_path / "log",
    )


@pytest.mark.parametrize(
    ("machine", "errors", "hangs", "text"),
    [
        ("Sleeper", 0, 1, "case 153: hung"),
        ("Mortal", 1, 0, "case 153: the process died"),
        ("Thrower", 1, 0, "case 153: RuntimeError: an illegal memory access"),
    ],
)
def test_a_worker_that_hangs_or_dies_costs_one_case(
    tmp_path, monkeypatch, machine, errors, hangs, text
):
    """Case 153 is the first of F5 with K of 131071."""
    monkeypatch.setenv("PYTHONPATH", PATHS, prepend=":")
    p = pool(tmp_path, machine, patience=5.0)
    p.drain([Chunk(tier="F5", first=151, end=154)], lambda chunk: False)
    found = p.state.tallies["F5"]
    assert (found.cases, found.errors, found.hangs, found.mismatches) == (3, errors, hangs, 0)
    assert text in found.failures[0] and p.state.done["F5"] == {151, 152, 153}


def test_a_run_goes_on_where_it_stopped(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PYTHONPATH", PATHS, prepend=":")
    given = ["--shapes", "3", "--machine", "fuzz_cpu:Cpu", "--workers", "1"]
    given += ["--state", str(tmp_path / "s.jsonl"), "--cache", str(tmp_path / "cache")]
    assert main([*given, "--tiers", "F1"]) == 0
    lines = (tmp_path / "s.jsonl").read_text().splitlines()
    assert json.loads(lines[0]) == {"shapes": 3, "seed": 1} and len(lines) == 2
    assert "| F1: shapes | 3 | 60 | 0 | 0 | 0 | 0 |" in capsys.readouterr().out
    assert main([*given, "--tiers", "F1"]) == 0
    assert (tmp_path / "s.jsonl").read_text().splitlines() == lines
    assert main([*given, "--seed", "2"]) == 2
    assert "holds the run" in capsys.readouterr().err


def test_what_is_left(tmp_path):
    state = State(tmp_path / "s", {})
    state.add(Chunk(tier="F1", first=3, end=5), Tally(cases=2, launches=7))
    again = State(tmp_path / "s", {})
    assert again.launches == 7 and again.tallies == state.tallies
    spans = [(c.first, c.end) for c in again.left("F1", 12, 4)]
    assert spans == [(0, 3), (5, 9), (9, 12)]
    assert [*State(tmp_path / "other", {}).left("F1", 0, 4)] == []


def test_the_table_counts_exactly():
    tallies = {"F1": Tally(cases=2, launches=3), "F5": Tally(cases=1, mismatches=4, leaked=8)}
    lines = table(tallies, {"F5": "special", "F1": "shapes", "F2": "not run"}).splitlines()
    assert lines[2:] == [
        "| F5: special | 1 | 0 | 4 | 0 | 0 | 8 |",
        "| F1: shapes | 2 | 3 | 0 | 0 | 0 | 0 |",
        "| all | 3 | 3 | 4 | 0 | 0 | 8 |",
    ]


@pytest.mark.parametrize("name", KINDS)
def test_cases_follow_from_their_seed_and_shrink(name):
    case = random_case(name, 5)
    assert case == random_case(name, 5)
    least = shrunk(case, lambda c: True)
    assert least.n == 1 and least.m * least.k <= case.m * max(1, case.k)
    assert all(c != case for c in smaller(case))


def test_layouts_keep_to_16_bytes_and_leave_guards():
    for seed in range(200):
        rng = Random(seed)
        shape = tuple(rng.randint(0, 70) for _ in range(rng.choice((2, 3))))
        place = layout(rng, shape, 2, 4096)
        assert place.first % 16 == 0 and place.first >= 4096
        assert all(s % 16 == 0 for s in place.strides[:-1])
        parent = torch.zeros(place.size, dtype=torch.uint8)
        view = place.view(parent, torch.bfloat16)
        view.fill_(1.0)
        assert int((parent != 0).sum()) == 2 * view.numel()  # both bytes of 1.0
        assert not parent[:4096].any() and not parent[-4096:].any()
    assert len({*POISONS}) == 2


def test_a_single_column_is_no_column_of_zeros():
    assert build(Case(kind="bf16", m=64, n=1, k=64, seed=1), "cpu").positional[1].any()


def test_another_turn_has_other_data_in_the_same_places(machine):
    for name in (
        "bf16",
        "bf16 masked",
        "block ends",
        "fp8 along k, flat",
        "int8 rows",
        "mxfp4",
        "int4 ends, zeros",
        "scores",
        "scores from windows on",
        "scores in pages",
    ):
        case = tiers.middle(name, 4)
        one, other = build(case, "cpu"), build(replace(case, turn=1), "cpu")
        assert [x.shape for x in one.held] == [x.shape for x in other.held]
        assert any(not torch.equal(x, y) for x, y in zip(one.held, other.held, strict=True))
        assert one.out.place == other.out.place
