"""Two timelines on one axis, of a file or of another config; and the zoom of a page."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from docs.tools.faults import faults
from gemmgen.cli import main
from gemmgen.cli.simulated import simulated
from gemmgen.config import Config
from gemmgen.errors import ArgumentError
from gemmgen.ir.dtypes import E4M3
from gemmgen.pipeline import lower
from gemmgen.problem import Problem
from gemmgen.see import html, traced
from gemmgen.see.beside import merged
from gemmgen.see.chrome_trace import chrome_trace
from gemmgen.see.page import Bar, Lane, Lanes, Page
from gemmgen.see.timeline_lanes import lanes
from gemmgen.see.zoom import SCRIPT
from gemmgen.target import H200

FP8 = Problem(family="fp8_block", a=E4M3, b=E4M3)
SHAPE = (256, 256, 512)
ARGS = ("timeline", "fp8_block/base", "-m", "256", "-n", "256", "-k", "512", "--sms", "4")


def timeline(config):
    return simulated(FP8, config, lower(FP8, config), SHAPE, 4)[0]


@pytest.fixture(scope="module")
def shown():
    return timeline(Config(stages=5))


@pytest.fixture
def trace(tmp_path, shown):
    file = tmp_path / "t.json"
    file.write_text(chrome_trace(shown, H200.clock_hz))
    return file


def bars(picture):
    return {
        x.name: [(b.start, b.end, b.mark, b.hue, b.label) for b in x.bars] for x in picture.lanes
    }


@pytest.mark.parametrize("config", [Config(stages=5), Config(split_k=4, block_m=64, consumers=1)])
@pytest.mark.parametrize("part", [(0, 1), (0.25, 0.5)])
def test_a_trace_reads_back(tmp_path, config, part):
    """As the picture that it was written beside; a cycle may be lost to the trace's microseconds."""
    t = timeline(config)
    file = tmp_path / "t.json"
    file.write_text(chrome_trace(t, H200.clock_hz))
    found = traced.read(file, "--beside")
    assert (found.end, found.kernel, found.source) == (t.end, t.program.kernel.name, "simulated")
    start, end = (round(t.end * x) for x in part)
    own, back = lanes(t, "T", start, end), traced.lanes(found, "T", start, end)
    assert bars(back) == bars(own) and back.legend == own.legend


def test_of_a_trace_that_has_both_the_measured_is_read(tmp_path, trace):
    data = json.loads(trace.read_text())
    data["otherData"]["measured_clock_hz"] = 2 * H200.clock_hz
    events = data["traceEvents"]
    theirs = [json.loads(json.dumps(e)) | {"pid": 1} for e in events]
    for e in theirs:
        if e["name"] == "process_name":
            e["args"]["name"] = "measured CTA 0"
        if e["ph"] == "X":
            e["args"]["cycles"] *= 2
    data["traceEvents"] = events + theirs
    trace.write_text(json.dumps(data))
    found, alone = traced.read(trace, "--beside"), json.loads(trace.read_text())
    assert found.source == "measured" and alone["otherData"]["source"] == "simulated, not timed"
    starts = sorted(b.start for _, line in found.lanes for b, _ in line)
    once = sorted(round(e["ts"] * H200.clock_hz / 1e6) for e in events if e["ph"] == "X")
    assert all(abs(a - 2 * b) <= 1 for a, b in zip(starts, once, strict=True))


def picture(name, start, end, begin):
    bar = Bar(start=begin, end=end, mark="a", hue=0, label="", tip="")
    lane = Lane(name=name, bars=(bar,))
    return Lanes(
        title="T", start=start, end=end, unit="cycles", lanes=(lane,), legend=(("a", 0, name),)
    )


def test_two_pictures_are_one():
    both = merged(picture("x", 0, 10, 3), picture("x", 0, 20, 5), ("this", "other"), "N")
    assert (both.start, both.end, both.note) == (0, 20, "N") and len(both.legend) == 1
    assert [(x.name, x.bars[0].start) for x in both.lanes] == [("x, this", 3), ("x, other", 5)]
    apart = merged(picture("x", 0, 10, 3), picture("y", 0, 9, 5), ("this", "other"), "N")
    assert [x.name for x in apart.lanes] == ["x, this", "y, other"]


