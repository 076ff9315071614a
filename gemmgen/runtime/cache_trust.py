"""Which directories may hold compiled kernels: those that nobody else can write to.

A cubin runs with the user's rights on the GPU, so a directory of cubins is as dangerous as one of programs.
It, and each directory above it, must belong to the user or to root and be writable by nobody else. Above it,
one that is sticky (like /tmp) may be writable by all, for nobody can rename there what is not theirs, and
symbolic links are followed if they belong to the user or to root. The directory itself must be no link.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ..errors import CacheError

OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
PRIVATE = 0o700
DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
NAME_MAX, PATH_MAX = 255, 4096  # bytes, of Linux
SHOWN = 100  # characters of a path that is none
MOST_LINKS = 40  # in one path, as the kernel follows


@contextmanager
def opened(path: Path, *, create: bool = False) -> Iterator[int]:
    """A descriptor of the directory `path` (absolute), once it is known to be safe.

    create: make it, and what is missing above it, for the user alone. Raises CacheError if it is not
    safe; FileNotFoundError if it is missing; OSError.
    """
    folder = _walked(path, create)
    handle = os.open(folder, DIRECTORY)
    try:
        _check(folder, os.fstat(handle), above=False)
        yield handle
    finally:
        os.close(handle)


def check_owner(name: str, found: os.stat_result) -> None:
    """Raise CacheError if what `found` describes may be someone else's work."""
    if found.st_uid not in (0, os.geteuid()):
        raise CacheError(f"{name} belongs to user {found.st_uid}, neither you nor root")
    if found.st_mode & OTHERS_WRITE:
        raise CacheError(f"{name} may be written by others (chmod go-w)")


def _walked(path: Path, create: bool) -> str:
    """`path` without links above its last component, each directory on the way checked."""
    _check_name(path)
    if not path.is_absolute():
        raise CacheError(f"{path} is not an absolute path")
    here, links = "/", 0
    left = [*reversed(path.parts[1:])]
    while left:
        _check(here, os.lstat(here), above=True)
        part = left.pop()
        there = os.path.normpath(f"{here}/{part}")
        found = _looked(there, create)
        if not stat.S_ISLNK(found.st_mode):
            here = there
            continue
        links += 1
        if not left or links > MOST_LINKS:
            raise CacheError(f"{there} is a symbolic link")
        if found.st_uid not in (0, os.geteuid()):
            raise CacheError(f"{there} is a symbolic link of user {found.st_uid}")
        target = Path(os.readlink(there))
        here = "/" if target.is_absolute() else here
        left += reversed(target.parts[target.is_absolute() :])
    return here


def _check_name(path: Path) -> None:
    """That the system can take it whole, before a part of it is made."""
    longest = max(len(os.fsencode(part)) for part in (*path.parts, ""))
    if "\0" in str(path) or longest > NAME_MAX or len(os.fsencode(path)) >= PATH_MAX:
        raise CacheError(f"{str(path)[:SHOWN]!r} is no path: it is too long, or holds a NUL")


def _looked(path: str, create: bool) -> os.stat_result:
    try:
        return os.lstat(path)
    except FileNotFoundError:
        if not create:
            raise
    with suppress(FileExistsError):  # another process made it; whose it is, is checked next
        os.mkdir(path, PRIVATE)
    return os.lstat(path)


def _check(path: str, found: os.stat_result, *, above: bool) -> None:
    if not stat.S_ISDIR(found.st_mode):
        raise CacheError(f"{path} is not a directory")
    if above and found.st_mode & stat.S_ISVTX:
        if found.st_uid not in (0, os.geteuid()):
            raise CacheError(f"{path} belongs to user {found.st_uid}, neither you nor root")
        return
    check_owner(path, found)
