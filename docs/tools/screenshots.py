"""`python -m docs.tools.screenshots`: takes the pictures of docs/seeing.md and docs/playground.md, light and dark, with
the commands that make these pages.

Each is one part of a page, as Chromium shows it; a PNG of a palette, so that it stays small.
"""

from __future__ import annotations

import json
import shlex
import struct
import subprocess
import sys
import zlib
from base64 import b64decode, b64encode
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory

from gemmgen.cli import main as gemmgen

from .chromium import Browser, Tab, installed

DOCS = Path(__file__).parent.parent
PICTURES = DOCS / "pictures"
SCHEMES = {"light": False, "dark": True}
# Which colours a picture has, and each pixel's number among them.
PALETTE = """async png => {
  const image = await createImageBitmap(new Blob([Uint8Array.from(atob(png), c => c.charCodeAt(0))]));
  const pen = new OffscreenCanvas(image.width, image.height).getContext("2d");
  pen.drawImage(image, 0, 0);
  const all = new Uint32Array(pen.getImageData(0, 0, image.width, image.height).data.buffer), counts = new Map();
  for (const c of all) counts.set(c, (counts.get(c) ?? 0) + 1);
  const most = [...counts.keys()].sort((a, b) => counts.get(b) - counts.get(a)).slice(0, 256);
  const parts = c => [c & 255, c >> 8 & 255, c >> 16 & 255];
  const apart = (a, b) => parts(a).reduce((sum, x, i) => sum + (x - parts(b)[i]) ** 2, 0);
  const near = new Map([...counts.keys()].map(c =>
    [c, most.reduce((best, m, i) => apart(c, m) < apart(c, most[best]) ? i : best, 0)]));
  let pixels = "";
  for (const c of all) pixels += String.fromCharCode(near.get(c));
  return {width: image.width, height: image.height, palette: most.flatMap(parts), pixels: btoa(pixels)};
}"""


@dataclass(frozen=True, kw_only=True)
class Shot:
    """command: it writes page.html, or serves the page. page: of the docs, that shows the picture. width: of the window,
    in pixels, height: as much of the page as is shown; selector: of the part that is."""

    name: str
    command: str
    page: str = "seeing.md"
    width: int = 1100
    height: int = 760
    selector: str = "body"

    def file(self, scheme: str) -> str:
        return f"{self.name}-{scheme}.png"


SHOTS = (
    Shot(
        name="seen-explain",
        command="explain fp8_block -m 4096 -n 7168 -k 2048 --html page.html",
        height=900,
    ),
    Shot(
        name="seen-timeline",
        command="timeline fp8_block/base -m 4096 -n 7168 -k 2048 --html page.html",
        selector="figure",
        width=1240,
    ),
    Shot(
        name="seen-layout",
        command="layout fp8_block/base A --html page.html",
        selector="figure",
        height=440,
    ),
    Shot(
        name="playground",
        command="serve fp8_block -m 4096 -n 7168 -k 2048 --set block_m=128 --set multicast=none",
        page="playground.md",
        width=1240,
        height=782,
    ),
)


def files() -> list[str]:
    """What the command writes."""
    return [shot.file(scheme) for shot in SHOTS for scheme in SCHEMES]


def taken(tab: Tab, shot: Shot) -> Iterator[tuple[str, bytes]]:
    """Of each scheme its file's name and PNG. Raises RuntimeError if the command fails."""
    served = shot.command.startswith("serve ")
    with (_served if served else _written)(shot.command) as url:
        for scheme, dark in SCHEMES.items():
            tab.scheme(dark)
            tab.resize(shot.width)
            tab.open(url)
            yield shot.file(scheme), small(tab, tab.picture(shot.selector, shot.height))


@contextmanager
def _written(command: str) -> Iterator[str]:
    """The address of the file that it writes."""
    with TemporaryDirectory() as folder:
        page = Path(folder) / "page.html"
        with redirect_stdout(StringIO()):
            if gemmgen(shlex.split(command.replace("page.html", str(page)))):
                raise RuntimeError(command)
        yield page.as_uri()


@contextmanager
def _served(command: str) -> Iterator[str]:
    """The address that it prints; a process of its own, for it serves until it is ended."""
    run = [sys.executable, "-m", "gemmgen", *shlex.split(command)]
    with subprocess.Popen(run, cwd=DOCS.parent, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        try:
            url = process.stdout.readline().strip()
            if not url:
                raise RuntimeError(command)
            yield url
        finally:
            process.terminate()


def small(tab: Tab, png: bytes) -> bytes:
    """The same picture with a palette: of each pixel the nearest of the 256 colours that are most of it."""
    of = tab.run(f"({PALETTE})({json.dumps(b64encode(png).decode())})")
    pixels, width = b64decode(of["pixels"]), of["width"]
    rows = b"".join(b"\0" + pixels[at : at + width] for at in range(0, len(pixels), width))
    chunks = (
        (b"IHDR", struct.pack(">IIBBBBB", width, of["height"], 8, 3, 0, 0, 0)),
        (b"PLTE", bytes(of["palette"])),
        (b"IDAT", zlib.compress(rows, 9)),
        (b"IEND", b""),
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(*c) for c in chunks)


def _chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def main() -> int:
    program = installed()
    if not program:
        print("no browser is installed: apt-get install chromium", file=sys.stderr)
        return 1
    with Browser(program) as browser:
        for shot in SHOTS:
            for name, png in taken(browser.tab(), shot):
                (PICTURES / name).write_bytes(png)
                print(f"{name}: {len(png):,} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
