"""Kernel IR statements by which threads meet, or order what they did before by what they do next."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal, TypeGuard

from .blocks import Stmt
from .resources import UNUSUAL

# cluster_arrive, cluster_await: the halves of cluster's.
Meeting = Literal[
    "warp", "warpgroup", "consumers", "cta", "cluster", "cluster_arrive", "cluster_await"
]
Order = Literal["barriers", "wgmma", "async", "arrivals"]


@dataclass(frozen=True, kw_only=True)
class Sync(Stmt):
    """The threads `of` this wait for each other, and what each did in shared memory before is done for all. A warpgroup
    of consumers, of so many `warpgroups`, meets at the named barrier `first_id` + its index; so many consumers all together at the
    one `first_id`. In two halves, a cluster's
    threads arrive and go on, and await each other later, once: where the register `met` is 0, which is 1 then. Between the two no
    thread touches another CTA's shared memory, and of what was done before only what a Fence of barriers covers is seen."""

    spelled_by: ClassVar[str] = "of"

    of: Meeting
    first_id: int = field(default=0, metadata=UNUSUAL)
    warpgroups: int = field(default=0, metadata=UNUSUAL)
    met: str = field(default="", metadata=UNUSUAL)


@dataclass(frozen=True, kw_only=True)
class Fence(Stmt):
    """What this thread did before is seen by what comes after it. barriers: that it initialised them, by the cluster and
    by the async proxy; wgmma: its uses of the accumulators' registers, by wgmma; async: its writes of shared memory, by
    the async proxy, which reads it for TMA; arrivals: what it has seen to be there in global memory, by its TMA loads."""

    spelled_by: ClassVar[str] = "of"

    of: Order


def is_sync(s: Stmt, *of: Meeting) -> TypeGuard[Sync]:
    """Whether `s` is a Sync of one of these."""
    return isinstance(s, Sync) and s.of in of


def is_fence(s: Stmt, *of: Order) -> TypeGuard[Fence]:
    """Whether `s` is a Fence of one of these."""
    return isinstance(s, Fence) and s.of in of
