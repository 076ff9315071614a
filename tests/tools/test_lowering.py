"""`gemmgen show --level trace`: what each pass changes in the IR, and why."""

from __future__ import annotations

import inspect
import json
import re
import sys

import pytest
from test_explain import check_html

from gemmgen.cli import main
from gemmgen.config import Config
from gemmgen.errors import IllegalConfig
from gemmgen.gallery import GALLERY, artifact, exhibit, path_of
from gemmgen.ir.dtypes import E4M3
from gemmgen.ir.text import dump
from gemmgen.passes import PIPELINE, RULES
from gemmgen.problem import Problem
from gemmgen.see import html
from gemmgen.see.lowering import lowering, page
from gemmgen.see.page import Facts, Listing, Table

HUNK = re.compile(r"@@ -(\d+)(?:,(\d+))? \+\d+(?:,\d+)? @@")
TALL = Config(block_m=256, block_n=256)


def patched(lines, diff):
    """`lines` with a unified diff applied: its context and what it removes must be there."""
    out, at = [], 0
    for line in diff:
        if found := HUNK.match(line):
            start = int(found[1]) - (found[2] != "0")
            out, at = [*out, *lines[at:start]], start
        elif line[0] == "+":
            out.append(line[1:])
        else:
            assert lines[at] == line[1:]
            out += [line[1:]] * (line[0] == " ")
            at += 1
    return [*out, *lines[at:]]


@pytest.mark.parametrize("e", GALLERY, ids=path_of)
def test_the_diffs_lead_from_the_family_to_the_lowered_kernel(e):
    found = lowering(e.problem, e.config)
    lines = list(found.built)
    for step in found.steps:
        lines = patched(lines, step.diff)
    assert lines == dump(artifact(e).kernel).splitlines() and found.refused is None
    assert [s.name for s in found.steps] == [p.name for p in PIPELINE]


def test_every_pass_says_why_and_what_it_may_refuse():
    found = lowering(exhibit("fp8_block/base").problem, Config())
    assert [r for s in found.steps for r in s.rules] == list(RULES)
    for step, run in zip(found.steps, PIPELINE, strict=True):
        assert step.decides == " ".join(sys.modules[run.by.__module__].__doc__.split())
        assert step.does == " ".join(inspect.getdoc(run.by).split()) and "\n" not in step.does
    assert found.family.decides and found.family.does


def test_the_page_shows_what_changed_alone():
    e = exhibit("fp8_block/two_wave_multicast_a")
    found = lowering(e.problem, e.config)
    shown = page("K", found)
    facts, table, built, *changes = shown.blocks
    assert isinstance(table, Table) and len(table.rows) == len(PIPELINE)
    assert built.folded and all(isinstance(c, Listing) and c.diff and c.lines for c in changes)
    assert [c.title.split(":")[0] for c in changes] == [s.name for s in found.steps if s.diff]
    (multicast,) = (c for c in changes if c.title.startswith("plan_multicast"))
    assert any(line.startswith("+") and "to=cluster" in line for line in multicast.lines)
    assert {row[0]: row[1:3] for row in table.rows}["check_tile"] == ("", "")
    assert isinstance(facts, Facts) and f"{len(changes)} changed" in dict(facts.items)["passes"]
    document = html.render(shown)
    check_html(document)
    assert document.count("<ins>") == sum(line.startswith("+") for c in changes for line in c.lines)


def test_an_illegal_config_is_shown_up_to_the_pass_that_refuses_it():
    found = lowering(Problem(family="fp8_block", a=E4M3, b=E4M3), TALL)
    assert isinstance(found.refused, IllegalConfig)
    last = found.steps[-1]
    assert found.refused.rule in last.rules and not last.diff
    facts, table, *_ = page("K", found).blocks
    assert dict(facts.items)["refused"].startswith(f"by {last.name}: [{found.refused.rule.id}]")
    assert table.rows[table.marked][0] == last.name


# ---- the command --------------------------------------------------------------------------


def test_command(capsys, tmp_path):
    assert main(["show", "dense", "--level", "trace", "--color", "always"]) == 0
    out = capsys.readouterr().out
    assert "\x1b[32m+" in out and "assign_swizzle: " in out
    file = tmp_path / "t.html"
    assert main(["show", "dense", "--level", "trace", "--html", str(file)]) == 0
    assert capsys.readouterr().out.strip() == str(file)
    check_html(file.read_text())
    assert main(["show", "dense", "--level", "trace", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["title"] == "Lowering of dense"


def test_command_shows_what_is_refused_and_fails(capsys, tmp_path):
    tall = ("--set", "block_m=256", "--set", "block_n=256", "--level", "trace")
    file = tmp_path / "t.html"
    assert main(["show", "fp8_block", *tall, "--html", str(file)]) == 2
    assert "refused" in file.read_text() and "gemmgen: GG-S001-" in capsys.readouterr().err
    for more in ((), ("--html", str(file))):
        assert main(["show", "fp8_block", *tall, "--json", *more]) == 2
        assert "rule" in json.loads(capsys.readouterr().out)["error"]


@pytest.mark.parametrize("level", ("ir", "cu"))
def test_other_levels_as_pages(capsys, tmp_path, level):
    file = tmp_path / "k.html"
    assert main(["show", "fp8_block/base", "--level", level, "--html", str(file)]) == 0
    document = file.read_text()
    check_html(document)
    a = artifact(exhibit("fp8_block/base"))
    assert a.name in document and ("&lt;" in document) == (level == "cu")
    file.write_text("mine")
    assert main(["show", "fp8_block/base", "--html", str(file)]) == 2 and file.read_text() == "mine"
