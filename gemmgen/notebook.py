"""What notebooks show of an object: plain tables and folded text, which take the notebook's own colours."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape


def table(title: str, rows: Mapping[str, object]) -> str:
    """An HTML table of names and values, each as `str` has it."""
    body = "".join(
        f'<tr><th scope="row" style="text-align: left">{escape(name)}</th>'
        f'<td style="text-align: left">{escape(str(value))}</td></tr>'
        for name, value in rows.items()
    )
    return f'<table style="overflow-wrap: anywhere"><caption style="text-align: left">{escape(title)}</caption><tbody>{body}</tbody></table>'


def folded(summary: str, text: str) -> str:
    """Text that is shown when asked for."""
    return f"<details><summary>{escape(summary)}</summary><pre>{escape(text)}</pre></details>"
