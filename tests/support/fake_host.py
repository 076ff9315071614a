"""A machine with fake GPUs: `python -m fake_host ARGV...` is `gemmgen ARGV...` there. FAKE_GPUS: how many it has; FAKE_NAME: what the
driver calls them; FAKE_HANDLER: a handler of fake_tuner's."""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from unittest import mock

from fake_tuner import built_here

from gemmgen.bench.clocks import UNKNOWN, Log
from gemmgen.bench.tuning import trial
from gemmgen.cli import main, tune_command, tune_steps
from gemmgen.errors import RuntimeUnavailable
from gemmgen.runtime import driver, nvrtc

WATTS, MHZ = 700.0, 1700.0  # of device 0; each next one has a MHz more


class Steady(Log):
    """Whatever the window, the same."""

    def during(self, windows):
        (window,) = windows
        assert window[0] < window[1]
        return replace(UNKNOWN, sm_mhz=MHZ + int(self.source), limit=WATTS)


@contextmanager
def watch(bus_id):
    yield Steady(source=bus_id)


def require_hopper(device):
    count = int(os.environ.get("FAKE_GPUS", "1"))
    if device >= count:
        raise RuntimeUnavailable(f"device={device}: this machine has {count} CUDA device(s)")
    return os.environ.get("FAKE_NAME", "NVIDIA H200")


def alike(stack):
    """What this process takes for a driver, a compiler and a GPU."""
    handler = os.environ.get("FAKE_HANDLER", "FakeGpu")
    for where, name, by in (
        (driver, "require_hopper", require_hopper),
        (driver, "pci_bus_id", str),
        (driver, "version", lambda: (13, 0)),
        (nvrtc, "version", lambda: (13, 0)),
        (tune_command, "watch", watch),
        (trial, "HANDLER", f"fake_tuner:{handler}"),
        (tune_steps, "compile_all", built_here),
    ):
        stack.enter_context(mock.patch.object(where, name, by))


if __name__ == "__main__":
    with ExitStack() as patches:
        alike(patches)
        raise SystemExit(main(sys.argv[1:]))
