"""A browser without a window: what it says of a page, how it lays it out, what it paints."""

from __future__ import annotations

import json
import re
import shutil
import struct
import subprocess
import zlib
from dataclasses import dataclass
from html import unescape
from pathlib import Path

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
SECONDS = 60
# No name resolves: a test reaches nobody.
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run"),
    *("--host-resolver-rules=MAP * ~NOTFOUND", "--enable-logging=stderr", "--v=0"),
)
DARK = ("--force-dark-mode", "--blink-settings=preferredColorScheme=0")
# What no markup says: what was fetched, is the page wider than its window, do words leave their picture or cell.
MEASURE = """<script>
addEventListener("load", () => {
const found = performance.getEntriesByType("resource").map(e => `fetched: ${e.name}`);
const wide = document.documentElement.scrollWidth;
if (wide > innerWidth) found.push(`page: ${wide} of ${innerWidth} pixels`);
for (const s of document.querySelectorAll("svg")) {
  const room = s.viewBox.baseVal;
  for (const t of s.querySelectorAll("text")) {
    const b = t.getBBox(), say = why => found.push(`${why}: ${t.textContent}`);
    if (b.x < -1 || b.y < -1 || b.x + b.width > room.width + 1 || b.y + b.height > room.height + 1)
      say("leaves its picture");
    const cell = t.previousElementSibling;
    if (cell && cell.tagName == "rect" && cell.getBBox().width > 12 && cell.getBBox().height < 30
        && cell.className.baseVal != "plain" && b.width > cell.getBBox().width) say("wider than its cell");
  }
}
document.body.dataset.found = JSON.stringify(found);
});
</script>"""


@dataclass(frozen=True)
class Seen:
    """console: its lines. found: what MEASURE found. picture: a PNG."""

    console: list[str]
    found: list[str]
    picture: bytes

    @property
    def corner(self) -> tuple[int, ...]:
        """The first pixel: every filter of PNG leaves it as it is."""
        return tuple(_lines(self.picture)[0][1:4])

    @property
    def different_lines(self) -> int:
        """Of pixels; of a blank picture one or two, by how PNG filters them."""
        return len(set(_lines(self.picture)))


def browser() -> str:
    """Its program; skips the test where there is none."""
    found = [path for name in NAMES if (path := shutil.which(name))]
    if not found:
        pytest.skip(f"no browser: none of {', '.join(NAMES)} on PATH (apt-get install chromium)")
    return found[0]


def look(
    folder: Path, page: str, *, width: int = 1200, height: int = 900, dark: bool = False
) -> Seen:
    """Open `page` in a window of `width` x `height` pixels, in `folder`."""
    file, picture = folder / "page.html", folder / "page.png"
    file.write_text(page.replace("</body>", f"{MEASURE}</body>"))
    own = (f"--user-data-dir={folder / 'profile'}", f"--window-size={width},{height}")
    of = (*own, *(DARK if dark else ()), f"--screenshot={picture}", "--dump-dom", file.as_uri())
    run = subprocess.run(
        [browser(), *FLAGS, *of], capture_output=True, text=True, timeout=SECONDS, check=True
    )
    measured = re.search(r'data-found="([^"]*)"', run.stdout)
    return Seen(
        console=[line for line in run.stderr.splitlines() if ":CONSOLE" in line],
        found=json.loads(unescape(measured[1])) if measured else ["MEASURE did not run"],
        picture=picture.read_bytes(),
    )


def _lines(png: bytes) -> list[bytes]:
    """Its lines of pixels, 8 bits a channel, filtered as they are, each behind its filter's number."""
    chunks, at = [], 8
    while at < len(png):
        (size,) = struct.unpack(">I", png[at : at + 4])
        chunks.append((png[at + 4 : at + 8], png[at + 8 : at + 8 + size]))
        at += size + 12
    width, height, depth, colour = struct.unpack(">IIBB", chunks[0][1][:10])
    assert depth == 8 and colour in (2, 6)
    data = zlib.decompress(b"".join(body for kind, body in chunks if kind == b"IDAT"))
    stride = 1 + width * (3 if colour == 2 else 4)
    return [data[i * stride : (i + 1) * stride] for i in range(height)]
