"""What `gemmgen tune --calibrate` measured of a GPU, kept beside compiled kernels, and the target that it makes.

A file per name that the driver gives, an entry per set of attributes: of two GPUs of one name that have other clocks each
has its own. A file appears whole or not at all. What is damaged, or that no GPU can be, is passed over with a warning. `GEMMGEN_CALIBRATED=none`
asks for none.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from .. import environment
from ..errors import ArgumentError, CacheError
from ..target import ASSUMED, CALIBRATED, H200, Target, named
from . import cache, cache_files, driver
from .cache_trust import opened

SUFFIX = ".target"  # no entry of the cache: nothing evicts it
FORMAT = 1
ATTRIBUTES = (
    *("MULTIPROCESSOR_COUNT", "CLOCK_RATE", "MEMORY_CLOCK_RATE"),
    *("GLOBAL_MEMORY_BUS_WIDTH", "L2_CACHE_SIZE"),
)
# What an H200 reaches, to whose data sheet the model's constants are fitted: another GPU's figures are as far from these as its
# rates. Bytes/s: the kernel that only reads, over 8 GB. FLOP/s by bytes of an operand: the plain GEMMs of gemmgen/data/h200.jsonl, in bursts.
H200_READ = 4.56e12
SIDE = 8192  # of all three sides of those GEMMs
H200_FLOPS = {1: 2 * SIDE**3 / 776.8e-6, 2: 2 * SIDE**3 / 1548e-6}
BOOST_HZ = 1.98e9  # an H200's, which the driver reports; `Target.clock_hz` is what it sustains
PER_CLOCK = 2  # transfers of HBM
FASTEST_HZ = 2.1e9  # where the driver tells no clock
LEAST_READ, LEAST_TENSOR = (
    0.3,
    0.05,
)  # of the physical bounds; an H20 has a quarter of the tensor rate
OVER = 1.02  # of the bounds: clocks are rounded
LAUNCH = (0.2e-6, 50e-6)  # seconds

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """One GPU's. attributes: of ATTRIBUTES, as the driver has them. read: bytes/s that a kernel reads which does nothing else.
    launch: seconds that it takes besides. flops: per second, of a large GEMM, by bytes of an operand."""

    device: str
    attributes: tuple[tuple[str, int], ...]
    read: float
    launch: float
    flops: tuple[tuple[int, float], ...]

    def target(self, assumed: Target) -> Target:
        """`assumed` with these figures."""
        sms = dict(self.attributes)["MULTIPROCESSOR_COUNT"]  # a table may be wrong
        clocks = sms * assumed.clock_hz
        at_h200 = H200.sms * H200.clock_hz
        rate = {
            size: H200.flops_per_clock(size) * flops / H200_FLOPS[size] * at_h200 / clocks
            for size, flops in self.flops
        }
        return replace(
            assumed,
            sms=sms,
            hbm_bytes_per_second=H200.hbm_bytes_per_second * self.read / H200_READ,
            fp8_flops_per_clock=rate[1],
            wide_flops_per_clock=rate[2],
            launch_seconds=self.launch,
            figures=CALIBRATED,
        )

    def to_json(self) -> dict[str, Any]:
        """All but the device."""
        return {
            "attributes": dict(self.attributes),
            "read": self.read,
            "launch": self.launch,
            "flops": {str(size): flops for size, flops in self.flops},
        }


def attributes(device: int) -> tuple[tuple[str, int], ...]:
    """Of CUDA device `device`. Raises LaunchError."""
    return tuple((name, driver.attribute(device, name)) for name in ATTRIBUTES)


def check(c: Calibration, assumed: Target) -> None:
    """Raise ArgumentError naming the figure that no such GPU has."""
    told = dict(c.attributes)
    if told["MULTIPROCESSOR_COUNT"] < 1:
        raise ArgumentError(
            "MULTIPROCESSOR_COUNT", told["MULTIPROCESSOR_COUNT"], "must be positive"
        )
    bandwidth = _bandwidth(told) or assumed.hbm_bytes_per_second
    _within("read", c.read, LEAST_READ * bandwidth, OVER * bandwidth, "bytes/s that its memory has")
    for size, flops in c.flops:
        hz = 1e3 * told["CLOCK_RATE"] or FASTEST_HZ
        peak = told["MULTIPROCESSOR_COUNT"] * H200.flops_per_clock(size) * hz  # no Hopper has more
        what = "FLOP/s that its tensor cores have"
        _within(f"flops of {8 * size} bits", flops, LEAST_TENSOR * peak, OVER * peak, what)
    _within("launch", c.launch, *LAUNCH, "seconds")


def _bandwidth(told: Mapping[str, int]) -> float:
    """Bytes a second that the memory has; 0 where the driver does not tell."""
    hz = 1e3 * told["MEMORY_CLOCK_RATE"]
    return hz * PER_CLOCK * told["GLOBAL_MEMORY_BUS_WIDTH"] / 8


def _within(name: str, value: float, least: float, most: float, what: str) -> None:
    if not least <= value <= most:
        raise ArgumentError(name, value, f"must be from {least:.4g} to {most:.4g}, {what}")


# ---- on the disk ----------------------------------------------------------------------------


def of_device(device: int, name: str, assumed: Target) -> Target | None:
    """As CUDA device `device`, which the driver calls `name`, was calibrated; None if it was not. Raises ArgumentError as
    `cache.places`, LaunchError."""
    found = kept(name)
    here = attributes(device) if found else ()
    return next((c.target(assumed) for c in found if c.attributes == here), None)


def of_name(name: str) -> Target | None:
    """As the GPU of that name was that was calibrated last."""
    for c in kept(name):
        return c.target(named(name) or from_attributes(name, dict(c.attributes)))
    return None


def from_attributes(name: str, told: Mapping[str, int]) -> Target:
    """As an H200, but for SMs, clock and memory: of ATTRIBUTES. What the driver does not tell, 0, is an H200's; links to other GPUs,
    of which there is no attribute, are not known."""
    hz = 1e3 * told["CLOCK_RATE"]
    return replace(
        H200,
        name=name,
        device_name=name,
        sms=told["MULTIPROCESSOR_COUNT"],
        clock_hz=hz / BOOST_HZ * H200.clock_hz or H200.clock_hz,
        hbm_bytes_per_second=_bandwidth(told) or H200.hbm_bytes_per_second,
        link_bytes_per_second=None,
        figures=ASSUMED,
    )


def kept(name: str) -> list[Calibration]:
    """Of GPUs of that name, the last first; damaged ones are left out, with a warning."""
    if os.environ.get(environment.CALIBRATED, "") == cache.NONE:
        return []
    found: list[Calibration] = []
    for folder in cache.places().all:
        try:
            with opened(folder) as handle:
                found += _in_folder(handle, folder, name)
        except (CacheError, OSError) as e:  # what is wrong with the folder, the cache says
            log.debug("%s: not asked for calibrations: %s", folder, e)
    return found


def _in_folder(handle: int, folder: Path, name: str) -> list[Calibration]:
    try:
        return _decoded(cache_files.look(handle, _key(name), SUFFIX), name)
    except FileNotFoundError:
        return []
    except (CacheError, OSError) as e:
        log.warning("%s: the calibration of %s there is passed over: %s", folder, name, e)
        return []


def keep(c: Calibration, assumed: Target) -> Path:
    """Write it where kernels are kept, in place of the one of that name with those attributes, whole or not at all.

    Raises ArgumentError for figures that no such GPU has, or if nothing is kept (GEMMGEN_CACHE=none); CacheError,
    OSError.
    """
    check(c, assumed)
    own = own_folder()
    with opened(own, create=True) as handle:
        others = [x for x in _in_folder(handle, own, c.device) if x.attributes != c.attributes]
        cache_files.publish(handle, _key(c.device), _encoded([c, *others]), SUFFIX)
    return own / (_key(c.device) + SUFFIX)


def own_folder() -> Path:
    """Raises ArgumentError where nothing is kept."""
    own = cache.places().own
    if own is None:
        raise ArgumentError(cache.VARIABLE, cache.NONE, "must name a directory to keep it in")
    return own


def _key(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()


def _encoded(of: list[Calibration]) -> bytes:
    entries = [c.to_json() for c in of]
    data = {"gemmgen": FORMAT, "device": of[0].device, "calibrations": entries}
    return (json.dumps(data, indent=2, allow_nan=False) + "\n").encode()


def _decoded(data: bytes, name: str) -> list[Calibration]:
    """Raises CacheError for what is no file of this module, or has a figure that no GPU has."""
    try:
        read = json.loads(data)
        if (read["gemmgen"], read["device"]) != (FORMAT, name):
            raise ValueError("is another format's, or another GPU's")
        found = [_calibration(name, entry) for entry in read["calibrations"]]
        for c in found:
            check(c, named(name) or H200)
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError, OverflowError) as e:
        raise CacheError(f"no calibration: {e}") from e
    return found


def _calibration(name: str, entry: Mapping[str, Any]) -> Calibration:
    return Calibration(
        device=name,
        attributes=tuple((x, int(entry["attributes"][x])) for x in ATTRIBUTES),
        read=float(entry["read"]),
        launch=float(entry["launch"]),
        flops=tuple((size, float(entry["flops"][str(size)])) for size in H200_FLOPS),
    )
