"""Pictures of pages: those that the docs show are those that the command takes, small, and of what it says."""

from __future__ import annotations

import json
import re
import shlex
from base64 import b64encode

import pytest

from docs.tools.screenshots import DOCS, PICTURES, SHOTS, Shot, files, taken
from gemmgen.cli import _parser

PAGES = sorted({shot.page for shot in SHOTS})
MOST, ALL = 60_000, 1_500_000  # bytes of a picture, and of all


def test_the_docs_show_what_the_command_takes():
    """Each page its own, every picture once, with words for who does not see it."""
    for page in PAGES:
        text = (DOCS / page).read_text()
        names = [s.file(scheme) for s in SHOTS if s.page == page for scheme in ("light", "dark")]
        assert sorted(re.findall(r'(?:src|srcset)="pictures/([\w-]+\.png)"', text)) == sorted(names)
        shown = re.findall(r'<img src="[^"]+-light\.png" alt="[^"]{20,}"></picture>', text)
        assert len(shown) == len(names) / 2
    others = [p for p in DOCS.rglob("*.md") if p.relative_to(DOCS).as_posix() not in PAGES]
    assert not [p for p in others if re.search(r'="[^"]*pictures/[^"]*\.png"', p.read_text())]
    assert sorted(files()) == sorted(p.name for p in PICTURES.glob("*.png"))


def test_the_playgrounds_page_says_the_command_of_its_picture():
    (shot,) = (s for s in SHOTS if s.page == "playground.md")
    assert f"`gemmgen {shot.command}`" in (DOCS / shot.page).read_text()


def test_pictures_are_small():
    sizes = [(PICTURES / name).stat().st_size for name in files()]
    assert max(sizes) < MOST and sum(sizes) < ALL


@pytest.mark.parametrize("shot", SHOTS, ids=lambda s: s.name)
def test_commands_parse(shot):
    argv = shlex.split(shot.command)
    _parser(argv).parse_args(argv)


CORNERS = """Promise.all(NAMES.map(async png => {
  const image = await createImageBitmap(new Blob([Uint8Array.from(atob(png), c => c.charCodeAt(0))]));
  const pen = new OffscreenCanvas(image.width, image.height).getContext("2d");
  pen.drawImage(image, 0, 0);
  return [image.width, image.height, pen.getImageData(image.width - 1, image.height - 1, 1, 1).data[0]];
}))"""


@pytest.mark.parametrize("name", ("seen-layout", "playground"))
def test_a_picture_is_taken_in_both_schemes(tab, name):
    """Of the command's own page, written or served; the browser reads what was written, and their papers differ."""
    (shot,) = (s for s in SHOTS if s.name == name)
    found = dict(taken(tab, shot))
    assert [*found] == [shot.file(scheme) for scheme in ("light", "dark")]
    pngs = json.dumps([b64encode(png).decode() for png in found.values()])
    light, dark = tab.run(CORNERS.replace("NAMES", pngs))
    assert light[:2] == dark[:2] and light[1] <= shot.height and light[2] > 200 > 80 > dark[2]


@pytest.mark.parametrize(
    "command", ("serve dense --port 70000", "layout dense/none A --html page.html")
)
def test_a_command_that_fails_is_an_error(tab, command):
    with pytest.raises(RuntimeError, match=command):
        next(taken(tab, Shot(name="x", command=command)))
