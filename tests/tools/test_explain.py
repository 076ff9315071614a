"""`gemmgen explain`: every number is the passes', the cost model's or the heuristics'; the pages hold them."""

from __future__ import annotations

import json
import re
import resource
import subprocess
import sys
from dataclasses import asdict, replace
from html.parser import HTMLParser
from itertools import pairwise

import pytest

from gemmgen.cli import main
from gemmgen.config import Config
from gemmgen.cost import cost, dram_bytes, terms
from gemmgen.cost_link import pays
from gemmgen.errors import ArgumentError, IllegalConfig
from gemmgen.gallery import GALLERY
from gemmgen.heuristics import candidates, rank, verdicts
from gemmgen.heuristics.database import Row, Timed, to_text
from gemmgen.heuristics.tuned import forget, pick
from gemmgen.ir.dtypes import BF16, E4M3, F32
from gemmgen.ir.text import smem_map
from gemmgen.pipeline import lower
from gemmgen.problem import Problem
from gemmgen.see import html, text
from gemmgen.see.explain import Explanation, explain
from gemmgen.see.explain_json import to_json
from gemmgen.see.explain_page import page
from gemmgen.see.page import Facts, Page, Table, scaled
from gemmgen.see.spelling import spelled, tile
from gemmgen.see.verdict import TERMS, verdict
from gemmgen.target import H200

FP8 = Problem(family="fp8_block", a=E4M3, b=E4M3)
DENSE = Problem(family="dense", a=BF16, b=BF16)
SHAPES = ((4096, 7168, 2048), (64, 2112, 7168), (1, 576, 7168), (100, 777, 1000))


@pytest.fixture(autouse=True)
def no_database(monkeypatch):
    monkeypatch.setenv("GEMMGEN_TUNED", "none")


def explained(problem: Problem, shape, **options) -> Explanation:
    config = options.pop("config", None) or pick(problem, shape).config
    return explain(problem, config, shape, "cost model", **options)


# ---- one source ---------------------------------------------------------------------------


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("problem", (FP8, DENSE), ids=lambda p: p.family)
def test_numbers_are_those_of_the_compiler(problem, shape):
    e = explained(problem, shape, top=3)
    kernel = lower(problem, e.config)
    assert e.kernel == kernel
    assert e.cost == cost(problem, e.config, shape, H200)
    assert e.terms.seconds == e.cost.seconds and e.terms.waves == e.cost.waves
    assert sum(e.terms.added.values()) == pytest.approx(e.cost.seconds, rel=1e-12)
    assert sum(e.floor.bytes.values()) == dram_bytes(problem, shape)
    best, *others = rank(problem, shape, H200, limit=4)
    assert best.config == e.config
    assert [r.choice for r in e.runners_up] == others
    data = to_json(e)
    assert [(x["offset"], x["offset"] + x["bytes"], x["what"]) for x in data["smem"]] == smem_map(
        kernel
    )
    assert data["smem_bytes"] == kernel.smem_bytes
    assert data["registers"] == {r.name: r.registers for r in kernel.roles}
    assert sum(data["terms"].values()) == pytest.approx(data["seconds"], rel=1e-12)


def test_differences_add_up_to_the_difference_of_prices():
    e = explained(FP8, (4096, 7168, 2048))
    assert len(e.runners_up) == 5
    for r in e.runners_up:
        by = sum(seconds for _, seconds in r.differences)
        assert by == pytest.approx(r.choice.cost.seconds - e.cost.seconds, abs=1e-15)
        sizes = [abs(seconds) for _, seconds in r.differences]
        assert sizes == sorted(sizes, reverse=True)


