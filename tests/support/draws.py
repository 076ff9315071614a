"""How many inputs a test draws: all with `--sample 1`, else a quarter."""

from __future__ import annotations

FEWER = 4
sampled = False  # conftest.py says so before a test's module is imported


def draws(number: int) -> int:
    return -(-number // FEWER) if sampled else number
