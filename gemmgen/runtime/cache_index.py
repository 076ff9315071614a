"""From what is asked for to its kernel on the disk, without building the kernel to learn its key.

A cubin's key holds its source, so to find one the compiler must run first. Here another file of the same directory
answers first: its key holds what the compiler would be given, and the compiler itself (`fingerprint`); it says which
cubin that became and what a launch needs besides (`LaunchRecord`). It is written and trusted as cubins are.

    key    SHA-256 of: this format, gemmgen's fingerprint, what is asked for, what NVRTC is told, where NVRTC is sought
    file   as `cache_entry` frames it, without an image; facts: JSON (cubin's key, architecture, NVRTC's build
           and library, record)

NVRTC is not loaded for a hit. Its library, where it was found, is read instead: it must still be the build that
made the cubin. Whatever is wrong, or unknown, the compiler runs.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from ..errors import CacheError, CompileError
from ..ir.launchable import Launchable
from ..ir.nodes import Kernel
from ..target import H200, Target
from . import cache_entry, fingerprint, nvrtc
from .cache import Places, cached, entry_of, inputs_of, keep, look_up, places, refusal
from .cache_files import LAUNCH
from .launch_record import LaunchRecord, from_json, record_of, to_json
from .nvrtc import Cubin

FORMAT = 1
KEY = re.compile(r"[0-9a-f]{64}", re.ASCII)
SEARCHED = ("CONDA_PREFIX", "CUDA_HOME", "CUDA_PATH", "LD_LIBRARY_PATH")  # for NVRTC's library
FACTS = {"key": str, "arch": str, "compiler": str, "library": str, "record": dict}

Compiler = Callable[[str, str], Cubin]


class Emitted(Protocol):
    """A lowered kernel and its source, of which NVRTC has made nothing yet: a `gemmgen.pipeline.Artifact`."""

    @property
    def kernel(self) -> Kernel: ...
    @property
    def source(self) -> str: ...
    @property
    def name(self) -> str: ...


@dataclass(frozen=True, kw_only=True)
class Ready:
    """A kernel that can be loaded. key: of its cubin in the cache."""

    kernel: Launchable
    cubin: Cubin
    key: str


@dataclass(frozen=True, kw_only=True)
class Question:
    """Everything that an answer depends on. asked: what the compiler is given, spelled out in full."""

    fingerprint: str
    asked: str
    options: tuple[str, ...]
    searched: tuple[str, ...]

    @property
    def digest(self) -> str:
        """The key of its answer: 64 hexadecimal digits, of all fields and of the format's version."""
        fields = ["launch", FORMAT, self.fingerprint, self.asked, self.options, self.searched]
        return hashlib.sha256(json.dumps(fields).encode()).hexdigest()


@dataclass(frozen=True, kw_only=True)
class Answer:
    """Which cubin, compiled by what, and how it is launched. key, arch, compiler: as its recipe's. library: the
    file of that NVRTC."""

    key: str
    arch: str
    compiler: str
    library: str
    record: LaunchRecord

    @property
    def name(self) -> str:
        return self.record.name

    @property
    def current(self) -> bool:
        """Whether its NVRTC is there, the same build."""
        version, _, digest = self.compiler.partition(" ")
        return bool(digest) and nvrtc.build_of(version, self.library) == self.compiler


def ready(
    asked: str, build: Callable[[], Emitted], compiler: Compiler = nvrtc.compile_cubin
) -> Ready:
    """What `build` makes, from the disk if it was made before of the same `asked`, which must say everything
    that `build` depends on besides gemmgen itself.

    compiler: of a source and its kernel's name, if no cubin is found either. Raises what both raise (of the
    compiler also what it raised before and is kept), and RuntimeUnavailable, and ArgumentError as
    `cache.places`; never for what is wrong with the disk.
    """
    where = places()
    question = _question(asked, H200) if where.all else None
    if question and (found := _found(question, where)):
        return found
    made = build()
    recipe = inputs_of(made.source, made.name)
    try:
        cubin = cached(recipe, lambda: compiler(made.source, made.name), where)
    except CompileError as e:
        if e.lasting:
            _keep(question, made, recipe, where)
        raise
    _keep(question, made, recipe, where)
    return Ready(kernel=made.kernel, cubin=cubin, key=recipe.key)


def refused(asked: str) -> CompileError | None:
    """Why the build refused what `ready` is asked for, if that is on the disk. Compiles nothing and needs no NVRTC.
    Raises ArgumentError as `cache.places`."""
    where = places()
    question = _question(asked, H200) if where.all else None
    answer = _answered(question, where) if question else None
    return refusal(answer, where) if answer else None


def _keep(
    question: Question | None, made: Emitted, recipe: cache_entry.BuildInputs, where: Places
) -> None:
    """What leads to the cubin, or to its refusal."""
    if question and not made.kernel.watchdog and fingerprint.unchanged():
        key = question.digest
        keep(key, lambda: encode(key, _answer(made, recipe)), where, LAUNCH, (recipe.key,))


def _question(asked: str, target: Target) -> Question | None:
    """None if it cannot be said which gemmgen this is."""
    known = fingerprint.fingerprint()
    if known is None:
        return None
    return Question(
        fingerprint=known,
        asked=asked,
        options=(target.arch, *nvrtc.options(target)),
        searched=(sys.prefix, *(os.environ.get(name, "") for name in SEARCHED)),
    )


def _found(question: Question, where: Places) -> Ready | None:
    """Raises CompileError if that is what is found."""
    answer = _answered(question, where)
    if answer is None:
        return None
    if cubin := look_up(answer, where):
        return Ready(kernel=answer.record, cubin=cubin, key=answer.key)
    if error := refusal(answer, where):
        raise error
    return None


def _answered(question: Question, where: Places) -> Answer | None:
    key = question.digest
    answer = entry_of(key, lambda data: decode(data, key), where, LAUNCH)
    return answer if answer and answer.current else None


def _answer(made: Emitted, recipe: cache_entry.BuildInputs) -> Answer:
    """Raises CacheError if it would not be believed: NVRTC's file is not known, the record is no record."""
    answer = Answer(
        key=recipe.key,
        arch=recipe.arch,
        compiler=recipe.compiler,
        library=nvrtc.library(),
        record=record_of(made.kernel),
    )
    if not answer.current:
        raise CacheError(f"NVRTC's library {answer.library!r} cannot be read")
    return answer


def encode(key: str, answer: Answer) -> bytes:
    """The file of `key` that holds `answer`."""
    facts = {**vars(answer), "record": to_json(answer.record)}
    return cache_entry.packed(bytes.fromhex(key), json.dumps(facts).encode(), b"")


def decode(data: bytes, key: str) -> Answer:
    """The inverse of `encode`. Raises CacheError saying what is wrong."""
    text, image = cache_entry.unpacked(data, key)
    facts = _facts(text)
    if image or not KEY.fullmatch(facts["key"]):
        raise CacheError("facts are out of range")
    return Answer(**{**facts, "record": from_json(facts["record"])})


def _facts(text: bytes) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as e:
        raise CacheError("facts are no JSON") from e
    if not isinstance(found, dict) or {k: type(v) for k, v in found.items()} != FACTS:
        raise CacheError("facts are not of this format")
    return found
