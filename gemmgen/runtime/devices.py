"""What configs are priced for: the GPU that is there."""

from __future__ import annotations

from functools import cache

from ..target import Target, named
from . import calibrated


@cache
def target_of(device: int, name: str) -> Target:
    """Of CUDA device `device`, which the driver calls `name`: as it was calibrated (`gemmgen tune --calibrate`), else as `assumed_of`.
    Raises LaunchError."""
    assumed = assumed_of(device, name)
    return calibrated.of_device(device, name, assumed) or assumed


def assumed_of(device: int, name: str) -> Target:
    """From the table, else from the device's attributes. Raises LaunchError."""
    known = named(name)
    return known or calibrated.from_attributes(name, dict(calibrated.attributes(device)))


def by_name(name: str) -> Target | None:
    """Of a GPU that need not be here: as one of that name was calibrated on this machine, else from the table, else None."""
    return calibrated.of_name(name) or named(name)


forget = target_of.cache_clear  # asks the driver, and what was calibrated, again
