"""Small SVG: rectangles and text, coloured by classes so that light and dark screens may differ."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

HUES = 8  # classes c0 to c7

# Light and dark pairs of one hue each; text on all of them is the ink of the page.
LIGHT = ("#cfe3ff", "#ffe0c2", "#d3efd0", "#f8d0d8", "#e4d7fa", "#fbf0b8", "#c9eef0", "#e6e0d8")
DARK = ("#1f4470", "#6b3d12", "#24522a", "#6b2536", "#46317a", "#5c5110", "#165a5f", "#4a443c")


def _colours(colours: tuple[str, ...]) -> str:
    return " ".join(f".c{i} {{ fill: {colour}; }}" for i, colour in enumerate(colours))


STYLE = f"""
svg {{ font: 10px ui-monospace, monospace; }} svg text {{ fill: #1a1d21; }}
svg .edge {{ stroke: #8a929d; stroke-width: .5; }} svg .frame {{ fill: none; stroke: #59616b; }}
{_colours(LIGHT)} .c- {{ fill: none; }}
@media (prefers-color-scheme: dark) {{
svg text {{ fill: #e6e8eb; }} svg .frame {{ stroke: #a3abb5; }} svg .edge {{ stroke: #59616b; }}
{_colours(DARK)}
}}
"""


def rectangle(x: float, y: float, width: float, height: float, kind: str, title: str = "") -> str:
    """title: what a pointer over it shows."""
    at = f'x="{_n(x)}" y="{_n(y)}" width="{_n(width)}" height="{_n(height)}" class="{kind}"'
    return f"<rect {at}><title>{escape(title)}</title></rect>" if title else f"<rect {at}/>"


def text(x: float, y: float, words: str, anchor: str = "start") -> str:
    placed = "" if anchor == "start" else f' text-anchor="{anchor}"'
    return f'<text x="{_n(x)}" y="{_n(y)}"{placed}>{escape(words)}</text>'


def image(width: float, height: float, parts: Iterable[str], title: str, *, alone: bool) -> str:
    """An <svg> element; `alone`, as a file of its own with its style."""
    namespace = ' xmlns="http://www.w3.org/2000/svg"' if alone else ""
    style = f"<style>{STYLE}</style>\n" if alone else ""
    box = f'viewBox="0 0 {_n(width)} {_n(height)}" width="{_n(width)}" height="{_n(height)}"'
    body = "\n".join(parts)
    head = f'<svg{namespace} {box} role="img" aria-label="{escape(title)}">'
    return f"{head}\n<!-- gemmgen -->\n{style}{body}\n</svg>"


def _n(number: float) -> str:
    return f"{number:.2f}".rstrip("0").rstrip(".")