def test_refusals_are_what_the_passes_say():
    e = explained(FP8, (4096, 7168, 2048))
    assert {r.error.rule.id for r in e.refusals if r.error} == {
        "scale-blocks",
        "register-budget",
        "launch-registers",
    }
    for r in e.refusals:
        with pytest.raises(IllegalConfig) as raised:
            lower(FP8, r.config)
        assert (raised.value.rule, raised.value.values, raised.value.fix) == (
            r.error.rule,
            r.error.values,
            r.error.fix,
        )
    found = verdicts(FP8, (4096, 7168, 2048), H200, limit=6)
    assert e.judged == len(found)
    assert sum(r.candidates for r in e.refusals) + 6 == len(found)


def test_floors():
    e = explained(DENSE, (4096, 4096, 4096))
    assert e.floor.flops == 2 * 4096**3
    assert e.floor.tensor == pytest.approx(2 * 4096**3 / (132 * 4096 * 1.755e9))
    assert e.floor.hbm == pytest.approx(3 * 2 * 4096**2 / 4.8e12)
    assert e.cost.seconds > max(e.floor.tensor, e.floor.hbm)
    three = explained(replace(DENSE, grouping="batched"), (512, 512, 512), groups=3)
    assert three.floor.flops == 3 * 2 * 512**3 and three.floor.bytes["a"] == 3 * 2 * 512**2


def test_panels_begin_with_the_config_s_own():
    e = explained(FP8, (4096, 7168, 2048), config=Config(block_m=256, stages=3, panel=2))
    own, *others = e.panels
    assert (own.raster, own.panel) == ("m", 2)
    # 132 tiles are one panel, two tiles high and all 56 wide, and 20 tiles of the next.
    assert (own.a_rows, own.b_rows) == (3 * 256, 56 * 128)
    assert own.bytes == (3 * 256 + 7168) * 2048
    assert len(others) == 6


# ---- why not ------------------------------------------------------------------------------


def test_why_not_an_illegal_config():
    e = explained(FP8, (4096, 7168, 2048), why_not={"block_m": 256, "block_n": 256})
    assert e.why_not and e.why_not.verdict.refused
    assert e.why_not.verdict.refused.rule.id == "smem-capacity"
    assert e.why_not.verdict.choice is None and e.why_not.candidate
    lines = text.render(page(e))
    assert "no: smem-capacity" in lines and "bytes=264224, capacity=232448" in lines


def test_why_not_a_legal_config_takes_the_stages_that_fit():
    e = explained(FP8, (4096, 7168, 2048), why_not={"block_m": 128, "block_n": 64})
    assert e.why_not
    choice = e.why_not.verdict.choice
    assert e.why_not.candidate and choice and choice.config.stages == 8
    by = sum(seconds for _, seconds in e.why_not.differences)
    assert by == pytest.approx(choice.cost.seconds - e.cost.seconds, abs=1e-15)


def test_why_not_with_stages_takes_those():
    e = explained(FP8, (4096, 7168, 2048), why_not={"stages": 9})
    assert e.why_not and e.why_not.verdict.refused
    assert e.why_not.verdict.refused.rule.id == "smem-capacity"
    legal = explained(FP8, (4096, 7168, 2048), why_not={"stages": 2})
    assert legal.why_not and legal.why_not.verdict.choice
    assert legal.why_not.verdict.choice.config.stages == 2


def test_why_not_too_few_stages():
    changes = {"block_n": 256, "block_m": 128, "consumers": 2, "multicast": "none"}
    changes |= {"ping_pong": False, "d_columns": None}
    e = explained(replace(DENSE, d=F32), (4096, 4096, 4096), why_not=changes)
    assert e.why_not and not e.why_not.verdict.choice and e.why_not.candidate
    assert e.why_not.verdict.refused is None
    assert "too few stages" in text.render(page(e))


def _sides(c: Config) -> tuple[object, ...]:
    return c.block_m, c.block_n, c.consumers, c.multicast, c.swap_ab


