"""Where an agent stands, by the conditions that it asks: see meaning.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from .arrivals_meaning import awaited

if TYPE_CHECKING:
    from .meaning import Walk

HOLDS: dict[str, Callable[[Walk], bool]] = {
    "first_warp": lambda w: w.agent.leads,
    "after_first": lambda w: w.k != w.agent.first,
    "behind": lambda w: w.k >= w.ahead,
    "new_share": lambda w: w.k == w.share_end,
    "new_group": lambda w: w.instance.opens(w.tile),
    "has_blocks": lambda w: w.blocks > w.agent.first,
    "no_blocks": lambda w: w.blocks == 0,
    "idle": lambda w: w.blocks <= w.agent.first,
    "first_slice": lambda w: w.agent.warpgroup == 0,
    "other_slice": lambda w: w.agent.warpgroup > 0,
    "sends": lambda w: w.agent.cta > 0,
    "finishes": lambda w: w.agent.cta == 0,
    "inside": lambda w: w.part is not None and w.part.first > 0,
    "head": lambda w: w.part is not None and w.part.first == 0,
    "theirs": lambda w: w.post is not None and w.post.place >= 0,
    "ours": lambda w: w.post is None or w.post.place < 0,
    "awaited": awaited,
    "owes": lambda w: w.owed is not None,
}
