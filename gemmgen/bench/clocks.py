"""SM clock, power, its limit and temperature while something is measured: from NVML, else nvidia-smi."""

from __future__ import annotations

import ctypes
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from statistics import median
from typing import Any

PERIOD = 0.05  # seconds between two readings of NVML
SMI_PERIOD = 0.1
MARGIN = 0.15  # seconds: a reading so close to a measurement counts as its own
FIRST_READING = 5.0  # seconds that nvidia-smi may take to start
QUERY = "clocks.sm,power.draw,temperature.gpu,power.limit"
CLOCK_SM, TEMPERATURE_GPU = 1, 0  # nvmlClockType_t, nvmlTemperatureSensors_t

Window = tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class Reading:
    """at: seconds of `time.monotonic`. limit: watts that it may draw. None where the device does not say."""

    at: float
    sm_mhz: float | None
    watts: float | None
    celsius: float | None
    limit: float | None = None


@dataclass(frozen=True, kw_only=True)
class Clocks:
    """Medians over the readings of a measurement; the least SM clock too."""

    sm_mhz: float | None
    sm_mhz_least: float | None
    watts: float | None
    celsius: float | None
    readings: int
    limit: float | None = None


UNKNOWN = Clocks(sm_mhz=None, sm_mhz_least=None, watts=None, celsius=None, readings=0)


@dataclass(kw_only=True)
class Log:
    """Readings, growing in the background. source: where from, or "not available: " and why."""

    source: str
    readings: list[Reading] = field(default_factory=list)

    def during(self, windows: Sequence[Window]) -> Clocks | None:
        """Over the windows of monotonic time, or None where there is no reading."""
        return summarise([*self.readings], windows)


def summarise(readings: Sequence[Reading], windows: Sequence[Window]) -> Clocks | None:
    """The readings in, or within MARGIN of, one of `windows`; None if there is none."""
    near = [r for r in readings if any(a - MARGIN <= r.at <= b + MARGIN for a, b in windows)]
    if not near:
        return None
    mhz = [r.sm_mhz for r in near if r.sm_mhz is not None]
    return Clocks(
        sm_mhz=median(mhz) if mhz else None,
        sm_mhz_least=min(mhz, default=None),
        watts=_median([r.watts for r in near]),
        celsius=_median([r.celsius for r in near]),
        readings=len(near),
        limit=_median([r.limit for r in near]),
    )


def _median(values: Sequence[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return median(known) if known else None


def parse(line: str, at: float) -> Reading | None:
    """A line of `nvidia-smi --query-gpu=QUERY --format=csv,noheader,nounits`, or None if it is none."""
    cells = [c.strip() for c in line.split(",")]
    if len(cells) != len(QUERY.split(",")):
        return None
    mhz, watts, celsius, limit = map(_number, cells)
    if mhz is None and watts is None and celsius is None:
        return None
    return Reading(at=at, sm_mhz=mhz, watts=watts, celsius=celsius, limit=limit)


def _number(cell: str) -> float | None:
    """None for `[N/A]` and its like."""
    try:
        return float(cell)
    except ValueError:
        return None


@contextmanager
def watch(bus_id: str) -> Iterator[Log]:
    """Read the device with PCI bus id `bus_id` until the block ends."""
    log = Log(source="NVML")
    stop = threading.Event()
    try:
        read = nvml_reader(ctypes.CDLL("libnvidia-ml.so.1"), bus_id)
    except (OSError, AttributeError) as why:
        with _smi(log, bus_id, str(why)):
            yield log
        return
    thread = threading.Thread(target=_poll, args=(log, read, stop), daemon=True)
    thread.start()
    try:
        yield log
    finally:
        stop.set()
        thread.join()


def _poll(log: Log, read: Callable[[], Reading], stop: threading.Event) -> None:
    while not stop.is_set():
        log.readings.append(read())
        stop.wait(PERIOD)


def nvml_reader(library: Any, bus_id: str) -> Callable[[], Reading]:
    """Reads the device through NVML, `library` as ctypes loads it. Raises OSError if NVML refuses."""
    handle = ctypes.c_void_p()
    status = library.nvmlInit_v2()
    status = status or library.nvmlDeviceGetHandleByPciBusId_v2(
        bus_id.encode(), ctypes.byref(handle)
    )
    if status:
        raise OSError(f"NVML error {status} for the device {bus_id}")

    def ask(function: str, *kind: int) -> float | None:
        value = ctypes.c_uint()
        status = getattr(library, function)(handle, *kind, ctypes.byref(value))
        return None if status else float(value.value)

    def watts(function: str) -> float | None:
        milliwatts = ask(function)
        return None if milliwatts is None else milliwatts / 1000

    def read() -> Reading:
        return Reading(
            at=time.monotonic(),
            sm_mhz=ask("nvmlDeviceGetClockInfo", CLOCK_SM),
            watts=watts("nvmlDeviceGetPowerUsage"),
            celsius=ask("nvmlDeviceGetTemperature", TEMPERATURE_GPU),
            limit=watts("nvmlDeviceGetEnforcedPowerLimit"),
        )

    return read


@contextmanager
def _smi(log: Log, bus_id: str, why: str) -> Iterator[None]:
    """Fill `log` from nvidia-smi in the background, or say in its source why not."""
    command = ["nvidia-smi", f"--id={bus_id}", f"--query-gpu={QUERY}"]
    command += ["--format=csv,noheader,nounits", f"--loop-ms={int(SMI_PERIOD * 1000)}"]
    try:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
    except OSError as e:
        log.source = f"not available: {why}; {e}"
        yield
        return
    log.source = "nvidia-smi"
    first = threading.Event()
    thread = threading.Thread(target=_follow, args=(log, process.stdout, first), daemon=True)
    thread.start()
    if not first.wait(FIRST_READING) or not log.readings:
        log.source = f"not available: {why}; nvidia-smi gave no reading"
    try:
        yield
    finally:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(FIRST_READING)
        thread.join(FIRST_READING)


def _follow(log: Log, lines: Any, first: threading.Event) -> None:
    for line in lines:
        reading = parse(line, time.monotonic())
        if reading is not None:
            log.readings.append(reading)
            first.set()
    first.set()  # it ended: nobody need wait
