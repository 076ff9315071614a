"""Which gemmgen this is: a digest of all its files, as long as they are those that this process runs.

What stands on the disk is read again, bytes and all, so no name, size or date can stand for what a file held. What runs
may be older than what stands there: a file that was changed since gemmgen was imported, or just before, makes
the fingerprint None, and nothing is then kept or found under it.
"""

from __future__ import annotations

import hashlib
import os
import stat
import sys
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import gemmgen

PACKAGE = Path(__file__).parent.parent
KINDS = (".py", ".j2")
GRAIN = 2 * 10**9  # nanoseconds: the coarsest times of change that file systems keep


@cache
def fingerprint() -> str | None:
    """SHA-256, 64 hexadecimal digits, of the names and bytes of gemmgen's modules and templates, of Python's
    version and of the package that renders templates. None if they cannot be read or may have changed under
    this process."""
    try:
        digest = hashlib.sha256(f"{sys.version} {_renderer()}".encode())
        for file in sources():
            held = hashlib.sha256(_bytes(file.path)).digest()
            digest.update(hashlib.sha256(_name(file.path)).digest() + held)
    except OSError:
        return None
    return digest.hexdigest() if unchanged() else None


def unchanged() -> bool:
    """Whether the files are still those that this process imported, or would import now.

    A file's time of change is the file system's own; unlike its time of modification no program sets it.
    """
    try:
        newest = max(file.stat().st_ctime_ns for file in sources())
    except (OSError, ValueError):  # ValueError: there are none, as in a zip file
        return False
    return newest + GRAIN < gemmgen.IMPORTED


def sources() -> list[os.DirEntry[str]]:
    """The modules and templates, by path."""
    beside = (
        PACKAGE.parent / "templates"
    )  # in a checkout; beside an installed package it is not ours
    roots = (PACKAGE,) if (PACKAGE / "templates").is_dir() else (PACKAGE, beside)
    return sorted((file for root in roots for file in _below(str(root))), key=lambda f: f.path)


def _below(folder: str) -> Iterator[os.DirEntry[str]]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir():
                yield from _below(entry.path) if entry.name != "__pycache__" else ()
            elif entry.name.endswith(KINDS):
                yield entry


def _name(path: str) -> bytes:
    return os.fsencode(os.path.relpath(path, PACKAGE.parent))


def _bytes(path: str) -> bytes:
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        found = os.fstat(handle)
        if not stat.S_ISREG(found.st_mode):
            raise OSError("is no file")
        size = found.st_size
        data = os.read(handle, size + 1)
        if len(data) != size:
            raise OSError("changed while it was read")
        return data
    finally:
        os.close(handle)


def _renderer() -> tuple[str, int, int] | None:
    """Where jinja2 is, its first file's size and time of modification: without importing it."""
    spec = find_spec("jinja2")
    if spec is None or spec.origin is None:
        return None
    found = Path(spec.origin).stat()
    return spec.origin, found.st_size, found.st_mtime_ns
