"""`python -m docs.tools.seen site`: opens every page and picture of the built site in a browser; fails for what is wrong.

Two browsers at once. Without one installed it says so, and that nothing was looked at.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

from .chromium import NAMES, Browser, Tab, installed
from .faults import LAYOUT, WIDTHS, faults, keys, opened

PROCESSES = 2
ABSOLUTE = "404.html"  # a server's, for any path: opened from a folder its links lead nowhere
WITH_MENU = "seeing.html"  # its menu is the same on every page; here a section of it is open
MENU = ".md-header__button[for=__drawer]"
DRAWN = ("charts", "pictures")


def pages(folder: Path) -> list[Path]:
    """What of a site is looked at; pictures by themselves, for a page that shows one cannot look into it."""
    written = [p for p in folder.rglob("*.html") if p.name != ABSOLUTE]
    return sorted([*written, *(p for name in DRAWN for p in (folder / name).glob("*.svg"))])


def looked(folder: Path, paths: list[Path]) -> list[str]:
    """A line per fault of these pages."""
    program = installed()
    assert program
    found = []
    with Browser(program) as browser:
        tab = browser.tab()
        for path in paths:
            wrong = faults(tab, path.as_uri(), folder.as_uri())
            if path.name == WITH_MENU:
                wrong += [f"menu: {fault}" for fault in menu(tab, path.as_uri())]
            found += [f"{path.relative_to(folder)}: {fault}" for fault in wrong]
    return found


def menu(tab: Tab, url: str) -> Iterator[str]:
    """In the narrow window it is opened by a key; then what is in it is in sight, and nothing else is reached."""
    opened(tab, url, dark=False, width=WIDTHS[0])
    tab.run(f"document.querySelector('{MENU}').focus()")
    tab.press("Enter")
    if not tab.run("document.activeElement.closest('.md-sidebar--primary') != null"):
        yield "no key works: the menu"
    yield from tab.run(LAYOUT)
    yield from keys(tab)


def dealt(paths: list[Path], hands: int) -> Iterator[list[Path]]:
    """Large ones first, so that no process has many of them."""
    ordered = sorted(paths, key=lambda p: -p.stat().st_size)
    yield from (ordered[i::hands] for i in range(hands))


def main() -> int:
    folder = Path(sys.argv[1]).resolve()
    if not installed():
        print(f"no browser, no page was looked at: none of {', '.join(NAMES)} on PATH")
        return 0
    paths, hands = pages(folder), min(PROCESSES, os.cpu_count() or 1)
    with ProcessPoolExecutor(hands) as pool:
        found = [line for x in pool.map(partial(looked, folder), dealt(paths, hands)) for line in x]
    print("\n".join(sorted(found)) or f"{len(paths)} pages and pictures: nothing is wrong")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