def test_another_config(capsys):
    assert main([*ARGS, "--beside", "block_n=64", "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    other = timeline(replace(Config(stages=5), block_n=64))
    assert figures["beside"] == {"name": "128x64 2wg 5st m8", "cycles": other.end}
    assert main([*ARGS, "--beside", "block_n=64"]) == 0
    out = capsys.readouterr().out
    assert f"0 to {max(other.end, figures['cycles']):,}, " in out
    assert "consumer 0, this" in out and "consumer 0, other" in out


def test_a_file(capsys, trace, shown):
    assert main([*ARGS, "--beside", str(trace)]) == 0
    out = capsys.readouterr().out
    assert "consumer 0, simulated" in out and f"{shown.end:,} SM cycles, 100.0% of" in out


@pytest.mark.parametrize(
    "text", ["", "[]", '{"otherData": {"generator": "x"}, "traceEvents": []}', "{}", None]
)
def test_what_is_no_trace(tmp_path, text):
    file = tmp_path / "x.json"
    if text is not None:
        file.write_text(text)
    with pytest.raises(ArgumentError, match="--trace` wrote") as e:
        traced.read(file, "--beside")
    assert e.value.argument == "--beside" and e.value.value == str(file)


@pytest.mark.parametrize(
    ("cut", "put"),
    [
        ('"cycles": ', '"cycles": -'),
        ('"ts": ', '"ts": 1e999, "x": '),
        ('"cat": "wait", ', '"cat": "rest", '),
        ('"traceEvents": [', '"traceEvents": ' + "[" * 100_000),
    ],
)
def test_what_is_no_longer_a_trace(trace, cut, put):
    text = trace.read_text()
    assert cut in text
    trace.write_text(text.replace(cut, put, 1))
    with pytest.raises(ArgumentError, match="--trace` wrote"):
        traced.read(trace, "--beside")


def test_wrong_arguments(capsys, tmp_path):
    assert main([*ARGS, "--beside", "block_n=64", "--device", "emulator"]) == 2
    assert "--beside" in capsys.readouterr().err
    assert main([*ARGS, "--beside", "block_q=64"]) == 2
    assert "block_q" in capsys.readouterr().err


# ---- zoom -----------------------------------------------------------------------------------

PLACES = """(() => { const s = document.querySelector(".zoomed svg"), bars = [...s.querySelectorAll(".plane rect")];
return {left: +s.querySelector(".plane").dataset.left, wide: +s.getAttribute("width"),
  bars: bars.map(b => [+b.getAttribute("x"), +b.getAttribute("width")]),
  words: s.querySelectorAll(".plane text").length,
  ticks: [...s.querySelectorAll(".tick")].map(t => +t.getAttribute("d").slice(1).split(" ")[0]).sort((a, b) => a - b),
  names: s.querySelector(".names text").getBoundingClientRect().left,
  says: document.querySelector(".tools output").textContent}; })()"""


@pytest.fixture
def opened(tab, tmp_path, shown):
    picture = lanes(shown, "All of it", 0, shown.end)
    file = tmp_path / "page.html"
    file.write_text(html.render(Page(title="P", blocks=(picture,))))
    tab.scheme(False)
    tab.resize(1400)
    tab.open(file.as_uri())
    return tab


def zoomed(before, after, by):
    left = before["left"]
    for (x, wide), (to, now) in zip(before["bars"], after["bars"], strict=True):
        assert to == pytest.approx(left + (x - left) * by, abs=0.01)
        assert now == pytest.approx(wide * by, abs=0.01)
    return after["says"] == f"{by} x"


def test_buttons_keys_and_the_wheel_zoom(opened):
    first = opened.run(PLACES)
    opened.run("document.querySelectorAll('.tools button')[0].click()")
    twice = opened.run(PLACES)
    assert zoomed(first, twice, 2) and twice["words"] > first["words"]
    assert twice["names"] == pytest.approx(first["names"], abs=1), "names of lines stay"
    key = "new KeyboardEvent('keydown', {key: '%s', bubbles: true, cancelable: true})"
    opened.run(f"document.querySelector('.zoomed').dispatchEvent({key % '+'})")
    four = opened.run(PLACES)
    assert zoomed(first, four, 4) and len(four["ticks"]) > len(first["ticks"])
    wheel = "new WheelEvent('wheel', {deltaY: %d, ctrlKey: %s, bubbles: true, cancelable: true})"
    box = "document.querySelector('.zoomed').dispatchEvent"
    opened.run(f"{box}({wheel % (100, 'false')})")
    assert opened.run(PLACES) == four, "the wheel alone scrolls"
    opened.run(f"{box}({wheel % (100, 'true')})")
    assert zoomed(first, opened.run(PLACES), 2)
    opened.run(f"{box}({wheel % (-100, 'true')})")
    opened.run("document.querySelectorAll('.tools button')[1].click()")
    assert zoomed(first, opened.run(PLACES), 2)
    opened.run("document.querySelectorAll('.tools button')[2].click()")
    assert zoomed(first, opened.run(PLACES), 1)
    assert opened.run(PLACES)["wide"] == pytest.approx(first["wide"], abs=0.1)


def test_two_on_a_page_have_no_faults(tab, tmp_path, trace, capsys):
    page = tmp_path / "page.html"
    assert main([*ARGS, "--beside", str(trace), "--html", str(page)]) == 0
    assert page.read_text().count(SCRIPT) == 1
    assert faults(tab, page.as_uri(), tmp_path.as_uri()) == []
