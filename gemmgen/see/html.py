"""A page or a book as one HTML file: nothing from elsewhere, a script only to zoom, for light and dark screens and readers."""

from __future__ import annotations

from collections.abc import Callable
from html import escape
from typing import TypeVar

from . import svg, text, zoom
from .page import (
    Block,
    Book,
    Facts,
    Grid,
    Headline,
    Lanes,
    Listing,
    Page,
    Part,
    Plot,
    Strips,
    Table,
)

P = TypeVar("P", Grid, Strips, Lanes, Plot)

STYLE = """
:root { color-scheme: light dark; --ink: #1a1d21; --paper: #ffffff; --faint: #59616b; --line: #c9ced6;
        --mark: #e3f0d8; --gone: #fbdfe0; --bar: FULL_LIGHT; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e8eb; --paper: #16181c; --faint: #a3abb5; --line: #3c424b; --mark: #26391c;
          --gone: #4a2227; --bar: FULL_DARK; }
}
body { color: var(--ink); background: var(--paper); font: 16px/1.5 system-ui, sans-serif;
       margin: 2rem auto; max-width: 72rem; padding: 0 1rem; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.2rem; margin: 2rem 0 .5rem; }
h3 { font-size: 1.1rem; margin: 1.75rem 0 .5rem; } h4 { font-size: 1rem; margin: 1.5rem 0 .25rem; }
h1, h2, h3, h4, td, .note { overflow-wrap: anywhere; } h2, h3 { scroll-margin-top: 1rem; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { border-bottom: 1px solid var(--line); padding: .2rem 1.2rem .2rem 0; text-align: left;
         vertical-align: top; }
th { font-weight: 600; } .facts th { white-space: nowrap; } th.number, td.number { text-align: right; }
td.number { white-space: nowrap; }
.marked, ins { background: var(--mark); } del { background: var(--gone); }
.note, .place { color: var(--faint); } ins, del { text-decoration: none; }
.headline { border-left: 4px solid var(--bar); padding: .25rem 0 .25rem 1rem; }
.says { font-size: 1.25rem; font-weight: 600; margin: 0 0 .5rem; } .headline p { max-width: 48rem; }
td.bar { min-width: 5rem; width: 14rem; } td.bar span { background: var(--bar); display: block; height: .8rem;
         margin-top: .35rem; min-width: 1px; }
.wide { overflow-x: auto; } figure { margin: 0; break-inside: avoid; } summary { cursor: pointer; }
pre { font: 13px/1.4 ui-monospace, "DejaVu Sans Mono", monospace; margin: .5rem 0; }
a { color: inherit; } nav ul { list-style: none; margin: 0; padding: 0 0 .5rem 1rem; }
nav > ul { display: flex; flex-wrap: wrap; gap: 0 2rem; padding: 0; }
.book h2 { font-size: 1.3rem; margin-top: 3rem; } .book main > section { border-top: 2px solid var(--line); }
:focus-visible { outline: 2px solid var(--ink); outline-offset: 2px; }
.wide th[scope="row"], .wide thead th:first-child { background: var(--paper); left: 0; position: sticky; }
.wide .marked th[scope="row"] { background: var(--mark); }
@media (max-width: 60rem) {
  .wide th[scope="row"], .wide thead th:first-child { max-width: 40vw; overflow-wrap: anywhere; }
  .wide th, .wide td { padding-right: .8rem; } td.bar { width: 5rem; }
}
@media (min-width: 90rem) {
  .book { display: grid; grid-template-columns: 14rem minmax(0, 1fr); gap: 0 2rem; max-width: 88rem; }
  .book header { grid-column: 1 / -1; } .book nav > ul { display: block; }
  .book nav { position: sticky; top: 2rem; align-self: start; max-height: 95vh; overflow-y: auto; }
}
@media print { nav { display: none; } .wide { overflow: visible; } }
""".replace("FULL_LIGHT", svg.FULL[0]).replace("FULL_DARK", svg.FULL[1])


def render(page: Page) -> str:
    """One self-contained document in English."""
    return document(
        page.title, "", f"<main>\n{_heading(1, page.title)}\n{blocks(page, 2, '')}\n</main>"
    )


def book(b: Book) -> str:
    """The same of several pages, with links to each."""
    parts = "\n".join(_part(p, number) for number, p in enumerate(b.parts))
    head = f"<header>\n{_heading(1, b.title)}\n</header>"
    return document(b.title, "book", f"{head}\n{_contents(b)}\n<main>\n{parts}\n</main>")


def document(title: str, kind: str, body: str, *, style: str = "", head: str = "") -> str:
    """A page around `body`, which is HTML. kind: the body's class. style: more of it; head: more elements there,
    which bring scripts of their own: pictures are not zoomed then."""
    of = f' class="{kind}"' if kind else ""
    zoomed = 'class="wide zoomed"' in body and not head
    script = f"<script>{zoom.SCRIPT}</script>\n" if zoomed else ""
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="generator" content="gemmgen">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}{svg.STYLE}{zoom.STYLE}{style}</style>\n"
        f"{head}</head>\n<body{of}>\n{body}\n{script}</body>\n</html>\n"
    )


def _heading(level: int, words: str, label: str = "") -> str:
    named = f' id="{label}"' if label else ""
    return f"<h{level}{named}>{escape(words)}</h{level}>"


def _contents(b: Book) -> str:
    parts = "\n".join(
        f'<li><a href="#part-{i}">{escape(p.name)}</a>\n<ul>\n{_links(p, i)}</ul>\n</li>'
        for i, p in enumerate(b.parts)
    )
    return f'<nav aria-label="Contents">\n<ul>\n{parts}\n</ul>\n</nav>'


