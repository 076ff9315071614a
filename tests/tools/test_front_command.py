"""The command before its subcommands: help in groups, versions, slips of the keyboard, interruptions, full disks."""

from __future__ import annotations

import errno
from contextlib import suppress

import pytest

from gemmgen import __version__
from gemmgen.cli import COMMANDS, GROUPS, list_command, main
from gemmgen.cli.levels import coloured


def test_alone_it_helps(capsys):
    assert main([]) == 0
    bare = capsys.readouterr().out
    with pytest.raises(SystemExit) as e:
        main(["--help"])
    assert e.value.code == 0 and capsys.readouterr().out == bare


def test_help_has_every_command_once_under_what_it_is_for(capsys):
    main([])
    lines = capsys.readouterr().out.splitlines()
    for group, commands in GROUPS.items():
        at = lines.index(f"{group}:")
        assert [line.split()[0] for line in lines[at + 1 : at + 1 + len(commands)]] == [*commands]
    for name, text in COMMANDS.items():
        assert [line.split() for line in lines].count([name, *text.split()]) == 1


def test_the_examples_of_help_parse(capsys):
    from gemmgen.cli import EXAMPLES, _parser

    for example in EXAMPLES:
        words = example.split()[1:]
        assert _parser(words).parse_args(words).main


def test_the_version(capsys):
    with pytest.raises(SystemExit) as e:
        main(["--version"])
    assert e.value.code == 0 and capsys.readouterr().out == f"gemmgen {__version__}\n"


@pytest.mark.parametrize(
    ("argv", "meant"),
    [
        (["emitt", "dense"], "emit"),
        (["emit", "fp8_blok"], "fp8_block"),
        (["emit", "fp8_block/bse"], "fp8_block/base"),
        (["emit", "dense", "--epilogue", "bias_sliu"], "bias_silu"),
        (["emit", "dense", "--grouping", "maskd"], "masked"),
    ],
    ids=lambda x: x if isinstance(x, str) else " ".join(x),
)
def test_what_was_meant(capsys, argv, meant):
    try:
        assert main(argv) == 2
    except SystemExit as e:
        assert e.code == 2
    assert capsys.readouterr().err.rstrip().endswith(f"did you mean {meant!r}?")


@pytest.mark.parametrize(
    "argv", (["zzz"], ["emit", "zzz"], ["emit", "dense", "-m", "0"], ["emit", "dense", "--mit"])
)
def test_nothing_like_it(capsys, argv):
    with suppress(SystemExit):
        main(argv)
    assert "did you mean" not in capsys.readouterr().err


def test_an_interruption_is_a_line(capsys, monkeypatch):
    def interrupted(args):
        raise KeyboardInterrupt

    monkeypatch.setattr(list_command, "main", interrupted)
    assert main(["list"]) == 130
    assert capsys.readouterr().err == "gemmgen: interrupted\n"


@pytest.mark.parametrize("number", (errno.ENOSPC, errno.EDQUOT))
def test_a_full_disk_is_an_error(capsys, monkeypatch, number):
    def full(args):
        raise OSError(number, "No space left")

    monkeypatch.setattr(list_command, "main", full)
    assert main(["list"]) == 1
    assert capsys.readouterr().err.endswith(": cannot write: No space left\n")


def test_other_errors_of_the_system_are_bugs(monkeypatch):
    def broken(args):
        raise OSError(errno.EIO, "I/O error")

    monkeypatch.setattr(list_command, "main", broken)
    with pytest.raises(OSError, match="I/O"):
        main(["list"])


def test_colours_may_be_forced(monkeypatch):
    from types import SimpleNamespace

    monkeypatch.delenv("FORCE_COLOR", raising=False)
    assert not coloured(SimpleNamespace(color="auto"))
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert coloured(SimpleNamespace(color="auto")) and not coloured(SimpleNamespace(color="never"))