def test_why_not_ping_pong():
    """Named, and no candidate because another is of its tile whose warpgroups share it."""
    config = Config(block_n=128, in_flight=1, unroll=4)
    shape = (4096, 4096, 4096)
    e = explained(DENSE, shape, config=config, why_not={"ping_pong": True})
    assert e.why_not and e.why_not.verdict.choice and e.why_not.verdict.choice.config.ping_pong
    weighed = list(candidates(DENSE, shape, H200, 1, shape[0]))
    alike = {c.ping_pong for c in weighed if _sides(c) == _sides(config)}
    assert False in alike and e.why_not.candidate == (True in alike)
    assert "Why not 128x128 2wg 5st m8 u4 in flight ping-pong" in text.render(page(e))
    assert spelled(config) == "128x128 2wg 4st m8 u4 in flight"
    assert spelled(replace(config, ping_pong=True)) == "128x128 2wg 4st m8 u4 in flight ping-pong"
    assert tile(replace(config, ping_pong=True)) == "128x128 2wg ping-pong"


def test_why_not_an_unknown_field():
    with pytest.raises(ArgumentError) as e:
        explained(FP8, (64, 64, 128), why_not={"tile": 3})
    assert e.value.argument == "tile"


# ---- where it comes from ------------------------------------------------------------------


def test_a_measured_row_is_shown(monkeypatch, tmp_path):
    shape, config = (512, 2048, 2048), Config(block_m=128, block_n=128, stages=5)
    timed = Timed(config=config, seconds=7.25e-6, predicted=7e-6)
    default = replace(timed, seconds=8.5e-6)
    row = Row(
        problem=FP8,
        groups=1,
        shape=shape,
        device=H200.device_name,
        nvrtc=(13, 0),
        best=timed,
        spread=0.01,
        default=default,
    )
    file = tmp_path / "tuned.jsonl"
    file.write_text(to_text([row]))
    monkeypatch.setenv("GEMMGEN_TUNED", str(file))
    forget()
    picked = pick(FP8, shape)
    e = explain(FP8, picked.config, shape, picked.source(shape))
    assert e.measured == row and e.source == "tuned"
    lines = text.render(page(e))
    assert "7.25 us at 512x2048x2048" in lines and "choice there 8.50 us" in lines
    assert to_json(e)["measured_seconds"] == 7.25e-6
    other = explain(FP8, replace(config, stages=4), shape, "given")
    assert other.measured is None


# ---- pages --------------------------------------------------------------------------------


@pytest.mark.parametrize("exhibit", GALLERY[::7], ids=lambda e: e.name)
def test_the_text_fits_a_terminal(exhibit):
    groups = 1 if exhibit.problem.grouping == "none" else 4
    e = explain(
        exhibit.problem, exhibit.config, (512, 2048, 4096), "gallery", groups=groups, why_not={}
    )
    lines = text.render(page(e)).splitlines()
    assert max(len(line) for line in lines[1:]) <= 100
    assert all(line == line.rstrip() for line in lines)


def test_text_of_a_table():
    t = Table(title="T", columns=("name", "us"), rows=(("a", "1.5"), ("bc", "22")), marked=1)
    assert text.render(Page(title="P", blocks=(t,))).splitlines() == [
        *("P", "", "T"),
        "  name   us",
        "  a     1.5",
        "* bc     22",
    ]


def test_long_cells_are_wrapped():
    words = " ".join(["word"] * 40)
    t = Table(title="T", columns=("a", "b"), rows=((words, words),))
    f = Facts(title="F", items=(("a", words),))
    lines = text.render(Page(title="P", blocks=(t, f))).splitlines()
    assert max(map(len, lines)) <= 100 and sum(line.count("word") for line in lines) == 120


@pytest.mark.parametrize(
    "number, words", [(28311552, "28.3 MB"), (999, "999 B"), (1.5e9, "1.5 GB"), (123456, "123 kB")]
)
def test_scaled(number, words):
    assert scaled(number, "B") == words


VOID = {"meta"}


