"""One compiled kernel as bytes: what its key is made of, and a file format that shows any damage.

    16 bytes  magic, with the version of this format
    32        key: SHA-256 of the recipe
     4 + 4    lengths of the facts and of the image, little-endian
    32        SHA-256 of all of the above, the facts and the image
              facts: JSON (kernel name, architecture, compiler, NVRTC's seconds and log)
              image: the cubin, to the end of the file

Registers, spills and barriers are read from the log each time, as after a compilation: an entry is judged
by today's rules. Nothing here executes what it reads.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import struct
from dataclasses import dataclass
from typing import Any, Protocol

from ..errors import CacheError, CompileError
from .nvrtc import Cubin, checked

FORMAT = 1
MAGIC = b"gemmgen cubin %02d" % FORMAT
HEAD = struct.Struct("<16s32sII32s")
MOST_FACTS, MOST_IMAGE = 1 << 20, 1 << 26  # bytes; the largest cubins of the gallery have 1e5
LEAST_SIZE, MOST_SIZE = HEAD.size, HEAD.size + MOST_FACTS + MOST_IMAGE
ELF, ELF_MACHINE, CUDA = b"\x7fELF", slice(18, 20), b"\xbe\x00"  # EM_CUDA
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,511}", re.ASCII)
FACTS = {"name": str, "arch": str, "compiler": str, "seconds": float, "log": str}


class Wanted(Protocol):
    """A cubin by its key, and what its entry must say of it."""

    @property
    def key(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def arch(self) -> str: ...
    @property
    def compiler(self) -> str: ...


@dataclass(frozen=True, kw_only=True)
class BuildInputs:
    """Everything a cubin depends on. compiler: `nvrtc.build`; options: `nvrtc.options`."""

    source: str
    name: str
    arch: str
    options: tuple[str, ...]
    compiler: str

    @property
    def key(self) -> str:
        """SHA-256, 64 hexadecimal digits, of all fields and of the format's version."""
        fields = [FORMAT, self.compiler, self.arch, self.options, self.name, self.source]
        return hashlib.sha256(json.dumps(fields).encode()).hexdigest()


@dataclass(frozen=True, kw_only=True)
class Entry:
    """What a file holds."""

    key: str
    arch: str
    compiler: str
    cubin: Cubin


def encode(recipe: BuildInputs, cubin: Cubin) -> bytes:
    """The file of `cubin`, compiled by `recipe`. Raises CacheError if it is too large to be kept."""
    facts = json.dumps(
        {
            "name": cubin.name,
            "arch": recipe.arch,
            "compiler": recipe.compiler,
            "seconds": float(cubin.seconds),
            "log": cubin.log,
        }
    ).encode()
    if len(facts) > MOST_FACTS or len(cubin.image) > MOST_IMAGE:
        raise CacheError(f"{cubin.name} is too large to keep: {len(cubin.image)} bytes")
    return packed(bytes.fromhex(recipe.key), facts, cubin.image)


def decode(data: bytes, key: str) -> Entry:
    """The entry in `data`, the whole file that is kept under `key`. Raises CacheError saying what is wrong."""
    facts, image = unpacked(data, key)
    return _entry(key, _facts(facts), image)


def unpacked(data: bytes, key: str) -> tuple[bytes, bytes]:
    """The facts and the image in `data`, the whole file that is kept under `key`. Raises CacheError."""
    if len(data) < HEAD.size:
        raise CacheError(f"{len(data)} bytes are no entry")
    magic, named, facts_size, image_size, _ = HEAD.unpack_from(data)
    if magic != MAGIC:
        raise CacheError("not of this format")
    if len(data) != HEAD.size + facts_size + image_size:
        raise CacheError("lengths do not add up")
    facts, image = data[HEAD.size : HEAD.size + facts_size], data[HEAD.size + facts_size :]
    if data != packed(named, facts, image):
        raise CacheError("checksum is wrong")
    if named.hex() != key:
        raise CacheError("holds another key")
    return facts, image


def decode_for(data: bytes, wanted: Wanted) -> Cubin:
    """The cubin in `data` if it was compiled by `wanted`. Raises CacheError."""
    entry = decode(data, wanted.key)
    held = (entry.cubin.name, entry.arch, entry.compiler)
    if held != (wanted.name, wanted.arch, wanted.compiler):
        raise CacheError("was compiled by another recipe")
    return entry.cubin


def packed(key: bytes, facts: bytes, image: bytes) -> bytes:
    """The file of `key` (32 bytes) that holds both: the inverse of `unpacked`."""
    unsigned = HEAD.pack(MAGIC, key, len(facts), len(image), bytes(32))[:-32]
    digest = hashlib.sha256(unsigned)
    digest.update(facts)
    digest.update(image)
    return unsigned + digest.digest() + facts + image


def _facts(text: bytes) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as e:
        raise CacheError("facts are no JSON") from e
    if not isinstance(found, dict) or {k: type(v) for k, v in found.items()} != FACTS:
        raise CacheError("facts are not of this format")
    if not math.isfinite(found["seconds"]) or not NAME.fullmatch(found["name"]):
        raise CacheError("facts are out of range")
    return found


def _entry(key: str, facts: dict[str, Any], image: bytes) -> Entry:
    if not image.startswith(ELF) or image[ELF_MACHINE] != CUDA:
        raise CacheError("image is no cubin")
    try:
        cubin = checked(facts["name"], image, facts["seconds"], facts["log"])
    except (CompileError, ValueError) as e:  # ValueError: a number of thousands of digits
        raise CacheError("its kernel must not run") from e
    return Entry(key=key, arch=facts["arch"], compiler=facts["compiler"], cubin=cubin)
