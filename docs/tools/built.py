"""`python -m docs.tools.built site`: fails if a page of the built site leads nowhere, or loads something from elsewhere.

Links to other sites are counted and listed, not followed.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LOADS = {"script": "src", "img": "src", "link": "href", "iframe": "src", "source": "src"}
NOT_LOADED = ("canonical", "next", "prev", "alternate")  # relations of <link> that load nothing


@dataclass
class Page(HTMLParser):
    """What a page refers to, and the anchors that it has."""

    path: Path
    links: list[str] = field(default_factory=list)
    loads: list[str] = field(default_factory=list)
    anchors: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        super().__init__()
        self.feed(self.path.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        of = {name: value or "" for name, value in attrs}
        self.anchors |= {of[name] for name in ("id", "name") if name in of}
        if tag == "a" and "href" in of:
            self.links.append(of["href"])
        loaded = of.get(LOADS.get(tag, ""), "")
        if loaded and not (tag == "link" and of.get("rel") in NOT_LOADED):
            self.loads.append(loaded)


@cache
def page(path: Path) -> Page:
    return Page(path)


def faults(folder: Path) -> list[str]:
    """What is wrong with the site in `folder`, one line each."""
    found = []
    for path in sorted(folder.rglob("*.html")):
        of, name = page(path), path.relative_to(folder)
        found += [f"{name} loads {x}" for x in of.loads if remote(x)]
        local = [x for x in (*of.links, *of.loads) if not remote(x)]
        found += [f"{name} leads to {x}" for x in local if not resolves(folder, path, x)]
    return found


def remote(link: str) -> bool:
    parts = urlsplit(link)
    return bool(parts.netloc or parts.scheme not in ("", "file", "data"))


def resolves(folder: Path, at: Path, link: str) -> bool:
    """Whether a file of the site is there, and the anchor in it."""
    parts = urlsplit(link)
    if parts.scheme == "data":
        return True
    if at.name == "404.html":  # served for any path: its links are absolute
        return True
    file = (at.parent / unquote(parts.path)).resolve() if parts.path else at
    file = file / "index.html" if file.is_dir() else file
    if not file.is_file() or not file.is_relative_to(folder.resolve()):
        return False
    anchor = unquote(parts.fragment)
    if not anchor or anchor.startswith("__") or file.suffix != ".html":
        return True  # anchors that begin with __ are the theme's own
    return anchor in page(file).anchors


def elsewhere(folder: Path) -> list[str]:
    """Links to other sites, each once."""
    pages = map(page, sorted(folder.rglob("*.html")))
    return sorted({link for p in pages for link in p.links if remote(link)})


def main() -> int:
    folder = Path(sys.argv[1]).resolve()
    wrong = faults(folder)
    print("\n".join(wrong) or f"{len([*folder.rglob('*.html')])} pages: every link leads somewhere")
    print("links to other sites, not followed:", *(elsewhere(folder) or ["none"]), sep="\n  ")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
