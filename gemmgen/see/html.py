"""A page as one HTML file: no script, nothing from elsewhere, for light and dark screens and for readers."""

from __future__ import annotations

from html import escape

from . import svg, text
from .page import Block, Facts, Grid, Lanes, Page, Table

STYLE = """
:root { color-scheme: light dark; --ink: #1a1d21; --paper: #ffffff; --faint: #59616b; --line: #c9ced6;
        --mark: #e3f0d8; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e8eb; --paper: #16181c; --faint: #a3abb5; --line: #3c424b; --mark: #26391c; }
}
body { color: var(--ink); background: var(--paper); font: 16px/1.5 system-ui, sans-serif;
       margin: 2rem auto; max-width: 72rem; padding: 0 1rem; }
h1 { font-size: 1.4rem; overflow-wrap: anywhere; } h2 { font-size: 1.1rem; margin: 2rem 0 .5rem; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { border-bottom: 1px solid var(--line); padding: .2rem .9rem .2rem 0; text-align: left;
         vertical-align: top; }
th { font-weight: 600; } .marked { background: var(--mark); } .note { color: var(--faint); }
.wide { overflow-x: auto; } .wide:focus-visible { outline: 2px solid var(--ink); }
figure { margin: 0; }
"""


def render(page: Page) -> str:
    """One self-contained document in English."""
    blocks = "\n".join(_section(number, b) for number, b in enumerate(page.blocks))
    title = escape(page.title)
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="generator" content="gemmgen">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{title}</title>\n<style>{STYLE}{svg.STYLE}</style>\n</head>\n"
        f"<body>\n<main>\n<h1>{title}</h1>\n{blocks}\n</main>\n</body>\n</html>\n"
    )


def _section(number: int, b: Block) -> str:
    """What may be wider than the screen scrolls, and can be reached by keyboard to do so."""
    label = f"section-{number}"
    box = f'<div class="wide" tabindex="0" role="group" aria-labelledby="{label}">'
    return (
        f'<section aria-labelledby="{label}">\n<h2 id="{label}">{escape(b.title)}</h2>\n'
        f"{box}{_block(b)}</div>{_note(b)}\n</section>"
    )


def _block(b: Block) -> str:
    match b:
        case Facts():
            rows = "".join(
                f'<tr><th scope="row">{escape(name)}</th><td>{escape(value)}</td></tr>\n'
                for name, value in b.items
            )
            return f"<table>\n<tbody>\n{rows}</tbody>\n</table>"
        case Table():
            return _table(b) if b.rows else ""
        case Grid():
            return f"<figure>\n{svg.picture(b)}\n</figure>\n{_read(text.grid(b))}"
        case Lanes():
            return f"<figure>\n{svg.picture(b)}\n</figure>\n{_read(text.lanes(b))}"


def _read(drawn: list[str]) -> str:
    """The picture for those who read or hear it: only its title is the image's."""
    lines = escape("\n".join(drawn))
    return f"<details>\n<summary>as text</summary>\n<pre>{lines}</pre>\n</details>"


def _table(t: Table) -> str:
    head = "".join(f'<th scope="col">{escape(c)}</th>' for c in t.columns)
    rows = "".join(_row(row, number == t.marked) for number, row in enumerate(t.rows))
    return f"<table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{rows}</tbody>\n</table>"


def _row(row: tuple[str, ...], marked: bool) -> str:
    first, *rest = map(escape, row)
    kind = ' class="marked" aria-current="true"' if marked else ""
    cells = "".join(f"<td>{cell}</td>" for cell in rest)
    return f'<tr{kind}><th scope="row">{first}</th>{cells}</tr>\n'


def _note(b: Block) -> str:
    note = "" if isinstance(b, Facts) else b.note
    return f'\n<p class="note">{escape(note)}</p>' if note else ""
