"""A clock for progress: what is told does not depend on the machine."""

from __future__ import annotations

from itertools import count
from types import SimpleNamespace

from gemmgen.cli import progress
from gemmgen.environment import PROGRESS


def ticking(monkeypatch, step=10.0):
    """Progress is told though nobody looks at a terminal, and each look at its clock is `step` seconds later."""
    ticks = count(step=step)
    monkeypatch.setenv(PROGRESS, "always")
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: next(ticks)))
