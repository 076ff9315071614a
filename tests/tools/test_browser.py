"""Every kind of page in a browser: nothing on the console, nothing from elsewhere, nothing cut off."""

from __future__ import annotations

import json

import pytest
from browser import look
from test_report import BENCH

from gemmgen.cli import main

SHAPE = ("-m", "512", "-n", "512", "-k", "1024")
WHITE, BLACK = (0xFF, 0xFF, 0xFF), (0x16, 0x18, 0x1C)
PAGES = {
    "explain": ("explain", "fp8_block", *SHAPE, "--why-not", "block_n=256", "--html"),
    "layout": ("layout", "fp8_1d1d/wgrad", "D", "--html"),
    "timeline": ("timeline", "fp8_block/split_k", *SHAPE, "--html"),
    "trace": ("show", "fp8_block/masked", "--level", "trace", "--html"),
    "report": ("report", "fp8_block/base", *SHAPE, "--bench", "bench.json", "-o"),
}


def page(folder, monkeypatch, name):
    monkeypatch.chdir(folder)
    (folder / "bench.json").write_text(json.dumps(BENCH))
    assert main([*PAGES[name], "shown.html"]) == 0
    return (folder / "shown.html").read_text()


@pytest.mark.parametrize("name", PAGES)
def test_pages(tmp_path, monkeypatch, capsys, name):
    shown = page(tmp_path, monkeypatch, name)
    for width, dark, corner in ((1500, False, WHITE), (500, True, BLACK)):
        seen = look(tmp_path, shown, width=width, dark=dark)
        assert not seen.console and not seen.found
        assert seen.corner == corner and seen.different_lines > 100


def test_what_is_wrong_is_seen(tmp_path):
    """So the test above can fail."""
    body = (
        '<div style="width: 3000px">wide</div><img src="https://example.com/x.png" alt="">'
        '<svg viewBox="0 0 50 40" width="50" height="40"><text x="0" y="15">much too long</text>'
        '<rect width="20" height="9"/><text y="30">abcd</text></svg>'
        "<script>throw new Error('mine')</script>"
    )
    seen = look(tmp_path, f"<!DOCTYPE html><html><body>{body}</body></html>")
    assert any("mine" in line for line in seen.console)
    wrong = ["fetched", "page", "leaves its picture", "wider than its cell"]
    assert [f.split(":")[0] for f in seen.found] == wrong


def test_blank_is_seen(tmp_path):
    seen = look(tmp_path, "<!DOCTYPE html><html><body></body></html>")
    assert seen.different_lines <= 2 and seen.corner == WHITE
