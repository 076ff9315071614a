"""The ten steps: pages and pictures are what the code makes, figures are what can be taken again."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise

import pytest

from docs.tools import figures, measure, screenshots, ten_steps
from docs.tools.steps import LARGE, SCALED, STEPS, pairs
from gemmgen.bench.timing import Samples
from gemmgen.heuristics import choose
from gemmgen.pipeline import compile_to_source, lower
from gemmgen.target import H200

PAIRS = pairs()
HELD = json.loads(figures.FILE.read_text())["steps"]


def slug(pair):
    return pair.step.slug


def test_there_are_ten():
    assert len(PAIRS) == 10 and [*HELD] == [p.step.slug for p in PAIRS]


@pytest.mark.parametrize("pair", PAIRS, ids=slug)
def test_each_step_changes_the_kernel(pair):
    """Proved before and after, and different."""
    after = compile_to_source(pair.after.problem, pair.after.config)
    if pair.before is not None:
        before = lower(pair.before.problem, pair.before.config)
        assert before != after.kernel


def test_each_step_stands_on_the_one_before():
    for one, other in pairwise(PAIRS):
        assert other.before == replace(one.after, shape=other.after.shape)


@pytest.mark.parametrize("language", ten_steps.pages())
def test_pages_are_current(language):
    """`python -m docs.tools.ten_steps` writes them."""
    page = ten_steps.pages()[language].read_text()
    assert ten_steps.filled(page, language) == page
    assert "<!-- summary: all -->" in page
    for kind in ("step", "figures"):
        assert [f"<!-- {kind}: {s.slug} -->" in page for s in STEPS] == [True] * len(STEPS)


def test_pictures_are_current():
    made = ten_steps.pictures()
    assert {p.name for p in ten_steps.PICTURES.iterdir()} == {*made, *screenshots.files()}
    assert not [name for name, t in made.items() if (ten_steps.PICTURES / name).read_text() != t]


@pytest.mark.parametrize("pair", PAIRS, ids=slug)
def test_counted_figures_are_current(pair):
    """`python -m docs.tools.figures` takes them; those of NVRTC and the emulator it only keeps."""
    for which, kernel in (("before", pair.before), ("after", pair.after)):
        if kernel is not None:
            counted = figures.counted(kernel)
            assert {k: HELD[slug(pair)][which][k] for k in counted} == counted


def test_kernels_were_executed_without_spills():
    taken = [of[which] for of in HELD.values() for which in of if of[which]]
    assert all(of["spill_bytes"] == 0 and of["instructions_consumer"] > 0 for of in taken)


def test_ninth_step_is_what_the_heuristics_choose():
    """The page says so: tile, ring and cluster, and a peek in place of the unrolled loop; the swizzles are
    those that would be chosen."""
    chosen = choose(SCALED, LARGE, H200)
    ninth = PAIRS[8].after.config
    assert (ninth.unroll, ninth.peek) == (4, False)
    peeking = replace(ninth, unroll=1, peek=True)
    assert replace(peeking, swizzle_ab=None, swizzle_d=None) == chosen
    one, other = (lower(SCALED, c) for c in (peeking, chosen))
    assert replace(one, name=other.name) == other


# ---- what a GPU measures ------------------------------------------------------------------


def timed(same):
    """Every kernel takes as many microseconds as it has stages."""
    assert len({k.shape for k in same}) == 1
    return {
        k: Samples(seconds=(k.config.stages * 1e-6,) * 3, kernels=("k",), main="k") for k in same
    }


def test_report_has_every_step():
    made = measure.report("a GPU", 3, timed)
    assert made["gpu"] == "a GPU" and [*made["steps"]] == [s.slug for s in STEPS]
    assert made["steps"]["least"] == {"after": {"us": 1.0, "spread": 0.0}}
    assert made["steps"]["pipeline"]["before"]["us"] == 1.0
    assert made["steps"]["pipeline"]["after"]["us"] == 4.0


def test_report_times_kernels_once_and_by_shape():
    asked = []

    def counting(same):
        asked.append(same)
        return timed(same)

    measure.report("a GPU", 3, counting)
    assert [len(same) for same in asked] == [9, 2]
    assert len({k for same in asked for k in same}) == 11


def test_page_takes_measured_times(tmp_path, monkeypatch):
    """Without a measurement the page says so; with one it has its numbers and the GPU's name."""
    monkeypatch.setattr(ten_steps, "MEASURED", tmp_path / "gpu.json")
    assert "not measured yet" in ten_steps.figures(PAIRS[2], "en")
    (tmp_path / "gpu.json").write_text(json.dumps(measure.report("NVIDIA H200", 3, timed)))
    table = ten_steps.figures(PAIRS[2], "en")
    assert "not measured yet" not in table
    assert ten_steps.summary("en").splitlines()[4].endswith("| 132.9 | 4.0 |")
    assert table.splitlines()[-1] == "| time, µs | 1.0 | 4.0 | NVIDIA H200 |"
