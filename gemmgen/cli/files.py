"""Writing files: never outside the folder named, never half, never over something that is not ours."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from ..errors import ArgumentError
from .ours import is_ours

NAME_MAX = 255  # bytes of a file's name, of all of Linux's file systems


def write(folder: Path, name: str, data: bytes) -> Path:
    """Write `data` to `folder/name` whole or not at all.

    Raises ArgumentError if `name` leads out of `folder`, the place is a symbolic link, something
    stands there that gemmgen did not write, or the system refuses.
    """
    try:
        return _written(inside(folder, name), data)
    except OSError as e:
        where = str(e.filename or folder)
        raise ArgumentError("-o", where, f"cannot be written: {e.strerror or e}") from e
    except (ValueError, RuntimeError) as e:  # a NUL; links in a circle
        if isinstance(e, ArgumentError):
            raise
        raise ArgumentError("-o", str(folder / name), f"is no path: {e}") from e


def _written(target: Path, data: bytes) -> Path:
    if target.is_symlink():
        raise ArgumentError("-o", str(target), "is a symbolic link")
    if target.exists() and not is_ours(target):
        raise ArgumentError("-o", str(target), "exists and was not written by gemmgen")
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=".gemmgen-")
    try:
        with os.fdopen(handle, "wb") as f:
            f.write(data)
        Path(temporary).chmod(0o644)
        os.replace(temporary, target)  # noqa: PTH105 (atomic on one file system)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    return target


def inside(folder: Path, name: str) -> Path:
    """`folder/name`, resolved except for its last component. Raises ArgumentError if that is elsewhere."""
    root = folder.resolve()
    target = root / name
    if "\0" in name or len(os.fsencode(target.name)) > NAME_MAX:  # before a folder is made for it
        raise ArgumentError("-o", name, f"must be a file's name of at most {NAME_MAX} bytes")
    parent = target.parent.resolve()
    if not parent.is_relative_to(root) or target.name in ("", ".", ".."):
        raise ArgumentError("-o", str(target), f"leads out of {root}")
    return parent / target.name
