"""A source that the build refused, kept as cubins are, so that it is not compiled again to be refused again.

    key    SHA-256 of: this format, gemmgen's fingerprint, the key that the cubin would have
    file   as `cache_entry` frames it, without an image; facts: JSON (kernel name, architecture, compiler, text)

What must not run, gemmgen decides (`nvrtc.checked`), so another gemmgen asks the compiler again.
"""

from __future__ import annotations

import hashlib
import json

from ..errors import CacheError, CompileError
from . import cache_entry, fingerprint
from .cache_entry import Wanted

FORMAT = 1
FACTS = ("name", "arch", "compiler", "text")


def key_of(wanted: Wanted) -> str | None:
    """Of the refusal of what `wanted` names; None if it cannot be said which gemmgen this is."""
    known = fingerprint.fingerprint()
    if known is None:
        return None
    fields = ["refused", FORMAT, known, wanted.key]
    return hashlib.sha256(json.dumps(fields).encode()).hexdigest()


def encode(key: str, wanted: Wanted, error: CompileError) -> bytes:
    """The file of `key` that says why the build refused `wanted`. Raises CacheError if it is too large."""
    facts = json.dumps({**_held(wanted), "text": str(error)}).encode()
    if len(facts) > cache_entry.MOST_FACTS:
        raise CacheError(f"why {wanted.name} is refused is too long to keep")
    return cache_entry.packed(bytes.fromhex(key), facts, b"")


def decode(data: bytes, key: str) -> dict[str, str]:
    """The facts in `data`, the whole file of `key`. Raises CacheError saying what is wrong."""
    text, image = cache_entry.unpacked(data, key)
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as e:
        raise CacheError("facts are no JSON") from e
    if not isinstance(found, dict) or {k: type(v) for k, v in found.items()} != dict.fromkeys(
        FACTS, str
    ):
        raise CacheError("facts are not of this format")
    if image or not cache_entry.NAME.fullmatch(found["name"]):
        raise CacheError("facts are out of range")
    return found


def decode_for(data: bytes, key: str, wanted: Wanted) -> CompileError:
    """Why the build refused `wanted`, as it was raised. Raises CacheError."""
    found = decode(data, key)
    if {**found, **_held(wanted)} != found:
        raise CacheError("was compiled by another recipe")
    return CompileError(found["text"])


def _held(wanted: Wanted) -> dict[str, str]:
    return {"name": wanted.name, "arch": wanted.arch, "compiler": wanted.compiler}
