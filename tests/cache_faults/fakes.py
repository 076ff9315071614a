"""A compiler without NVRTC, and an operating system that fails on demand."""

from __future__ import annotations

import errno
import hashlib
import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from gemmgen.runtime import cache_files, cache_trust
from gemmgen.runtime.cache_entry import BuildInputs
from gemmgen.runtime.nvrtc import Cubin, checked

CUDA_ELF = b"\x7fELF" + bytes(14) + b"\xbe\x00"
LOG = "ptxas info    : Used 168 registers, used 3 barriers\n    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads"
ERRORS = ("ENOSPC", "EIO", "EDQUOT", "EROFS", "ESTALE", "EXDEV", "EACCES", "EMFILE", "EBUSY")
CALLS = ("open", "read", "write", "fsync", "close", "replace", "unlink", "rmdir", "utime", "stat")
CALLS += ("fstat", "lstat", "mkdir", "listdir")


def recipe(number: int = 0, **changed: object) -> BuildInputs:
    fields = {
        "source": f"source {number}",
        "name": f"kernel_{number}",
        "arch": "sm_90a",
        "options": ("--std=c++17",),
        "compiler": "13.0 0123456789abcdef",
    }
    return BuildInputs(**{**fields, **changed})


def compiled(r: BuildInputs) -> Cubin:
    """What a compiler would make of `r`: always the same, and of no other recipe."""
    image = CUDA_ELF + b"".join(hashlib.sha256(f"{r}{i}".encode()).digest() for i in range(4))
    return checked(r.name, image, 0.25, LOG)


@dataclass
class Compiler:
    """Compiles any recipe and counts."""

    calls: Counter[str] = field(default_factory=Counter)

    def __call__(self, r: BuildInputs) -> Callable[[], Cubin]:
        def compile() -> Cubin:
            self.calls[r.key] += 1
            return compiled(r)

        return compile


class Faulty:
    """The module `os` as the cache sees it; `hook(name, arguments)` runs before each call, and may raise
    or give what the call is to return."""

    def __init__(self, hook: Callable[[str, tuple[object, ...]], object]) -> None:
        self._hook = hook

    def __getattr__(self, name: str) -> object:
        real = getattr(os, name)
        if name not in CALLS:
            return real

        def call(*args: object, **options: object) -> object:
            if name == "close":  # a close that fails has closed
                real(*args)
                return self._hook(name, args)
            answer = self._hook(name, args)
            return real(*args, **options) if answer is None else answer

        return call


@contextmanager
def faulty(hook: Callable[[str, tuple[object, ...]], object]) -> Iterator[None]:
    modules = (cache_trust, cache_files)
    try:
        for module in modules:
            module.os = Faulty(hook)
        yield
    finally:
        for module in modules:
            module.os = os


def error(name: str) -> OSError:
    number = getattr(errno, name)
    return OSError(number, os.strerror(number))
