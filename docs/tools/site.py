"""The repository as a site: what its pages link to becomes a page, and every link leads to one.

Pages are Markdown as a code host shows it: links are relative to the file, and may leave `docs/`. A site has
only pages. So each file that a page links to becomes one, and so does what that links to in its turn.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from os.path import normpath, relpath
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).parent.parent.parent
DOCS = PurePosixPath("docs")
OTHERS = PurePosixPath("repository")  # where the pages of files outside docs/ are
LANGUAGES = {".py": "python", ".cu": "cuda", ".j2": "jinja", ".ir": "text"}
FOUND_LAST = "---\nsearch:\n  boost: 0.2\n---\n"  # pages of source text are found after those that say something of it
FENCED = re.compile(r"^( *)```.*?^\1```$", re.M | re.S)
LINK = re.compile(r"(?<!`)\[(?P<text>[^\]]*)\]\((?P<file>[^)\s#]*)(?P<anchor>#[^)\s]*)?\)")


def outside_fences(markdown: str, change: Callable[[str], str]) -> str:
    """`markdown` with `change` applied to all of it but fenced blocks."""
    parts, end = [], 0
    for fence in FENCED.finditer(markdown):
        parts += [change(markdown[end : fence.start()]), fence[0]]
        end = fence.end()
    return "".join([*parts, change(markdown[end:])])


def links(markdown: str) -> tuple[str, ...]:
    """The files that `markdown` links to, as it spells them, in order; no addresses, no anchors alone."""
    found: list[str] = []

    def collect(text: str) -> str:
        found.extend(link["file"] for link in LINK.finditer(text) if local(link["file"]))
        return text

    outside_fences(markdown, collect)
    return tuple(found)


def local(file: str) -> bool:
    return bool(file) and not re.match(r"\w+:", file)


def page_of(file: PurePosixPath) -> PurePosixPath:
    """The page, relative to the site, of a file relative to the repository."""
    if not file.suffix and (ROOT / file).is_dir():
        file = file / "README.md"
    if file.is_relative_to(DOCS):
        return file.relative_to(DOCS)
    return OTHERS / (file if file.suffix == ".md" else f"{file}.md")


def target(link: str, at: PurePosixPath) -> PurePosixPath:
    """What `link`, in the file `at`, names, relative to the repository."""
    return PurePosixPath(normpath(at.parent / link))


def linked(start: Iterable[PurePosixPath]) -> tuple[PurePosixPath, ...]:
    """The files outside docs/ that these pages link to, or that such files link to; sorted."""
    waiting, found = list(start), set[PurePosixPath]()
    while waiting:
        at = waiting.pop()
        if at.suffix != ".md":
            continue
        for link in links((ROOT / at).read_text()):
            file = target(link, at)
            if file not in found and not file.is_relative_to(DOCS) and (ROOT / file).is_file():
                found.add(file)
                waiting.append(file)
    return tuple(sorted(found))


def page(file: PurePosixPath) -> str:
    """The Markdown of the page of a file outside docs/."""
    text = (ROOT / file).read_text()
    if file.suffix == ".md":
        return text
    return (
        f"{FOUND_LAST}# {file}\n\n```{LANGUAGES.get(file.suffix, 'text')}\n{text.rstrip()}\n```\n"
    )


def prepared(markdown: str, at: PurePosixPath) -> str:
    """A page's Markdown as Python-Markdown needs it: links to pages, contents of lists 4 columns in."""

    def led(link: re.Match[str]) -> str:
        if not local(link["file"]):
            return link[0]
        to = relpath(page_of(target(link["file"], at)), page_of(at).parent)
        return f"[{link['text']}]({to}{link['anchor'] or ''})"

    return indented(outside_fences(markdown, lambda text: LINK.sub(led, text)))


def indented(markdown: str) -> str:
    """CommonMark indents what belongs to an item as far as the item's text, Python-Markdown by 4."""
    lines, width = [], 0
    for line in markdown.splitlines():
        marker = re.match(r"(?:\d+\.|-) +(?=\S)", line)
        if marker:
            width = len(marker[0])
        elif line and not line.startswith(" "):
            width = 0
        inside = width and not marker and line.startswith(" " * width)
        lines.append(" " * (4 - width) + line if inside and width < 4 else line)
    return "\n".join(lines) + "\n"
