"""What an explanation comes to: bound by what, how far from the floor, what to try; and the pictures of it."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from gemmgen.cli import main
from gemmgen.config import Config
from gemmgen.cost import cost, floors, terms
from gemmgen.cost_terms import ADDED
from gemmgen.heuristics.tuned import pick
from gemmgen.ir.dtypes import BF16, E4M3, F32
from gemmgen.pipeline import lower
from gemmgen.problem import Problem
from gemmgen.runtime.launch import grid
from gemmgen.schedulers import order
from gemmgen.see import html, text
from gemmgen.see.explain import explain
from gemmgen.see.explain_json import to_json
from gemmgen.see.explain_page import page
from gemmgen.see.glance_page import blocks, waves
from gemmgen.see.page import Page, Run, Strips, Table
from gemmgen.see.spelling import spelled
from gemmgen.see.verdict import BOUND, LOSSES, summed, verdict, waits
from gemmgen.target import H200

ROOT = Path(__file__).parents[2]
FP8 = Problem(family="fp8_block", a=E4M3, b=E4M3)
DENSE = Problem(family="dense", a=BF16, b=BF16)
GRADIENT = Problem(family="fp8_1d1d", a=E4M3, b=E4M3, d=F32, accumulate=True)
RAGGED = replace(FP8, grouping="masked")
SHAPES = ((8192, 8192, 8192), (64, 2112, 7168), (1, 7168, 16384), (100, 777, 1000), (128,) * 3)


@pytest.fixture(autouse=True)
def no_database(monkeypatch):
    monkeypatch.setenv("GEMMGEN_TUNED", "none")


def explained(problem, shape, config=None, groups=1):
    config = config or pick(problem, shape, groups=groups).config
    return explain(problem, config, shape, "cost model", groups=groups)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("problem", (FP8, DENSE, GRADIENT, RAGGED), ids=lambda p: p.family)
def test_the_parts_add_up(problem, shape):
    """What is waited for to the time; the losses to what the time is more than the floor."""
    groups = 4 if problem is RAGGED else 1
    e = explained(problem, shape, groups=groups)
    v = verdict(e)
    assert (v.tensor_floor, v.hbm_floor) == floors(problem, shape, H200, groups)
    assert v.seconds == e.cost.seconds and v.floor == max(v.tensor_floor, v.hbm_floor)
    assert sum(s for _, s in v.waits) == pytest.approx(v.seconds, rel=1e-12)
    assert sum(s for _, s in v.losses) == pytest.approx(v.seconds - v.floor, rel=1e-9)
    assert {n for n, _ in v.waits} <= {*BOUND} and {n for n, _ in v.losses} <= {*LOSSES}
    for parts in (v.waits, v.losses):
        assert [s for _, s in parts] == sorted((s for _, s in parts), reverse=True)


@pytest.mark.parametrize(
    ("problem", "shape", "config", "bound"),
    [
        (DENSE, (8192, 8192, 8192), None, "tensor"),
        (DENSE, (1, 7168, 16384), None, "hbm"),
        (DENSE, (128, 128, 128), None, "launch"),
        (GRADIENT, (8192, 8192, 8192), None, "promotion"),
        (DENSE, (4096, 4096, 4096), Config(block_m=64, block_n=64, consumers=1), "l2"),
        (DENSE, (1024, 1024, 8192), Config(block_m=256, stages=3), "idle"),
        (DENSE, (256, 256, 65536), Config(), "idle"),  # four CTAs do not draw all that HBM gives
        (GRADIENT, (4096, 32768, 512), None, "adding"),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_what_binds(problem, shape, config, bound):
    assert verdict(explained(problem, shape, config)).bound == bound


def of_waves(**cycles):
    """Terms whose waves have so many cycles, and nothing else."""
    t = terms(DENSE, Config(), (4224, 4096, 4096), H200)  # eight full waves
    names = (*(n for n in ADDED if n != "main"), "tensor", "shared", "l2", "chain")
    wave = replace(t.full, **{**dict.fromkeys(names, 0.0), **cycles})
    return replace(t, full=wave, last=wave, tail=0.0, hbm=0.0, launch=0.0)


@pytest.mark.parametrize(
    ("term", "bound"),
    [
        *((n, n) for n in ("tensor", "shared", "l2", "cluster", "promotion")),
        ("epilogue", "drain"),
        ("l2_exposed", "l2"),
        ("chain", "latency"),
    ],
)
def test_each_term_is_waited_for_as_what_it_is(term, bound):
    """Of a wave on all SMs; on some, the others idle meanwhile."""
    t = of_waves(**{term: 1000.0})
    found = dict(summed(waits(t, 1, H200, 0.0)))
    assert found[bound] > 0 and found[bound] == pytest.approx(t.seconds)
    half = replace(t, full=replace(t.full, busy=66), last=replace(t.last, busy=66))
    sums = dict(summed(waits(half, 1, H200, 0.0)))
    main = term in ("tensor", "shared", "l2", "chain")
    assert sums.get("idle", 0.0) == pytest.approx(t.seconds / 2 if main else 0.0)


def test_a_worse_config_is_told_the_better_one():
    e = explained(FP8, (4096, 7168, 2048), Config(block_m=64, block_n=64, consumers=1))
    best = min(e.runners_up, key=lambda r: r.choice.cost.seconds)
    less = 1 - best.choice.cost.seconds / e.cost.seconds
    words = f"{spelled(best.choice.config)}: the model expects {less:.1%} less time."
    assert verdict(e).advice == words
    measured = replace(e, measured=object())
    assert "the model expects" not in verdict(measured).advice


def test_advice_names_a_runner_up_that_saves_what_it_says():
    e = explained(DENSE, (8192, 8192, 8192))
    found = re.search(
        r"; (.+) saves ([\d.]+) us of the (.+), and takes ([+\d.]+) us", verdict(e).advice
    )
    assert found
    (r,) = (r for r in e.runners_up if spelled(r.choice.config) == found[1])
    term = {"L2 time that shows": "l2_exposed", "main loop": "main"}[found[3]]
    assert float(found[2]) == pytest.approx(-dict(r.differences)[term] * 1e6, abs=0.006)
    more = (r.choice.cost.seconds - e.cost.seconds) * 1e6
    assert float(found[4]) == pytest.approx(more, abs=0.006)


# ---- waves on SMs -------------------------------------------------------------------------


def tiles_per_sm(s: Strips) -> list[int]:
    """Of what is drawn; a row of several waves counts for each."""
    found = [0] * s.across
    for name, runs in s.rows:
        numbers = [int(n) for n in re.findall(r"\d+", name.partition(":")[0])]
        marks = [run.full for run in runs for _ in range(run.cells)]
        for sm, full in enumerate(marks):
            found[sm] += full * (numbers[-1] - numbers[0] + 1)
    return found


@pytest.mark.parametrize(
    ("shape", "config"),
    [
        ((4096, 7168, 2048), Config()),
        ((4096, 7168, 2048), Config(block_m=256, stages=3, multicast="a")),
        ((4096, 576, 7168), Config(block_n=144)),
        ((64, 512, 4096), Config(block_m=64, block_n=64, consumers=1, split_k=4)),
        ((8192, 32768, 512), Config()),
    ],
    ids=str,
)
def test_the_waves_are_those_of_the_scheduler(shape, config):
    kernel = lower(FP8, config)
    ctas = grid(kernel, shape, H200.sms)
    e = explain(FP8, config, shape, "given", ctas=ctas)
    walk = partial(order, kernel.scheduler, kernel.block, kernel.cluster, shape, ctas)
    counts = [sum(1 for _ in walk(cta)) for cta in range(ctas)]
    drawn = tiles_per_sm(waves(e))
    assert drawn == counts + [0] * (H200.sms - ctas)
    assert waves(e).note.startswith(f"{drawn.count(max(drawn))} SMs compute {max(drawn)} tile")


# ---- pages --------------------------------------------------------------------------------


def test_the_verdict_comes_first(capsys):
    argv = ["explain", "fp8_block", "-m", "512", "-n", "512", "-k", "1024"]
    assert main(argv) == 0
    lines = capsys.readouterr().out.splitlines()
    e = explained(FP8, (512, 512, 1024))
    v = verdict(e)
    says = (
        f"{v.share:.0%} of the time: {v.seconds * 1e6:.2f} us modelled, "
        f"{v.seconds / v.floor:.2f} times the floor."
    )
    assert not lines[1] and lines[2].startswith("Bound by ") and lines[2].endswith(says)
    assert main([*argv, "--json"]) == 0
    data = json.loads(capsys.readouterr().out)["verdict"]
    assert data == to_json(e)["verdict"] and data["says"] == lines[2]
    assert sum(data["waits_seconds"].values()) == pytest.approx(v.seconds)
    assert data["floor_seconds"] == v.floor and data["try"] == v.advice
    document = html.render(page(e))
    assert document.index(data["says"]) < document.index("<table")


def test_report_begins_with_it(capsys):
    argv = ("-m", "512", "-n", "512", "-k", "1024")
    assert main(["report", "fp8_block/base", *argv]) == 0
    out = capsys.readouterr().out
    assert 0 < out.index("Bound by ") < out.index("Problem") < out.index("Registers per thread")


def test_bars_are_as_long_as_they_say():
    t = Table(
        title="T",
        columns=("a", "us"),
        rows=(("x", "4"), ("y", "1"), ("z", "-1")),
        lengths=(4, 1, -1),
    )
    assert t.bars == (1.0, 0.25, 0.0)
    document = html.render(Page(title="P", blocks=(t,)))
    assert re.findall(r"width: ([\d.]+)%", document.partition("<table>")[2]) == [
        "100.00",
        "25.00",
        "0.00",
    ]
    lines = text.render(Page(title="P", blocks=(t,))).splitlines()[4:]
    assert [line.count("#") for line in lines] == [16, 4, 0]
    assert lines[0] == f"  x   4  {'#' * 16}"


def test_bars_of_an_explanation():
    e = explained(FP8, (4096, 7168, 2048))
    _, time, losses, _, runners = blocks(e)
    assert time.lengths == (*e.terms.added.values(), e.cost.seconds)
    assert runners.lengths == (e.cost.seconds, *(r.choice.cost.seconds for r in e.runners_up))
    assert sum(losses.lengths) == pytest.approx(e.cost.seconds, rel=1e-3)
    prices = [cost(FP8, r.choice.config, (4096, 7168, 2048), H200) for r in e.runners_up]
    assert [f"{c.seconds * 1e6:.2f}" for c in prices] == [row[1] for row in runners.rows[1:]]


def test_strips_as_text():
    def runs(busy):
        return (
            Run(cells=busy, mark="#", full=True, tip=""),
            Run(cells=132 - busy, mark=".", full=False, tip=""),
        )

    s = Strips(
        title="T",
        across=132,
        rows=(("one", runs(132)[:1]), ("two", runs(30))),
        legend=(("#", True, "busy"),),
    )
    one, two, legend = text.strips(s, 100)
    assert one == f"  one  {'#' * 66}" and two == f"  two  {'#' * 15}{'.' * 51}"
    assert legend == "  # busy; 2 to a letter"


def test_the_docs_show_what_the_command_says(monkeypatch, capsys):
    monkeypatch.delenv("GEMMGEN_TUNED")
    said = (ROOT / "docs/seeing.md").read_text()
    shown = re.search(r"```text\n(Bound by .*?)```", said, re.S)
    assert shown and main(["explain", "fp8_block", "-m", "4096", "-n", "7168", "-k", "2048"]) == 0
    assert shown[1] in capsys.readouterr().out
