"""Which gemmgen this is: a digest of all its files that have a say in a kernel, as long as they are those that this
process runs.

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
# No module that makes a kernel of a problem and a config, or finds one, imports one of these.
BESIDE = (
    *(
        "bench",
        "cli",
        "compat",
        "compiling",
        "emulator",
        "formats",
        "gallery",
        "heuristics",
        "nn",
        "pack",
        "quant",
        "repacking",
        "see",
    ),
    *("torch_ops", "verification"),
)
GRAIN = 2 * 10**9  # nanoseconds: the coarsest times of change that file systems keep


@cache
def fingerprint() -> str | None:
    """SHA-256, 64 hexadecimal digits, of the names and bytes of gemmgen's modules and templates but for BESIDE, of
    Python's version and of the package that renders templates. None if they cannot be read or may have changed
    under this process."""
    newest, above = 0, len(f"{PACKAGE.parent}/")
    try:
        digest = hashlib.sha256(f"{sys.version} {_renderer()} ".encode())
        for file in sources():
            name, (data, changed) = os.fsencode(file.path[above:]), _read(file.path)
            digest.update(b"%d %d %b" % (len(name), len(data), name))
            digest.update(data)
            newest = max(newest, changed)
    except OSError:
        return None
    return digest.hexdigest() if newest and _settled(newest) else None


def unchanged() -> bool:
    """Whether the files are still those that this process imported, or would import now.

    A file's time of change is the file system's own; unlike its time of modification no program sets it.
    """
    try:
        return _settled(max(file.stat().st_ctime_ns for file in sources()))
    except (OSError, ValueError):  # ValueError: there are none, as in a zip file
        return False


def _settled(changed: int) -> bool:
    return changed + GRAIN < gemmgen.IMPORTED


def sources() -> list[os.DirEntry[str]]:
    """The modules and templates, by path."""
    beside = (
        PACKAGE.parent / "templates"
    )  # in a checkout; beside an installed package it is not ours
    found = [*_below(str(PACKAGE), ("__pycache__", *BESIDE))]
    if not (PACKAGE / "templates").is_dir():
        found += _below(str(beside))
    return sorted(found, key=lambda f: f.path)


def _below(folder: str, without: tuple[str, ...] = ("__pycache__",)) -> Iterator[os.DirEntry[str]]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir():
                yield from _below(entry.path) if entry.name not in without else ()
            elif entry.name.endswith(KINDS):
                yield entry


def _read(path: str) -> tuple[bytes, int]:
    """A file's bytes, and when it was last changed, as far as is known after they were read."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        data = os.read(handle, os.fstat(handle).st_size + 1)
        found = os.fstat(handle)
    finally:
        os.close(handle)
    if not stat.S_ISREG(found.st_mode) or len(data) != found.st_size:
        raise OSError("is no file, or changed while it was read")
    return data, found.st_ctime_ns


def _renderer() -> tuple[str, int, int] | None:
    """Where jinja2 is, its first file's size and time of modification: without importing it."""
    spec = find_spec("jinja2")
    if spec is None or spec.origin is None:
        return None
    found = Path(spec.origin).stat()
    return spec.origin, found.st_size, found.st_mtime_ns
