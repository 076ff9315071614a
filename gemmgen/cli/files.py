"""Writing files: never outside the folder named, never half, never over something that is not ours."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from ..errors import ArgumentError

MARK = b"gemmgen"  # every text gemmgen writes carries its name near the top
HEAD = 4096


def write(folder: Path, name: str, data: bytes) -> Path:
    """Write `data` to `folder/name` whole or not at all.

    Raises ArgumentError if `name` leads out of `folder`, the place is a symbolic link, or a file
    stands there that gemmgen did not write.
    """
    target = inside(folder, name)
    if target.is_symlink():
        raise ArgumentError("-o", str(target), "is a symbolic link")
    if target.exists() and MARK not in target.read_bytes()[:HEAD]:
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
    parent = target.parent.resolve()
    if not parent.is_relative_to(root) or target.name in ("", ".", ".."):
        raise ArgumentError("-o", str(target), f"leads out of {root}")
    return parent / target.name
