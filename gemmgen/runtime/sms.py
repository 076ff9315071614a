"""How many SMs a launch may take: all of them, or as many as the process allows."""

from __future__ import annotations

from dataclasses import replace

from ..errors import ArgumentError
from ..target import Target
from . import driver

# What `limit` was last given. Read as `sms.most`: a name imported from here stays as it was.
most: int | None = None


def limit(count: int | None, target: Target) -> None:
    """Let launches from now on take `count` SMs at most, all if None. Raises ArgumentError.

    Whole clusters must fit, so that no launch is left without a CTA.
    """
    global most
    if count is not None and (not isinstance(count, int) or count < target.cluster_max):
        allowed = f"must be None or at least {target.cluster_max}, the SMs of the largest cluster"
        raise ArgumentError("count", count, allowed)
    most = count


def usable(device: int) -> int:
    """The SMs that a launch on CUDA device `device` takes at most."""
    there, allowed = driver.sm_count(device), most
    return there if allowed is None else min(there, allowed)


def limited(target: Target) -> Target:
    """`target` with the SMs that a launch takes."""
    allowed = most
    return target if allowed is None else replace(target, sms=min(target.sms, allowed))
