"""Every kind of page in a browser: nothing cut off, nothing over anything, no complaint, every control by keys."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest
from test_docs import commands
from test_report import BENCH

from docs.tools.faults import faults
from gemmgen.cli import COMMANDS, _parser, main
from gemmgen.config import Config
from gemmgen.pipeline import compile_to_source, lower
from gemmgen.problem import Problem
from gemmgen.see.layout_page import VIEWS

SHAPE = ("-m", "512", "-n", "512", "-k", "1024")
WRITES = (".html", ".svg")
SCALED = "fp8_1d1d/wgrad"  # it has every view
# What no command of the docs shows: other kernels, and files that must be there first.
MORE = (
    ("explain", "fp8_block", *SHAPE, "--why-not", "block_n=256", "--html", "page.html"),
    *(("layout", SCALED, view, "--html", "page.html") for view in VIEWS),
    ("timeline", "fp8_block/split_k", *SHAPE, "--html", "page.html"),
    ("show", "fp8_block/masked", "--level", "trace", "--html", "page.html"),
    ("moe", "--explain", "--model", "v3-local", "--tokens", "64", "--svg", "layer.svg"),
    ("moe", "--explain", "--model", "v3-local", "--tokens", "64", "--html", "layer.html"),
    ("report", "fp8_block/base", *SHAPE, "--bench", "bench.json", "-o", "page.html"),
    ("report", "--bench", "bench.json", "-o", "page.html"),
)
PAGES = [argv for argv in (*map(tuple, commands()), *MORE) if argv[-1].endswith(WRITES)]


@pytest.mark.parametrize("argv", PAGES, ids=" ".join)
def test_pages(checkout, tab, capsys, argv):
    (checkout / "bench.json").write_text(json.dumps(BENCH))
    assert main(list(argv)) == 0
    home = checkout.as_uri()
    assert faults(tab, (checkout / argv[-1]).as_uri(), home) == []


CELL = '<div style="overflow: auto" tabindex="0" role="region" aria-label="output">%s</div>'  # as notebooks have it
A_PROBLEM = Problem(family="dense", a="bf16", b="bf16")
SHOWN = (A_PROBLEM, Config(), lower(A_PROBLEM, Config()), compile_to_source(A_PROBLEM, Config()))


@pytest.mark.parametrize("shown", SHOWN, ids=lambda x: type(x).__name__)
def test_what_notebooks_show(tmp_path, tab, shown):
    assert kinds_of(tab, tmp_path, CLEAN % (CELL % shown._repr_html_())) == set()


def test_every_command_that_writes_a_page_is_looked_at():
    """A new one needs a command in the docs."""
    looked = {(argv[0], name) for argv in PAGES for name in argv}
    for command in COMMANDS:
        for action in options(command):
            if "HTML" in (action.help or "") or "svg" in f"{action.option_strings}{action.metavar}":
                assert any((command, name) in looked for name in action.option_strings), action


def options(command: str) -> list[argparse.Action]:
    parser = _parser([command])
    (commands,) = (a for a in parser._actions if isinstance(a, argparse._SubParsersAction))
    return commands.choices[command]._actions


# ---- faults that are planted, so that the tests above can fail ------------------------------

CLEAN = """<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>t</title>
<style>:root { color-scheme: light dark } body { font: 16px DejaVu Sans }</style></head>
<body><h1>Head</h1>%s</body></html>"""
WIDE = '<p style="width: 2000px">wide</p>'
PICTURE = '<svg viewBox="0 0 90 40" width="90" height="40" role="img" aria-label="p" fill="currentColor">%s</svg>'
PLANTED = {
    "wide": WIDE,
    "cut off": '<div style="overflow: hidden; width: 40px; white-space: nowrap">much too long</div>',
    "cut off,": '<div style="overflow-x: clip; width: 40px"><p style="margin-left: -99px">gone</p></div>',
    "cut off,,": '<div style="overflow: hidden; width: 40px">%s</div>' % (PICTURE % ""),
    "cut off, wide": '<p style="position: absolute; left: 1390px; top: 50px">beyond</p>',
    "cut off, ": '<input aria-label="i" value="more than fits in here" style="width: 30px">',
    "scrolls without a name": f'<div style="overflow-x: auto" tabindex="0">{WIDE}<p>{"x" * 300}</p></div>',
    "column scrolls away": '<div style="overflow-x: auto; width: 90px" tabindex="0" role="group" aria-label="t"><table>'
    '<tr><th>first</th><td><b style="display: block; width: 90px">x</b></td></tr></table></div>',
    "overlap": '<p style="margin: 0">first</p><p style="margin: -14px 0">second</p>',
    "overlap,": PICTURE % '<text y="20">abc</text><text x="5" y="22">def</text>',
    "leaves its picture": PICTURE % '<text x="60" y="20">abcdefgh</text>',
    "wider than its cell": PICTURE % '<rect width="20" height="18" fill="Canvas"/><text y="14">abcd</text>',
    "no alternative": '<svg width="9" height="9"></svg>',
    "no alternative,": '<img src="data:image/gif;base64,R0lGODlhAQABAAAAACw=">',
    "console": "<script>throw new Error('mine')</script>",
    "console,": "<script>console.warn('mine')</script>",
    "console, fetched": '<img src="https://example.com/x.png" alt="">',
    "contrast": '<p style="color: #999; background: #fff">faint</p>',
    "contrast,": '<p style="color: #000; background: #fff; opacity: .4">faint</p>',
    "contrast, ": PICTURE % '<rect width="90" height="40" fill="#222"/><text y="14" fill="#000">dark</text>',
    "scheme": "<style>:root { color-scheme: only light }</style>",
    "headings": "<h1>A second</h1>",
    "id twice": '<p id="a">a</p><p id="a">b</p>',
    "no focus style": '<a href="#" style="outline: none">link</a>',
    "focus out of sight": '<a href="#" style="position: fixed; left: -500px; top: 0">link</a>',
    "out of order": '<a href="#" tabindex="0">one</a><a href="#" tabindex="1">two</a>',
    "no key reaches": '<button tabindex="-1">press</button>',
    "for pointers alone": '<span onclick="1">press</span>',
    "for pointers alone,": '<span style="cursor: pointer">press</span>',
    "hidden from readers": '<p aria-hidden="true"><a href="#">link</a></p>',
    "no name": "<input>",
    "no name,": '<button><svg aria-hidden="true" width="9" height="9"></svg></button>',
    "no name,,": '<button><span aria-hidden="true">x</span></button>',
    "no name, ": '<a href="#"><img src="data:image/gif;base64,R0lGODlhAQABAAAAACw=" alt="" width="9" height="9"></a>',
    "no name,, ": '<p id="l"></p><select aria-labelledby="l"><option>one</option></select>',
    "no name, , ": '<div role="slider" aria-valuenow="1" onkeydown="event.preventDefault()" tabindex="0">1</div>',
    "no key works": '<span role="button" tabindex="0">press</span>',
    "no key works,": '<details onkeydown="event.preventDefault()"><summary>more</summary>x</details>',
}  # fmt: skip


@pytest.mark.parametrize("kinds", PLANTED)
def test_what_is_wrong_is_seen(tmp_path, tab, kinds):
    wanted = {kind.strip() for kind in kinds.split(",") if kind.strip()}
    assert kinds_of(tab, tmp_path, CLEAN % PLANTED[kinds]) == wanted


@pytest.mark.parametrize(
    ("kind", "page"),
    (
        ("no language", (CLEAN % "").replace(' lang="en"', "")),
        ("no title", (CLEAN % "").replace("<title>t</title>", "")),
        ("blank, headings", (CLEAN % "").replace("<h1>Head</h1>", "")),
    ),
)
def test_what_a_page_lacks_is_seen(tmp_path, tab, kind, page):
    assert kinds_of(tab, tmp_path, page) == {*kind.split(", ")}


FINE = {
    "scrolls": f'<div style="overflow-x: auto" tabindex="0" role="region" aria-label="r">{WIDE}{"x" * 300}</div>',
    "links that scroll": f'<nav style="overflow-x: auto"><a href="#" style="white-space: nowrap">{"x " * 300}</a></nav>',
    "for readers alone": '<p style="position: absolute; width: 1px; height: 1px; overflow: hidden">words</p>',
    "works": '<span role="button" tabindex="0" onkeydown="event.key == `Enter` && event.preventDefault()">press</span>',
    "on a picture": PICTURE % '<rect width="90" height="40" fill="#222"/><text y="14" fill="#fff">light</text>',
    "label": '<label>name <input type="checkbox"></label>',
    "radio": '<label><input type="radio" name="a" checked>a</label> <label><input type="radio" name="a">b</label>',
    "opens on focus": '<i id="o" hidden style="position: fixed; inset: 0; cursor: pointer"></i><script>'
    'addEventListener("focusin", () => (o.hidden = false)); addEventListener("keydown", () => (o.hidden = true))</script>'
    + '<p><input aria-label="i" style="position: relative"></p>' * 3,
    "lines": f"<p style='line-height: 1.2; width: 90px'>{'word ' * 40}</p>",
}  # fmt: skip


@pytest.mark.parametrize("name", FINE)
def test_what_is_right_is_let_be(tmp_path, tab, name):
    assert kinds_of(tab, tmp_path, CLEAN % FINE[name]) == set()


def kinds_of(tab, folder: Path, page: str) -> set[str]:
    (folder / "page.html").write_text(page)
    found = faults(tab, (folder / "page.html").as_uri(), folder.as_uri())
    return {fault.split(": ")[1] for fault in found}
