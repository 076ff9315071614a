"""Execute the notebooks of examples/ as Jupyter does, and keep what their cells show.

`python -m docs.tools.notebook` writes them anew. Needs nbclient, ipykernel and NVRTC.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

ROOT = Path(__file__).parents[2]
NOTEBOOKS = tuple(sorted((ROOT / "examples").glob("*.ipynb")))
SECONDS = 300  # of a cell, at most


def executed(path: Path) -> Any:
    """The notebook with its outputs, without the times at which they were made. Raises CellExecutionError."""
    book = nbformat.read(path, as_version=4)
    where = {"metadata": {"path": str(ROOT)}}
    # What a cell prints may come in several pieces, by chance.
    NotebookClient(book, timeout=SECONDS, coalesce_streams=True, resources=where).execute()
    book.metadata.language_info = {"name": "python"}  # no version of this machine's
    for cell in book.cells:
        cell.metadata = {}
    return book


def text_of(book: Any) -> str:
    """The file that holds it."""
    return str(nbformat.writes(book, indent=1)) + "\n"


def main() -> None:
    for path in NOTEBOOKS:
        path.write_text(text_of(executed(path)))
        print(path.relative_to(ROOT))


if __name__ == "__main__":
    main()
