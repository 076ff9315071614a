"""What is given is used or refused by name: a sample of `python -m tests.used_or_refused`, and what it would find."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from zlib import crc32

import pytest
from used_or_refused import (
    calls,
    campaign,
    compiler_calls,
    gemm_calls,
    given_files,
    inventory,
    judging,
    lines,
)
from used_or_refused.model import Ignored, Tally
from used_or_refused.running import alone, run
from used_or_refused.values import Call

import gemmgen
from gemmgen import cli, config, problem
from gemmgen.cli import COMMANDS, emit_command, explain_command, list_command, options
from gemmgen.ir.dtypes import BF16
from gemmgen.target import H200

LINES, CALLS = 1000, 10_000  # with --sample 1


@pytest.fixture(scope="module", autouse=True)
def made_fixture():
    """Files to read, by gemmgen as it is: tests change it."""
    given_files.made()


@pytest.fixture(name="number")
def number_fixture(request):
    """Others at every commit."""
    return crc32(f"{request.config.option.rotation} {request.node.name}".encode())


def test_command_lines(request, number):
    draws = max(16, LINES // request.config.option.sample)
    assert campaign.of_lines(draws, number, stop=True).draws >= draws // 2


def test_calls(request, number):
    draws = max(64, CALLS // request.config.option.sample)
    tally = campaign.of_calls(draws, number, stop=True)
    assert tally.used and tally.refused


def test_a_line_runs_in_a_folder_of_its_own_only(tmp_path, monkeypatch):
    """What was not laid there is removed."""
    monkeypatch.chdir(tmp_path)
    kept = tmp_path / "kept"
    kept.write_text("mine")
    with pytest.raises(RuntimeError, match="inside of `alone`"):
        run("list")
    with alone():
        assert not run("list").files and Path.cwd() != tmp_path
    with pytest.raises(RuntimeError, match="inside of `alone`"):
        run("list")
    assert kept.read_text() == "mine"


def test_everything_that_can_be_given_is_drawn():
    """As parsers and signatures have it."""
    assert lines.not_drawn() == [] and calls.not_drawn() == []
    assert {*lines.FORMS, *(command for command, _ in lines.OF)} <= {*COMMANDS}
    assert {*lines.VALUES} <= {name for c in COMMANDS for name in inventory.arguments(c)}


# ---- what it would find ---------------------------------------------------------------------


def test_an_option_that_is_not_drawn_is_found(monkeypatch):
    whole = list_command.add

    def more(parser):
        whole(parser)
        parser.add_argument("--like", metavar="NAME")
        parser.add_argument("--most", type=int)  # numbers, choices and flags are drawn as they are
        parser.add_argument("--flag", action="store_true")

    monkeypatch.setattr(list_command, "add", more)
    inventory.arguments.cache_clear()
    assert lines.not_drawn() == ["list --like"]
    inventory.arguments.cache_clear()


def test_an_argument_that_is_not_drawn_is_found(monkeypatch):
    def prepare(problems, shapes, *, quick=False):
        return None

    def unheard_of(x):
        return None

    drawn = calls.FUNCTIONS["prepare"]
    monkeypatch.setitem(calls.FUNCTIONS, "prepare", replace(drawn, call=prepare))
    monkeypatch.setattr(gemmgen.ops, "prepare", prepare)
    monkeypatch.setattr(gemmgen, "prepare", prepare)
    monkeypatch.setattr(gemmgen, "do_bench", unheard_of)
    assert {"prepare quick", "do_bench"} < {*calls.not_drawn()}


def judged(*fixed, **items):
    words = tuple((f"-{k}" if k in "mnko" else f"--{k}", *v) for k, v in items.items())
    with alone():
        tally = Tally()
        judging.judge(lines.Line(fixed, words), tally)
        return tally


TELL = [  # a right line and a wrong one, that are used and refused as things are
    (("emit", "dense"), {"layout": ("tn",), "m": ("64",)}),
    (("emit", "dense"), {"d": ("bf16",), "set": ("stages=3",)}),
    (("show", "dense"), {"m": ("4096",)}),
    (("emit", "dense"), {"epilogue": ("rleu",)}),
    (("layout", "fp8_block/base", "A"), {"m": ("64",)}),
    (("emit", "fp8_block"), {"invariant": (), "m": ("16",), "n": ("2112",), "k": ("7168",)}),
    (("timeline", "dense"), {"beside": ("stages=2",), "ncu": ("given/ncu.csv",), "json": ()}),
    (("timeline", "dense"), {"beside": ("given/trace.json",), "svg": ("picture.svg",)}),
    (("serve", "dense"), {"m": ("64",), "open": (), "port": ("8123",)}),
    (
        ("tune", "dense"),
        {"compile-only": (), "cubins": ("cubins",), "limit": ("2",), "processes": ("8",)},
    ),
    (
        ("tune", "dense"),
        {"compile-only": (), "cubins": ("cubins",), "shapes": ("64x64x128",), "shard": ("2/2",)},
    ),
    (("tune",), {"merge": ("given/a.jsonl", "given/b.jsonl"), "o": ("t.jsonl",)}),
    (("check", "dense"), {"thorough": ()}),
    (("emit",), {"all": (), "check": (), "o": ("out",)}),
    (("show", "dense"), {"color": ("always",)}),
    (("rules",), {"markdown": ()}),
    (("emit", "w4a16"), {"weights": ("e2m1_32_e8m0",), "grouping": ("ends",)}),
    (("emit", "w4a16"), {"weights": ("int4_64_f16_zeros",)}),  # of FP16
    (("emit", "w8a16"), {"weights": ("e4m3_column_f32",)}),
    (("emit", "dense"), {"weights": ("int4_128_bf16",)}),
]


@pytest.mark.parametrize(("fixed", "items"), TELL, ids=str)
def test_as_things_are(fixed, items):
    tally = judged(*fixed, **items)
    assert tally.draws == 1 and (tally.refused or len(tally.shown) == len(items))


def test_an_option_that_is_passed_over_is_found(monkeypatch):
    whole = options.problem

    def without_layout(args):
        args.layout = None
        return whole(args)

    monkeypatch.setattr(options, "problem", without_layout)
    with pytest.raises(Ignored, match="--layout tn was ignored"):
        judged("emit", "dense", layout=("tn",))


def test_a_shape_that_is_passed_over_is_found(monkeypatch):
    monkeypatch.setattr(options, "shape", lambda args, default=None: (4096, 4096, 4096))
    with pytest.raises(Ignored, match="-m 64 was ignored"):
        judged("emit", "dense", m=("64",))


def test_a_file_that_is_not_written_is_found(monkeypatch):
    monkeypatch.setattr(emit_command.files, "write", lambda folder, name, data: "")
    with pytest.raises(Ignored, match="-o out was ignored"):
        judged("emit", "dense", json=(), o=("out",))


def test_a_file_that_is_written_by_what_is_refused_is_found(monkeypatch):
    def refused(args):
        Path("page.html").touch()
        raise options.ArgumentError("-m", 64, "must be less")

    monkeypatch.setattr(options, "problem", refused)
    with pytest.raises(Ignored, match=r"page\.html was written, then refused"):
        judged("emit", "dense", m=("64",))


def test_a_config_that_follows_m_is_found(monkeypatch):
    """Where one is asked for that must not."""
    monkeypatch.setattr(cli, "_settings", lambda args: nullcontext())
    with pytest.raises(Ignored, match="--invariant was ignored"):
        judged("emit", "fp8_block", invariant=(), m=("4096",), n=("2112",), k=("7168",))


@pytest.mark.parametrize("error", (ValueError("x"), AttributeError("x")))
def test_a_traceback_is_found(monkeypatch, error):
    def broken(args):
        raise error

    monkeypatch.setattr(options, "problem", broken)
    with pytest.raises(Ignored, match=type(error).__name__):
        judged("emit", "dense")


def test_an_error_that_names_something_else_is_found(monkeypatch):
    def refused(args):
        raise options.ArgumentError("panel", 3, "must be 4")

    monkeypatch.setattr(options, "problem", refused)
    with pytest.raises(Ignored, match="names nothing that was given: panel=3"):
        judged("emit", "dense", d=("f32",))


def asked_twice(first):
    """Of a config whose multicast is none."""
    with alone():
        words = (
            ("--set", 'multicast="none"'),
            ("--why-not", first),
            ("--why-not", "d_columns=128"),
        )
        judging.judge(lines.Line(("explain", "dense"), words), tally := Tally())
        return tally


def test_what_a_config_has_already_may_be_asked_about():
    assert asked_twice('multicast="none"').used == 1


def test_a_question_that_is_passed_over_is_found(monkeypatch):
    whole = explain_command.fields

    def deaf(name, items):
        return whole(name, [x for x in items if "stages" not in str(x)])

    monkeypatch.setattr(explain_command, "fields", deaf)
    with pytest.raises(Ignored, match="why-not stages=2"):
        asked_twice("stages=2")


def test_a_choice_that_is_not_legal_is_found(monkeypatch):
    whole = options.config

    def tall(args, p, at, *more):
        c, source = whole(args, p, at, *more)
        return config.replace(c, block_m=96), source

    monkeypatch.setattr(options, "config", tall)
    with pytest.raises(Ignored, match="a chosen config is refused"):
        judged("emit", "dense", m=("64",))


def test_calls_that_ignore_are_found(monkeypatch):
    whole = compiler_calls.choose

    def without_groups(problem, shape, target, groups=1):
        return whole(problem, shape, target)

    monkeypatch.setattr(compiler_calls, "choose", without_groups)
    p = problem.Problem(family="dense", a=BF16, b=BF16)
    given = {"problem": p, "shape": (64, 64, 64), "target": H200, "groups": 2}
    with pytest.raises(Ignored, match="choose: groups ignored"):
        calls.judge(Call("choose", given), Tally())
    with pytest.raises(Ignored, match="TypeError"):
        calls.judge(Call("choose", given | {"nobody": 1}), Tally())


def test_a_gemm_that_ignores_is_found():
    """It takes another config than the one that is given."""
    from contextlib import ExitStack

    from gemmgen.ops import building

    with ExitStack() as stack:
        gemm_calls.without_gpu(stack)
        patch = stack.enter_context(pytest.MonkeyPatch.context())  # undone before what is under it
        loaded = building.given
        patch.setattr(building, "given", lambda p, c, device: loaded(p, config.Config(), device))
        given = {"config": config.Config(stages=2)}
        with pytest.raises(Ignored, match=r"ops\.gemm: config ignored"):
            calls.judge(Call("ops.gemm", given), Tally())
