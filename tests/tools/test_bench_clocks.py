"""Readings of clock, power and temperature: parsed, fetched and summarised."""

from __future__ import annotations

import ctypes
import os
import time

import pytest

from gemmgen.bench import clocks
from gemmgen.bench.clocks import MARGIN, Clocks, Log, Reading, nvml_reader, parse, summarise, watch


def reading(at, mhz=None, watts=None, celsius=None, limit=None):
    return Reading(at=at, sm_mhz=mhz, watts=watts, celsius=celsius, limit=limit)


@pytest.mark.parametrize(
    ("line", "want"),
    [
        ("1980, 689.41, 63, 700.00\n", reading(7, 1980, 689.41, 63, 700)),
        ("1455,690.00,71,[N/A]", reading(7, 1455, 690, 71)),
        ("1980, [N/A], 63, 700.00", reading(7, 1980, None, 63, 700)),
        ("[N/A], [N/A], [N/A], 700.00", None),
        ('Field "clocks.sm" is not a valid field to query.', None),
        ("1980, 689.41, 63", None),
        ("", None),
    ],
)
def test_lines_of_nvidia_smi(line, want):
    assert parse(line, 7) == want


READINGS = [
    reading(1.0, 1000, 100, 40),
    reading(2.0, 1500, 700, 50),
    reading(3.0, 1400, 690, 60),
    reading(4.0, 1300, 680, 70),
    reading(9.0, 200, 70, 30),
]


def test_medians_over_a_window():
    want = Clocks(sm_mhz=1400, sm_mhz_least=1300, watts=690, celsius=60, readings=3)
    assert summarise(READINGS, [(2.0, 4.0)]) == want


def test_windows_are_joined():
    found = summarise(READINGS, [(0.9, 1.1), (8.9, 9.1)])
    assert (found.sm_mhz, found.sm_mhz_least, found.readings) == (600, 200, 2)


def test_a_short_window_takes_what_is_near():
    assert summarise(READINGS, [(2.0 + MARGIN / 2, 2.0 + MARGIN / 2)]).sm_mhz == 1500
    assert summarise(READINGS, [(2.0 - MARGIN / 2, 2.0 - MARGIN / 2)]).sm_mhz == 1500
    assert summarise(READINGS, [(2.5, 2.5)]) is None
    assert summarise([], [(0, 10)]) is None


def test_what_the_device_does_not_say():
    found = summarise([reading(1, 1000), reading(2)], [(0, 3)])
    assert found == Clocks(sm_mhz=1000, sm_mhz_least=1000, watts=None, celsius=None, readings=2)
    assert summarise([reading(1)], [(0, 3)]).sm_mhz_least is None
    limited = [reading(1, limit=700), reading(2), reading(2.5, limit=600)]
    assert summarise(limited, [(0, 3)]).limit == 650


class Nvml:
    """NVML's functions as ctypes has them."""

    def __init__(self, status=0):
        self.status = status
        self.asked = []

    def nvmlInit_v2(self):
        return 0

    def nvmlDeviceGetHandleByPciBusId_v2(self, bus, handle):
        self.bus = bus
        return self.status

    def answer(self, pointer, value):
        ctypes.cast(pointer, ctypes.POINTER(ctypes.c_uint))[0] = value
        return 0

    def nvmlDeviceGetPowerUsage(self, handle, out):
        return self.answer(out, 654321)

    def nvmlDeviceGetEnforcedPowerLimit(self, handle, out):
        return self.answer(out, 700000)

    def nvmlDeviceGetClockInfo(self, handle, kind, out):
        return self.answer(out, {0: 1, 1: 1755, 2: 2}[kind])

    def nvmlDeviceGetTemperature(self, handle, sensor, out):
        return 3


def test_nvml():
    library = Nvml()
    found = nvml_reader(library, "0000:3b:00.0")()
    assert library.bus == b"0000:3b:00.0"
    assert (found.sm_mhz, found.watts, found.celsius) == (1755, 654.321, None)
    assert found.limit == 700
    assert abs(found.at - time.monotonic()) < 60


def test_nvml_that_refuses():
    with pytest.raises(OSError, match="NVML error 6 for the device x"):
        nvml_reader(Nvml(6), "x")


@pytest.fixture
def no_nvml(monkeypatch):
    def missing(name):
        raise OSError(f"{name}: not here")

    monkeypatch.setattr(clocks.ctypes, "CDLL", missing)


def test_without_anything_the_log_says_so(no_nvml, monkeypatch):
    monkeypatch.setenv("PATH", "")
    with watch("0000:3b:00.0") as log:
        pass
    assert log.source.startswith("not available: ") and "nvidia-smi" in log.source
    assert "libnvidia-ml" in log.source and log.during([(0, 1e9)]) is None


def smi(tmp_path, monkeypatch, script):
    path = tmp_path / "nvidia-smi"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")


def test_nvidia_smi_in_the_background(no_nvml, tmp_path, monkeypatch):
    smi(
        tmp_path,
        monkeypatch,
        f'echo "$@" > {tmp_path}/args; echo 1234, 500.5, 55, 700; exec sleep 60',
    )
    with watch("0000:3b:00.0") as log:
        assert log.source == "nvidia-smi"
        now = time.monotonic()
        assert log.during([(now - 60, now)]).sm_mhz == 1234
    arguments = (tmp_path / "args").read_text().split()
    assert arguments[:2] == ["--id=0000:3b:00.0", f"--query-gpu={clocks.QUERY}"]
    assert "--loop-ms=100" in arguments and "--format=csv,noheader,nounits" in arguments


def test_nvidia_smi_that_fails(no_nvml, tmp_path, monkeypatch):
    smi(tmp_path, monkeypatch, "echo No devices were found; exit 6")
    with watch("0000:3b:00.0") as log:
        pass
    assert "nvidia-smi gave no reading" in log.source


def test_nvml_is_polled(monkeypatch):
    monkeypatch.setattr(clocks.ctypes, "CDLL", lambda name: Nvml())
    with watch("0000:3b:00.0") as log:
        while len(log.readings) < 2:
            time.sleep(0.01)
    assert log.source == "NVML"
    count = len(log.readings)
    time.sleep(3 * clocks.PERIOD)
    assert len(log.readings) == count


def test_a_log_summarises_its_readings():
    assert Log(source="NVML", readings=READINGS).during([(2.0, 4.0)]).watts == 690