class Checker(HTMLParser):
    """Tags close in order; ids and what refers to them; what would be fetched."""

    def __init__(self):
        super().__init__()
        self.open, self.tags, self.ids, self.labels, self.fetched = [], [], set(), set(), []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        found = dict(attrs)
        self.ids |= {found["id"]} if "id" in found else set()
        self.labels |= {found["aria-labelledby"]} if "aria-labelledby" in found else set()
        sources = [found[x] for x in ("src", "href", "xlink:href") if x in found]
        self.fetched += [x for x in sources if not x.startswith("#")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def check_html(document: str) -> Checker:
    """Well formed, self-contained, with a language, one heading of level 1 and labelled sections."""
    checker = Checker()
    checker.feed(document)
    assert not checker.open and not checker.fetched
    assert not {"link", "img", "iframe"} & set(checker.tags)
    assert checker.tags.count("script") == ('class="wide zoomed"' in document), "but to zoom"
    assert '<html lang="en">' in document and checker.tags.count("h1") == 1
    levels = [int(tag[1]) for tag in checker.tags if re.fullmatch(r"h[1-6]", tag)]
    assert levels[0] == 1 and all(b - a <= 1 for a, b in pairwise(levels)), "no level is skipped"
    assert checker.labels <= checker.ids and checker.tags.count("section") >= 1
    assert "url(" not in document and "@import" not in document
    assert "prefers-color-scheme: dark" in document and "color-scheme: light dark" in document
    return checker


def test_html_is_one_accessible_page():
    e = explained(FP8, (4096, 7168, 2048), why_not={"block_n": 256})
    document = html.render(page(e))
    checker = check_html(document)
    assert checker.tags.count("section") == len(page(e).blocks)
    for block in page(e).blocks:
        if isinstance(block, Table):
            assert block.note.replace("'", "&#x27;") in document


def luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("scheme", (0, 1), ids=("light", "dark"))
def test_colours_contrast(scheme):
    """WCAG 2.1 AA: 4.5 for text."""
    of = {
        name: re.findall(rf"--{name}: (#\w+)", html.STYLE)[scheme]
        for name in ("ink", "paper", "faint", "mark")
    }
    assert contrast(of["ink"], of["paper"]) >= 7 and contrast(of["faint"], of["paper"]) >= 4.5
    assert contrast(of["ink"], of["mark"]) >= 4.5


# ---- the command --------------------------------------------------------------------------


def run(capsys, *argv):
    code = main(["explain", *argv])
    return code, *capsys.readouterr()


def test_command(capsys):
    code, out, _ = run(capsys, "fp8_block", "-m", "4096", "-n", "512", "-k", "512")
    assert code == 0
    titles = ("Choice", "Floors", "Waves", "Modelled time", "Roles", "L2 panels", "Runners-up")
    for title in (*titles, "Refused", "Shared memory", "Registers per thread"):
        assert f"\n{title}" in out


def test_command_json(capsys):
    argv = ("dense", "-m", "100", "-n", "512", "-k", "512", "--top", "2", "--json")
    code, out, _ = run(capsys, *argv, "--why-not", "block_m=64,consumers=1,registers=[24, 240]")
    data = json.loads(out)
    assert code == 0 and len(data["runners_up"]) == 2
    assert data["why_not"]["config"]["registers"] == [24, 240] and not data["why_not"]["legal"]
    assert data["why_not"]["rule"] == "setmaxnreg-direction"


RANKED = ("dense", "-m", "2048", "-n", "7168", "-k", "1024", "--collective")


def test_command_explains_a_collective(capsys):
    """The price of a launch of so many ranks, what they add to it, and whether that pays."""
    code, out, _ = run(capsys, *RANKED, "reduce_scatter", "--wire", "bf16", "--ranks", "4")
    p = replace(DENSE, collective="reduce_scatter", wire=BF16)
    t = terms(p, pick(p, (2048, 7168, 1024), groups=4).config, (2048, 7168, 1024), H200, 4)
    assert code == 0 and "reduce-scatter M=2048 N=7168 K=1024 on 4 x H200" in out
    assert f"{t.link.seconds * 1e6:.2f} us at 386 GB/s one way" in out
    assert "3 other rank(s), sums rounded to bf16" in out
    assert pays(p, (2048, 7168, 1024), 4, H200).reason in " ".join(out.split())
    assert TERMS["link"] in out and TERMS["ranks"] in out


@pytest.mark.parametrize("collective", ("reduce_scatter", "all_gather"))
def test_command_json_of_a_collective(capsys, collective):
    data = json.loads(run(capsys, *RANKED, collective, "--json")[1])
    p = replace(DENSE, collective=collective)
    e = explained(
        p, (2048, 7168, 1024), groups=2, config=pick(p, (2048, 7168, 1024), groups=2).config
    )
    assert data["ranks"] == 2 and data["groups"] == 1
    assert data["link"] == asdict(e.terms.link) and data["payoff"] == asdict(e.payoff)
    assert sum(data["terms"].values()) == pytest.approx(data["seconds"])
    assert set(data["terms"]) >= {"link", "ranks"}
    alone = json.loads(run(capsys, *RANKED, collective, "--ranks", "1", "--json")[1])
    assert alone["link"] is None and alone["payoff"]["pays"] is False
    plain = json.loads(run(capsys, "dense", "--json")[1])
    assert plain["link"] is plain["payoff"] is None and plain["ranks"] == 1


def test_what_ranks_add_is_waited_for_and_lost(capsys):
    for p in (replace(DENSE, collective=x) for x in ("reduce_scatter", "all_gather")):
        e = explained(p, (2048, 7168, 1024), groups=2)
        v = verdict(e)
        assert sum(s for _, s in v.waits) == pytest.approx(v.seconds)
        assert sum(s for _, s in v.losses) == pytest.approx(v.seconds - v.floor)
        assert dict(v.waits)["ranks"] == dict(v.losses)["ranks"] == e.terms.link.beside


def test_command_explains_a_config_given(capsys):
    _, out, _ = run(capsys, "dense", "--config", '{"block_n": 72}', "--set", "stages=3", "--json")
    data = json.loads(out)
    assert data["config_from"] == "given, changed" and data["config"]["block_n"] == 72
    _, out, _ = run(capsys, "fp8_block/base", "--json")
    assert json.loads(out)["config_from"] == "gallery"


def test_command_writes_html(capsys, tmp_path):
    file = tmp_path / "why.html"
    code, out, _ = run(capsys, "fp8_block", "--html", str(file))
    assert code == 0 and out.strip() == str(file)
    check_html(file.read_text())
    file.write_text("mine")
    assert run(capsys, "fp8_block", "--html", str(file))[0] == 2 and file.read_text() == "mine"


@pytest.mark.parametrize(
    "argv, argument",
    [
        (["--top", "0"], "--top"),
        (["--groups", "0"], "--groups"),
        (["--collective", "all_gather", "--ranks", "9"], "--ranks"),
        (["--collective", "all_gather", "--ranks", "0"], "--ranks"),
        (["--collective", "all_gather", "--groups", "2"], "--groups"),
        (["--ranks", "2"], "--ranks"),
        (["--why-not", "block_m"], "--why-not"),
        (["--why-not", "tile=3"], "tile"),
    ],
)
def test_wrong_arguments(capsys, argv, argument):
    code, _, err = run(capsys, "fp8_block", *argv)
    assert code == 2 and f"{argument}=" in err


STEPS = "x = 0\nfor i in range(5_000_000): x += i * i % 7"  # half a second of a CPU on which it answers in one


def cpu(*arguments):
    """Seconds of a CPU that Python takes, of three tries the fewest: others may share this machine."""
    taken = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, *arguments], check=True, capture_output=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        taken.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return min(taken)


def test_answers_in_under_a_second():
    """Of a CPU that goes through STEPS in half of one; of a slower one in proportion."""
    answered = cpu("-m", "gemmgen", "explain", "fp8_block", "--why-not", "block_m=64")
    assert answered < 2 * cpu("-c", STEPS)
