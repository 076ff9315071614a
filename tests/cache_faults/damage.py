"""What may happen to a cache: each function does one kind of it, at random, to a scene."""

from __future__ import annotations

import os
import random
import signal
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gemmgen.runtime.cache_entry import BuildInputs, encode
from gemmgen.runtime.nvrtc import checked

from .fakes import CALLS, ERRORS, compiled, error, faulty
from .stores import Store


@dataclass(frozen=True)
class Scene:
    """Where a fault happens: to the entry of `victim` in `folder`, which is right before it."""

    store: Store
    folder: Path
    victim: BuildInputs
    others: tuple[BuildInputs, ...]
    random: random.Random

    @property
    def path(self) -> Path:
        return self.folder / self.store.file(self.victim)

    def damage(self, data: bytes) -> None:
        self.path.write_bytes(data)


def truncate(s: Scene) -> None:
    data = s.path.read_bytes()
    s.damage(data[: s.random.randrange(len(data))])


def flip(s: Scene) -> None:
    data = bytearray(s.path.read_bytes())
    for _ in range(s.random.choice((1, 1, 1, 2, 8))):
        data[s.random.randrange(len(data))] ^= 1 << s.random.randrange(8)
    s.damage(bytes(data))


def zero_block(s: Scene) -> None:
    data = bytearray(s.path.read_bytes())
    first = s.random.randrange(len(data))
    end = s.random.randrange(first, len(data)) + 1
    data[first:end] = bytes(end - first)
    s.damage(bytes(data))


def append(s: Scene) -> None:
    s.damage(s.path.read_bytes() + s.random.randbytes(s.random.randrange(1, 100)))


def noise(s: Scene) -> None:
    s.damage(s.random.randbytes(s.random.randrange(1000)))


def of_another(s: Scene) -> None:
    """A good entry, under the wrong key."""
    s.damage((s.folder / s.store.file(s.random.choice(s.others))).read_bytes())


def huge_lengths(s: Scene) -> None:
    data = bytearray(s.path.read_bytes())
    struct.pack_into("<II", data, 48, s.random.choice((0, 1 << 31, 2**32 - 1)), 2**32 - 1)
    s.damage(bytes(data))


def huge_file(s: Scene) -> None:
    """Sparse, of terabytes."""
    with s.path.open("r+b") as f:
        f.truncate(1 << s.random.randrange(27, 43))


def hostile_facts(s: Scene) -> None:
    s.damage(s.random.choice(s.store.hostile(s.victim)))


def no_cubin(s: Scene) -> None:
    image = s.random.choice((b"", b"MZ", b"\x7fELF" + bytes(14) + b"\x3e\x00"))
    good = compiled(s.victim)
    s.damage(encode(s.victim, checked(good.name, image, good.seconds, good.log)))


def gone(s: Scene) -> None:
    s.path.unlink()


def directory(s: Scene) -> None:
    s.path.unlink()
    s.path.mkdir()


def fifo(s: Scene) -> None:
    s.path.unlink()
    os.mkfifo(s.path)


def link(s: Scene) -> None:
    aside = s.folder / "aside"
    s.path.replace(aside)
    s.path.symlink_to(s.random.choice((aside, s.folder, "/dev/zero", "/nowhere", s.path)))


def writable(s: Scene) -> None:
    s.path.chmod(s.random.choice((0o620, 0o602, 0o666, 0o777)))


def clock(s: Scene) -> None:
    """Times of use long ago, before 1970 and far ahead: no fault of the entry's."""
    for path in s.folder.iterdir():
        when = s.random.randrange(-(2**31), 2**33)
        os.utime(path, (when, when))


def strangers(s: Scene) -> None:
    """Names that are not the cache's, and what dead writers left."""
    names = ("..cubin", "\n.cubin", "é.cubin", "x" * 250, f"{s.victim.key}.cubin~", "A" * 64)
    for name in (*names, f"{s.victim.key}.{s.random.getrandbits(64):016x}.tmp"):
        (s.folder / name).write_bytes(b"?")


def system_error(s: Scene) -> None:
    """One call of the file system fails while the victim is published, and while it is read."""
    left = s.random.randrange(40)
    failure = error(s.random.choice(ERRORS))

    def hook(name: str, args: tuple[object, ...]) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            raise failure

    _ask_anew(s, hook)


def broken_system(s: Scene) -> None:
    """One kind of call fails always."""
    kind, failure = s.random.choice(CALLS), error(s.random.choice(ERRORS))

    def hook(name: str, args: tuple[object, ...]) -> None:
        if name == kind:
            raise failure

    _ask_anew(s, hook)


def short_writes(s: Scene) -> None:
    """Of a few bytes each, then perhaps no more space."""
    left = s.random.randrange(1, 600)

    def hook(name: str, args: tuple[object, ...]) -> object:
        nonlocal left
        if name != "write":
            return None
        size = min(left, s.random.randrange(1, 40))
        left -= size
        if not size:
            raise error("ENOSPC")
        return os.write(args[0], args[1][:size])  # type: ignore[arg-type, index]

    _ask_anew(s, hook)


def killed(s: Scene) -> None:
    """A child publishes the victim and is killed at some call, or some byte of the write."""
    left, bytes_left = s.random.randrange(1, 40), s.random.randrange(1, 600)

    def hook(name: str, args: tuple[object, ...]) -> object:
        nonlocal left, bytes_left
        left -= 1
        if name == "write":
            done = os.write(args[0], args[1][:bytes_left])  # type: ignore[arg-type, index]
            bytes_left -= done
            left = left if bytes_left else 0
            if left:
                return done
        if left <= 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return None

    child = os.fork()
    if not child:
        try:
            _ask_anew(s, hook)
        finally:
            os._exit(0)
    os.waitpid(child, 0)


def _ask_anew(s: Scene, hook: Callable[[str, tuple[object, ...]], object]) -> None:
    """Two lookups of the victim, which is not there, on a faulty system."""
    s.path.unlink(missing_ok=True)
    with faulty(hook):
        for _ in range(2):
            got = s.store.ask(s.victim, lambda: compiled(s.victim), s.folder)
            assert got == compiled(s.victim)


FAULTS = (truncate, flip, zero_block, append, noise, of_another, huge_lengths, huge_file)
FAULTS += (hostile_facts, no_cubin, gone, directory, fifo, link, writable, clock, strangers)
FAULTS += (system_error, broken_system, short_writes, killed)
OF_LAUNCHES = tuple(f for f in FAULTS if f is not no_cubin)  # which a launch never holds
