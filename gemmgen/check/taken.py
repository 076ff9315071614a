"""Which tiles an agent takes, in its order: see meaning.py."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..ir.dealing import Part
from .instance import Post

if TYPE_CHECKING:
    from .meaning import Walk


def tiles(w: Walk) -> Iterator[tuple[int, int, Part | None, Post | None]]:
    if w.instance.ranks > 1:
        for post in w.instance.posts(w.agent.rank, w.agent.launch, w.cluster):
            yield post.tile, w.instance.k_blocks, None, post
    elif w.kernel.scheduler.streams:
        for part in w.instance.parts(w.cluster):
            yield part.tile, part.end - part.first, part, None
    else:
        for tile, blocks in enumerate(w.instance.counts):
            yield tile, blocks, None, None


def take(w: Walk, tile: int, blocks: int, part: Part | None, post: Post | None) -> None:
    w.tile, w.blocks, w.part, w.post = tile, blocks, part, post
