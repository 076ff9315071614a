"""What progress is shown on: a bar by rich where that is installed, else one of text; lines where there is no terminal."""

from __future__ import annotations

import sys
from typing import Any, Protocol

WIDTH = 30


class Screen(Protocol):
    every: float  # seconds between two drawings

    def draw(self, title: str, done: int, total: int, rest: str) -> None: ...

    def close(self) -> None:
        """Leave nothing of a bar."""


class Lines:
    every = 5.0

    def draw(self, title: str, done: int, total: int, rest: str) -> None:
        print(f"{title}: {done} of {total}{rest}", file=sys.stderr, flush=True)

    def close(self) -> None:
        pass


class Text:
    every = 0.1

    def __init__(self) -> None:
        self._width = 0

    def draw(self, title: str, done: int, total: int, rest: str) -> None:
        filled = WIDTH * done // max(total, 1)
        line = f"{title} [{'#' * filled}{'.' * (WIDTH - filled)}] {done}/{total}{rest}"
        print(f"\r{line:<{self._width}}", end="", file=sys.stderr, flush=True)
        self._width = len(line)

    def close(self) -> None:
        print("\r" + " " * self._width + "\r", end="", file=sys.stderr, flush=True)


class Rich:
    every = 0.1

    def __init__(self, console: Any) -> None:
        from rich.progress import BarColumn, Progress, TextColumn

        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(WIDTH),
            TextColumn("{task.completed:.0f}/{task.total:.0f}{task.fields[rest]}", markup=False),
        )
        # No thread that draws by itself: it would run beside what is timed. What a command prints goes where it always does.
        self._progress = Progress(
            *columns, console=console, transient=True, auto_refresh=False, redirect_stdout=False
        )
        self._task = self._progress.add_task("", rest="", visible=False)
        self._progress.start()

    def draw(self, title: str, done: int, total: int, rest: str) -> None:
        self._progress.update(
            self._task,
            description=title,
            completed=done,
            total=total,
            visible=True,
            refresh=True,
            rest=rest,
        )

    def close(self) -> None:
        self._progress.stop()


def bar() -> Screen:
    """On a terminal."""
    try:
        from rich.console import Console
    except ImportError:
        return Text()
    console = Console(stderr=True)
    # Of a terminal that it cannot move about in rich draws nothing.
    return Rich(console) if console.is_terminal and not console.is_dumb_terminal else Text()
