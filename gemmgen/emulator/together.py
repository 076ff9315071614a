"""Instructions that all lanes of a warp, or of a warpgroup, execute together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .errors import ProtocolError
from .fiber import WARP, Fiber, Mask, Wait

if TYPE_CHECKING:
    from .group import Group


def collect(g: Group, need: Mask | None, aligned: bool, whole_group: bool) -> int | None:
    """See Group.collect."""
    blocked = _blocked(g, g.fiber, need, whole_group)
    if not blocked.any():
        if aligned:
            _aligned(g, whole_group)
        return None
    if aligned:
        _check_elsewhere(g, blocked, whole_group)
    what = "the other threads of its " + ("warpgroup" if whole_group else "warp")

    def waiting(fiber: Fiber) -> Wait:
        def ready() -> bool:
            present = fiber.mask.reshape(-1, WARP).any(1)
            return bool((present & ~_blocked(g, fiber, need, whole_group)).any())

        return Wait(ready=ready, what=lambda: what, merge=True, aligned=aligned)

    complete = g.active & ~np.repeat(blocked, WARP)
    if not complete.any():
        return g.park(waiting(g.fiber))
    g.keep(complete, g.fiber.pc)
    g.fibers[-1].wait = waiting(g.fibers[-1])
    if aligned:
        _aligned(g, whole_group)
    return None


def _blocked(g: Group, fiber: Fiber, need: Mask | None, whole_group: bool) -> Mask:
    """Per warp: it takes part, and lanes that must come are not here."""
    if fiber.count == g.lanes:
        return np.zeros(g.warps, np.bool_)
    wanted: Any = g.live if need is None else g.live & need
    missing: Any = (wanted & ~fiber.mask).reshape(-1, WARP).any(1)
    if whole_group:
        return np.full(g.warps, bool(missing.any()))
    present: Any = fiber.mask.reshape(-1, WARP).any(1)
    both: Mask = missing & present
    return both


def _aligned(g: Group, whole_group: bool) -> None:
    """Of the warps that execute the current instruction no thread has exited; their lanes meet."""
    if g.fiber.count != g.lanes:
        here: Any = g.active.reshape(-1, WARP)
        of: Any = g.born.reshape(-1, WARP) & (whole_group | here.any(1))[:, None]
        if missing := int((of & ~here).sum()):
            _misaligned(g, int(of.sum()), missing, whole_group, "exited")
    if g.tracker.loose:
        for warp in np.flatnonzero(g.active.reshape(-1, WARP).any(1)).tolist():
            if g.agent + warp in g.tracker.loose:
                g.tracker.meet(g.agent + warp)


def _check_elsewhere(g: Group, blocked: Mask, whole_group: bool) -> None:
    """Lanes that are missing here stand at another .aligned instruction, and wait for these."""
    lanes = g.live & np.repeat(blocked, WARP)
    for f in g.fibers:
        if f.wait and f.wait.aligned and f.pc != g.fiber.pc and (f.mask & lanes).any():
            missing = int((lanes & ~g.active).sum())
            where = f"at {g.program.body[f.pc]}"
            _misaligned(g, int(lanes.sum()), missing, whole_group, where)


def _misaligned(g: Group, of: int, missing: int, whole_group: bool, where: str) -> None:
    unit = "warpgroup" if whole_group else "warp"
    raise ProtocolError(
        f"{g.instruction} [CTA {g.cta.index}]: .aligned: all threads of the {unit} execute it or none; of "
        f"{of} threads {missing} do not, some of them {where}"
    )
