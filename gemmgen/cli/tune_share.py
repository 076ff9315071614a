"""Which share of the shapes this process tunes, on which GPU, into which file: as --shard says, or as torchrun does.

Processes never talk to each other, and no two of them have a file in common that is not written once and whole (--cubins).
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ..bench.tuning.compiling import cores
from ..environment import LOCAL_RANK, LOCAL_WORLD_SIZE, RANK, WORLD_SIZE
from ..errors import ArgumentError
from ..untrusted import whole

RANKS = (RANK, WORLD_SIZE, LOCAL_RANK)
SHARD = re.compile("([0-9]{1,10})/([0-9]{1,10})", re.ASCII)
VISIBLE = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True, kw_only=True)
class Share:
    """Share `number`, from 1, of `count`. rank: of this process on its machine, None if it is not one of torchrun's; beside: how
    many of those there are."""

    number: int = 1
    count: int = 1
    rank: int | None = None
    beside: int = 1

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"

    @property
    def device(self) -> int:
        """The CUDA device that it measures, as this process numbers them."""
        return self.rank or 0

    def file(self, path: Path | None) -> Path | None:
        """What this share writes of `path`, which is of all shares: x.jsonl is x.2-of-8.jsonl."""
        if path is None or self.count == 1:
            return path
        return path.with_name(f"{path.stem}.{self.number}-of-{self.count}{path.suffix}")

    def processes(self) -> int:
        """That may compile at a time."""
        return max(1, cores() // self.beside)

    def environment(self, environ: Mapping[str, str]) -> dict[str, str]:
        """What a process must have besides `environ` to see no GPU but this share's."""
        if self.rank is None:
            return {}
        listed = environ.get(VISIBLE)
        return {VISIBLE: str(self.rank) if listed is None else listed.split(",")[self.rank].strip()}


def asked(args: argparse.Namespace, environ: Mapping[str, str]) -> Share:
    """The whole, if nobody asks for a share. Raises ArgumentError."""
    told = [name for name in RANKS if name in environ]
    if args.shard is not None:
        if len(told) == len(RANKS):
            allowed = f"cannot be given where {', '.join(RANKS)} say which share this process takes"
            raise ArgumentError("--shard", args.shard, allowed)
        return _of_text(args.shard)
    if not told:
        return Share()
    count = _number(environ, WORLD_SIZE, 1)
    rank = _number(environ, LOCAL_RANK, 0)
    return Share(
        number=1 + _number(environ, RANK, 0, count),
        count=count,
        rank=rank,
        beside=_number(environ, LOCAL_WORLD_SIZE, rank + 1) if LOCAL_WORLD_SIZE in environ else 1,
    )


def refuse_ranks(environ: Mapping[str, str], mode: str) -> None:
    """Raise ArgumentError if this is one of several processes of torchrun's: `mode` has no shares."""
    count = environ.get(WORLD_SIZE, "1")
    if count != "1" and all(name in environ for name in RANKS):
        raise ArgumentError(WORLD_SIZE, count, f"must be 1 with {mode}, which has no shares")


def _of_text(text: str) -> Share:
    found = SHARD.fullmatch(text)
    number, count = map(int, found.groups()) if found else (0, 0)
    if not 1 <= number <= count:
        raise ArgumentError("--shard", text, "must be I/N, share I from 1 to N of N")
    return Share(number=number, count=count)


def _number(environ: Mapping[str, str], name: str, least: int, below: int | None = None) -> int:
    text = environ.get(name)
    value = None if text is None else whole(text)
    if value is None or value < least or (below is not None and value >= below):
        most = f" and less than {WORLD_SIZE}={below}" * (below is not None)
        allowed = f"must be an integer, at least {least}{most}: torchrun sets {', '.join(RANKS)}, else none of them may be set"
        raise ArgumentError(name, text, allowed)
    return value
