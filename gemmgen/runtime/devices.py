"""What configs are priced for: the GPU that is there."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from ..target import H200, Target, named
from . import driver

BOOST_HZ = 1.98e9  # an H200's, which the driver reports; `Target.clock_hz` is what it sustains
PER_CLOCK = 2  # transfers of HBM


def target_of(device: int, name: str) -> Target:
    """Of CUDA device `device`, which the driver calls `name`: from the table, else from the device's attributes."""
    return named(name) or from_attributes(device, name)


@cache
def from_attributes(device: int, name: str) -> Target:
    """As an H200, but for SMs, clock and memory. What the driver does not tell is an H200's. Raises LaunchError."""
    hz = 1e3 * driver.attribute(device, "CLOCK_RATE")
    bits = driver.attribute(device, "GLOBAL_MEMORY_BUS_WIDTH")
    bandwidth = 1e3 * driver.attribute(device, "MEMORY_CLOCK_RATE") * PER_CLOCK * bits / 8
    return replace(
        H200,
        name=name,
        device_name=name,
        sms=driver.sm_count(device),
        clock_hz=hz / BOOST_HZ * H200.clock_hz or H200.clock_hz,
        hbm_bytes_per_second=bandwidth or H200.hbm_bytes_per_second,
    )
