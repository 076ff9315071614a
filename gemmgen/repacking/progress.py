"""What a caller is told while a checkpoint is packed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

Progress = Callable[[int, int, str], object]


@contextmanager
def telling(progress: Progress | None) -> Iterator[Progress]:
    """`progress`, whose own errors leave the block as they were raised, whatever was made of them on their way."""
    raised: list[BaseException] = []

    def said(done: int, of: int, name: str) -> None:
        try:
            if progress is not None:
                progress(done, of, name)
        except BaseException as e:
            raised.append(e)
            raise

    try:
        yield said
    except BaseException as e:
        if raised and e is not raised[0]:
            raise raised[0] from None
        raise
