"""Under which conditions a row was measured: of which versions, and what the GPU did meanwhile."""

from __future__ import annotations

from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version

from ...heuristics.database import Conditions
from ...runtime import driver
from ..clocks import Log, Window


def versions(gemmgen: str) -> Conditions:
    """Of gemmgen's version, which is given, the driver's and torch's. Raises RuntimeUnavailable, LaunchError."""
    return Conditions(
        gemmgen=gemmgen, driver=".".join(map(str, driver.version())), torch=_installed("torch")
    )


def during(of: Conditions, log: Log, window: Window | None) -> Conditions:
    """`of`, with what was read of the GPU in the window; without where it could not be read."""
    clocks = log.during([window]) if window else None
    if clocks is None:
        return of
    return replace(of, power_limit=clocks.limit, sm_mhz=clocks.sm_mhz)


def _installed(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
