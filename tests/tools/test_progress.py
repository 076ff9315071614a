"""How far a command is: told on a terminal, or where it is asked for, never on standard output."""

from __future__ import annotations

import sys

import pytest

from gemmgen.cli import main, progress
from gemmgen.cli.progress import Bar, counted, left
from gemmgen.environment import PROGRESS
from gemmgen.errors import ArgumentError


@pytest.fixture(name="clock")
def clock_fixture(monkeypatch):
    """Seconds that pass when a test says so."""
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    monkeypatch.delenv(PROGRESS, raising=False)
    return now


def work(clock, steps=10, seconds=3.0):
    with Bar("working") as bar:
        for done in range(steps):
            bar.update(done, steps)
            clock[0] += seconds


def test_a_terminal_has_one_bar_which_is_gone_at_the_end(clock, capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    work(clock)
    out, err = capsys.readouterr()
    drawn = [x.rstrip() for x in err.split("\r") if x.strip()]
    assert not out and "\n" not in err and len(drawn) == 9
    assert drawn[0] == f"working [{'#' * 3}{'.' * 27}] 1/10, 27 s left"
    assert drawn[-1].endswith("9/10, 3 s left")
    assert err.endswith("\r" + " " * max(map(len, drawn)) + "\r")


def test_what_is_over_soon_shows_nothing(clock, capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    work(clock, seconds=0.1)
    assert capsys.readouterr() == ("", "")


def test_lines_where_they_are_asked_for(clock, capsys, monkeypatch):
    work(clock)
    assert capsys.readouterr() == ("", "")  # piped: silence
    monkeypatch.setenv(PROGRESS, "always")
    work(clock)
    out, err = capsys.readouterr()
    assert not out and "\r" not in err
    assert err.splitlines()[:2] == [
        "working: 1 of 10, 27 s left",
        "working: 3 of 10, 21 s left",  # five seconds and more between two
    ]


def test_never(clock, capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv(PROGRESS, "never")
    work(clock)
    assert capsys.readouterr() == ("", "")


def test_another_value_is_refused(clock, monkeypatch):
    monkeypatch.setenv(PROGRESS, "yes")
    with pytest.raises(ArgumentError, match="GEMMGEN_PROGRESS='yes': must be one of auto"):
        Bar("working")


def test_what_is_left():
    assert left(0, 10, 5.0) == left(10, 10, 5.0) == ""
    assert left(1, 10, 5.0) == ", 45 s left"
    assert left(1, 10, 60.0) == ", 9 min 00 s left"


def test_a_count_that_begins_anew_is_estimated_anew(clock, capsys, monkeypatch):
    """The emulator counts the CTAs of each launch."""
    monkeypatch.setenv(PROGRESS, "always")
    with Bar("emulating") as bar:
        for _ in range(2):
            for done in range(1, 5):
                clock[0] += 6.0
                bar.update(done, 4)
    said = capsys.readouterr().err.splitlines()
    assert said[0] == "emulating: 1 of 4, 18 s left"
    assert said[5] == "emulating: 2 of 4, 12 s left"


def test_items_are_handed_out_in_order(clock):
    assert [*counted("x", "abc")] == ["a", "b", "c"]


def test_a_command_tells_and_prints_the_same(capsys, monkeypatch):
    ticks = iter(range(0, 100_000, 10))
    assert main(["emit", "--all", "--check", "--json"]) == 0
    silent = capsys.readouterr().out
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(ticks))
    monkeypatch.setenv(PROGRESS, "always")
    assert main(["emit", "--all", "--check", "--json"]) == 0
    out, err = capsys.readouterr()
    assert out == silent and "emitting: 1 of " in err
