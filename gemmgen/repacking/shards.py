"""Files of the safetensors format, written in place: their headers first, then each tensor where the header says."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..errors import GemmgenError
from ..quant.checkpoint import LENGTH, METADATA, SUFFIX
from .pieces import Held
from .source import INDEX, MAP

STEM = "model"
PT = {"format": "pt"}  # what readers of torch's tensors ask of metadata
WORD = 8  # bytes: what headers are filled up to, and what the widest element has


@dataclass(frozen=True, kw_only=True)
class Shard:
    """A file. starts: of each tensor by name, its first byte in the file; sizes: its bytes."""

    name: str
    head: bytes
    starts: dict[str, int]
    sizes: dict[str, int]
    size: int


def divided(tensors: Sequence[Held], most: int, metadata: Mapping[str, str] = PT) -> list[Shard]:
    """Files of at most `most` bytes of tensors, in order; one that is larger has a file of its own. metadata: what each says beside them."""
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
    return [_shard(name, part, metadata) for name, part in zip(names, parts, strict=True)]


def _shard(name: str, tensors: list[Held], metadata: Mapping[str, str]) -> Shard:
    """Tensors of whole words first, then those of wider elements: readers map files, and each tensor must begin at a multiple of its element."""
    told: dict[str, object] = {METADATA: dict(metadata)}
    starts, at = {}, 0
    for x in sorted(tensors, key=lambda x: (x.size % WORD > 0, -x.element)):
        starts[x.name] = at
        told[x.name] = {"dtype": x.dtype, "shape": x.shape, "data_offsets": (at, at + x.size)}
        at += x.size
    text = json.dumps(told, separators=(",", ":")).encode()
    text += b" " * (-len(text) % WORD)
    head = len(text).to_bytes(LENGTH, "little") + text
    starts = {name: len(head) + start for name, start in starts.items()}
    sizes = {x.name: x.size for x in tensors}
    return Shard(name=name, head=head, starts=starts, sizes=sizes, size=len(head) + at)


class Writer:
    """The files of `shards` in a folder, which are made at their whole sizes."""

    def __init__(self, folder: Path, shards: Sequence[Shard]) -> None:
        self._places: dict[str, tuple[Path, int]] = {}
        self._left: dict[str, int] = {}  # bytes that are not written yet
        for shard in shards:
            path = folder / shard.name
            with path.open("xb") as f:
                f.write(shard.head)
                f.truncate(shard.size)
            self._places |= {name: (path, start) for name, start in shard.starts.items()}
            self._left |= shard.sizes
        self._sizes = dict(self._left)

    def write(self, name: str, data: bytes | bytearray | memoryview, first: int = 0) -> None:
        """Some of a tensor's bytes, from `first` on, each once. Raises GemmgenError for more than the header says."""
        size, (path, start) = memoryview(data).nbytes, self._places[name]
        if first + size > self._sizes[name] or size > self._left[name]:
            what = f"{first} to {first + size} of {self._sizes[name]}, {self._left[name]} missing"
            raise GemmgenError(f"{name}: bytes {what}, cannot be written: the header says fewer")
        self._left[name] -= size
        with path.open("r+b") as f:
            f.seek(start + first)
            f.write(data)

    def check_whole(self) -> None:
        """Raise GemmgenError if bytes of a tensor were not written."""
        for name, left in self._left.items():
            if left:
                size = self._sizes[name]
                raise GemmgenError(f"{name}: {left} of {size} bytes were not written")


def index(shards: Sequence[Shard], size: int) -> dict[str, bytes]:
    """The index of several files, by its name, as Hugging Face has it; of one none. size: bytes of all tensors."""
    if len(shards) == 1:
        return {}
    names = {tensor: shard.name for shard in shards for tensor in shard.starts}
    told = {"metadata": {"total_size": size}, MAP: dict(sorted(names.items()))}
    return {INDEX: (json.dumps(told, indent=2) + "\n").encode()}
