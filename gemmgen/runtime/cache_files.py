"""The files in a directory of compiled kernels, all reached through its descriptor.

An entry appears whole or not at all: it is written beside its place, forced to the disk and renamed. Readers
need no lock. Of two writers the last wins; both wrote the same. What stands where an entry should and is none,
a reader reports as CacheError. Names that are not of this module's two forms are never touched.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import stat
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass

from ..errors import CacheError
from .cache_entry import LEAST_SIZE, MOST_SIZE
from .cache_trust import check_owner

SUFFIX, LAUNCH = ".cubin", ".launch"  # compiled kernels; what leads to them (`cache_index`)
REFUSED = ".refused"  # why there is no cubin (`cache_refusal`)
ENTRY = re.compile(r"([0-9a-f]{64})(\.cubin|\.launch|\.refused)", re.ASCII)
TEMPORARY = re.compile(r"[0-9a-f]{64}\.[0-9a-f]{16}\.tmp", re.ASCII)
# Never wait (a FIFO), never follow (a link).
READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
WRITE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
NO_ENTRY = (errno.ELOOP, errno.ENXIO, errno.EACCES, errno.EISDIR)  # a link, a socket, a mode of 0
STALE = 3600 * 10**9  # nanoseconds: no writer takes an hour
SKEW = 24 * 3600 * 10**9  # nanoseconds by which the clocks of two machines may differ


@dataclass(frozen=True, kw_only=True)
class Stored:
    """An entry's key, its bytes on the disk, when it was last used, in nanoseconds since 1970, and its kind."""

    key: str
    size: int
    used: int
    suffix: str = SUFFIX


def read(folder: int, key: str, suffix: str = SUFFIX) -> bytes:
    """The file of `key`, not decoded, its time of use set to now.

    Raises FileNotFoundError if there is none; CacheError if what is there is no entry, or not only ours
    to write; OSError if the file system fails.
    """
    data = look(folder, key, suffix)
    with suppress(OSError):  # read-only: nothing is evicted there
        os.utime(key + suffix, dir_fd=folder, follow_symlinks=False)
    return data


def look(folder: int, key: str, suffix: str = SUFFIX) -> bytes:
    """As `read`, and leaves no trace."""
    try:
        handle = os.open(key + suffix, READ, dir_fd=folder)
    except OSError as e:
        if e.errno in NO_ENTRY:
            raise CacheError(f"cannot be opened ({e.strerror})") from e
        raise
    try:
        found = os.fstat(handle)
        if not stat.S_ISREG(found.st_mode):
            raise CacheError("is no file")
        check_owner("it", found)
        if not LEAST_SIZE <= found.st_size <= MOST_SIZE:
            raise CacheError(f"{found.st_size} bytes are no entry")
        return _exactly(handle, found.st_size)
    finally:
        os.close(handle)


def _exactly(handle: int, size: int) -> bytes:
    parts = []
    while size and (part := os.read(handle, size)):
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def publish(folder: int, key: str, data: bytes, suffix: str = SUFFIX) -> None:
    """Make `data` the file of `key`, whole or not at all. Raises OSError; nothing is left then."""
    name = f"{key}.{secrets.token_hex(8)}.tmp"
    handle = os.open(name, WRITE, 0o600, dir_fd=folder)
    try:
        try:
            _write(handle, data)
            os.fsync(handle)
        finally:
            os.close(handle)
        # The directory is not forced to the disk: a rename that is lost costs one compilation.
        os.replace(name, key + suffix, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        with suppress(OSError):
            os.unlink(name, dir_fd=folder)
        raise


def _write(handle: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        written = os.write(handle, left)
        if not written:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        left = left[written:]


def discard(folder: int, key: str, suffix: str = SUFFIX) -> None:
    """Remove what stands in the place of `key`, if the file system lets us."""
    for remove in (os.unlink, os.rmdir):
        with suppress(OSError):
            remove(key + suffix, dir_fd=folder)


def stored(folder: int) -> tuple[Stored, ...]:
    """All entries, damaged or not, by key. Raises OSError."""
    names = sorted(os.listdir(folder))
    found = [(m[1], m[2], _stat(folder, m[0])) for m in map(ENTRY.fullmatch, names) if m]
    return tuple(
        Stored(key=k, size=s.st_size, used=s.st_mtime_ns, suffix=x) for k, x, s in found if s
    )


def _stat(folder: int, name: str) -> os.stat_result | None:
    """None: another process removed it."""
    with suppress(OSError):
        return os.stat(name, dir_fd=folder, follow_symlinks=False)
    return None


def prune(folder: int, limit: int, keep: tuple[str, ...] = ()) -> tuple[Stored, ...]:
    """Remove the entries used longest ago until the others have at most `limit` bytes together, never those
    of the keys `keep`, and what dead writers left. Returns the entries removed. Raises OSError."""
    _sweep(folder)
    now = time.time_ns()
    entries = stored(folder)
    excess = sum(e.size for e in entries) - limit
    removed = []
    for entry in oldest(entries, now):
        if excess <= 0:
            break
        if entry.key not in keep:
            discard(folder, entry.key, entry.suffix)
            excess -= entry.size
            removed.append(entry)
    return tuple(removed)


def oldest(entries: Iterable[Stored], now: int) -> list[Stored]:
    """By last use. Times of use that `now` has not reached come first: a clock was wrong, and what they
    mark would else stay for ever."""
    return sorted(entries, key=lambda e: (e.used <= now + SKEW, e.used, e.key))


def _sweep(folder: int) -> None:
    now = time.time_ns()
    for name in filter(TEMPORARY.fullmatch, sorted(os.listdir(folder))):
        found = _stat(folder, name)
        if found and abs(now - found.st_mtime_ns) > STALE:
            with suppress(OSError):
                os.unlink(name, dir_fd=folder)