def _links(p: Part, part: int) -> str:
    return "".join(
        f'<li><a href="#page-{part}-{i}">{escape(x.title)}</a></li>\n'
        for i, x in enumerate(p.pages)
    )


def _part(p: Part, part: int) -> str:
    pages = "\n".join(
        f'<section aria-labelledby="page-{part}-{i}">\n{_heading(3, x.title, f"page-{part}-{i}")}\n'
        f"{blocks(x, 4, f'{part}-{i}-')}\n</section>"
        for i, x in enumerate(p.pages)
    )
    label = f"part-{part}"
    return f'<section aria-labelledby="{label}">\n{_heading(2, p.name, label)}\n{pages}\n</section>'


def blocks(page: Page, level: int, within: str) -> str:
    """What a page holds, as HTML with headings of that level. within: of its ids, so that a document may hold several."""
    return "\n".join(_section(f"section-{within}{i}", b, level) for i, b in enumerate(page.blocks))


def _section(label: str, b: Block, level: int) -> str:
    """What may be wider than the screen scrolls, and can be reached by keyboard to do so; words are wrapped."""
    tools, kind = (zoom.TOOLS, "wide zoomed") if isinstance(b, Lanes) else ("", "wide")
    scrolls = f'class="{kind}" tabindex="0" role="group" aria-labelledby="{label}"'
    inside = _block(b)
    if inside and not isinstance(b, Facts | Headline):
        inside = f"{tools}<div {scrolls}>{inside}</div>"
    return (
        f'<section aria-labelledby="{label}">\n{_heading(level, b.title, label)}\n'
        f"{inside}{_note(b)}\n</section>"
    )


def _block(b: Block) -> str:
    match b:
        case Headline():
            return _headline(b)
        case Facts():
            return _facts(b)
        case Table():
            return _table(b) if b.rows else ""
        case Grid():
            return _figure(b, text.grid)
        case Strips():
            return _figure(b, text.strips)
        case Lanes():
            return _figure(b, text.lanes)
        case Plot():
            return _figure(b, text.plot)
        case Listing():
            return _listing(b)


def _figure(b: P, read: Callable[[P], list[str]]) -> str:
    """The picture, and the same for those who read or hear it: only its title is the image's."""
    lines = "\n".join(read(b))
    return f"<figure>\n{svg.picture(b)}\n</figure>\n{_folded('as text', escape(lines))}"


def _folded(summary: str, inside: str) -> str:
    return f"<details>\n<summary>{summary}</summary>\n<pre>{inside}</pre>\n</details>"


def _listing(b: Listing) -> str:
    inside = "\n".join(map(_changed, b.lines)) if b.diff else escape("\n".join(b.lines))
    return _folded(f"{len(b.lines)} lines", inside) if b.folded else f"<pre>{inside}</pre>"


def _changed(line: str) -> str:
    """A line of a diff; what was added or is gone is so for readers, too."""
    match line[:1]:
        case "+":
            return f"<ins>{escape(line)}</ins>"
        case "-":
            return f"<del>{escape(line)}</del>"
        case "@":
            return f'<span class="place">{escape(line)}</span>'
    return escape(line)


def _headline(b: Headline) -> str:
    more = "\n".join(f"<p>{escape(words)}</p>" for words in b.more)
    return f'<div class="headline">\n<p class="says">{escape(b.says)}</p>\n{more}\n</div>'


def _facts(b: Facts) -> str:
    rows = "".join(
        f'<tr><th scope="row">{escape(name)}</th><td>{escape(value)}</td></tr>\n'
        for name, value in b.items
    )
    return f'<table class="facts">\n<tbody>\n{rows}</tbody>\n</table>'


def _table(t: Table) -> str:
    """A bar stands beside the name of its row; who does not see it has the number that it shows."""
    kinds = [' class="number"' * text.numeric(column) for column in zip(*t.rows, strict=True)]
    first, *heads = (
        f'<th scope="col"{kind}>{escape(c)}</th>' for c, kind in zip(t.columns, kinds, strict=True)
    )
    bars = [_bar(share) for share in t.bars] or [""] * len(t.rows)
    links = t.links or ("",) * len(t.rows)
    rows = "".join(
        _row(row, kinds, bar, number == t.marked, link)
        for number, (row, bar, link) in enumerate(zip(t.rows, bars, links, strict=True))
    )
    head = first + '<td aria-hidden="true"></td>' * bool(t.lengths) + "".join(heads)
    return f"<table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{rows}</tbody>\n</table>"


def _bar(share: float) -> str:
    return f'<td class="bar" aria-hidden="true"><span style="width: {share:.2%}"></span></td>'


def _row(row: tuple[str, ...], kinds: list[str], bar: str, marked: bool, link: str) -> str:
    of = ' class="marked" aria-current="true"' if marked else ""
    shown = [escape(cell) for cell in row]
    if link:
        shown[0] = f'<a href="{escape(link)}">{shown[0]}</a>'
    first, *rest = (f"{kind}>{cell}" for kind, cell in zip(kinds, shown, strict=True))
    cells = "".join(f"<td{cell}</td>" for cell in rest)
    return f'<tr{of}><th scope="row"{first}</th>{bar}{cells}</tr>\n'


def _note(b: Block) -> str:
    note = "" if isinstance(b, Facts | Headline) else b.note
    return f'\n<p class="note">{escape(note)}</p>' if note else ""
