"""How far a command is, and how long it will take yet: on stderr, a bar on a terminal, lines where they are asked for."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from threading import Lock
from types import TracebackType
from typing import TypeVar

from ..environment import PROGRESS
from ..errors import ArgumentError
from . import screens

T = TypeVar("T")
FIRST = 2.0  # seconds until anything is shown: what is over before needs no bar
KINDS = ("auto", "always", "never")


def kind() -> str:
    """What GEMMGEN_PROGRESS asks for: "auto", a bar on a terminal; "always", else lines; "never". Raises ArgumentError."""
    asked = os.environ.get(PROGRESS, "") or "auto"
    if asked not in KINDS:
        raise ArgumentError(PROGRESS, asked, f"must be one of {', '.join(KINDS)}")
    return asked


def _screen() -> Callable[[], screens.Screen] | None:
    """What makes the one that is asked for, None for silence."""
    asked = kind()
    if sys.stderr.isatty():
        return None if asked == "never" else screens.bar
    return screens.Lines if asked == "always" else None


class Bar:
    """The one bar of a command: `with Bar() as bar: ... bar.update("emulating", done, total)`. Any thread may."""

    def __init__(self) -> None:
        self._make = _screen()
        self._screen: screens.Screen | None = None
        self._lock = Lock()
        began = time.monotonic()
        self._since = self._at = began  # when what is counted began; when it was last told
        self._next = began + FIRST
        self._title, self._done = "", 0

    def __enter__(self) -> Bar:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, e: BaseException | None, at: TracebackType | None
    ) -> None:
        with self._lock:
            self._make = None  # a thread that has not ended yet tells nobody
            if self._screen:
                self._screen.close()

    def update(self, title: str, done: int, total: int) -> None:
        """So many are done of what `title` says is done to them. Fewer than before are counted anew: another launch."""
        with self._lock:
            now = time.monotonic()
            if title != self._title or done < self._done:
                self._since = self._at if done else now
            self._title, self._done, self._at = title, done, now
            if self._make is None or now < self._next:
                return
            self._screen = self._screen or self._make()
            self._next = now + self._screen.every
            self._screen.draw(title, done, total, left(done, total, now - self._since))

    def counted(self, title: str, items: Sequence[T]) -> Iterator[T]:
        """Each of `items` in turn."""
        for done, item in enumerate(items):
            self.update(title, done, len(items))
            yield item

    def steps(self, title: str, total: int) -> Callable[[], None]:
        """What to call at the end of each of `total` steps."""
        done = iter(range(1, total + 1))
        return lambda: self.update(title, next(done, total), total)


def left(done: int, total: int, seconds: float) -> str:
    """How long the rest takes if it goes on as in the `seconds` until now; "" where nobody can say."""
    if not 0 < done < total:
        return ""
    rest = round(seconds * (total - done) / done)
    return f", {rest // 60} min {rest % 60:02} s left" if rest >= 60 else f", {rest} s left"


def counted(title: str, items: Sequence[T]) -> Iterator[T]:
    """Each of `items` in turn, under a bar."""
    with Bar() as bar:
        yield from bar.counted(title, items)
