"""Pictures of pages: those that the docs show are those that the command takes, small, and of what it says."""

from __future__ import annotations

import json
import re
import shlex
from base64 import b64encode
from pathlib import Path

import pytest

from docs.tools.screenshots import PICTURES, SHOTS, files, taken
from gemmgen.cli import _parser

ROOT = Path(__file__).parents[2]
SEEING = (ROOT / "docs/seeing.md").read_text()
MOST, ALL = 150_000, 1_500_000  # bytes of a picture, and of all


def test_the_docs_show_what_the_command_takes():
    shown = re.findall(r'(?:src|srcset)="pictures/([\w-]+\.png)"', SEEING)
    assert sorted(shown) == sorted(files()) == sorted(p.name for p in PICTURES.glob("*.png"))
    assert len(re.findall(r'<img src="[^"]+" alt="[^"]{20,}"></picture>', SEEING)) == len(SHOTS)


def test_pictures_are_small():
    sizes = [(PICTURES / name).stat().st_size for name in files()]
    assert max(sizes) < MOST and sum(sizes) < ALL


@pytest.mark.parametrize("shot", SHOTS, ids=lambda s: s.name)
def test_commands_parse(shot):
    argv = shlex.split(shot.command)
    _parser(argv).parse_args(argv)


CORNERS = """Promise.all(NAMES.map(async png => {
  const image = await createImageBitmap(await (await fetch("data:image/png;base64," + png)).blob());
  const pen = new OffscreenCanvas(image.width, image.height).getContext("2d");
  pen.drawImage(image, 0, 0);
  return [image.width, image.height, pen.getImageData(image.width - 1, image.height - 1, 1, 1).data[0]];
}))"""


def test_a_picture_is_taken_in_both_schemes(tab):
    """Of the command's own page; the browser reads what was written, and their papers differ."""
    (shot,) = (s for s in SHOTS if s.name == "seen-layout")
    found = dict(taken(tab, shot))
    assert [*found] == [shot.file(scheme) for scheme in ("light", "dark")]
    pngs = json.dumps([b64encode(png).decode() for png in found.values()])
    light, dark = tab.run(CORNERS.replace("NAMES", pngs))
    assert light[:2] == dark[:2] and light[1] <= shot.height and light[2] > 200 > 80 > dark[2]
