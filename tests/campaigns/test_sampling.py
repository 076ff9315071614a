"""`--sample`: every test that is not long has a case, every cheap case runs, and over the commits everything does."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import conftest
import pytest


def item(nodeid, mark=None):
    """As pytest has it, with `callspec` if it is a case of several."""
    cases = {"callspec": object()} if "[" in nodeid else {}
    return Item(nodeid=nodeid, get_closest_marker=lambda name: name == mark, **cases)


class Item(SimpleNamespace):
    __hash__ = object.__hash__


CHEAP = [item(f"tests/test_a.py::test_cheap[{i}]") for i in range(40)]
ALONE = [item("tests/test_a.py::test_alone", "nvrtc")]
COSTLY = sorted(conftest.COSTLY)
FEW = [item(f"{next(x for x in COSTLY if x not in conftest.LONG)}[{i}]") for i in range(3)]
LONG = sorted(conftest.LONG)
FOLDER = [x for x in LONG if x.startswith("tests/levers/")]
MANY = [item(f"tests/test_b.py::test_many[{i}]", "nvrtc") for i in range(80)]
LAUNCHED = [item(f"tests/gpu/test_c.py::test_launched[{i}]", "gpu") for i in range(70)]
ITEMS = CHEAP + ALONE + FEW + MANY + LAUNCHED


@pytest.mark.parametrize("one_in", [2, 4, 16, 1000])
def test_of_each_test_s_costly_cases_one_in_n_runs(one_in):
    out = conftest.left_out(ITEMS, one_in, "a commit")
    assert not {*out} & {*CHEAP, *ALONE}
    for cases in (FEW, MANY, LAUNCHED):
        assert len(set(cases) - set(out)) == -(-len(cases) // one_in)


@pytest.mark.parametrize("one_in", [2, 4, 64])
def test_of_each_folder_s_long_tests_one_in_four_runs(one_in):
    """With its costly cases as any other's."""
    items = [item(f"{x}[{i}]", "nvrtc") for x in LONG for i in range(3)] + CHEAP
    out = {*conftest.left_out(items, one_in, "a commit")}
    ran = [conftest.test_of(x) for x in items if x not in out and x not in CHEAP]
    assert not out & {*CHEAP} and len(ran) == len({*ran}) * (2 if one_in == 2 else 1)
    share = min(one_in, conftest.SHARE)
    assert len({*ran} & {*FOLDER}) == -(-len(FOLDER) // share) < len(FOLDER) / 2 + 1
    assert {x.rpartition("/")[0] for x in ran} == {x.rpartition("/")[0] for x in LONG}


def test_one_that_is_asked_for_alone_runs():
    assert conftest.left_out([item(FOLDER[0])], 64, "a commit") == []


def test_every_long_test_has_its_turn():
    """One is left out at 100 commits with probability (3/4)^100, less than 1 in 1,000,000,000,000."""
    items, ran = [item(x) for x in LONG], set()
    for number in range(100):
        out = {*conftest.left_out(items, 64, f"commit {number}")}
        ran |= {x.nodeid for x in items if x not in out}
    assert ran == {*LONG}


def test_it_says_what_it_is_without():
    items = [*MANY, item(FOLDER[0]), item(FOLDER[1])]
    out = [*MANY[3:], items[-1]]
    file, _, name = FOLDER[1].partition("::")
    told = conftest.without(out, [x for x in items if x not in out])
    assert told == {"cases": 77, "of": 1, "tests": {file: [name]}}
    said = []
    terminal = SimpleNamespace(section=said.append, line=said.append)
    config = SimpleNamespace(stash={conftest.LEFT_OUT: told})
    conftest.pytest_terminal_summary(terminal, config)
    assert said[1:] == ["77 cases of 1 tests that ran with others", f"{file}: {name}"]
    conftest.pytest_terminal_summary(terminal, SimpleNamespace(stash={}))
    assert len(said) == 3


def test_what_is_known_to_take_long_is_there():
    for test in (*COSTLY, *LONG):
        path, _, name = test.partition("::")
        assert f"def {name}(" in (Path(conftest.__file__).parents[1] / path).read_text(), test


def test_all_run_without_a_sample():
    assert conftest.left_out(ITEMS, 1, "a commit") == []


def test_the_same_text_takes_the_same_cases():
    assert conftest.left_out(ITEMS, 8, "x") == conftest.left_out(ITEMS, 8, "x")


def test_every_costly_case_has_its_turn():
    """80 cases, 5 at a commit: after 100 commits one was left out with probability 80 (15/16)^100 = 13 %, after 300
    with less than 1 in 1,000,000."""
    ran = set()
    for number in range(300):
        ran |= {*MANY} - {*conftest.left_out(ITEMS, 16, f"commit {number}")}
    assert ran == {*MANY}


def test_the_turn_is_the_commit_s():
    assert conftest.commit() == "none" or len(conftest.commit()) >= 12


@pytest.mark.parametrize(
    "minutes, passed, skips", [(None, 1e6, False), (36, 2159, False), (36, 2161, True)]
)
def test_costly_cases_do_not_begin_when_time_is_over(monkeypatch, minutes, passed, skips):
    monkeypatch.setattr(conftest.time, "monotonic", lambda: conftest.LOADED + passed)
    config = SimpleNamespace(option=SimpleNamespace(minutes=minutes))
    for case in (CHEAP[0], ALONE[0], MANY[0], FEW[0]):
        asked = Item(**vars(case) | {"config": config})
        if skips and case in (MANY[0], FEW[0]):
            with pytest.raises(pytest.skip.Exception, match="36 minutes are over"):
                conftest.pytest_runtest_setup(asked)
        else:
            conftest.pytest_runtest_setup(asked)
