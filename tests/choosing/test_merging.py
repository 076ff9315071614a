"""Databases of several runs, machines and GPUs, merged: medians, and conflicts by name."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import permutations

import pytest
from kernels import DENSE

from gemmgen.bench.tuning.merging import GPUS, OF_VERSIONS, WINNERS, Source, merged
from gemmgen.cli import main
from gemmgen.config import Config
from gemmgen.errors import ArgumentError
from gemmgen.heuristics.database import Conditions, Row, Timed, from_line, load, to_line, to_text
from gemmgen.heuristics.lines import starts_of

ONE, OTHER = Config(panel=4), Config(stages=3)
HERE = Conditions(gemmgen="0.1.0", driver="13.0", torch="2.9", power_limit=700.0, sm_mhz=1700.0)


def row(us, config=ONE, m=64, conditions=HERE, spread=0.01, default=None, reference=None, **more):
    wanted = {
        "problem": DENSE,
        "groups": 1,
        "shape": (m, 512, 512),
        "device": "NVIDIA H200",
        "nvrtc": (13, 0),
        "best": Timed(config=config, seconds=us / 1e6, predicted=1e-5),
        "spread": spread,
        "default": Timed(config=Config(), seconds=default and default / 1e6, predicted=1e-5),
        "reference": reference and ("torch.mm", reference / 1e6),
        "conditions": conditions,
    }
    return Row(**wanted | more)


def of(*rows):
    return merged([Source(file=f"{i}.jsonl", row=r) for i, r in enumerate(rows)])


def kinds(conflicts):
    return [c.kind for c in conflicts]


# ---- conditions -------------------------------------------------------------------------------


def test_conditions_are_kept_and_left_out():
    assert from_line(to_line(row(10))) == row(10) and starts_of(to_line(row(10)))
    bare = row(10, conditions=Conditions())
    assert "conditions" not in to_line(bare) and from_line(to_line(bare)) == bare
    part = row(10, conditions=Conditions(sm_mhz=1755.0))
    assert '"conditions": {"sm_mhz": 1755.0}' in to_line(part) and from_line(to_line(part)) == part


@pytest.mark.parametrize(
    ("conditions", "argument"),
    [
        ([], "conditions"),
        ({"sm_mhz": -1}, "conditions.sm_mhz"),
        ({"power_limit": "700"}, "conditions.power_limit"),
        ({"driver": 13}, "conditions.driver"),
    ],
)
def test_conditions_that_are_none(conditions, argument):
    data = json.loads(to_line(row(10))) | {"conditions": conditions}
    with pytest.raises(ArgumentError) as e:
        from_line(json.dumps(data))
    assert e.value.argument == argument


# ---- medians ----------------------------------------------------------------------------------


def test_medians_of_what_is_alike():
    three = (
        row(10, spread=0.01, default=14, reference=20),
        row(14, spread=0.04, default=15, reference=30, conditions=replace(HERE, sm_mhz=1500.0)),
        row(11, spread=0.03, default=19, reference=22, conditions=replace(HERE, sm_mhz=1600.0)),
    )
    for order in permutations(three):
        (found,), conflicts = of(*order)
        assert not conflicts
        assert found.best.seconds == pytest.approx(11e-6) and found.spread == 0.03
        assert found.default.seconds == pytest.approx(15e-6)
        assert found.reference == ("torch.mm", pytest.approx(22e-6))
        assert found.conditions == replace(HERE, sm_mhz=1600.0)
    (two,), _ = of(*three[:2])
    assert two.best.seconds == pytest.approx(12e-6)


def test_a_row_alone_stays_as_it_is():
    rows = [row(10, m=64), row(20, m=128, reference=3), row(10, m=64)]
    found, conflicts = of(*rows)
    assert [to_line(r) for r in found] == [to_line(r) for r in rows[:2]] and not conflicts


def test_what_not_all_have_measured_is_one_runs():
    (found,), _ = of(row(10, default=14, reference=20), row(11), row(12, reference=24))
    assert found.default.seconds is None and found.reference is None  # those of the middle row
    other = Timed(config=OTHER, seconds=1e-5, predicted=1e-5)
    (found,), _ = of(row(10, default=14), row(11, default=15), replace(row(12), default=other))
    assert found.default.seconds == pytest.approx(15e-6)


def test_power_limits_are_not_mixed():
    less = replace(HERE, power_limit=500.0)
    (found,), conflicts = of(row(10), row(20, conditions=less))
    assert found.best.seconds == 10e-6
    assert kinds(conflicts) == [GPUS]
    for said in ("power limit of NVIDIA H200", "500 W in 1.jsonl", "700 W in 0.jsonl (1 rows)"):
        assert said in conflicts[0].text


# ---- conflicts --------------------------------------------------------------------------------


def test_winners_whose_intervals_overlap_are_no_conflict():
    # 10 us and 0.5 either way; 10.9 and 0.545.
    (found,), conflicts = of(row(10, spread=0.1), row(10.9, OTHER, spread=0.1))
    assert found.best.config == ONE and not conflicts


def test_winners_that_are_apart():
    for order in permutations((row(10, spread=0.1), row(12, OTHER, spread=0.1))):
        (found,), (c,) = of(*order)
        assert found.best.config == ONE and c.kind == WINNERS
        for said in ("dense bf16", "64x512x512 on NVIDIA H200", '"panel": 4', '"stages": 3'):
            assert said in c.text
        assert "10 us (9.5 to 10.5)" in c.text and "12 us (11.4 to 12.6)" in c.text
        assert all(f"{i}.jsonl" in c.text for i in (0, 1))
        assert c.text.index('"panel": 4') < c.text.index('"stages": 3'), "the one that is kept"


def test_a_config_that_varied_from_run_to_run_is_apart_from_nothing_between():
    rows = (row(10), row(10.1), row(13), row(12, OTHER))
    (found,), conflicts = of(*rows)
    assert found.best.seconds == pytest.approx(10.1e-6) and not conflicts
    assert kinds(of(*rows[:2], rows[3])[1]) == [WINNERS]


def test_a_winner_of_an_older_compiler_is_passed_over():
    (found,), conflicts = of(row(10, nvrtc=(12, 9)), row(20, OTHER))
    assert found.best.config == OTHER and kinds(conflicts) == [OF_VERSIONS]
    assert conflicts[0].text.startswith("NVRTC: 12.9 in 0.jsonl (1 rows); 13.0 in 1.jsonl")


def test_gpus_of_other_names():
    found, conflicts = of(row(10), row(20, OTHER, device="NVIDIA H100 PCIe"))
    assert len(found) == 2 and kinds(conflicts) == [GPUS]
    assert conflicts[0].text.startswith("GPU: NVIDIA H100 PCIe in 1.jsonl (1 rows); NVIDIA H200")


@pytest.mark.parametrize("name", ["gemmgen", "driver", "torch"])
def test_other_versions(name):
    other = replace(HERE, **{name: "9.9"})
    _, conflicts = of(row(10), row(10, m=128, conditions=other))
    assert kinds(conflicts) == [OF_VERSIONS] and conflicts[0].text.startswith(f"{name}: ")
    unknown = replace(HERE, **{name: ""})
    assert not of(row(10), row(10, m=128, conditions=unknown))[1]


# ---- the command ------------------------------------------------------------------------------


def command(capsys, *argv):
    code = main(["tune", "--merge", *map(str, argv)])
    return code, *capsys.readouterr()


def test_what_is_in_conflict_is_said_and_written(capsys, tmp_path):
    one, other, out = (tmp_path / f"{n}.jsonl" for n in ("one", "other", "out"))
    one.write_text(to_text([row(10), row(10, m=128)]))
    other.write_text(to_text([row(14, OTHER), row(12, m=128)]))
    code, text, err = command(capsys, one, other, "-o", out)
    assert code == 1 and not text and "2 rows of 4" in err
    assert [line for line in err.splitlines() if line.startswith("conflict of winners: ")]
    assert [r.best.seconds for r in load(out)] == [10e-6, 11e-6]
    code, text, _ = command(capsys, other, one, "--json")
    said = json.loads(text)
    assert code == 1 and [r["m"] for r in said["rows"]] == [64, 128]
    assert [c["kind"] for c in said["conflicts"]] == [WINNERS]
    assert "".join(json.dumps(r) + "\n" for r in said["rows"]) == out.read_text()


def test_a_file_given_twice_counts_once(capsys, tmp_path):
    one, other = (tmp_path / f"{n}.jsonl" for n in ("one", "other"))
    one.write_text(to_text([row(10)]))
    other.write_text(to_text([row(11)]))
    code, text, _ = command(capsys, one, one, other)
    assert code == 0 and from_line(text).best.seconds == pytest.approx(10.5e-6)


def test_every_row_of_a_file_counts(capsys, tmp_path):
    """As `cat` makes one of several."""
    path = tmp_path / "all.jsonl"
    path.write_text("".join(to_line(row(us)) + "\n" for us in (10, 12, 11)))
    code, text, _ = command(capsys, path)
    assert code == 0 and from_line(text).best.seconds == pytest.approx(11e-6)
