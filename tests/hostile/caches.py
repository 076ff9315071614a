"""Directories of compiled kernels, the entries in them, and the variables that name them."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

from cache_faults.fakes import compiled, recipe

from gemmgen.runtime import cache, cache_entry, cache_files
from gemmgen.runtime.cache_entry import HEAD, decode, decode_for, encode
from gemmgen.runtime.cache_trust import opened

from .model import Case, call, command

RECIPE = recipe()
KEY, ENTRY = RECIPE.key, encode(RECIPE, compiled(RECIPE))
STRANGER = 4242
Place = Callable[[Path], object]


@contextmanager
def owned_by(user: int, name: str) -> Iterator[None]:
    """The file `name` belongs to another user, as far as gemmgen can see; nobody has to be root for that."""
    real = {call: getattr(os, call) for call in ("lstat", "fstat")}

    def seen(call: str, path: Any) -> os.stat_result:
        found = real[call](path)
        at = Path(f"/proc/self/fd/{path}").readlink() if isinstance(path, int) else path
        fields = [*found]
        fields[stat.ST_UID] = user if Path(at).name == name else fields[stat.ST_UID]
        return os.stat_result(fields)

    with mock.patch.multiple(os, **{call: partial(seen, call) for call in real}):
        yield


# ---- directories ----------------------------------------------------------------------------


def mode(bits: int, *parts: str) -> Place:
    """A directory of that mode, and below it one that would do."""

    def place(folder: Path) -> Path:
        path = folder / "d"
        path.mkdir()
        path.joinpath(*parts).mkdir(mode=0o700, exist_ok=True, parents=True)
        path.chmod(bits)
        return path.joinpath(*parts)

    return place


def at(make: Place) -> Place:
    def place(folder: Path) -> Path:
        make(folder / "d")
        return folder / "d"

    return place


def linked(folder: Path) -> Path:
    (folder / "real").mkdir(mode=0o700)
    (folder / "d").symlink_to(folder / "real")
    return folder / "d"


DIRECTORIES: dict[str, Place] = {
    "writable by the group": mode(0o770),
    "writable by all": mode(0o777),
    "writable by all and sticky": mode(0o1777),
    "below one that the group may write to": mode(0o770, "below"),
    "below one that all may write to": mode(0o777, "below"),
    "two below one that all may write to": mode(0o757, "below", "that"),
    "a link": linked,
    "a link to itself": at(lambda p: p.symlink_to(p)),
    "a link to nothing": at(lambda p: p.symlink_to(p.parent / "nothing")),
    "a file": at(lambda p: p.write_bytes(b"")),
    "a pipe": at(os.mkfifo),
    "below a file": lambda folder: at(lambda p: p.write_bytes(b""))(folder) / "below",  # type: ignore[operator]
    "a relative path": lambda folder: Path("cache"),
    "a relative path with ..": lambda folder: Path("../cache"),
    "a user's home": lambda folder: Path("~/cache"),
    "a NUL": lambda folder: folder / "a\0b",
    "a name of 300": lambda folder: folder / ("x" * 300),
    "a path of 12000": lambda folder: folder.joinpath(*["x" * 200] * 60),
    "a device": lambda folder: Path("/dev/null"),
    "below a device": lambda folder: Path("/dev/null/x"),
    "in /proc": lambda folder: Path("/proc/self/x"),
}
STRANGERS: dict[str, Place] = {"a stranger's": mode(0o700), "below a stranger's": mode(0o755, "below")}  # fmt: skip


def _entered(path: Any, *, user: int | None = None) -> object:
    """As `gemmgen cache` and `gemmgen prepare` come to a directory."""
    from gemmgen.ops.preparing import _reachable

    if user is None:
        return _reachable(cache.Places(own=path))
    with owned_by(user, "d"):
        return _reachable(cache.Places(own=path))


def _directory(place: Place, **how: Any) -> Callable[[Path], Callable[[], object]]:
    return lambda folder: partial(_entered, place(folder), **how)


def _named(variable: str, place: Place) -> Callable[[Path], Callable[[], object]]:
    """`gemmgen prepare` into the directory that a variable names."""

    def made(folder: Path) -> Callable[[], object]:
        path = str(place(folder))
        return lambda: _with({variable: path}, "prepare", "dense", "--shapes", "1x64x64")

    return made


def _with(variables: dict[str, str], *argv: str) -> object:
    with mock.patch.dict(os.environ, variables):
        return command(*argv)


SPELLED = {name: place for name, place in DIRECTORIES.items() if name != "a NUL"}
PLACES = (
    *(Case(surface="cache directories", says=says, made=_directory(place), ids=("GG-X",)) for says, place in DIRECTORIES.items()),
    *(Case(surface="cache directories", says=says, made=_directory(place, user=STRANGER), ids=("GG-X",)) for says, place in STRANGERS.items()),
    *(Case(surface="cache directories", says=f"GEMMGEN_CACHE: {says}", made=_named("GEMMGEN_CACHE", place), ids=("GG-X",)) for says, place in SPELLED.items()),
    *(call("environment", f"GEMMGEN_CACHE_BYTES={x!r}"[:60], partial(_with, {"GEMMGEN_CACHE_BYTES": x}, "cache", action))
      for x in ("-1", "1e9", "0x10", " 5", "5\n", "9" * 19, "9" * 5000, "²", "\u0661", "1_000", "NaN", "none") for action in ("ls", "dir")),
    call("environment", "GEMMGEN_CACHE=none", partial(_with, {"GEMMGEN_CACHE": "none"}, "prepare", "dense", "--shapes", "1x64x64")),
)  # fmt: skip

# ---- entries --------------------------------------------------------------------------------

FILES: dict[str, Place] = {
    "writable by the group": lambda p: p.write_bytes(ENTRY) and p.chmod(0o620),
    "writable by all": lambda p: p.write_bytes(ENTRY) and p.chmod(0o602),
    "a link": lambda p: p.symlink_to("/etc/hostname"),
    "a link to itself": lambda p: p.symlink_to(p),
    "a device without an end": lambda p: p.symlink_to("/dev/zero"),
    "a pipe": os.mkfifo,
    "a directory": lambda p: p.mkdir(),
    "empty": lambda p: p.write_bytes(b""),
    "4 GiB": lambda p: p.touch() or os.truncate(p, 1 << 32),
}


def _look(folder: Path, *, user: int | None = None) -> object:
    if user is None:
        with opened(folder) as handle:
            return cache_files.look(handle, KEY)
    with owned_by(user, f"{KEY}.cubin"), opened(folder) as handle:
        return cache_files.look(handle, KEY)


def _entry(place: Place, **how: Any) -> Callable[[Path], Callable[[], object]]:
    def made(folder: Path) -> Callable[[], object]:
        (folder / "c").mkdir(mode=0o700)
        place(folder / "c" / f"{KEY}.cubin")
        return partial(_look, folder / "c", **how)

    return made


def _flipped(position: int) -> bytes:
    data = bytearray(ENTRY)
    data[position] ^= 1
    return bytes(data)


def _signed(facts: bytes, image: bytes | None = None) -> bytes:
    """An entry with a right checksum: its writer knows the format."""
    body = ENTRY[HEAD.size + HEAD.unpack_from(ENTRY)[2] :] if image is None else image
    return cache_entry.packed(bytes.fromhex(KEY), facts, body)


def _facts(**changes: Any) -> bytes:
    size = HEAD.unpack_from(ENTRY)[2]
    return json.dumps(json.loads(ENTRY[HEAD.size : HEAD.size + size]) | changes).encode()


NO_FACTS: dict[str, bytes] = {
    "no JSON": b"{",
    "no UTF-8": b"\xff",
    "no object": b"[]",
    "nested": b"[" * 10**5,
    "nested objects": b'{"a":' * 10**5,
    "a number of 5000 digits": b'{"seconds":' + b"9" * 5000 + b"}",
    "a field too many": _facts(more=1),
    "NaN seconds": _facts(seconds=float("nan")),
    "infinite seconds": _facts(seconds=float("inf")),
    "text for seconds": _facts(seconds="1"),
    "a list for a name": _facts(name=["k"]),
    "C for a name": _facts(name="k(); //"),
    "a newline in a name": _facts(name="k\n"),
    "a name of 10^5": _facts(name="k" * 10**5),
    "a log that says it spills": _facts(log="ptxas info : 8 bytes stack frame, 8 bytes spill stores, 8 bytes spill loads"),
    "another architecture": _facts(arch="sm_80"),
    "another compiler": _facts(compiler="other"),
    "another kernel": _facts(name="other"),
}  # fmt: skip
IMAGES = {"empty": b"", "text": b"#!/bin/sh", "ELF of another machine": b"\x7fELF" + bytes(60)}
CUTS = (0, 1, HEAD.size - 1, HEAD.size, HEAD.size + 1, len(ENTRY) // 2, len(ENTRY) - 1)
BAD = {
    **{f"cut to {n} bytes": ENTRY[:n] for n in CUTS},
    **{f"bit of byte {n}": _flipped(n) for n in (0, 8, 16, 40, 48, 52, 56, 80, 90, len(ENTRY) - 1)},
    **{f"facts: {says}": _signed(text) for says, text in NO_FACTS.items()},
    **{f"image: {says}": _signed(_facts(), image) for says, image in IMAGES.items()},
    "longer": ENTRY + b"\0",
    "twice": ENTRY + ENTRY,
    "lengths of 4 GiB": HEAD.pack(*HEAD.unpack_from(ENTRY)[:2], 2**32 - 1, 2**32 - 1, bytes(32)),
    "another key": encode(recipe(1), compiled(recipe(1))),
}
ENTRIES = (
    *(Case(surface="cache entries", says=says, made=_entry(place), ids=("GG-X",)) for says, place in FILES.items()),
    Case(surface="cache entries", says="a stranger's", made=_entry(lambda p: p.write_bytes(ENTRY), user=STRANGER), ids=("GG-X",)),
    *(call("cache entries", says, partial(decode_for, data, RECIPE), "GG-X") for says, data in BAD.items()),
    *(call("cache entries", f"key {key[:20]!r}", partial(decode, ENTRY, key), "GG-X") for key in ("", "../x", KEY[:-1], KEY.upper())),
)  # fmt: skip
CASES = (*PLACES, *ENTRIES)
