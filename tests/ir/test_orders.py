"""An order of tiles that a program adds, through every layer; and what an order must be."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
from emulated import judged
from kernels import DENSE, FP8, GROUPED, VECTOR

from gemmgen import cli
from gemmgen.bench.tuning.candidates import candidates
from gemmgen.bench.tuning.jobs import Job
from gemmgen.check import check
from gemmgen.config import Config
from gemmgen.errors import ArgumentError, GemmgenError
from gemmgen.ir.orders import ORDERS, add
from gemmgen.ir.text import dump
from gemmgen.pipeline import compile_to_source, lower
from gemmgen.see.explain import explain
from gemmgen.see.kernel_page import config as described
from gemmgen.see.spelling import spelled

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
import new_order

sys.path.pop(0)
PROBLEMS = {
    g: replace(VECTOR if g.startswith("k_") else FP8, grouping=g) for g in ("none", *GROUPED)
}


@pytest.fixture(autouse=True)
def lines(monkeypatch):
    monkeypatch.setitem(ORDERS, "lines", new_order.LINES)


def config(**changes):
    return Config(order="lines", block_n=64, **changes)


@pytest.mark.parametrize("grouping", PROBLEMS)
def test_every_grouping_has_it(grouping):
    """Emitted as it says, proved, and its text read back."""
    a = compile_to_source(PROBLEMS[grouping], config())
    assert a.kernel.scheduler.order == "lines" and a.name.endswith("_lines")
    assert (
        "// They come line by line along M, all in one direction.\nstruct Scheduler {" in a.source
    )
    assert "% tiles_m;" in a.source and "int height" not in a.source
    assert " order=lines" in dump(a.kernel)


@pytest.mark.nvrtc
@pytest.mark.parametrize("grouping", PROBLEMS)
@pytest.mark.parametrize("raster", "mn")
def test_on_the_emulator(grouping, raster):
    assert judged(PROBLEMS[grouping], config(raster=raster), (200, 264, 384)).exact


@pytest.mark.nvrtc
def test_another_walk_on_the_device_than_in_python_is_found(monkeypatch):
    """Of the device each line but the first is walked once more, and the last never."""
    wrong = new_order.LINES.device[0], "const int {slow} = max(0, {index} / tiles_{fast} - 1);"
    monkeypatch.setitem(ORDERS, "lines", replace(new_order.LINES, device=wrong))
    with pytest.raises(GemmgenError):
        judged(DENSE, config(), (200, 264, 384))


def test_a_walk_that_leaves_tiles_out_is_not_proved(monkeypatch):
    def twice(s, tiles, index):
        return new_order.place(s, tiles, index // 2 * 2)

    monkeypatch.setitem(ORDERS, "lines", replace(new_order.LINES, place=twice))
    with pytest.raises(GemmgenError):
        check(lower(DENSE, config()))


def test_the_tuner_tries_it_and_pages_name_it():
    shape = (4096, 4096, 4096)
    tried = [c.config for c in candidates(Job(problem=DENSE, shape=shape))]
    assert [c for c in tried if c.order == "lines"]
    assert spelled(config()).endswith("order lines")
    assert dict(described(config(), lower(FP8, config())).items)["order"].startswith("lines: ")
    e = explain(DENSE, config(), shape, "given")
    assert e.config == config() and e.cost.seconds > 0


def test_the_command_line_takes_it(capsys):
    argv = ["emit", "dense", "--set", "order=lines", "--set", "block_n=64"]
    assert cli.main(argv) == 0 and "line by line" in capsys.readouterr().out
    assert cli.main(["emit", "dense", "--set", "order=spiral"]) != 0
    assert "spiral" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["panels", "lines", "Two", "a b", ""])
def test_a_name_is_added_once(name):
    with pytest.raises(ArgumentError, match="name"):
        add(name, new_order.LINES)


def test_files_that_say_nothing_of_orders_read():
    assert "order" not in Config().to_json() and Config.from_json({"stages": 3}).order == "panels"
    assert Config.from_json(config().to_json()) == config()
