"""How far a command is, and how long it will take yet: on stderr, a bar on a terminal, lines where they are asked for."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import TypeVar

from ..environment import PROGRESS
from ..errors import ArgumentError

T = TypeVar("T")
WIDTH = 30
FIRST = 2.0  # seconds until anything is shown: what is over before needs no bar
EVERY = 5.0  # seconds between two lines; a bar is drawn ten times a second at most
DRAWN = 0.1
KINDS = ("auto", "always", "never")


def kind() -> str:
    """What GEMMGEN_PROGRESS asks for: "auto", a bar on a terminal; "always", else lines; "never". Raises ArgumentError."""
    asked = os.environ.get(PROGRESS, "") or "auto"
    if asked not in KINDS:
        raise ArgumentError(PROGRESS, asked, f"must be one of {', '.join(KINDS)}")
    return asked


class Bar:
    """`with Bar("emulating") as bar: ... bar.update(done, total)`; a bar is gone at the end."""

    def __init__(self, title: str) -> None:
        asked, terminal = kind(), sys.stderr.isatty()
        self._title = title
        self._drawn = terminal and asked != "never"
        self._told = not terminal and asked == "always"
        began = time.monotonic()
        self._since = self._at = (
            began  # when the count of what is done began; when it was last told
        )
        self._last, self._done = began + FIRST, 0
        self._width = 0

    def __enter__(self) -> Bar:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, e: BaseException | None, at: TracebackType | None
    ) -> None:
        if self._width:
            print("\r" + " " * self._width + "\r", end="", file=sys.stderr, flush=True)

    def update(self, done: int, total: int) -> None:
        now = time.monotonic()
        if done < self._done:  # another launch, counted anew
            self._since = self._at
        self._done, self._at = done, now
        if not (self._drawn or self._told) or now < self._last:
            return
        self._last = now + (DRAWN if self._drawn else EVERY)
        rest = left(done, total, now - self._since)
        if self._told:
            print(f"{self._title}: {done} of {total}{rest}", file=sys.stderr, flush=True)
            return
        filled = WIDTH * done // max(total, 1)
        line = f"{self._title} [{'#' * filled}{'.' * (WIDTH - filled)}] {done}/{total}{rest}"
        print(f"\r{line:<{self._width}}", end="", file=sys.stderr, flush=True)
        self._width = max(self._width, len(line))


def left(done: int, total: int, seconds: float) -> str:
    """How long the rest takes if it goes on as in the `seconds` until now; "" where nobody can say."""
    if not 0 < done < total:
        return ""
    rest = round(seconds * (total - done) / done)
    return f", {rest // 60} min {rest % 60:02} s left" if rest >= 60 else f", {rest} s left"


def counted(title: str, items: Sequence[T]) -> Iterator[T]:
    """Each of `items` in turn, under a bar."""
    with Bar(title) as bar:
        for done, item in enumerate(items):
            bar.update(done, len(items))
            yield item
