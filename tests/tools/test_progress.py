"""How far a command is: told on a terminal, or where it is asked for, never on standard output."""

from __future__ import annotations

import re
import subprocess
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from gemmgen.cli import main, pack_command, prepare_command, progress, screens
from gemmgen.cli.progress import Bar, counted, left
from gemmgen.config import Config
from gemmgen.environment import PROGRESS
from gemmgen.errors import ArgumentError
from gemmgen.problem import Problem


@pytest.fixture(name="clock")
def clock_fixture(monkeypatch):
    """Seconds that pass when a test says so."""
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    monkeypatch.delenv(PROGRESS, raising=False)
    return now


def work(clock, steps=10, seconds=3.0):
    with Bar() as bar:
        for done in range(steps):
            bar.update("working", done, steps)
            clock[0] += seconds


def terminal(monkeypatch):
    """One of text: without rich."""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setattr(screens, "bar", screens.Text)


def test_a_terminal_has_one_bar_which_is_gone_at_the_end(clock, capsys, monkeypatch):
    terminal(monkeypatch)
    work(clock)
    out, err = capsys.readouterr()
    drawn = [x.rstrip() for x in err.split("\r") if x.strip()]
    assert not out and "\n" not in err and len(drawn) == 9
    assert drawn[0] == f"working [{'#' * 3}{'.' * 27}] 1/10, 27 s left"
    assert drawn[-1].endswith("9/10, 3 s left")
    assert err.endswith("\r" + " " * len(drawn[-1]) + "\r")


def test_what_is_over_soon_shows_nothing(clock, capsys, monkeypatch):
    terminal(monkeypatch)
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
    terminal(monkeypatch)
    monkeypatch.setenv(PROGRESS, "never")
    work(clock)
    assert capsys.readouterr() == ("", "")


def test_another_value_is_refused(clock, monkeypatch):
    monkeypatch.setenv(PROGRESS, "yes")
    with pytest.raises(ArgumentError, match="GEMMGEN_PROGRESS='yes': must be one of auto"):
        Bar()


def test_what_is_left():
    assert left(0, 10, 5.0) == left(10, 10, 5.0) == ""
    assert left(1, 10, 5.0) == ", 45 s left"
    assert left(1, 10, 60.0) == ", 9 min 00 s left"


def test_a_count_that_begins_anew_is_estimated_anew(clock, capsys, monkeypatch):
    """The emulator counts the CTAs of each launch."""
    monkeypatch.setenv(PROGRESS, "always")
    with Bar() as bar:
        for _ in range(2):
            for done in range(1, 5):
                clock[0] += 6.0
                bar.update("emulating", done, 4)
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


def shown(text: str) -> list[str]:
    """What stands in a terminal's line after each return of its cursor."""
    lines, line = [], ""
    for part in text.split("\r")[1:]:
        line = part + line[len(part) :]
        lines.append(line.rstrip())
    return lines


def test_a_command_of_two_counts_has_one_bar(clock, capsys, monkeypatch):
    """Of a shorter title nothing of a longer one is left beside it."""
    terminal(monkeypatch)
    with Bar() as bar:
        for title in ("compiling candidates", "timing"):
            for _ in bar.counted(title, range(3)):
                clock[0] += 4.0
    lines = shown(capsys.readouterr().err)
    assert [re.sub(r" \[.*\] ", " ", x) for x in lines] == [
        "compiling candidates 1/3, 8 s left",
        "compiling candidates 2/3, 4 s left",
        "timing 0/3",
        "timing 1/3, 8 s left",
        "timing 2/3, 4 s left",
        "",
        "",
    ]


def test_what_a_thread_tells_after_the_end_is_not_drawn(clock, capsys, monkeypatch):
    terminal(monkeypatch)
    with Bar() as bar:
        for _ in bar.counted("compiling", range(3)):
            clock[0] += 4.0
    drawn = capsys.readouterr().err
    bar.update("compiling", 3, 3)
    assert drawn and not capsys.readouterr().err


def test_steps_are_counted(clock, capsys, monkeypatch):
    monkeypatch.setenv(PROGRESS, "always")
    with Bar() as bar:
        step = bar.steps("measuring", 2)
        for _ in range(3):  # one more than was said
            clock[0] += 6.0
            step()
    told = capsys.readouterr().err.splitlines()
    assert told == ["measuring: 1 of 2, 6 s left", "measuring: 2 of 2", "measuring: 2 of 2"]


def test_every_m_of_a_pack_is_counted(clock, capsys, monkeypatch):
    """Each N and K anew; what is asked besides, where choices change, is more of the last."""
    monkeypatch.setenv(PROGRESS, "always")
    p, args = Problem(family="dense", a="bf16", b="bf16"), SimpleNamespace(up_to=1024)

    def config_for(p, shape, groups, device, pointers):
        clock[0] += 6.0
        return Config(panel=1 + (shape[0] > 600))

    monkeypatch.setattr(pack_command, "config_for", config_for)
    rows = prepare_command.every_shape(args, p, (1, 1, 1))
    with Bar() as bar:
        pack_command._up_to(args, p, "NVIDIA H200", [(1, 512, 1024), (1, 256, 128)], bar)
    told = re.findall(r"choosing, (N=\d+ K=\d+): (\d+) of (\d+)", capsys.readouterr().err)
    for sides in ("N=512 K=1024", "N=256 K=128"):
        counts = [int(done) for of, done, total in told if of == sides and int(total) == len(rows)]
        assert counts == sorted(counts) and counts[-1] == len(rows) and len(counts) > len(rows)


def console(monkeypatch, **terminal):
    """rich's, of a terminal."""
    rich = pytest.importorskip("rich.console")
    made = partial(rich.Console, file=sys.stderr, width=100, **terminal)
    monkeypatch.setattr(rich, "Console", lambda stderr: made())
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    return made


def test_rich_draws_where_it_is_installed(clock, capsys, monkeypatch):
    console(monkeypatch, force_terminal=True, no_color=True, _environ={"TERM": "xterm"})
    work(clock)
    print("after")
    out, err = capsys.readouterr()
    drawn = re.findall(r"\d/10, \d+ s left", re.sub(r"\x1b\[[\d;?]*\w", "", err))
    assert "0/100" not in err  # what rich takes a count for that was not told yet
    assert drawn[0] == "1/10, 27 s left" and drawn[-1] == "9/10, 3 s left"
    assert err.count("\x1b[?25l") == err.count("\x1b[?25h") == 1  # the cursor is there again
    assert err.rstrip().endswith("\x1b[2K") and out == "after\n"


def test_rich_draws_by_no_thread(monkeypatch):
    """It would run beside what is timed."""
    import threading

    made = console(monkeypatch, force_terminal=True, _environ={"TERM": "xterm"})
    before = threading.active_count()
    drawn = screens.Rich(made())
    drawn.draw("working [bold]", 1, 2, "")
    assert threading.active_count() == before
    drawn.close()


def test_text_where_rich_could_not_draw(monkeypatch):
    console(monkeypatch, force_terminal=True, _environ={"TERM": "dumb"})
    assert isinstance(screens.bar(), screens.Text)
    monkeypatch.setitem(sys.modules, "rich.console", None)
    assert isinstance(screens.bar(), screens.Text)


def test_rich_is_loaded_by_what_takes_long_alone():
    code = (
        "import sys; from gemmgen.cli import main; main(['list']); sys.exit('rich' in sys.modules)"
    )
    root = Path(__file__).parents[2]
    assert not subprocess.run(
        [sys.executable, "-c", code], cwd=root, capture_output=True
    ).returncode
