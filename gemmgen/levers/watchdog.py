"""A wait that takes seconds reports where it stands, and stops the kernel."""

from __future__ import annotations

from .lever import flag

WATCHDOG = flag(
    "watchdog",
    tag="watched",
    word="watched",
    reads="a wait of seconds reports where it stands and stops the kernel",
    added=False,
    late=True,
    sums=False,
)
