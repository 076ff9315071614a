"""The Chinese pages have the English ones' code, structure and links."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from docs.tools import site

DOCS = Path(__file__).parents[2] / "docs"
PAGES = sorted(p.name for p in (DOCS / "zh").glob("*.md") if p.name != "README.md")
HAN = re.compile(r"[\u4e00-\u9fff]")


def pair(name: str) -> tuple[str, str]:
    return (DOCS / name).read_text(), (DOCS / "zh" / name).read_text()


def outline(text: str) -> list[str]:
    """What each part of a page is: a heading's level, a table's columns, an item, code, a mark; no words."""
    text = re.sub(r"^ +\S.*\n", "", text, flags=re.M)  # an item's further lines
    text = re.sub(r"(?:^(?!\s*$|#|\||- |```|<!--|\[?!\[).*\n)+", "words\n", text, flags=re.M)
    found = []
    for line in text.splitlines():
        mark = re.match(r"#+ |\||- |```\w*|<!-- .* -->|\[?!\[|words", line)
        if mark:
            cells = line.count(" |") if mark[0] == "|" else ""
            found.append(f"{mark[0]}{cells}")
    return found


def code(text: str) -> list[str]:
    return [m[0] for m in re.finditer(r"^( *)```.*?^\1```$", text, re.M | re.S)]


def without_code(text: str) -> str:
    return site.FENCED.sub("```", text)


@pytest.mark.parametrize(
    "name",
    [
        *("quick-start.md", "ten-steps.md", "coming-from-deep-gemm.md", "coming-from-cutlass.md"),
        *("coming-from-triton.md", "coming-from-tilelang.md", "coming-from-flag-gems.md"),
    ],
)
def test_pages_are_translated(name):
    assert name in PAGES


@pytest.mark.parametrize("name", PAGES)
def test_code_is_the_same(name):
    english, chinese = pair(name)
    assert code(chinese) == code(english)


@pytest.mark.parametrize("name", PAGES)
def test_structure_is_the_same(name):
    english, chinese = (outline(without_code(text)) for text in pair(name))
    assert chinese == english


@pytest.mark.parametrize("name", PAGES)
def test_links_are_the_same(name):
    """In the same places, to the translated page where there is one."""
    english, chinese = pair(name)
    there = [f"../{x}" if x.split("/")[0] not in PAGES else x for x in site.links(english)]
    assert sorted(site.links(chinese)) == sorted(there)


@pytest.mark.parametrize("name", PAGES)
def test_spelled_code_is_the_same(name):
    """What stands in back quotes outside of blocks: names and commands, not words."""
    english, chinese = (set(re.findall(r"`([^`\n]+)`", without_code(t))) for t in pair(name))
    assert chinese == english


@pytest.mark.parametrize("name", PAGES)
def test_text_is_chinese(name):
    """Headings, and every paragraph of some length; a paragraph is one line, or a break would show as a space."""
    _, chinese = pair(name)
    prose = re.sub(
        r"<!-- (step|figures|summary).*?<!-- end -->", "", without_code(chinese), flags=re.S
    )
    for line in prose.splitlines():
        if len(line) > 60 and not line.startswith("|"):
            assert HAN.search(line), line
    assert not re.search(r"[\u4e00-\u9fff，、]\n[\u4e00-\u9fff]", prose)
