"""Looking at a directory of compiled kernels, and making it smaller: what `gemmgen cache` does."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ..errors import CacheError
from . import cache_files, cache_index, cache_refusal
from .cache_entry import Entry, decode
from .cache_files import Stored
from .cache_index import Answer
from .cache_trust import opened


@dataclass(frozen=True, kw_only=True)
class Item:
    """A file of a directory and what it holds: a kernel's entry, how one is launched, why the build refused one
    (`cache_refusal`), or else the damage."""

    folder: Path
    stored: Stored
    entry: Entry | None = None
    launch: Answer | None = None
    refused: dict[str, str] | None = None
    damage: str = ""


def survey(path: Path) -> tuple[Item, ...]:
    """All entries of the directory `path`, by key, each verified; none if there is no such directory.

    Changes nothing, no time of use either. Raises CacheError if the directory is not safe or cannot be read.
    """
    with _reached(path), opened(path) as folder:
        return tuple(_item(path, folder, e) for e in cache_files.stored(folder))
    return ()


def shrink(path: Path, limit: int) -> tuple[Stored, ...]:
    """Remove the entries of `path` used longest ago until the others have at most `limit` bytes together,
    and what dead writers left. Returns the entries removed. Raises CacheError as `survey`."""
    with _reached(path), opened(path) as folder:
        return cache_files.prune(folder, limit)
    return ()


@contextmanager
def _reached(path: Path) -> Iterator[None]:
    """A missing directory ends the block; what else the file system says is a CacheError."""
    try:
        yield
    except FileNotFoundError:
        pass
    except OSError as e:
        raise CacheError(f"{path}: {e.strerror}") from e


def _item(path: Path, folder: int, stored: Stored) -> Item:
    key, suffix = stored.key, stored.suffix
    try:
        data = cache_files.look(folder, key, suffix)
        if suffix == cache_files.LAUNCH:
            return Item(folder=path, stored=stored, launch=cache_index.decode(data, key))
        if suffix == cache_files.REFUSED:
            return Item(folder=path, stored=stored, refused=cache_refusal.decode(data, key))
        return Item(folder=path, stored=stored, entry=decode(data, key))
    except (CacheError, OSError) as e:
        return Item(folder=path, stored=stored, damage=str(e))
