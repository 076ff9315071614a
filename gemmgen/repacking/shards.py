"""Files of the safetensors format, written in place: their headers first, then each tensor where the header says."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..quant.checkpoint import LENGTH, SUFFIX
from .pieces import Held
from .source import INDEX, MAP

STEM = "model"
WORD = 8  # bytes: what headers are filled up to, and what the widest element has


@dataclass(frozen=True, kw_only=True)
class Shard:
    """A file. starts: of each tensor by name, its first byte in the file."""

    name: str
    head: bytes
    starts: dict[str, int]
    size: int


def divided(tensors: Sequence[Held], most: int) -> list[Shard]:
    """Files of at most `most` bytes of tensors, in order; one that is larger has a file of its own."""
    parts: list[list[Held]] = [[]]
    held = 0
    for x in tensors:
        if parts[-1] and held + x.size > most:
            parts.append([])
            held = 0
        parts[-1].append(x)
        held += x.size
    many = len(parts)
    names = [f"{STEM}-{i:05}-of-{many:05}{SUFFIX}" for i in range(1, many + 1)]
    if many == 1:
        names = [STEM + SUFFIX]
    return [_shard(name, part) for name, part in zip(names, parts, strict=True)]


def _shard(name: str, tensors: list[Held]) -> Shard:
    """Tensors of whole words first, then those of wider elements: readers map files, and each tensor must begin at a multiple of its element."""
    told: dict[str, object] = {"__metadata__": {"format": "pt"}}
    starts, at = {}, 0
    for x in sorted(tensors, key=lambda x: (x.size % WORD > 0, -x.element)):
        starts[x.name] = at
        told[x.name] = {"dtype": x.dtype, "shape": x.shape, "data_offsets": (at, at + x.size)}
        at += x.size
    text = json.dumps(told, separators=(",", ":")).encode()
    text += b" " * (-len(text) % WORD)
    head = len(text).to_bytes(LENGTH, "little") + text
    starts = {name: len(head) + start for name, start in starts.items()}
    return Shard(name=name, head=head, starts=starts, size=len(head) + at)


class Writer:
    """The files of `shards` in a folder, which are made at their whole sizes."""

    def __init__(self, folder: Path, shards: Sequence[Shard]) -> None:
        self._places: dict[str, tuple[Path, int]] = {}
        for shard in shards:
            path = folder / shard.name
            with path.open("xb") as f:
                f.write(shard.head)
                f.truncate(shard.size)
            self._places |= {name: (path, start) for name, start in shard.starts.items()}

    def write(self, name: str, data: bytes | bytearray | memoryview, first: int = 0) -> None:
        """Some of a tensor's bytes, from `first` on."""
        path, start = self._places[name]
        with path.open("r+b") as f:
            f.seek(start + first)
            f.write(data)


def index(shards: Sequence[Shard], size: int) -> dict[str, bytes]:
    """The index of several files, by its name, as Hugging Face has it; of one none. size: bytes of all tensors."""
    if len(shards) == 1:
        return {}
    names = {tensor: shard.name for shard in shards for tensor in shard.starts}
    told = {"metadata": {"total_size": size}, MAP: dict(sorted(names.items()))}
    return {INDEX: (json.dumps(told, indent=2) + "\n").encode()}
