"""Hostile inputs: `tests.hostile` finds each refused, and would see one that is not, hangs, grows or writes."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from hostile import caches, checkpoints, files
from hostile.campaign import CASES, campaign, table
from hostile.model import Case, Refused, call, command, tried

from gemmgen.bench import shapes
from gemmgen.cli.files import write
from gemmgen.errors import ArgumentError, CacheError
from gemmgen.heuristics import database
from gemmgen.ir.expr import ACC, MOST_DEPTH, MOST_NODES
from gemmgen.quant import Checkpoint
from gemmgen.runtime.cache_entry import decode_for
from gemmgen.untrusted import read_bytes, read_text

DOCS = Path(__file__).parents[2] / "docs/reliability.md"


def test_every_hostile_input_is_refused_and_nothing_is_written():
    outcomes = campaign()
    assert [o for o in outcomes if o.problem] == []
    assert len(outcomes) == len(CASES) > 1300
    assert table(outcomes) in DOCS.read_text()


def test_inputs_that_mean_no_harm_are_accepted(tmp_path):
    """The same calls: so they are not refused for a reason of their own."""
    (tmp_path / "config").write_text('{"stages": 2}')
    assert command("emit", "dense", "--config", str(tmp_path / "config")) == 0
    assert command("emit", "dense", "--set", "stages=2") == 0
    (tmp_path / "rows").write_text(files.LINE)
    assert [r.shape for r in database.load(tmp_path / "rows")] == [(8, 64, 64)]
    assert files._tuned(str(tmp_path / "rows"))
    (tmp_path / "shapes").write_text("1x2x3\n4,5,6\n")
    assert shapes.parse(f"@{tmp_path / 'shapes'}", files.DENSE) == ((1, 2, 3), (4, 5, 6))
    assert write(tmp_path / "out", "x.cu", b"gemmgen").read_bytes() == b"gemmgen"
    (tmp_path / "tensors").write_bytes(checkpoints.entry())
    assert [*Checkpoint(tmp_path / "tensors")] == ["a"]
    assert decode_for(caches.ENTRY, caches.RECIPE) == caches.compiled(caches.RECIPE)
    look = caches._entry(lambda p: p.write_bytes(caches.ENTRY) and p.chmod(0o600))(tmp_path)
    assert look() == caches.ENTRY
    own = tmp_path / "own"
    own.mkdir(mode=0o700)
    assert caches._entered(own).own == own


def _grows():
    return bytearray(1 << 40)


def _raises(error):
    def it():
        raise error

    return it


@pytest.mark.parametrize(
    ("it", "problem"),
    (
        (lambda: None, "was not refused"),
        (lambda: time.sleep(9), "hangs"),
        (_grows, "MemoryError"),
        (_raises(TypeError("x")), "TypeError"),
        (_raises(RecursionError("x")), "RecursionError"),
        (_raises(SystemExit(1)), "SystemExit"),
        (_raises(CacheError("x")), "GG-X001 instead of GG-A"),
        (_raises(ArgumentError("x", 1, "y" * 5000)), "as long as the input"),
        (_raises(Refused("GG-S001-x", "")), "GG-S001-x instead of GG-A"),
        (_raises(ArgumentError("x", 1, "must be 2")), ""),
    ),
)
def test_what_is_not_refused_rightly_is_found(it, problem, tmp_path, monkeypatch):
    monkeypatch.setattr("hostile.model.SECONDS", 0.3)
    found = tried(call("here", "it", it), tmp_path).problem
    assert found.startswith(problem) if problem == "" else problem in found
    assert bool(found) == bool(problem)


@pytest.mark.parametrize("change", ("new", "other", "gone", "mode"))
def test_a_file_that_changed_is_found(change, tmp_path):
    def made(folder):
        (folder / "x").write_text("a")

        def it():
            match change:
                case "new":
                    (folder / "y").mkdir()
                case "other":
                    (folder / "x").write_text("b")
                case "gone":
                    (folder / "x").unlink()
                case "mode":
                    (folder / "x").chmod(0o777)
            raise ArgumentError("x", 1, "must be 2")

        return it

    case = Case(surface="here", says="it", made=made, ids=("GG-A",))
    assert tried(case, tmp_path).problem == "files changed"


def test_a_file_in_the_working_folder_is_found():
    def it():
        with open("stray", "w"):  # noqa: PTH123
            raise ArgumentError("x", 1, "must be 2")

    found = campaign((call("here", "it", it),))
    assert [o.says for o in found if o.problem] == ["left stray"]


# ---- what these inputs have brought to light --------------------------------------------------


def test_expressions_are_bounded_where_they_are_made():
    deep, wide = ACC, ACC
    for _ in range(MOST_DEPTH - 1):
        deep = deep + 1.0
    assert deep.depth == MOST_DEPTH
    with pytest.raises(ArgumentError) as e:
        deep + 1.0
    assert e.value.argument == "epilogue"
    while 2 * wide.nodes + 1 <= MOST_NODES:
        wide = wide * wide
    assert wide.nodes == MOST_NODES - 1
    with pytest.raises(ArgumentError):
        wide * wide
    assert (ACC + 1.0) == (ACC + 1.0) and hash(ACC + 1.0) == hash(ACC + 1.0)


def test_a_folder_is_not_made_for_a_file_that_cannot_be(tmp_path):
    for name in ("x" * 300, "a\0b"):
        with pytest.raises(ArgumentError):
            write(tmp_path / "out" / "deeper", name, b"gemmgen")
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("says", files.PLACES)
def test_a_file_that_is_refused_is_closed(says, tmp_path):
    files.PLACES[says](tmp_path / "x")
    before = os.listdir("/proc/self/fd")  # noqa: PTH208
    for read in (read_text, lambda *x: read_bytes(*x, 8, 1 << 61)):
        with pytest.raises(ArgumentError):
            read("x", tmp_path / "x")
    assert os.listdir("/proc/self/fd") == before  # noqa: PTH208


def test_a_part_of_a_file_is_read(tmp_path):
    (tmp_path / "x").write_bytes(b"0123456789")
    assert read_bytes("x", tmp_path / "x") == b"0123456789"
    assert read_bytes("x", tmp_path / "x", 4, 6) == b"456789"
    assert read_bytes("x", tmp_path / "x", 10, 0) == b""
    for start, size in ((4, 7), (11, 0), (1 << 62, 1 << 62)):
        with pytest.raises(ArgumentError, match=f"ends before byte {start + size}$"):
            read_bytes("x", tmp_path / "x", start, size)


def test_a_value_of_any_size_is_shown_short():
    for value in ("x" * 10**6, [[]] * 10**6, 10**5000, _deep()):
        assert len(str(ArgumentError("x", value, "must be 2"))) < 1000
    assert "\n" not in str(ArgumentError("a\nb", 1, "must be 2"))
    assert len(str(ArgumentError("a" * 10**6, 1, "must be 2"))) < 1000


def _deep():
    data = []
    for _ in range(10**5):
        data = [data]
    return data
