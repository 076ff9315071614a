"""Kernel IR statements of consumer warpgroups that take tiles in turns; take_turns inserts them.

Each waits for its turn to multiply on a barrier of its own, so that it looks at a stage of the ring only when all
before it were filled. `turn` names the register that holds the parity of how many turns it has had.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from .blocks import Stmt
from .resources import UNUSUAL, Watch


@dataclass(frozen=True, kw_only=True)
class WaitForTurn(Stmt):
    """Wait until the warpgroup before has passed its turn on, which at the first tile none has to."""

    barrier: str
    turn: str
    watch: Watch | tuple[()] = field(default=(), metadata=UNUSUAL)  # guard_waits


@dataclass(frozen=True, kw_only=True)
class PassTurn(Stmt):
    """One lane per warp arrives on the `barrier` of the next warpgroup."""

    barrier: str
