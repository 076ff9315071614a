"""What L2 and HBM give a launch."""

from __future__ import annotations

from .cost_fit import FIT
from .problem import Problem, Shape
from .target import Target

LINE = 128  # bytes, of L2


def l2_rate(busy: int, target: Target) -> float:
    return min(FIT.l2_port, FIT.l2_rate * target.l2_bytes_per_clock / busy)


def hbm_rate(busy: float, target: Target) -> float:
    """Bytes per second; a few SMs cannot keep enough bytes in flight to fill HBM."""
    return target.hbm_bytes_per_second * FIT.hbm_rate * min(1, busy / target.sms * FIT.hbm_share)


def seconds_of_adding(p: Problem, columns: int, shape: Shape) -> float:
    """Seconds that L2 takes to add to D, if it does, in boxes of so many columns."""
    row = columns * p.d.bytes
    narrow = 1 if row % LINE == 0 else FIT.add_narrow if row % (LINE // 2) else FIT.add_half
    return p.accumulate * shape[0] * shape[1] * p.d.bytes / FIT.add_rate * narrow
