"""A folder that is there whole or not at all."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ..errors import ArgumentError

FULL = (errno.ENOSPC, errno.EDQUOT)


@contextmanager
def whole(out: Path) -> Iterator[Path]:
    """A new folder beside `out`, which takes its name at the end; after an error, or an interruption, nothing of it stays. Raises ArgumentError if `out` is
    anything but an empty folder, or the system refuses; OSError where the disk is full."""
    out = check_free(out)
    made: list[Path] = []
    try:
        made += _parents(out)
        beside = Path(tempfile.mkdtemp(dir=out.parent, prefix=f".{out.name[:64]}-gemmgen-"))
        try:
            yield beside
            beside.chmod(0o777 & ~_mask())
            beside.replace(out)  # an empty folder, too
        except BaseException:
            shutil.rmtree(beside, ignore_errors=True)
            raise
    except BaseException as e:
        for folder in reversed(made):
            with suppress(OSError):
                folder.rmdir()
        if isinstance(e, OSError) and e.errno not in FULL:
            allowed = f"cannot be written: {e.strerror or e}"
            raise ArgumentError("out", str(e.filename or out), allowed) from e
        raise


def check_free(out: Path) -> Path:
    """`out`, from the root on. Raises ArgumentError if `out` is anything but an empty folder."""
    try:
        if out.is_symlink():
            raise ArgumentError("out", str(out), "is a symbolic link")
        found = out.resolve()
        if found.exists() and (not found.is_dir() or any(found.iterdir())):
            raise ArgumentError("out", str(out), "must be an empty folder, or none yet")
        return found
    except (OSError, RuntimeError, ValueError) as e:  # links in a circle; a NUL
        if isinstance(e, ArgumentError):
            raise
        why = getattr(e, "strerror", None) or e
        raise ArgumentError("out", str(out), f"cannot be written: {why}") from e


def check_space(folder: Path, out: Path, size: int) -> None:
    """Raise ArgumentError unless so many bytes are free where `folder` is."""
    free = shutil.disk_usage(folder).free
    if free < size:
        allowed = f"must be where {size} bytes are free; {free} are"
        raise ArgumentError("out", str(out), allowed)


def _parents(out: Path) -> list[Path]:
    """Folders above that were not there, made, outermost first."""
    missing = [x for x in reversed(out.parents) if not x.exists()]
    for folder in missing:
        folder.mkdir()
    return missing


def _mask() -> int:
    found = os.umask(0o077)
    os.umask(found)
    return found
