"""A progress bar on stderr, where that is a terminal."""

from __future__ import annotations

import sys
from types import TracebackType

WIDTH = 30


class Bar:
    """`with Bar("emulating") as bar: ... bar.update(done, total)`; the line is gone at the end."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._shown = sys.stderr.isatty()

    def __enter__(self) -> Bar:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, e: BaseException | None, at: TracebackType | None
    ) -> None:
        if self._shown:
            print("\r" + " " * (WIDTH + len(self._title) + 12) + "\r", end="", file=sys.stderr)

    def update(self, done: int, total: int) -> None:
        if self._shown:
            filled = WIDTH * done // max(total, 1)
            bar = "#" * filled + "." * (WIDTH - filled)
            print(f"\r{self._title} [{bar}] {done}/{total}", end="", file=sys.stderr, flush=True)
