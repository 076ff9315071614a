"""A folder that is there whole or not at all."""

from __future__ import annotations

import errno
import secrets
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ..errors import ArgumentError

FULL = (errno.ENOSPC, errno.EDQUOT)


@contextmanager
def whole(out: Path) -> Iterator[Path]:
    """A new folder beside `out`, which takes its name at the end; after an error, or an interruption, nothing of it stays. Raises ArgumentError if `out` is
    anything but an empty folder, or the system refuses; OSError where the disk is full. What is raised within passes unchanged."""
    out = check_free(out)
    made: list[Path] = []
    try:
        with writing(out):
            _make_parents(out, made)
            mode = stat.S_IMODE(out.stat().st_mode) if out.exists() else None
            beside = out.parent / f".{out.name[:64]}-gemmgen-{secrets.token_hex(8)}"
            beside.mkdir(0o777 if mode is None else 0o700)
        try:
            yield beside
            with writing(out):
                if mode is not None:
                    beside.chmod(mode)
                beside.replace(out)  # an empty folder, too
        except BaseException:
            shutil.rmtree(beside, ignore_errors=True)
            raise
    except BaseException:
        for folder in reversed(made):
            with suppress(OSError):
                folder.rmdir()
        raise


@contextmanager
def writing(out: Path) -> Iterator[None]:
    """`with` it, what the system refuses is an ArgumentError about `out`; a full disk stays an OSError."""
    try:
        yield
    except OSError as e:
        if e.errno in FULL:
            raise
        allowed = f"cannot be written: {e.strerror or e}"
        raise ArgumentError("out", str(e.filename or out), allowed) from e


def check_free(out: Path) -> Path:
    """`out`, from the root on. Raises ArgumentError if `out` is anything but an empty folder."""
    try:
        if out.is_symlink():
            raise ArgumentError("out", str(out), "is a symbolic link")
        found = out.resolve()
        if found.exists() and (not found.is_dir() or any(found.iterdir())):
            raise ArgumentError("out", str(out), "must be an empty folder, or none yet")
        if found.is_mount():
            raise ArgumentError("out", str(out), "must not be a mount point: name a folder in it")
        return found
    except (OSError, RuntimeError, ValueError) as e:  # links in a circle; a NUL
        if isinstance(e, ArgumentError):
            raise
        why = getattr(e, "strerror", None) or e
        raise ArgumentError("out", str(out), f"cannot be written: {why}") from e


def check_space(folder: Path, out: Path, size: int) -> None:
    """Raise ArgumentError unless so many bytes are free where `folder` is."""
    with writing(out):
        free = shutil.disk_usage(folder).free
    if free < size:
        allowed = f"must be where {size} bytes are free; {free} are"
        raise ArgumentError("out", str(out), allowed)


def _make_parents(out: Path, made: list[Path]) -> None:
    """Folders above that are not there, outermost first; each is put into `made`."""
    for folder in [x for x in reversed(out.parents) if not x.exists()]:
        folder.mkdir()
        made.append(folder)
