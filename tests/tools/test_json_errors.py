"""With --json an error is one JSON object on standard output, argparse's too: argument, value, what is allowed."""

from __future__ import annotations

import json
import re

import pytest

from gemmgen.cli import COMMANDS, main
from gemmgen.cli.described import described
from gemmgen.cli.errors_command import KINDS
from gemmgen.errors import ArgumentError, CompileError, GemmgenError, IllegalConfig, Rule

REFUSED = [  # a line, and of its error: argument, value, a pattern of what is allowed
    ("emit dense -m x", "-m", "x", "must be an integer"),
    ("emit dense -m", "-m", None, "expected one argument"),
    ("emit dense -m 1.5", "-m", "1.5", "must be an integer"),
    ("emit dense -m 0", "m", 0, "must be at least 1"),
    ("emit dense --no-such", "--no-such", None, "is no argument of this command"),
    ("emit dense zzz", "zzz", None, "is no argument of this command"),
    ("emit dense --s 3", "--s", None, "could match --set, --swap-ab, --split-k"),
    ("emit zzz", "KERNEL", "zzz", "must be one of fp8_block, "),
    ("emit", "KERNEL", None, "is required without --all"),
    ("show", "KERNEL", None, "is required"),
    ("layout dense A --svg a.svg --html a.html", "--html", None, "not allowed with argument --svg"),
    ("layout dense A --svg=", "--svg", "", "'': must be a name"),
    ("run dense --device zz", "--device", "zz", "must be"),
    ("cache zz", "ACTION", "zz", "must be one of ls, "),
    ("zzz", "command", "zzz", "must be one of emit, "),
    ("-- emit dense", "command", "--", "must be one of emit, "),
    ("emit dense --epilogue rleu", "epilogue", "rleu", "must be one of none, "),
    ("emit dense --set stages=99", "stages", 99, "must be"),
    ("emit dense --set registers=[1,2,3]", "registers", "(1, 2, 3)", "must be"),
    ("emit fp8_block --ab bf16", "a", "bf16", "fp8_block multiplies e4m3 x e4m3 or s8 x s8"),
    ("repack x", "-o", None, "is required"),
    ("repack x -o y --shard-size 0GB", "--shard-size", "0GB", "must be a positive number of bytes"),
    ("host zz", "what", "zz", "must be one of"),
]  # fmt: skip


def error_of(capsys, *argv):
    assert main([*argv]) == 2
    out, err = capsys.readouterr()
    assert not err
    return json.loads(out)["error"]


@pytest.mark.parametrize(("line", "argument", "value", "allowed"), REFUSED, ids=lambda x: str(x))
@pytest.mark.parametrize("last", (True, False), ids=("json last", "json before it"))
def test_a_wrong_argument_is_named(capsys, line, argument, value, allowed, last):
    words = line.split()
    at = len(words) if last else 1 + (words[0] == "--")
    e = error_of(capsys, *words[:at], "--json", *words[at:])
    assert (e["id"], e["type"]) == ("GG-A001", "ArgumentError")
    assert (e["argument"], e["value"]) == (argument, value)
    assert re.match(allowed, e["allowed"], re.S)
    assert e["message"].startswith(f"{argument}=")


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_refuses_in_json(capsys, command):
    e = error_of(capsys, command, "--no-such-option", "--json")
    required = e["allowed"] == "is required"  # which argparse says first
    assert required or e["argument"] == "--no-such-option"


def test_an_illegal_config_has_its_rule(capsys):
    e = error_of(capsys, "emit", "dense", "--set", "stages=16", "--json")
    assert (e["id"], e["rule"]) == ("GG-S001-smem-capacity", "smem-capacity")
    assert e["values"]["stages"] == "16" and e["fix"] and "argument" not in e


def test_values_are_what_json_has():
    for value, told in (
        (True, True),
        (2.5, 2.5),
        (float("nan"), "nan"),
        (float("inf"), "inf"),
        (10**30, str(10**30)),
        (10**5000, "<int>"),
        ((1, 2), "(1, 2)"),
        (None, None),
    ):
        found = described(ArgumentError("x", value, "no"))
        assert found["value"] == told and type(found["value"]) is type(told)
        assert json.loads(json.dumps(found, allow_nan=False)) == found


def test_every_kind_of_error_is_described():
    """Whatever it holds besides."""
    rule = Rule(id="r", says="s", because="b")
    made = {
        IllegalConfig: IllegalConfig(rule, {"n": 1}, "f"),
        ArgumentError: ArgumentError("a", 1, "b"),
    }
    for kind in KINDS:
        e = made.get(kind) or kind.__new__(kind)
        found = described(e)
        assert (found["id"], found["type"]) == (e.id, kind.__name__)
    assert {*described(CompileError("x"))} == {"id", "type", "message"}
    assert described(GemmgenError("x"))["message"] == "x"


def test_without_json_argparse_s_words_stay(capsys):
    with pytest.raises(SystemExit) as e:
        main(["emit", "dense", "-m", "x"])
    err = capsys.readouterr().err
    assert e.value.code == 2 and err.startswith("usage: gemmgen emit")
    assert err.endswith("gemmgen emit: error: argument -m: invalid int value: 'x'\n")
