"""Compiled kernels, kept on the disk from one process to the next.

`GEMMGEN_CACHE` names the directory; if it is not set, `$XDG_CACHE_HOME/gemmgen`, or `~/.cache/gemmgen`.
`none` keeps nothing and looks nowhere. `GEMMGEN_CACHE_BYTES` bounds its size (1 GiB). `GEMMGEN_CACHE_PATH`
lists directories that were filled beforehand and are only read, first to last, after it.

Whatever is wrong with a directory or an entry, the kernel is compiled, and the first such case is logged as a
warning. A cubin that was just compiled is never read back.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from .. import environment
from ..errors import ArgumentError, CacheError, CompileError
from ..target import H200, Target
from . import cache_entry, cache_files, cache_refusal, fingerprint, nvrtc
from .cache_entry import BuildInputs, Wanted
from .cache_trust import opened
from .nvrtc import Cubin

VARIABLE, SHARED, BYTES = environment.CACHE, environment.CACHE_PATH, environment.CACHE_BYTES
NONE = "none"
LIMIT = 1 << 30  # bytes

T = TypeVar("T")

log = logging.getLogger(__name__)
_said: set[tuple[str, Path]] = set()  # the kinds of trouble this process has logged


@dataclass(frozen=True, kw_only=True)
class Places:
    """Where kernels are kept. own: read and written, None if nowhere. shared: only read. limit: bytes."""

    own: Path | None
    shared: tuple[Path, ...] = ()
    limit: int = LIMIT

    @property
    def all(self) -> tuple[Path, ...]:
        """In the order in which they are asked."""
        return (*((self.own,) if self.own else ()), *self.shared)


def places() -> Places:
    """What the environment says. Raises ArgumentError naming a variable whose value is no number of bytes."""
    environment.warn_of_unknown()
    asked = os.environ.get(VARIABLE, "")
    if asked == NONE:
        return Places(own=None)
    size = os.environ.get(BYTES, "")
    if not re.fullmatch(r"[0-9]{0,18}", size):
        raise ArgumentError(BYTES, size, "must be a number of bytes")
    shared = os.environ.get(SHARED, "").split(os.pathsep)
    return Places(
        own=Path(asked) if asked else _default(),
        shared=tuple(Path(p) for p in shared if p),
        limit=int(size) if size else LIMIT,
    )


def _default() -> Path:
    base = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(base):  # others are to be ignored: XDG Base Directory Specification
        return Path(base) / "gemmgen"
    return Path(os.path.expanduser("~")) / ".cache" / "gemmgen"


def cached_cubin(source: str, name: str, target: Target = H200) -> Cubin:
    """As `nvrtc.compile_cubin`, but taken from the disk if it was compiled before.

    Raises also ArgumentError as `places`; never for what is wrong with the disk.
    """
    where = places()
    return cached(
        inputs_of(source, name, target), lambda: nvrtc.compile_cubin(source, name, target), where
    )


def inputs_of(source: str, name: str, target: Target = H200) -> BuildInputs:
    """Of what `nvrtc.compile_cubin` makes of the same arguments. Raises RuntimeUnavailable without NVRTC."""
    return BuildInputs(
        source=source,
        name=name,
        arch=target.arch,
        options=nvrtc.options(target),
        compiler=nvrtc.build(),
    )


def cached(recipe: BuildInputs, compiler: Callable[[], Cubin], where: Places) -> Cubin:
    """What `compiler` returns, or has returned for the same recipe; or what it raises, or has raised for it if
    that was lasting. Raises nothing else."""
    if found := look_up(recipe, where):
        return found
    if refused := refusal(recipe, where):
        raise refused
    try:
        cubin = compiler()
    except CompileError as e:
        if e.lasting:
            _keep_refusal(recipe, e, where)
        raise
    keep(recipe.key, lambda: cache_entry.encode(recipe, cubin), where)
    return cubin


def look_up(wanted: Wanted, where: Places) -> Cubin | None:
    """The cubin that is kept under `wanted`'s key and was compiled as it says. Raises nothing."""
    return entry_of(wanted.key, lambda data: cache_entry.decode_for(data, wanted), where)


def refusal(wanted: Wanted, where: Places) -> CompileError | None:
    """Why the build refused what `wanted` names, if that is kept. Raises nothing."""
    key = cache_refusal.key_of(wanted) if where.all else None
    if key is None:
        return None
    decode = partial(cache_refusal.decode_for, key=key, wanted=wanted)
    return entry_of(key, decode, where, cache_files.REFUSED)


def _keep_refusal(recipe: BuildInputs, error: CompileError, where: Places) -> None:
    key = cache_refusal.key_of(recipe) if where.own else None
    if key and fingerprint.unchanged():
        encode = partial(cache_refusal.encode, key, recipe, error)
        keep(key, encode, where, cache_files.REFUSED)


def entry_of(
    key: str, decode: Callable[[bytes], T], where: Places, suffix: str = cache_files.SUFFIX
) -> T | None:
    """What `decode` makes of the first undamaged file of `key`. It raises CacheError for damage; nothing else
    comes out of here."""
    for path in where.all:
        if (found := _found(path, key, decode, suffix, own=path == where.own)) is not None:
            return found
    return None


def _found(
    path: Path, key: str, decode: Callable[[bytes], T], suffix: str, *, own: bool
) -> T | None:
    try:
        with opened(path) as folder:
            return _decoded(folder, path, key, decode, suffix, own)
    except FileNotFoundError:
        return None
    except (CacheError, OSError) as e:
        _say("read", path, f"not used, compiling instead: {e}")
        return None


def _decoded(
    folder: int, path: Path, key: str, decode: Callable[[bytes], T], suffix: str, own: bool
) -> T | None:
    """None, after a warning, if the entry is damaged; our own is removed."""
    read = cache_files.read if own else cache_files.look
    try:
        return decode(read(folder, key, suffix))
    except CacheError as e:
        if own:
            cache_files.discard(folder, key, suffix)
        done = "removed" if own else "passed over"
        _say("entry", path, f"damaged entry {key} {done}, compiling again: {e}")
        return None


def keep(
    key: str,
    encode: Callable[[], bytes],
    where: Places,
    suffix: str = cache_files.SUFFIX,
    beside: tuple[str, ...] = (),
) -> None:
    """Make what `encode` returns the own file of `key`, and then room, but not where the keys `beside` are. It
    raises CacheError for what is not to be kept; nothing else comes out of here."""
    if where.own is None:
        return
    try:
        data = encode()
        with opened(where.own, create=True) as folder:
            cache_files.publish(folder, key, data, suffix)
            cache_files.prune(folder, where.limit, keep=(key, *beside))
    except (CacheError, OSError) as e:
        _say("write", where.own, f"kernel not kept: {e}")


def _say(kind: str, path: Path, text: str) -> None:
    """Log the first trouble of a kind in a directory: a process may meet thousands."""
    if (kind, path) not in _said:
        _said.add((kind, path))
        log.warning("cache of compiled kernels %s: %s", path, text)
